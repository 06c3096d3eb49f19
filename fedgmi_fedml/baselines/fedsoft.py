"""FedSoft (Ruan and Joe-Wong: "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022).

    u_i^j = share of D_i's samples whose loss is least under centre c_j, at least σ      every τ rounds
    w_i   = E local epochs on  f_i(w) + λ/2 · Σ_j u_i^j ‖w − c_j‖²,  from silo i's own last w_i
    c_j   ← Σ_i (u_i^j n_i / Σ_k u_k^j n_k) w_i
    prediction   p(y|x; w_i): every silo has one personal model

τ is ``train_args.partition_every``, λ is ``validation_args.fedsoft_lambda`` (the authors: 0.1, for CIFAR-10 0.01). What
secure sums change: the server must not know u, so it cannot draw silos with probability u_i^j n_i and average them
alike; cohorts are drawn uniformly and weigh u_i^j n_i within the sum, which has the same expectation up to scale. Where
σ is all that a silo has of a component, its count is below ``min_samples`` and weighs nothing.

Where the paper is silent: w_i of a silo not asked before starts from its centres' mean Σ_j u_i^j c_j (in the first
round from one random model, the same for all silos). Predictions under given centres are those of one more proximal
update against them, which needs no communication: silos that took part long ago, or never, have a model of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from fedgmi_fedml.baselines.expert_work import ExpertWork
from fedgmi_fedml.local_training import Objective, expert_predictions, train_expert
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import FloatVector, Layout, StateDict
from fedgmi_fedml.rounds.update import Memory
from fedgmi_fedml.rounds.wire import Plan

SMOOTHING = 1e-4
"""σ of the paper: importance of a centre that fits no sample best."""


class FedSoftWork(ExpertWork):
    """One silo's local work."""

    _own: StateDict | None = None  # w_i as it was trained last
    _solved: tuple[bytes, StateDict] | None = None  # digest of centres, and the personal model under them

    def estimate(self, losses: torch.Tensor, memory: Memory) -> Memory:
        """Importance weights, which sum to one but for σ; a silo without samples keeps its own."""
        if not len(losses):
            return replace(memory, assignment=torch.zeros(0, dtype=torch.int64))
        nearest = losses.argmin(1)
        shares = torch.bincount(nearest, minlength=self.components).double() / len(losses)
        return replace(memory, alpha=shares.clamp_min(SMOOTHING), assignment=nearest)

    def train(
        self, plan: Plan, state: MixtureState, layout: Layout, out: FloatVector
    ) -> tuple[tuple[float, ...], dict[str, float]]:
        """The silo's one model, contributed to every centre with weight u_i^j n_i."""
        losses: dict[str, float] = {}
        if self.enough:
            self._own, loss = self._solve(state, plan.phase, plan.round)
            self._solved = (state.digest, self._own)
            for j, centre in enumerate(state.experts):
                layout.write_delta(out, "expert", j, self._own, centre)
                losses[f"expert_loss.{j}"] = loss
        return tuple((self.memory.alpha * len(self.data.x_train)).tolist()), losses

    def predict(self, x: torch.Tensor, state: MixtureState, gate: torch.Tensor | None = None) -> torch.Tensor:
        """p(y|x; w_i) of the personal model under these centres, float64 (B, classes)."""
        if self._solved is None or self._solved[0] != state.digest:
            self._solved = (state.digest, self._solve(state, "personal", state.digest.hex())[0])
        return expert_predictions(self.bench.expert, self._solved[1], x).double()

    def _solve(self, state: MixtureState, *purpose: object) -> tuple[StateDict, float]:
        """One proximal update against the centres. Returns the model and its training loss, nats."""
        centre = mean_state(state.experts, self.memory.alpha)
        first = purpose == ("rounds", 0)
        start = self._own or (self.phases.initial_experts()[0] if first else centre)
        strength = self.phases.config.validation_args.fedsoft_lambda * float(self.memory.alpha.sum())
        trained, stats = train_expert(
            self.bench.expert, start, self.data.x_train, self.data.y_train, self.bench.expert_settings,
            self.bench.generator(self.silo, *purpose, "personal"), what="personal model",
            objective=proximal(self.bench.expert, centre, strength),
        )  # fmt: skip
        return trained, stats.loss


def mean_state(states: tuple[StateDict, ...], weights: torch.Tensor) -> StateDict:
    """Σ_j u_j c_j / Σ_j u_j of every floating-point tensor; the others are the first one's."""
    shares = (weights / weights.sum()).tolist()
    mean: OrderedDict[str, torch.Tensor] = OrderedDict(states[0])
    for key, tensor in states[0].items():
        if tensor.is_floating_point():
            total = sum(share * state[key].double() for share, state in zip(shares, states, strict=True))
            mean[key] = torch.as_tensor(total).to(tensor.dtype)
    return mean


def proximal(module: nn.Module, centre: StateDict, strength: float) -> Objective:
    """Cross-entropy + strength/2 · ‖w − centre‖² over the trained parameters.

    With strength λ Σ_j u_j and the centres' mean this is λ/2 · Σ_j u_j ‖w − c_j‖² but for a constant.
    """
    pairs = [(w, centre[name].to(w.device, w.dtype)) for name, w in module.named_parameters() if w.requires_grad]

    def objective(logits: torch.Tensor, target: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        distance = torch.stack([(w - c).square().sum() for w, c in pairs]).sum()
        return functional.cross_entropy(logits, target) + 0.5 * strength * distance

    return objective
