"""Records of cells put together: the same place in the grid but for the seed; means and spreads over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgmi_fedml.report.words import SHORT

__all__ = ["Group", "Place", "Value", "distinct", "group", "label"]

Record = Mapping[str, Any]

_METHODS = tuple(SHORT)


@dataclass(frozen=True, order=True)
class Place:
    """Where silos stand: one row of a comparison."""

    data: str
    mixture: str
    k: int


@dataclass(frozen=True)
class Value:
    """A figure over seeds: mean, sample standard deviation (``None`` for one seed), and how many seeds had it."""

    mean: float
    spread: float | None
    seeds: int


@dataclass(frozen=True)
class Group:
    """The cells of one method and variant at one place, one a seed."""

    place: Place
    method: str
    variant: str
    records: tuple[Record, ...]

    def value(self, figure: str) -> Value | None:
        """A figure over the seeds that have it; ``None`` where none has."""
        known = [float(record[figure]) for record in self.records if record.get(figure) is not None]
        if not known:
            return None
        return Value(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))

    @property
    def ended_early(self) -> int:
        """Seeds whose run reached no end."""
        return sum(record["status"] != "finished" for record in self.records)

    @property
    def first(self) -> Record:
        """The lowest seed that finished, for pictures of single runs; else the lowest seed."""
        finished = [record for record in self.records if record["status"] == "finished"]
        return (finished or list(self.records))[0]

    @property
    def name(self) -> str:
        """Method, with its variant where it is not the default one."""
        return label(self.method, self.variant)


def label(method: str, variant: str = "default") -> str:
    """How tables and figures name a method."""
    name = SHORT.get(method, method)
    return name if variant == "default" else f"{name} [{variant}]"


def group(records: Iterable[Record]) -> list[Group]:
    """Groups in the order of data, mixture, K, method and variant (the default one first)."""
    found: dict[tuple[Place, str, str], list[Record]] = {}
    for record in records:
        place = Place(record["data"], record["mixture"], record["k"])
        found.setdefault((place, record["method"], record["variant"]), []).append(record)
    groups = [
        Group(place, method, variant, tuple(sorted(cells, key=lambda cell: cell["seed"])))
        for (place, method, variant), cells in found.items()
    ]
    return sorted(groups, key=_order)


def _order(one: Group) -> tuple[Any, ...]:
    known = _METHODS.index(one.method) if one.method in _METHODS else len(_METHODS)
    return (one.place, known, one.variant != "default", one.variant)


def distinct(values: Iterable[Any]) -> Sequence[Any]:
    """Each value once, in order of first appearance."""
    return list(dict.fromkeys(values))
