"""Simulation: the components (inherent distributions) that are made from one pooled source.

A component is a mapping with any of
    rotate: 0 | 90 | 180 | 270      images: turned anticlockwise by so many degrees
    invert: true                    images: light and dark exchanged
    classes: upper | lower | digits | [names or numbers]    only samples of these classes
    where: {column: value | [values] | {min: a, max: b}}    only samples with these values in a column
    flip: true, scale: s, shift: d  tables: each numeric column v, standardised over the source, becomes ±s·v + d,
                                    as if measured by another laboratory's device (d in standard deviations)
Upper and lower case share the 26 letters A … Z as labels when every component is one of the two.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.data.records import Array, Pool, PoolPart, Rows
from fedgmi_fedml.errors import ConfigError

_KEY = "data_args.silo_mixture.components"
_NAMED_CLASSES = {"upper": string.ascii_uppercase, "lower": string.ascii_lowercase, "digits": string.digits}
_KEYS = ("rotate", "invert", "classes", "where", "flip", "scale", "shift")
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Component:
    """One component: which samples it may take, and what is done to them.

    ``labels`` None means all classes; ``conditions`` are (column, wanted) pairs that must all hold.
    """

    name: str = "as it is"
    rotate: int = 0
    invert: bool = False
    labels: tuple[int, ...] | None = None
    conditions: tuple[tuple[str, Any], ...] = ()
    gain: float = 1.0
    shift: float = 0.0

    @property
    def selects(self) -> bool:
        """Whether the component is a subset of the source's samples."""
        return self.labels is not None or bool(self.conditions)

    @property
    def changes_table(self) -> bool:
        """Whether numeric columns are changed."""
        return self.gain != 1.0 or self.shift != 0.0

    def eligible(self, part: PoolPart) -> Bools:
        """Which samples of a part belong to this component, (n,) bool."""
        chosen = np.ones(len(part), dtype=bool)
        if self.labels is not None:
            chosen &= np.isin(part.y, self.labels)
        for column, wanted in self.conditions:
            chosen &= _holds(part.columns[column], wanted)
        return chosen

    def image(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Transformed images, same shape (n, C, H, W)."""
        if self.rotate:
            x = np.rot90(x, self.rotate // 90, axes=(2, 3))
        if self.invert:
            x = np.float32(1.0) - x
        return np.ascontiguousarray(x)

    def row(self, raw: Floats, mean: Floats, spread: Floats) -> Floats:
        """Transformed raw rows of a table (n, columns); ``mean`` and ``spread`` (numeric,) are the whole source's."""
        raw = raw.copy()
        numeric = len(mean)
        standard = (raw[:, :numeric] - mean) / spread
        raw[:, :numeric] = (self.gain * standard + self.shift) * spread + mean
        return raw


@dataclass(frozen=True)
class ClassMap:
    """New label of every class of the source (−1: not used), and the names of the new classes."""

    new: Rows
    names: tuple[str, ...]


def _holds(column: Array, wanted: Any) -> Bools:
    if isinstance(wanted, Mapping):
        numbers = column.astype(np.float64)
        return (numbers >= wanted.get("min", -np.inf)) & (numbers <= wanted.get("max", np.inf))
    values = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    if column.dtype.kind in "US":
        values = [str(value) for value in values]
    return np.isin(column, values)


def where_columns(entries: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Names of the columns that the components' ``where`` needs."""
    return frozenset(str(name) for entry in entries for name in entry.get("where") or {})


def _labels(value: Any, pool: Pool) -> tuple[int, ...]:
    if isinstance(value, str) and value not in _NAMED_CLASSES:
        raise ConfigError(f"{_KEY}: classes: {value!r} is not one of {', '.join(_NAMED_CLASSES)} or a list of classes")
    names = {name: label for label, name in enumerate(pool.class_names)}
    if isinstance(value, str):
        found = tuple(names[name] for name in _NAMED_CLASSES[value] if name in names)
        if not found:
            raise ConfigError(
                f"{_KEY}: classes: {value}: {pool.origin} has none of the classes {_NAMED_CLASSES[value]}"
            )
        return found
    labels = []
    for item in value:
        label = names.get(item) if isinstance(item, str) else item
        if not isinstance(label, int) or not 0 <= label < len(pool.class_names):
            raise ConfigError(
                f"{_KEY}: classes: {item!r} is no class of {pool.origin}; it has {', '.join(pool.class_names[:70])}"
            )
        labels.append(label)
    return tuple(labels)


def _component(entry: Mapping[str, Any], pool: Pool) -> Component:
    for key in entry:
        if key not in _KEYS:
            close = get_close_matches(str(key), _KEYS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ConfigError(f"{_KEY}: unknown key {key!r}; {hint}valid: {', '.join(_KEYS)}")
    conditions = tuple((str(name), wanted) for name, wanted in (entry.get("where") or {}).items())
    chosen = entry.get("classes")
    scale = float(entry.get("scale", 1.0))
    component = Component(
        name=", ".join(f"{key} {value}" for key, value in entry.items()) or "as it is",
        rotate=int(entry.get("rotate", 0)) % 360 if float(entry.get("rotate", 0)) % 90 == 0 else -1,
        invert=bool(entry.get("invert", False)),
        labels=None if chosen is None else _labels(chosen, pool),
        conditions=conditions,
        gain=-scale if entry.get("flip") else scale,
        shift=float(entry.get("shift", 0.0)),
    )
    _check(component, pool, scale)
    return component


def _check(component: Component, pool: Pool, scale: float) -> None:
    """Raise ConfigError when the component cannot be made from this source."""
    table = pool.schema is not None
    if component.rotate < 0:
        raise ConfigError(f"{_KEY}: {component.name}: rotate must be a multiple of 90 degrees")
    if scale <= 0:
        raise ConfigError(f"{_KEY}: {component.name}: scale must be above 0 (flip: true changes the sign)")
    if table and (component.rotate or component.invert):
        raise ConfigError(f"{_KEY}: {component.name}: {pool.origin} is a table; use flip, scale, shift, where, classes")
    if not table and component.changes_table:
        raise ConfigError(f"{_KEY}: {component.name}: flip, scale and shift are for tables; {pool.origin} holds images")
    if component.rotate % 180 and pool.sample_shape[-1] != pool.sample_shape[-2]:
        raise ConfigError(
            f"{_KEY}: {component.name}: images of {pool.origin} are not square ({pool.shape}), "
            f"a quarter turn would change their shape; use 180"
        )
    if component.invert and pool.value_range != "unit":
        raise ConfigError(f"{_KEY}: {component.name}: invert needs images within [0, 1]")


def build_components(entries: Sequence[Mapping[str, Any]], pool: Pool) -> tuple[Component, ...]:
    """Components of the configuration, checked against the pool. An empty list is one untouched component."""
    built = tuple(_component(entry, pool) for entry in entries) or (Component(),)
    for component in built:
        if component.selects and not any(component.eligible(part).any() for part in pool.parts.values()):
            raise ConfigError(f"{_KEY}: {component.name}: no sample of {pool.origin} fits")
    return built


def class_map(components: Sequence[Component], pool: Pool) -> ClassMap:
    """How the source's labels become the federation's: unchanged, or letters where all components are cases of them."""
    names = pool.class_names
    held = [{names[label] for label in component.labels or ()} for component in components]
    cases = [set(string.ascii_uppercase), set(string.ascii_lowercase)]
    if not held or not all(chosen and (chosen <= cases[0] or chosen <= cases[1]) for chosen in held):
        return ClassMap(np.arange(len(names), dtype=np.int64), names)
    if not any(chosen <= cases[0] for chosen in held) or not any(chosen <= cases[1] for chosen in held):
        return ClassMap(np.arange(len(names), dtype=np.int64), names)
    new = [string.ascii_uppercase.find(name.upper()) if len(name) == 1 else -1 for name in names]
    return ClassMap(np.asarray(new, dtype=np.int64), tuple(string.ascii_uppercase))


def table_scale(pool: Pool) -> tuple[Floats, Floats]:
    """Mean and standard deviation (never zero) of a table's numeric columns over the whole source."""
    numeric = len(pool.schema.numeric) if pool.schema is not None else 0
    rows = np.concatenate([part.x[part.rows][:, :numeric] for part in pool.parts.values()])
    empty = np.isnan(rows).all(axis=0)
    rows = np.where(empty, 0.0, rows)
    spread = np.nanstd(rows, axis=0)
    return np.nanmean(rows, axis=0), np.where(spread > 0, spread, 1.0)


def widen_schema(pool: Pool, components: Sequence[Component]) -> Pool:
    """The pool with ranges that also hold what the components make of its values."""
    if pool.schema is None or not any(component.changes_table for component in components):
        return pool
    numeric = len(pool.schema.numeric)
    mean, spread = table_scale(pool)
    schema = pool.schema
    bounds = np.array([[column.low, column.high] for column in schema.numeric]).T
    for component in components:
        ends = component.row(bounds, mean, spread)[:, :numeric]
        schema = schema.widened(ends.min(axis=0), ends.max(axis=0))
    return replace(pool, schema=schema)
