"""What IFCA, FedSoft and FedEM share: M experts and no density models; a sample's fit is an expert's cross-entropy.

Their server does what FedGMI's does: w_j ← w_j + Σ_i (n_i^j / N^j)·(w_i^j − w_j), as one secure sum. What secure sums
change for all three: weights are size classes, counts below ``min_samples`` weigh nothing, no silo weighs more than
``w_max``, and a component with fewer holders than the gate keeps its models in that round. Mixture proportions and
importance weights stay in the silo, so the server cannot draw silos by them: cohorts come from the beacon.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch.nn import functional

from fedgmi_fedml.local_training import expert_predictions
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import FloatVector, Layout
from fedgmi_fedml.rounds.local import FedGMIWork
from fedgmi_fedml.rounds.phases import ROUNDS
from fedgmi_fedml.rounds.update import LocalUpdate, Memory
from fedgmi_fedml.rounds.wire import Plan

_LEAST = 1e-30  # a probability that a float32 softmax rounded to zero


class ExpertWork(FedGMIWork):
    """One silo's local work of a method without density models. A method says ``estimate`` and ``train``."""

    @abstractmethod
    def estimate(self, losses: torch.Tensor, memory: Memory) -> Memory:
        """The silo's proportions and its samples' components, from ``losses``, float64 (n, M) nats."""

    @abstractmethod
    def train(
        self, plan: Plan, state: MixtureState, layout: Layout, out: FloatVector
    ) -> tuple[tuple[float, ...], dict[str, float]]:
        """Train from ``state``, write every delta into ``out``.

        Returns:
            Weights n_i^j (M,), and the training losses by metric name.
        """

    # ---- what FedGMI's phases call -------------------------------------------------------------------------------

    def _round(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """Estimate (every ``partition_every`` rounds), train, measure."""
        layout = self.phases.layout(ROUNDS)
        if plan.round % self.phases.config.train_args.partition_every == 0 or self.memory.assignment is None:
            self.memory = self.estimate(self.losses(state), self.memory)
        vector = np.zeros(layout.length, dtype=np.float32)
        samples, losses = self.train(plan, state, layout, vector)
        tested = plan.round % self.phases.config.validation_args.frequency_of_the_test == 0
        metrics = {f"{run.part}_loss.{run.component}": 0.0 for run in layout.runs} | losses
        metrics |= self.accuracy_metrics(state, *(["validation"] if tested else []))
        return LocalUpdate(samples, vector, (), metrics)

    def repartition(self, state: MixtureState, late: bool | None = None) -> tuple[float, ...]:
        """Estimate under ``state``, a few times where the estimate rests on itself. Nothing for the totals."""
        losses = self.losses(state)
        for _ in range(self.gating.settings.em_passes):
            self.memory = self.estimate(losses, self.memory)
        return ()

    def gate(self, x: torch.Tensor, state: MixtureState, late: bool | None = None) -> torch.Tensor:
        """The silo's proportions for every sample, float64 (B, M): these methods look at no x before they predict."""
        return self.memory.alpha.expand(len(x), -1)

    # ---- parts ---------------------------------------------------------------------------------------------------

    def losses(self, state: MixtureState) -> torch.Tensor:
        """Cross-entropy of every training sample under every expert, float64 (n, M) nats."""
        said = [expert_predictions(self.bench.expert, w, self.data.x_train) for w in state.experts]
        right = [p.double().gather(1, self.data.y_train[:, None]).squeeze(1) for p in said]
        return -torch.stack(right, 1).clamp_min(_LEAST).log()

    @property
    def enough(self) -> bool:
        """Whether this silo's samples weigh anything at all."""
        return len(self.data.x_train) >= self.phases.config.fedgmi_args.secure.rules.min_samples


def one_hot(index: int, count: int) -> torch.Tensor:
    """float64 (count,)."""
    return functional.one_hot(torch.tensor(index), count).double()
