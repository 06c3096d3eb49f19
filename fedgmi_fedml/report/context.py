"""What every part of the page works from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgmi_fedml.report.data import ReportData
from fedgmi_fedml.report.markup import Markup, tag
from fedgmi_fedml.report.svg import Band
from fedgmi_fedml.report.words import phase
from fedgmi_fedml.summary import RunSummary

__all__ = ["Context"]

_CURVED = ("candidates", "warmup", "rounds")


@dataclass(frozen=True)
class Context:
    """One run: its figures, arrays and rounds, already reduced to what the page's audience may see."""

    summary: RunSummary
    data: ReportData
    records: Sequence[Mapping[str, Any]]

    @property
    def simulated(self) -> bool:
        """Whether the page shows everything."""
        return self.summary.view == "simulation"

    @property
    def components(self) -> int:
        """M, from whatever knows it; 0 when nothing does."""
        if self.summary.components:
            return self.summary.components
        for array, axis in ((self.data.alpha, 1), (self.data.separability, 0), (self.data.samples, 0)):
            if array is not None:
                return int(array.shape[axis])
        return 0

    def component(self, index: int, long: bool = False) -> str:
        """A component's name; with ``long`` and where known, the true one it was matched to."""
        partner = self.data.partner(index)
        name = None if partner is None or not long else self.true_name(partner)
        return f"component {index}" + (f" ({name})" if name else "")

    def true_name(self, index: int) -> str | None:
        """Name of a true component, where known."""
        names = self.data.true_names
        return str(names[index]) if names is not None and index < len(names) and str(names[index]) else None

    def chip(self, index: int, text: str | None = None) -> Markup:
        """A component's colour and name."""
        return tag("span", tag("i", class_=f"chip b-c{index % 8}"), text or self.component(index, long=True))

    def rounds(self, method: str = "fedgmi") -> list[Mapping[str, Any]]:
        """The method's rounds that belong on a curve, in order."""
        return [
            record
            for record in self.records
            if record.get("method", "fedgmi") == method and record.get("phase") in _CURVED
        ]

    @property
    def methods(self) -> list[str]:
        """Other methods with rounds of their own."""
        found = dict.fromkeys(str(record.get("method", "fedgmi")) for record in self.records)
        return [name for name in found if name != "fedgmi"]

    def silo_name(self, index: int) -> str:
        """A silo's name, or its number."""
        names = self.data.silo_names
        return str(names[index]) if names is not None and index < len(names) else f"silo {index + 1}"


def bands_of(records: Sequence[Mapping[str, Any]]) -> list[Band]:
    """Stretches of equal phase, as bands of the x axis."""
    bands: list[Band] = []
    for position, record in enumerate(records):
        name, number = phase(str(record.get("phase"))), int(record.get("round", 0)) + 1
        if bands and bands[-1].label == name:
            bands[-1] = replace(bands[-1], stop=position + 1, last=number)
        else:
            bands.append(Band(name, position, position + 1, number, number))
    return bands


def numbers(array: Any) -> list[float | None]:
    """An array's entries as floats, NaN and infinity as ``None``."""
    flat = np.asarray(array, dtype=np.float64).ravel()
    return [float(value) if np.isfinite(value) else None for value in flat]
