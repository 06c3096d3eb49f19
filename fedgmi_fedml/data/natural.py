"""Simulation with natural silos: a group column (hospital, contributor, writer) says which silo a sample belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgmi_fedml.data.components import Component
from fedgmi_fedml.data.layouts import Mixture
from fedgmi_fedml.data.records import Array, Pool, Rows, stream
from fedgmi_fedml.data.splits import Draw, Plan, part_sizes, split_own
from fedgmi_fedml.errors import ConfigError, DataError


def natural_plans(
    pool: Pool, components: Sequence[Component], mixture: Mixture, silos: int, shares: tuple[float, float], seed: int
) -> tuple[list[Plan], list[str]]:
    """Plans and names of the ``silos`` largest groups, in the order of the groups' values.

    ``samples_per_silo`` is the largest number of training samples of a silo (the other parts keep their shares);
    [low, high] also leaves out groups with fewer than ``low``. Samples that belong to no component are left out.
    Raises ConfigError, DataError.
    """
    if len(components) > 1 and not all(component.selects for component in components):
        raise ConfigError(
            "data_args.silo_mixture.components: kind natural takes samples as they are, so components must select "
            "samples (classes, where); use another kind to turn or change them"
        )
    low, high = _limits(mixture)
    held = _groups(pool, components, mixture.group or "")
    large = [value for value, rows in held.items() if len(rows["train"]) >= max(low, 1)]
    if len(large) < silos:
        raise DataError(
            f"{pool.origin}: column {mixture.group!r} has {len(large)} groups with at least {max(low, 1)} training "
            f"samples; lower train_args.client_num_in_total ({silos}) or data_args.silo_mixture.samples_per_silo"
        )
    largest = sorted(large, key=lambda value: -len(held[value]["train"]))[:silos]
    plans, names = [], []
    for value in sorted(largest):
        generator = stream(seed, f"natural {value}")
        parts = split_own(pool, held[value], shares, generator)
        most = None if high is None else part_sizes(high, *shares)
        plans.append(_plan(pool, components, parts, most, generator))
        names.append(_name(pool, value))
    return plans, names


def _limits(mixture: Mixture) -> tuple[int, int | None]:
    if mixture.samples is None or isinstance(mixture.samples, int):
        return 0, mixture.samples
    return mixture.samples


def _groups(pool: Pool, components: Sequence[Component], column: str) -> dict[Any, dict[str, Rows]]:
    """Positions per group and part of all samples that belong to some component."""
    held: dict[Any, dict[str, Rows]] = {}
    for part_name, part in pool.parts.items():
        belongs = np.any([component.eligible(part) for component in components], axis=0)
        values: Array = part.columns[column]
        for value in np.unique(values[belongs]).tolist():
            held.setdefault(value, {"train": np.zeros(0, dtype=np.int64)})
            held[value][part_name] = np.flatnonzero(belongs & (values == value))
    return held


def _plan(
    pool: Pool,
    components: Sequence[Component],
    parts: dict[str, tuple[str, Rows]],
    most: dict[str, int] | None,
    generator: np.random.Generator,
) -> Plan:
    plan: Plan = {}
    for name, (source, index) in parts.items():
        if most is not None and len(index) > most[name]:
            index = np.sort(generator.permutation(index)[: most[name]])
        plan[name] = []
        free = np.ones(len(index), dtype=bool)
        for number, component in enumerate(components):
            own = free & component.eligible(pool.parts[source])[index]
            free &= ~own
            if own.any():
                plan[name].append(Draw(number, source, index[own]))
    return plan


def _name(pool: Pool, value: object) -> str:
    if pool.group_names is not None and isinstance(value, (int, float)) and 0 <= int(value) < len(pool.group_names):
        return pool.group_names[int(value)]
    return f"{value:g}" if isinstance(value, float) else str(value)
