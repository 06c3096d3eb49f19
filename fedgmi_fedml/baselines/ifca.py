"""IFCA (Ghosh, Chung, Yin, Ramchandran: "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020).

Algorithm 1 with model averaging (option II), F_i(w) the mean loss on silo i's data:

    ĵ   = argmin_j F_i(w_j)                         cluster of silo i, found anew in every round
    w_i = E local epochs from w_ĵ on all of D_i
    w_j ← Σ_{i: ĵ_i = j} n_i w_i / Σ_{i: ĵ_i = j} n_i     (the paper: n_i alike)

A silo is in one cluster, so its proportions are one-hot. Experts start from different random weights; the paper's best
of several restarts is left out, for all methods get one run. Under secure sums which cluster a silo chose stays hidden,
and a cluster needs as many silos in a round as the gate asks for: with K = 5 and a gate of 4 the smaller one freezes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedgmi_fedml.baselines.expert_work import ExpertWork, one_hot
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import FloatVector, Layout
from fedgmi_fedml.rounds.update import Memory
from fedgmi_fedml.rounds.wire import Plan


class IFCAWork(ExpertWork):
    """One silo's local work."""

    def estimate(self, losses: torch.Tensor, memory: Memory) -> Memory:
        """The cluster of least mean loss; a silo without samples stays in the first."""
        cluster = int(losses.mean(0).argmin()) if len(losses) else 0
        assignment = torch.full((len(losses),), cluster, dtype=torch.int64)
        return replace(memory, alpha=one_hot(cluster, self.components), assignment=assignment)

    def train(
        self, plan: Plan, state: MixtureState, layout: Layout, out: FloatVector
    ) -> tuple[tuple[float, ...], dict[str, float]]:
        """Expert ĵ on all data."""
        cluster, losses = int(self.memory.alpha.argmax()), {}
        if self.enough:
            rows = torch.arange(len(self.data.x_train))
            losses[f"expert_loss.{cluster}"] = self._train_expert(plan, state, cluster, rows, layout, out)
        return tuple((self.memory.alpha * len(self.data.x_train)).tolist()), losses
