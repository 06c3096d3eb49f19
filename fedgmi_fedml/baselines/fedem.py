"""FedEM (Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions",
NeurIPS 2021), Algorithm 1.

    E   q_i^m(x, y) ∝ π_i^m · exp(−ℓ(w_m; x, y))
    M   π_i^m = mean of q_i^m over D_i
        w_i^m = E local epochs from w_m on all of D_i, each sample's loss times q_i^m
        w_m   ← Σ_i (n_i / n) w_i^m
    prediction   Σ_m π_i^m · p(y|x; w_m)

Its sums are linear with public form, so secure sums take nothing away but the exact n_i: every silo holds every
component. Every silo trains M experts on all its data, M times the local steps of the other methods. The paper trains
with SGD; Adam forgets how small a silo's q are, so grids should also hold it against ``client_optimizer: sgd``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from fedgmi_fedml.baselines.expert_work import ExpertWork
from fedgmi_fedml.local_training import Objective, train_expert
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import FloatVector, Layout
from fedgmi_fedml.rounds.update import Memory
from fedgmi_fedml.rounds.wire import Plan


class FedEMWork(ExpertWork):
    """One silo's local work."""

    _responsibilities: torch.Tensor  # q of the last E step, float64 (n, M)

    def estimate(self, losses: torch.Tensor, memory: Memory) -> Memory:
        """One E step and π; a silo without samples keeps its π."""
        self._responsibilities = q = torch.softmax(memory.alpha.log() - losses, 1)
        alpha = q.mean(0) if len(q) else memory.alpha
        return replace(memory, alpha=alpha, assignment=q.argmax(1))

    def train(
        self, plan: Plan, state: MixtureState, layout: Layout, out: FloatVector
    ) -> tuple[tuple[float, ...], dict[str, float]]:
        """All experts on all data, samples weighted by q."""
        count, losses = len(self.data.x_train), {}
        for m in range(self.components if self.enough else 0):
            trained, stats = train_expert(
                self.bench.expert, state.experts[m], self.data.x_train, self.data.y_train, self.bench.expert_settings,
                self.bench.generator(self.silo, plan.phase, plan.round, "expert", m),
                what=f"{plan.phase} {plan.round}, expert {m}", objective=weighted(self._responsibilities[:, m]),
            )  # fmt: skip
            layout.write_delta(out, "expert", m, trained, state.experts[m])
            losses[f"expert_loss.{m}"] = stats.loss
        return (float(count),) * self.components, losses


def weighted(weights: torch.Tensor) -> Objective:
    """Mean over a batch of each sample's cross-entropy times its weight; ``weights`` (n,)."""

    def objective(logits: torch.Tensor, target: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        chosen = weights.to(logits.device, logits.dtype)[rows]
        return (functional.cross_entropy(logits, target, reduction="none") * chosen).mean()

    return objective
