"""What the shared models say about one silo's samples: evidence, proportions, responsibilities, and sums for others.

    a_j(x) = evidence_j(x) + log α_j,    evidence = −(ℓ − o) / T  [+ router's term]  [+ label's term]    (affinity.py)

Offset o, temperature T and the silos' mean proportions π come from securely summed statistics of the round before.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedgmi_fedml.affinity import (
    Evidence,
    affinities,
    assign,
    estimate_alpha,
    label_term,
    log_proportions,
    router_term,
    score_matrix,
)
from fedgmi_fedml.initialisation import PooledLosses, pooled_losses, survey_statistics
from fedgmi_fedml.local_training import expert_predictions
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.rounds.update import Memory
from fedgmi_fedml.rounds.workbench import Workbench
from fedgmi_fedml.temperature import fit_temperature, temperature_statistics


class Gating:
    """One silo's scoring and gating.

    Args:
        silo: roster id (enters the seed of importance samples only).
        bench: modules shared with other silos of the process.
    """

    def __init__(self, silo: int, bench: Workbench) -> None:
        self.silo, self.bench, self.phases = silo, bench, bench.phases
        self.components = bench.phases.components
        self.settings = bench.phases.config.fedgmi_args.affinity

    # ---- one silo's samples --------------------------------------------------------------------------------------

    def score(self, x: torch.Tensor, state: MixtureState) -> torch.Tensor:
        """ℓ, float32 (B, M) nats."""
        args = self.settings
        generator = self.bench.generator(self.silo, "score") if args.score == "iwae" else None
        return score_matrix(self.bench.bank(state), x, args.score, generator=generator, samples=args.iwae_samples)

    def evidence(
        self, x: torch.Tensor, state: MixtureState, memory: Memory, late: bool, labels: torch.Tensor | None = None
    ) -> Evidence:
        """Evidence of samples ``x``.

        Args:
            late: whether router and labels have a say yet. labels: of training samples, for their partition only.
        """
        terms: list[torch.Tensor] = []
        if late and state.router:
            voices = expert_predictions(self.bench.router, state.router[0], x)
            terms.append(router_term(voices, memory.shares, self.settings.router_weight))
        if late and self.settings.labels and labels is not None and state.experts:
            said = torch.stack([expert_predictions(self.bench.expert, w, x) for w in state.experts])
            terms.append(label_term(said, labels))
        return Evidence(self.score(x, state), torch.stack(terms).sum(0) if terms else None)

    def affinities(self, evidence: Evidence, memory: Memory) -> torch.Tensor:
        """a_j(x), float64 (B, M) nats."""
        offset = memory.offset if self.settings.offset else None
        log_alpha = log_proportions(memory.alpha)
        return affinities(evidence.losses, log_alpha, self.temperature(memory), offset, evidence.extra)

    def partition(self, evidence: Evidence, memory: Memory) -> Memory:
        """α re-estimated by a few EM passes and every sample's component, in a new memory."""
        for _ in range(self.settings.em_passes):  # with the losses at hand a pass costs nothing
            alpha = estimate_alpha(self.affinities(evidence, memory), self.settings.proportions)
            memory = replace(memory, alpha=alpha)
        return replace(memory, assignment=assign(self.affinities(evidence, memory)))

    def temperature(self, memory: Memory) -> float:
        """T in force: set by hand, or fitted from the last totals (1 before the first)."""
        if self.settings.temperature != "auto":
            return float(self.settings.temperature)
        return 1.0 if memory.temperature is None else float(memory.temperature[0])

    def _fitted_under(self, memory: Memory) -> torch.Tensor:
        """Mean proportions of the silos at the last fit of T; uniform before the first."""
        if memory.temperature is None:
            return torch.full((self.components,), 1.0 / self.components, dtype=torch.float64)
        return memory.temperature[2:]

    # ---- sums over silos -----------------------------------------------------------------------------------------

    def statistics(self, evidence: Evidence | None, memory: Memory) -> tuple[float, ...]:
        """This silo's part of ``Phases.round_statistics``; without data (or a new partition) nothing but zeros."""
        losses = None if evidence is None else evidence.losses
        found = survey_statistics(None if losses is None else losses.double().mean(0), self.components)
        if self.phases.routes:
            found += (0.0,) * self.components if losses is None else tuple(memory.alpha.tolist())
        if not self.phases.calibrates:
            return found
        offset = memory.offset if self.settings.offset else None
        extra = None if evidence is None else evidence.extra
        present, shares = self.temperature(memory), self._fitted_under(memory)
        return found + temperature_statistics(losses, shares, present, offset, extra)

    def learn(self, sums: tuple[float, ...], memory: Memory) -> tuple[Memory, PooledLosses]:
        """Take offset, proportions and temperature from the sums of a survey or a round."""
        common, m = self.components + 2, self.components
        pooled, rest = pooled_losses(sums[:common], m), sums[common:]
        if pooled.silos:
            memory = replace(memory, offset=pooled.mean)
        if rest and self.phases.routes:
            if pooled.silos:
                memory = replace(memory, shares=torch.tensor(rest[:m], dtype=torch.float64) / pooled.silos)
            rest = rest[m:]
        if rest:
            fitted = fit_temperature(rest, pooled.silos, self.temperature(memory), self._fitted_under(memory))
            head = torch.tensor([fitted.temperature, fitted.identified], dtype=torch.float64)
            memory = replace(memory, temperature=torch.cat([head, fitted.shares]))
        return memory, pooled
