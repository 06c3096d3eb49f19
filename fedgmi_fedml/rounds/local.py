"""One silo's local work in each phase: a plan and the shared models in, what goes into the session out.

    moments      sums of a table's columns, to standardise it with
candidates   train the cohort's VAE on (half of) the local data                      algorithm.md, A
warmup       survey: mean loss under every VAE; then train the VAEs that this silo
             leans to, on all its data, with weight R_i^j n_i                        algorithm.md, C
rounds       score, partition by MAP, update α, train VAE j and expert j on part j   algorithm.md, D
             (and, where it is on, the router on everything)
evaluate     personalised accuracy on the held-out parts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from fedgmi_fedml.affinity import responsibilities
from fedgmi_fedml.data import SiloData, TableMoments, apply_moments, table_statistics
from fedgmi_fedml.errors import DataError
from fedgmi_fedml.initialisation import pair_statistics, survey_statistics, warmup_responsibilities, whitening
from fedgmi_fedml.local_training import TrainSettings, expert_predictions, train_expert, train_vae
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import FloatVector, Layout
from fedgmi_fedml.personalise import mix
from fedgmi_fedml.rounds.gating import Gating
from fedgmi_fedml.rounds.phases import CANDIDATES, EVALUATE, MOMENTS, ROUNDS, WARMUP
from fedgmi_fedml.rounds.update import LocalUpdate, Memory
from fedgmi_fedml.rounds.wire import Plan
from fedgmi_fedml.rounds.workbench import Workbench
from secure.types import Totals

Partition = Literal["map", "single", "truth", "own"]
"""How samples find their component: MAP under the VAEs; all to component 0 (FedAvg); the true one (the oracle); by the
rule of a baseline, which then has a work of its own."""


class FedGMIWork:
    """The method's local work on one silo's data.

    Args:
        silo: roster id (enters the seeds of training only).
        data: this silo's samples.
        bench: modules shared with other silos of the process.
        partition: MAP for FedGMI; baselines and the oracle fix it.
        on_finish: told the silo's own report (local figures; never sent to the server).
        on_memory: told (digest, memory) after each step, to be saved.
    """

    def __init__(
        self, silo: int, data: SiloData, bench: Workbench, partition: Partition = "map",
        on_finish: Callable[[FedGMIWork, MixtureState, MixtureState], None] = lambda work, final, best: None,
        on_memory: Callable[[bytes, Memory], None] = lambda digest, memory: None,
    ) -> None:  # fmt: skip
        self.silo, self.data, self.bench, self.partition = silo, data, bench, partition
        self.phases = bench.phases
        self.components = self.phases.components
        self.gating = Gating(silo, bench)
        self._on_finish, self._on_memory = on_finish, on_memory
        self.memory = Memory(torch.full((self.components,), 1.0 / self.components, dtype=torch.float64))
        self._losses: torch.Tensor | None = None  # this silo's L_i of the running survey
        if not data.needs_moments:
            self._check_range()

    # ---- the driver's side ---------------------------------------------------------------------------------------

    def work(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """See ``LocalWork``."""
        if plan.phase != MOMENTS and self.data.needs_moments:
            raise DataError(
                "this silo joined after the table's moments had been summed, so it cannot standardise its rows: it can "
                "take part in the next run"
            )
        step: Callable[[Plan, MixtureState], LocalUpdate] = {
            MOMENTS: self._moments,
            CANDIDATES: self._candidate,
            WARMUP: self._survey if plan.survey else self._warm_up,
            ROUNDS: self._round,
            EVALUATE: self._evaluate,
        }[plan.phase]
        return step(plan, state)

    def on_totals(self, plan: Plan, totals: Totals) -> None:
        """Take from the sums what the next step needs: the warm-up's leaning, the components' offsets."""
        if plan.phase == MOMENTS and self.phases.schema is not None:
            found = TableMoments.from_totals(self.phases.schema, totals.statistics)
            self.remember(replace(self.memory, moments=torch.tensor([found.mean, found.spread], dtype=torch.float64)))
        elif plan.survey:
            self._lean(plan, totals.statistics)
        elif totals.statistics:
            self.memory, _ = self.gating.learn(totals.statistics, self.memory)

    def _lean(self, plan: Plan, sums: tuple[float, ...]) -> None:
        """R_i from a survey's sums: which VAEs this silo trains in the warm-up round that follows, and its weight."""
        common = self.components + 2
        self.memory, pooled = self.gating.learn(sums[:common], self.memory)
        if self._losses is not None:
            white = whitening(sums[common:], pooled) if self.phases.whitens else None
            leaning = warmup_responsibilities(self._losses, pooled.mean, pooled.sigma, plan.beta, white)
            self.memory = replace(self.memory, leaning=leaning)

    def remember(self, memory: Memory) -> None:
        """Take up a memory, from a checkpoint say; a table is standardised with the moments in it."""
        self.memory = memory
        if memory.moments is not None and self.phases.schema is not None:
            mean, spread = (tuple(row.tolist()) for row in memory.moments)
            self.data = apply_moments(self.data, TableMoments(self.phases.schema, mean, spread))
            self._check_range()

    def _check_range(self) -> None:
        if self.bench.vae is not None and len(self.data.x_train):
            self.bench.vae.check_range(self.data.x_train)

    def on_release(self, plan: Plan | None, digest: bytes) -> None:
        """See ``LocalWork``."""
        self._on_memory(digest, self.memory)

    def finish(self, final: MixtureState, best: MixtureState) -> None:
        """See ``LocalWork``."""
        self._on_finish(self, final, best)

    # ---- the phases ----------------------------------------------------------------------------------------------

    def _moments(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """Sums, squares and counts of a table's columns: what standardises it the same way everywhere."""
        return LocalUpdate((float(len(self.data.x_train)),), None, table_statistics(self.data))

    def _candidate(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """Train the cohort's VAE, on another half of the data for every draw where there are several."""
        start = self.phases.config.fedgmi_args.initialisation
        layout = self.phases.layout(CANDIDATES)
        rows = self._half(self.phases.draw_of(plan))
        settings = replace(self.bench.vae_settings, epochs=start.candidate_epochs)
        vector = _empty(layout)
        loss = self._train_vae(plan, state, 0, rows, settings, layout, vector)
        return LocalUpdate((float(len(rows)),), vector, (), {"vae_loss.0": loss})

    def _half(self, draw: int) -> torch.Tensor:
        """Rows for a draw: draws 2k and 2k + 1 split the silo's data into two halves, other halves for every k."""
        count = len(self.data.x_train)
        order = torch.randperm(count, generator=self.bench.generator(self.silo, "halves", draw // 2))
        return order[: (count + 1) // 2] if draw % 2 == 0 else order[(count + 1) // 2 :]

    def _survey(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """L_i^j: this silo's mean loss under each VAE."""
        count = len(self.data.x_train)
        self._losses = self.gating.score(self.data.x_train, state).double().mean(0) if count else None
        statistics = survey_statistics(self._losses, self.components)
        if self.phases.whitens:
            statistics += pair_statistics(self._losses, self.components)
        return LocalUpdate((float(count),) * self.components, None, statistics)

    def _warm_up(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """Train every VAE that this silo leans to on the whole local data, contributed with weight R_i^j n_i."""
        start = self.phases.config.fedgmi_args.initialisation
        layout, count = self.phases.layout(WARMUP), len(self.data.x_train)
        settings = replace(self.bench.vae_settings, epochs=start.warmup_epochs)
        vector, samples, metrics = _empty(layout), [0.0] * self.components, _zero_losses(layout)
        for j in range(self.components):
            leaning = 0.0 if self.memory.leaning is None else float(self.memory.leaning[j])
            if count and leaning > start.weight_floor:
                metrics[f"vae_loss.{j}"] = self._train_vae(plan, state, j, None, settings, layout, vector)
                samples[j] = leaning * count
        return LocalUpdate(tuple(samples), vector, (), metrics)

    def _round(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """Algorithm 1: partition, then VAE j and expert j on D_i^j alone."""
        layout = self.phases.layout(ROUNDS)
        late = self.phases.is_late(plan.round)
        tested = plan.round % self.phases.config.validation_args.frequency_of_the_test == 0
        metrics = _zero_losses(layout) | self.accuracy_metrics(state, *(["validation"] if tested else []), late=late)
        statistics: tuple[float, ...] = ()
        every = self.phases.config.train_args.partition_every
        if plan.round % every == 0 or self.memory.assignment is None:
            statistics = self.repartition(state, late)
        elif self.partition == "map":
            statistics = self.gating.statistics(None, self.memory)
        vector = _empty(layout)
        samples: list[float] = []
        for j in range(self.components):
            rows = torch.nonzero(self._assignment == j).flatten()
            samples.append(float(len(rows)))
            if len(rows) < self.phases.config.fedgmi_args.secure.rules.min_samples:
                continue  # its size class is zero: the update would be multiplied by nothing
            if "vae" in layout.parts:
                metrics[f"vae_loss.{j}"] = self._train_vae(
                    plan, state, j, rows, self.bench.vae_settings, layout, vector
                )
            metrics[f"expert_loss.{j}"] = self._train_expert(plan, state, j, rows, layout, vector)
        if self.phases.routes:
            samples.append(float(len(self._assignment)))
            metrics[f"router_loss.{self.components}"] = self._train_router(plan, state, layout, vector)
        return LocalUpdate(tuple(samples), vector, statistics, metrics)

    def _evaluate(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """Re-estimate α under these models, then measure the held-out parts."""
        statistics = self.repartition(state)
        metrics = self.accuracy_metrics(state, "validation", "test")
        return LocalUpdate((float(len(self.data.x_train)),), None, statistics, metrics)

    # ---- parts of a phase ----------------------------------------------------------------------------------------

    @property
    def temperature(self) -> float:
        """T in force."""
        return self.gating.temperature(self.memory)

    @property
    def _late_at_end(self) -> bool:
        return self.phases.is_late(self.phases.config.train_args.comm_round)

    @property
    def _assignment(self) -> torch.Tensor:
        if self.memory.assignment is None:
            raise ValueError("the samples have not been partitioned")
        return self.memory.assignment

    def repartition(self, state: MixtureState, late: bool | None = None) -> tuple[float, ...]:
        """Put every training sample into its component and re-estimate α. Returns the statistics for the totals.

        Args:
            late: whether labels and router have a say, where they are on; ``None``: as at the run's end.
        """
        count = len(self.data.x_train)
        if self.partition != "map":
            truth = self.data.true_component_train if self.partition == "truth" else None
            assignment = torch.zeros(count, dtype=torch.int64) if truth is None else truth.long()
            alpha = torch.bincount(assignment, minlength=self.components).double() / max(count, 1)
            self.memory = replace(self.memory, assignment=assignment, alpha=alpha)
            return ()
        if count == 0:
            self.memory = replace(self.memory, assignment=torch.zeros(0, dtype=torch.int64))
            return self.gating.statistics(None, self.memory)
        late = self._late_at_end if late is None else late
        evidence = self.gating.evidence(self.data.x_train, state, self.memory, late, self.data.y_train)
        self.memory = self.gating.partition(evidence, self.memory)
        return self.gating.statistics(evidence, self.memory)

    def gate(self, x: torch.Tensor, state: MixtureState, late: bool | None = None) -> torch.Tensor:
        """Responsibilities from x alone, float64 (B, M); labels never enter. ``late`` as in ``repartition``."""
        if self.partition != "map":
            return torch.ones(len(x), 1, dtype=torch.float64)
        evidence = self.gating.evidence(x, state, self.memory, self._late_at_end if late is None else late)
        return responsibilities(self.gating.affinities(evidence, self.memory))

    def predict(self, x: torch.Tensor, state: MixtureState, gate: torch.Tensor | None = None) -> torch.Tensor:
        """p_i(y|x) = Σ_j r_i^j(x) p(y|x; w_j), float64 (B, classes)."""
        gate = self.gate(x, state) if gate is None else gate
        return mix(gate, torch.stack([expert_predictions(self.bench.expert, w, x) for w in state.experts]))

    def accuracy_metrics(self, state: MixtureState, *parts: str, late: bool | None = None) -> dict[str, float]:
        """Accuracy of the personalised prediction on ``parts`` (validation, test), and the gate's mean confidence.

        Each comes with a 1 for "could be measured", so that their sums give the mean over silos; zeros elsewhere.
        """
        measured = [f"{part}_accuracy" for part in ("validation", "test")] + ["confidence"]
        metrics = dict.fromkeys([*measured, "validation_silos", "test_silos", "confidence_silos"], 0.0)
        held = {"validation": (self.data.x_val, self.data.y_val), "test": (self.data.x_test, self.data.y_test)}
        for part in parts if self.partition != "truth" else ():
            x, y = held[part]
            if not len(x):
                continue
            gate = self.gate(x, state, late)
            right = self.predict(x, state, gate).argmax(1) == y
            metrics |= {f"{part}_accuracy": float(right.double().mean()), f"{part}_silos": 1.0}
            if part == "validation":
                metrics |= {"confidence": float(gate.max(1).values.mean()), "confidence_silos": 1.0}
        return metrics

    def _train_vae(
        self, plan: Plan, state: MixtureState, j: int, rows: torch.Tensor | None, settings: TrainSettings,
        layout: Layout, out: FloatVector,
    ) -> float:  # fmt: skip
        if self.bench.vae is None:
            raise ValueError("this method has no VAEs")
        trained, loss = train_vae(
            self.bench.vae, state.vaes[j], self.data.x_train, settings,
            self.bench.generator(self.silo, *_purpose(plan), "vae", j), index=rows,
            what=f"{plan.phase} {plan.round}, VAE {j}",
        )  # fmt: skip
        layout.write_delta(out, "vae", j, trained, state.vaes[j])
        return loss

    def _train_expert(
        self, plan: Plan, state: MixtureState, j: int, rows: torch.Tensor, layout: Layout, out: FloatVector
    ) -> float:
        trained, stats = train_expert(
            self.bench.expert, state.experts[j], self.data.x_train, self.data.y_train, self.bench.expert_settings,
            self.bench.generator(self.silo, *_purpose(plan), "expert", j), index=rows,
            what=f"{plan.phase} {plan.round}, expert {j}",
        )  # fmt: skip
        layout.write_delta(out, "expert", j, trained, state.experts[j])
        return stats.loss

    def _train_router(self, plan: Plan, state: MixtureState, layout: Layout, out: FloatVector) -> float:
        """Train the router on all local data, towards the components that the samples are in at present."""
        if len(self._assignment) < self.phases.config.fedgmi_args.secure.rules.min_samples:
            return 0.0
        trained, stats = train_expert(
            self.bench.router, state.router[0], self.data.x_train, self._assignment, self.bench.router_settings,
            self.bench.generator(self.silo, *_purpose(plan), "router"), what=f"{plan.phase} {plan.round}, router",
        )  # fmt: skip
        layout.write_delta(out, "router", 0, trained, state.router[0])
        return stats.loss


def _purpose(plan: Plan) -> tuple[object, ...]:
    return (plan.phase, plan.round)


def _empty(layout: Layout) -> FloatVector:
    return np.zeros(layout.length, dtype=np.float32)


def _zero_losses(layout: Layout) -> dict[str, float]:
    return {f"{run.part}_loss.{run.component}": 0.0 for run in layout.runs}
