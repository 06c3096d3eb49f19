"""``fedgmi bench overhead``: what security adds to a whole simulation, masked against none, seed for seed.

Pairs of runs of one configuration that differ in ``secure.backend`` only; which of a pair comes first alternates.
Every local training, the initial phases' too, has the given number of epochs. The oracle and the baselines are left
out. Ratios are medians over pairs: of wall time, of CPU time (what to look at where others use the machine), and of
the wall time of the rounds phase alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fedgmi_fedml.config import Config, load_config

__all__ = ["OVERHEAD_TARGETS", "bench_overhead"]

OVERHEAD_TARGETS = {1: 1.25, 5: 1.06}
"""Local epochs → largest ratio of wall times."""

_EPOCH_KEYS = (
    "train_args.epochs",
    "fedgmi_args.initialisation.warmup_epochs",
    "fedgmi_args.initialisation.candidate_epochs",
)
_PLAIN = ("validation_args.evaluate_oracle=false", "validation_args.evaluate_baselines=[]")


def bench_overhead(
    config: str, epochs: Sequence[int] = (1, 5), pairs: int = 3, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Figures by name, for each number of epochs, and ``targets``: (figure, value, limit).

    Args:
        config: file or name.
        epochs: numbers of local epochs.
        pairs: runs of each back-end.
        overrides: ``section.key=value``, to shorten the run.

    Raises:
        ConfigError: the configuration, with every problem. RunError: a run that ended early.
    """
    variants = {(count, backend): _variant(config, count, backend, overrides) for count in epochs for backend in _ENDS}
    figures: dict[str, Any] = {"config": config, "pairs": pairs}
    targets = []
    _warm_up()
    for count in epochs:
        rows = [_pair(variants[count, "none"], variants[count, "masked"], turn % 2 == 1) for turn in range(pairs)]
        name = f"epochs_{count}"
        figures[name] = {
            "wall_ratio": median(masked["wall"] / none["wall"] for none, masked in rows),
            "cpu_ratio": median(masked["cpu"] / none["cpu"] for none, masked in rows),
            "rounds_ratio": median(masked["rounds"] / none["rounds"] for none, masked in rows),
            "none_cpu_seconds": median(none["cpu"] for none, _ in rows),
            "masked_cpu_seconds": median(masked["cpu"] for _, masked in rows),
        }
        if count in OVERHEAD_TARGETS:
            targets.append((f"{name}.wall_ratio", figures[name]["wall_ratio"], OVERHEAD_TARGETS[count]))
            targets.append((f"{name}.cpu_ratio", figures[name]["cpu_ratio"], OVERHEAD_TARGETS[count]))
    return {**figures, "targets": targets}


_ENDS = ("none", "masked")


def _variant(config: str, epochs: int, backend: str, overrides: Sequence[str]) -> Config:
    """The configuration with so many epochs everywhere and this back-end; the caller's own settings come last."""
    counts = [f"{key}={epochs}" for key in _EPOCH_KEYS]
    return load_config(config, [*_PLAIN, *counts, *overrides, f"fedgmi_args.secure.backend={backend}"])


def _warm_up() -> None:
    """What only the first run of a process pays: torch imports half of itself when the first optimiser is made."""
    import torch

    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.Adam([weight])
    weight.sum().backward()
    optimiser.step()


def _pair(none: Config, masked: Config, masked_first: bool) -> tuple[dict[str, float], dict[str, float]]:
    """One run of each, one after the other: (none, masked)."""
    if masked_first:
        second = _run(masked)
        return _run(none), second
    return _run(none), _run(masked)


def _run(config: Config) -> dict[str, float]:
    """One simulation in this process: wall and CPU seconds, and wall seconds of the rounds phase."""
    from fedgmi_fedml.simulate import run_simulation
    from fedgmi_fedml.summary import load_summary

    with tempfile.TemporaryDirectory(prefix="fedgmi-bench-") as folder:
        out = Path(folder) / "run"
        wall, cpu = time.monotonic(), time.process_time()
        run_simulation(config, out)
        spent = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}
        phases = load_summary(out).phase_seconds
    return spent | {"rounds": float(phases.get("rounds") or spent["wall"])}
