"""``fedgmi bench local``: what one silo's work costs beside a bare PyTorch loop over the same samples and models.

Times are CPU seconds of one thread; ratios are medians over turns in which the things compared run one after the other.
Three questions, each with its target:

    round      one silo's round (score, partition, train, pack)     ≤ 1.15 × a bare loop
    scaling    training time a sample at M = 2, 4, 8                within 10 %
    scoring    samples a second against a bare batched forward      ≥ 90 %
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedgmi_fedml.affinity import scores
from fedgmi_fedml.config import Config, parse_config
from fedgmi_fedml.data import SiloData
from fedgmi_fedml.local_training import TrainSettings, train_expert, train_vae
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.models import DataShape, State, export_state, load_state, make_expert, make_vae
from fedgmi_fedml.rounds.local import FedGMIWork, Workbench
from fedgmi_fedml.rounds.phases import ROUNDS, Phases
from fedgmi_fedml.rounds.wire import Plan

__all__ = ["ROUND_TARGET", "SCALING_TARGET", "SCORING_TARGET", "bench_local"]

ROUND_TARGET, SCALING_TARGET, SCORING_TARGET = 1.15, 0.10, 0.90
_SHAPE = DataShape((1, 28, 28), 10)
_BATCH = 50
_CONFIG = """
common_args: {training_type: cross_silo, random_seed: 0}
data_args: {dataset: mnist}
model_args: {model: mlp, vae: mlp}
train_args: {federated_optimizer: FedGMI, client_num_in_total: 4, client_num_per_round: 4, comm_round: 1}
device_args: {device: cpu}
comm_args: {backend: FEDGMI_GRPC}
fedgmi_args: {components: 2, secure: {backend: none}}
"""


class Timings:
    """CPU seconds of several actions that took turns: neighbours on the machine then slow down all of them alike."""

    def __init__(self, actions: Mapping[str, Callable[[], object]], repeats: int) -> None:
        self._seconds: dict[str, list[float]] = {name: [] for name in actions}
        for turn in range(repeats + 1):  # the first turn warms up
            for name, action in actions.items():
                start = time.process_time()
                action()
                if turn:
                    self._seconds[name].append(time.process_time() - start)

    def best(self, name: str) -> float:
        """Seconds of the fastest run."""
        return min(self._seconds[name])

    def ratio(self, name: str, other: str) -> float:
        """Median over turns of the ratio of two actions of the same turn."""
        return median(a / b for a, b in zip(self._seconds[name], self._seconds[other], strict=True))


def _two_kinds(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright left or right half, (count, 1, 28, 28) in [0, 1], and labels."""
    generator = torch.Generator().manual_seed(0)
    x = 0.3 * torch.rand(count, *_SHAPE.input_shape, generator=generator)
    x[::2, :, :, :14] += 0.6
    x[1::2, :, :, 14:] += 0.6
    return x, torch.randint(0, _SHAPE.classes, (count,), generator=generator)


# ── the round ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _bare_fit(
    module: nn.Module, state: State, loss: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, fused: bool
) -> None:
    """What anybody would write: load, Adam, shuffled batches, one epoch."""
    load_state(module, state)
    module.train()
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3, fused=fused or None)
    order = rows[torch.randperm(len(rows))]
    for at in range(0, len(order), _BATCH):
        optimiser.zero_grad()
        loss(order[at : at + _BATCH]).backward()
        optimiser.step()


def _bare_scores(vae: Any, x: torch.Tensor) -> torch.Tensor:
    """ℓ by plain batched forward passes."""
    losses = []
    with torch.no_grad():
        for at in range(0, len(x), 500):
            batch = x[at : at + 500]
            mean, logvar = vae.encode(batch)
            losses.append(vae.reconstruction_nll(batch, vae.decode(mean)) + vae.kl(mean, logvar))
    return torch.cat(losses)


def _bare_round(bench: Workbench, state: MixtureState, x: torch.Tensor, y: torch.Tensor, fused: bool) -> None:
    """The same samples and models in one plain function: score, argmin, two fits a component."""
    vae, expert = bench.vae, bench.expert
    losses = []
    for model in state.vaes:
        load_state(vae, model)  # type: ignore[arg-type]
        losses.append(_bare_scores(vae, x))
    part = torch.stack(losses, 1).argmin(1)
    for j in range(len(state.vaes)):
        rows = torch.nonzero(part == j).flatten()
        _bare_fit(vae, state.vaes[j], lambda b: vae.training_loss(x[b]).mean(), rows, fused)  # type: ignore[arg-type,union-attr]
        _bare_fit(expert, state.experts[j], lambda b: functional.cross_entropy(expert(x[b]), y[b]), rows, fused)  # type: ignore[arg-type]


def _federation_state(bench: Workbench, x: torch.Tensor) -> MixtureState:
    """Two VAEs, each of which knows one kind of sample, so that MAP splits the silo in halves."""
    vae, start = bench.vae, export_state(bench.vae)  # type: ignore[arg-type]
    plan = TrainSettings(epochs=2, batch_size=_BATCH)
    vaes = tuple(train_vae(vae, start, x[j::2], plan, torch.Generator().manual_seed(j))[0] for j in range(2))  # type: ignore[arg-type]
    return MixtureState(vaes, bench.phases.initial_experts())


def _bench_round(samples: int, repeats: int) -> dict[str, float]:
    """One silo's round as the driver runs it, against the bare round with torch's default and with its fused Adam."""
    config: Config = parse_config(_CONFIG)
    phases = Phases(config, _SHAPE)
    bench = Workbench(phases)
    x, y = _two_kinds(samples)
    nothing, none = x[:0], y[:0]
    work = FedGMIWork(1, SiloData("bench", x, y, nothing, none, nothing, none), bench)
    state = _federation_state(bench, x)
    plan = Plan(ROUNDS, 0, 0, 0, (1,), state.digest)
    timings = Timings(
        {
            "ours": lambda: work.work(plan, state),
            "bare": lambda: _bare_round(bench, state, x, y, fused=False),
            "fused": lambda: _bare_round(bench, state, x, y, fused=True),
        },
        repeats,
    )
    return {
        "round_seconds": timings.best("ours"),
        "round_ratio": timings.ratio("ours", "bare"),
        "round_ratio_fused": timings.ratio("ours", "fused"),
    }


# ── scaling and scoring ──────────────────────────────────────────────────────────────────────────────────────────────
def _bench_scaling(samples: int, repeats: int) -> dict[str, float]:
    """Training (VAE and expert) of one silo's samples split evenly among M components."""
    x, y = _two_kinds(samples)
    vae, expert = make_vae("mlp", {}, _SHAPE, 0), make_expert("mlp", {}, _SHAPE, 0)
    starts, plan = (export_state(vae), export_state(expert)), TrainSettings(batch_size=_BATCH)

    def train(components: int) -> None:
        for j in range(components):
            rows, generator = torch.arange(j, samples, components), torch.Generator().manual_seed(j)
            train_vae(vae, starts[0], x, plan, generator, index=rows)
            train_expert(expert, starts[1], x, y, plan, generator, index=rows)

    timings = Timings({str(m): lambda m=m: train(m) for m in (2, 4, 8)}, repeats)  # type: ignore[misc]
    times = {f"train_us_per_sample_m{m}": 1e6 * timings.best(m) / samples for m in ("2", "4", "8")}
    ratios = [1.0, timings.ratio("4", "2"), timings.ratio("8", "2")]
    return {**times, "scaling_spread": max(ratios) / min(ratios) - 1.0}


def _bench_scoring(samples: int, repeats: int) -> dict[str, float]:
    """Samples a second of ``affinity.scores`` against plain batched forward passes of the same model."""
    x, _ = _two_kinds(samples)
    vae = make_vae("mlp", {}, _SHAPE, 0).eval()
    timings = Timings({"ours": lambda: scores(vae, x), "bare": lambda: _bare_scores(vae, x)}, repeats)
    return {"scores_per_second": samples / timings.best("ours"), "scoring_rate": timings.ratio("bare", "ours")}


def bench_local(quick: bool = False) -> dict[str, float | bool]:
    """All figures by name, and ``*_ok`` for each target. ``quick`` takes seconds instead of a minute, for a test.

    ``round_ratio`` compares with the loop that anybody would write (torch's default Adam), ``round_ratio_fused`` with
    the fastest Adam of torch. Sets torch to one thread while it runs, as every silo of a simulation has.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = {
            **_bench_round(200 if quick else 800, 2 if quick else 15),
            **_bench_scaling(400 if quick else 10_000, 1 if quick else 3),
            **_bench_scoring(500 if quick else 5_000, 2 if quick else 15),
        }
    finally:
        torch.set_num_threads(threads)
    return {
        **figures,
        "round_ok": figures["round_ratio"] <= ROUND_TARGET,
        "scaling_ok": figures["scaling_spread"] <= SCALING_TARGET,
        "scoring_ok": figures["scoring_rate"] >= SCORING_TARGET,
    }
