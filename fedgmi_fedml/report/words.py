"""Numbers and names as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from fedgmi_fedml.progress import duration

__all__ = [
    "COLOURS",
    "METHODS",
    "SHORT",
    "count",
    "decimal",
    "duration",
    "enumerated",
    "method",
    "percent",
    "phase",
    "points",
    "size",
]

METHODS = {
    "fedgmi": "FedGMI (personalised)",
    "oracle": "Oracle (true components known)",
    "fedavg": "FedAvg (one model for all)",
    "local": "Local training only",
    "ifca": "IFCA",
    "fedsoft": "FedSoft",
    "fedem": "FedEM",
}
SHORT = {
    "fedgmi": "FedGMI", "ifca": "IFCA", "fedsoft": "FedSoft", "fedem": "FedEM", "fedavg": "FedAvg",
    "local": "local training", "oracle": "oracle",
}  # fmt: skip
"""Methods in a word or two, in the order in which tables compare them."""

COLOURS = {"fedgmi": "c0", "fedavg": "c1", "local": "c3", "oracle": "c2", "ifca": "c4", "fedsoft": "c5", "fedem": "c6"}
"""Each method's colour (``style``), the same in every figure."""

_PHASES = {
    "candidates": "Candidates",
    "survey": "Survey",
    "warmup": "Warm-up",
    "rounds": "Rounds",
    "evaluate": "Evaluation",
    "moments": "Moments of the table",
    "calibration": "Calibration",
    "join": "Joining",
    "finish": "Handing over the models",
    "baselines": "Comparison methods",
}
_MISSING = "–"


def method(name: str) -> str:
    """A method's name in full."""
    return METHODS.get(name, name)


def phase(name: str) -> str:
    """A phase's name in full."""
    return _PHASES.get(name, name.capitalize())


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as a percentage: 0.9134 → ``91.3 %``."""
    return _MISSING if value is None else f"{100 * value:.{digits}f} %"


def points(value: float | None) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return _MISSING if value is None else f"{100 * value:+.1f}".replace("-", "−")


def decimal(value: float | None, digits: int = 3) -> str:
    """A plain number; very large and very small ones keep three significant digits."""
    if value is None:
        return _MISSING
    if value != 0 and (abs(value) >= 10_000 or abs(value) < 10**-digits):
        return f"{value:.3g}".replace("-", "−")
    if abs(value) >= 100:
        return f"{value:,.1f}".replace("-", "−")
    return f"{value:.{digits}f}".replace("-", "−")


def count(value: int | float | None) -> str:
    """A whole number with thousands separated."""
    return _MISSING if value is None else f"{round(value):,}"


def size(value: float | None) -> str:
    """Bytes: ``812 bytes``, ``1.2 MB`` (powers of 1000)."""
    if value is None:
        return _MISSING
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 * scale else f"{value / scale:,.0f} {unit}"
    return f"{round(value)} bytes"


def seconds(value: float | None) -> str:
    """Seconds in words."""
    return _MISSING if value is None else duration(value)


def enumerated(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
