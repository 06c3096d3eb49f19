"""Simulation: the components (inherent distributions) that are made from one pooled source.

A component is a mapping with any of
    rotate: 0 | 90 | 180 | 270      images turned anticlockwise by so many degrees
    invert: true                    images with light and dark exchanged
    classes: upper | lower | digits | [names or numbers]    only samples of these classes
Upper and lower case share the 26 letters as labels when every component is one of the two.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.data.records import Pool, PoolPart
from fedgmi_fedml.errors import ConfigError

_NAMED_CLASSES = {"upper": string.ascii_uppercase, "lower": string.ascii_lowercase, "digits": string.digits}


@dataclass(frozen=True)
class Component:
    """One component: which samples it may take (``labels``; None: all) and what is done to them."""

    name: str
    rotate: int = 0
    invert: bool = False
    labels: tuple[int, ...] | None = None

    @property
    def selects(self) -> bool:
        """Whether the component is a subset of the source's samples."""
        return self.labels is not None

    def eligible(self, part: PoolPart) -> npt.NDArray[np.bool_]:
        """Which samples of a part belong to this component, (n,) bool."""
        if self.labels is None:
            return np.ones(len(part), dtype=bool)
        return np.isin(part.y, self.labels)

    def apply(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Transformed samples, same shape as ``x``; (n, C, H, W) for ``rotate`` and ``invert``."""
        if self.rotate:
            x = np.rot90(x, self.rotate // 90, axes=(2, 3))
        if self.invert:
            x = 1.0 - x
        return np.ascontiguousarray(x)


def _labels(value: Any, pool: Pool) -> tuple[int, ...]:
    wanted = _NAMED_CLASSES.get(value, value) if isinstance(value, str) else value
    if isinstance(wanted, str) and value not in _NAMED_CLASSES:
        raise ConfigError(f"data_args.silo_mixture.components: classes: {value!r} is not one of {list(_NAMED_CLASSES)}")
    names = {name: label for label, name in enumerate(pool.class_names)}
    labels = []
    for item in wanted:
        label = names.get(str(item), item if isinstance(item, int) and not isinstance(item, bool) else None)
        if label is None or not 0 <= label < len(pool.class_names):
            raise ConfigError(
                f"data_args.silo_mixture.components: classes: {item!r} is no class of {pool.origin}; "
                f"it has {', '.join(pool.class_names[:70])}"
            )
        labels.append(label)
    return tuple(labels)


def build_components(entries: Sequence[Mapping[str, Any]], pool: Pool) -> tuple[Component, ...]:
    """Components of the configuration, checked against the pool. An empty list is one untouched component."""
    built = []
    for entry in entries or [{}]:
        unknown = set(entry) - {"rotate", "invert", "classes"}
        if unknown:
            raise ConfigError(f"data_args.silo_mixture.components: unknown key {sorted(unknown)}")
        labels = _labels(entry["classes"], pool) if entry.get("classes") is not None else None
        name = ", ".join(f"{key} {value}" for key, value in entry.items()) or "as it is"
        rotate = int(entry.get("rotate", 0))
        if rotate not in (0, 90, 180, 270):
            raise ConfigError(f"data_args.silo_mixture.components: rotate: {rotate} is not 0, 90, 180 or 270")
        built.append(Component(name, rotate, bool(entry.get("invert", False)), labels))
    return tuple(built)
