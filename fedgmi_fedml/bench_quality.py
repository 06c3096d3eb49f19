"""``fedgmi bench quality``: how well mixtures are found, setting by setting, against the figures to reach.

Every setting is a shipped configuration with a few overrides on real MNIST (``mnist.npz`` in ``$FEDGMI_DATA``), masked
aggregation and the default gate; each run is an ordinary ``fedgmi simulate``. With several seeds the mean of the
figures is judged, and ``worst_partition_accuracy`` shows whether one of them got stuck.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fedgmi_fedml.config import Config, load_config
from fedgmi_fedml.errors import RunError

__all__ = ["SETTINGS", "Setting", "bench_quality", "configuration", "summarise"]

_MIXTURE = "data_args.silo_mixture"
_FEDSOFT = (
    f"{_MIXTURE}.components=[{{rotate: 0}}, {{rotate: 90}}]", f"{_MIXTURE}.samples_per_silo=[100, 200]",
    "train_args.client_num_in_total=100", "train_args.client_num_per_round=100", "train_args.batch_size=25",
    "train_args.epochs=2", "fedgmi_args.initialisation.warmup_epochs=2", "fedgmi_args.initialisation.cohort_size=12",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        name: for ``--setting``.
        title: what it is.
        config: shipped configuration.
        overrides: what differs from it.
        alpha, partition: largest error of the proportions, least partition accuracy.
        alpha_stretch, partition_stretch: the same, to be missed only with a reason.
        near_oracle: whether personalised accuracy shall come within a point of the oracle's.
        seeds: as many as the table asks for.
    """

    name: str
    title: str
    config: str
    overrides: tuple[str, ...]
    alpha: float
    partition: float
    alpha_stretch: float | None = None
    partition_stretch: float | None = None
    near_oracle: bool = False
    seeds: int = 1


SETTINGS = (
    Setting("linear180", "0/180, linear, 20 × 800", "mnist_rotation", (), 0.016, 0.955, 0.012, 0.965, True),
    Setting(
        "two_level180", "0/180, 30:70, 20 × 800", "mnist_rotation",
        (f"{_MIXTURE}.kind=two_level", f"{_MIXTURE}.level=0.3"), 0.020, 0.945, 0.015, 0.955, True,
    ),
    Setting(
        "linear90", "0/90, linear, 8 × 800", "mnist_rotation",
        (f"{_MIXTURE}.components=[{{rotate: 0}}, {{rotate: 90}}]", "train_args.client_num_in_total=8",
         "train_args.client_num_per_round=8"), 0.012, 0.968,
    ),
    Setting("dominant4", "0/90/180/270, 60 % dominant, 24 × 1000", "mnist_rotation4", (), 0.015, 0.905, None, 0.93,
            seeds=5),
    Setting(
        "dirichlet4", "0/90/180/270, Dirichlet(1), 24 × 1000", "mnist_rotation4",
        (f"{_MIXTURE}.kind=dirichlet", f"{_MIXTURE}.concentration=1.0",
         "fedgmi_args.initialisation.warmup_whitening=false"), 0.055, 0.77, 0.04, 0.82,
    ),
    Setting("fedsoft_linear", "FedSoft: 0/90, linear, 100 × 100–200", "mnist_rotation", _FEDSOFT, 0.040, 0.93, 0.030,
            0.94),
    Setting(
        "fedsoft_two_level", "FedSoft: 0/90, 30:70, 100 × 100–200", "mnist_rotation",
        (*_FEDSOFT, f"{_MIXTURE}.kind=two_level", f"{_MIXTURE}.level=0.3"), 0.045, 0.91, 0.030, 0.94,
    ),
)  # fmt: skip
"""The table of the project's quality targets, in its order."""

ORACLE_GAP = 0.01


def configuration(setting: Setting, seed: int, overrides: Sequence[str] = ()) -> Config:
    """A setting's configuration; the caller's overrides come last.

    Raises:
        ConfigError: with every problem.
    """
    own = [f"common_args.random_seed={seed}", "validation_args.evaluate_oracle=true", *setting.overrides]
    return load_config(setting.config, [*own, *overrides])


def bench_quality(
    names: Sequence[str] = (),
    seeds: int | None = None,
    workers: int = 1,
    overrides: Sequence[str] = (),
    out: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Run settings one after the other; yields one row as soon as it is known.

    Args:
        names: of ``SETTINGS``; empty: all.
        seeds: runs of each, seeds 0 …; ``None``: as many as the table asks for.
        workers: processes that train silos.
        overrides: ``section.key=value`` for every run; the row then says what was ``changed``: it is not the table's.
        out: keep the runs' folders here; ``None``: only figures are kept.

    Raises:
        RunError: no such setting, or a run that ended early.
    """
    unknown = set(names) - {setting.name for setting in SETTINGS}
    if unknown:
        known = ", ".join(setting.name for setting in SETTINGS)
        raise RunError(f"no setting {', '.join(sorted(unknown))}; there are {known}")
    chosen = [setting for setting in SETTINGS if not names or setting.name in names]
    plans = [(s, [configuration(s, seed, overrides) for seed in range(seeds or s.seeds)]) for s in chosen]
    for setting, configs in plans:  # every configuration was checked before the first run starts
        row = summarise(setting, [_run(setting, config, workers, out) for config in configs])
        yield row | ({"changed": " ".join(overrides)} if overrides else {})


def _run(setting: Setting, config: Config, workers: int, out: Path | None) -> Any:
    from fedgmi_fedml.simulate import run_simulation
    from fedgmi_fedml.summary import load_summary

    with tempfile.TemporaryDirectory(prefix="fedgmi-quality-") as scratch:
        folder = (out or Path(scratch)) / f"{setting.name}-{config.common_args.random_seed}"
        run_simulation(config, folder, workers=workers)
        return load_summary(folder)


def summarise(setting: Setting, summaries: Sequence[Any]) -> dict[str, Any]:
    """One row: mean figures of a setting's runs, and its targets as (figure, value, bound, whether value must be less).

    Args:
        summaries: ``summary.RunSummary`` of each seed.
    """
    keys = ("alpha_mae", "partition_accuracy", "personalised_accuracy", "oracle_accuracy", "wall_seconds")
    figures = {key: _mean([getattr(summary, key) for summary in summaries]) for key in keys}
    partitions = [summary.partition_accuracy for summary in summaries]
    targets = [
        ("alpha_mae", figures["alpha_mae"], setting.alpha, True),
        ("partition_accuracy", figures["partition_accuracy"], setting.partition, False),
    ]
    if setting.near_oracle and figures["oracle_accuracy"] is not None and figures["personalised_accuracy"] is not None:
        gap = figures["oracle_accuracy"] - figures["personalised_accuracy"]
        targets.append(("oracle_accuracy − personalised_accuracy", gap, ORACLE_GAP, True))
    stretch = [
        ("alpha_mae", figures["alpha_mae"], setting.alpha_stretch, True),
        ("partition_accuracy", figures["partition_accuracy"], setting.partition_stretch, False),
    ]
    return {
        "setting": setting.name, "title": setting.title, "seeds": len(summaries), **figures,
        "worst_partition_accuracy": min((p for p in partitions if p is not None), default=None),
        "targets": targets, "stretch": [row for row in stretch if row[2] is not None],
    }  # fmt: skip


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) and known else None
