"""The end of a run on a terminal: the comparison and the figures one looks for first, as plain text."""

from __future__ import annotations

import textwrap

from fedgmi_fedml.report.protection import NAMES
from fedgmi_fedml.report.words import count, decimal, method, percent, phase, points, seconds
from fedgmi_fedml.summary import RunSummary

__all__ = ["terminal_summary"]

_WIDTH = 78


def _comparison(summary: RunSummary) -> list[str]:
    known = {name: value for name, value in summary.pooled_accuracy.items() if value is not None}
    if not known:
        return []
    own = known.get("fedgmi")
    lines = ["", f"  {'Accuracy on all test samples':38}{'':>9}   {'points away' if len(known) > 1 else ''}".rstrip()]
    for name in sorted(known, key=lambda name: -known[name]):
        away = "" if own is None or name == "fedgmi" else points(known[name] - own)
        lines.append(f"  {method(name):38}{percent(known[name]):>9}   {away:>11}".rstrip())
    return lines


def _figures(summary: RunSummary) -> list[tuple[str, str]]:
    effective = None if summary.effective_components is None else f"{summary.effective_components:.2f}"
    of = f" of {summary.components}" if summary.components else ""
    whose = "this silo" if summary.view == "silo" else "mean over silos"
    upload = summary.secure.upload_bytes_per_parameter
    return [
        (f"Test accuracy, {whose}", percent(summary.personalised_accuracy)),
        ("Error of the mixture proportions", decimal(summary.alpha_mae, 4)),
        ("Samples in the right component", percent(summary.partition_accuracy)),
        ("Specialisation gap, points", points(summary.specialisation_gap)),
        ("Effective components", "–" if effective is None else effective + of),
        ("Upload per parameter and round", "–" if upload is None else f"{upload:.2f} bytes"),
    ]


def terminal_summary(summary: RunSummary) -> str:
    """A table of at most 78 columns, without colours; what is not known is left out."""
    parts = [summary.run_name or summary.dataset]
    if summary.silos:
        parts.append(f"{count(summary.silos)} silos")
    if summary.components:
        parts.append(f"{summary.components} components")
    if summary.rounds is not None:
        parts.append(f"{count(summary.rounds)} rounds")
    lines = [" · ".join(part for part in parts if part), "─" * _WIDTH]
    lines.append(f"  Protection: {NAMES.get(summary.secure.backend or '', 'not recorded')}")
    lines += _comparison(summary)
    figures = [(name, value) for name, value in _figures(summary) if value != "–"]
    lines += ["", *(f"  {name:38}{value:>{max(9, len(value))}}" for name, value in figures)] if figures else []
    if summary.wall_seconds is not None:
        phases = [f"{phase(name).lower()} {seconds(value)}" for name, value in summary.phase_seconds.items() if value]
        spent = f"Took {seconds(summary.wall_seconds)}" + (f": {', '.join(phases)}" if phases else "")
        lines += ["", *textwrap.wrap(spent, _WIDTH, initial_indent="  ", subsequent_indent="    ")]
    for warning in summary.warnings:
        lines += ["", *textwrap.wrap(f"! {warning}", _WIDTH, initial_indent="  ", subsequent_indent="    ")]
    return "\n".join([*lines, "─" * _WIDTH])
