"""Bytes and seconds, by phase and by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgmi_fedml.report.context import Context
from fedgmi_fedml.report.markup import Markup, figure, join, table, tag
from fedgmi_fedml.report.svg import drawing
from fedgmi_fedml.report.words import count, percent, phase, seconds, size

__all__ = ["cost"]

_STEPS = {
    "train": "training",
    "score": "scoring",
    "protocol": "secure aggregation",
    "pack": "packing",
    "apply": "applying the sum",
    "wait": "waiting",
    "evaluate": "measuring",
    "selection": "selecting candidates",
    "save": "saving",
}


def _total(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [record[name] for record in records if isinstance(record.get(name), (int, float))]
    return sum(known) if known else None


def _phase_table(context: Context) -> Markup | None:
    """One row a phase, and their sum."""
    summary = context.summary
    own = [record for record in context.records if record.get("method", "fedgmi") == "fedgmi"]
    names = list(dict.fromkeys([*(str(r.get("phase")) for r in own), *summary.phase_seconds, *summary.phase_bytes]))
    rows = []
    for name in names:
        records = [record for record in own if record.get("phase") == name]
        spent = summary.phase_seconds.get(name) or _total(records, "seconds")
        up, down = _total(records, "bytes_up"), _total(records, "bytes_down")
        both = summary.phase_bytes.get(name) or (None if up is None else up + (down or 0))
        each = None if spent is None or not records else spent / len(records)
        rows.append(
            [phase(name), count(len(records) or None), seconds(spent), seconds(each), size(up), size(down), size(both)]
        )
    if not rows:
        return None
    times = [
        summary.phase_seconds.get(name) or _total([r for r in own if r.get("phase") == name], "seconds")
        for name in names
    ]
    everything = [value for value in summary.phase_bytes.values() if value is not None]
    up, down = _total(own, "bytes_up"), _total(own, "bytes_down")
    total = sum(everything) if everything else None if up is None else up + (down or 0)
    rows.append(
        ["All", count(len(own) or None), seconds(sum(v for v in times if v is not None) or None), "–", size(up),
         size(down), size(total)]
    )  # fmt: skip
    head = ["Phase", "Rounds", "Time", "A round", "Up", "Down", "Bytes in all"]
    caption = "Bytes are those of all silos together."
    if context.methods:
        caption += " The methods that FedGMI is compared with are not counted."
    return table(head, rows, caption, kind="full")


def _steps_figure(context: Context) -> Markup | None:
    """Where the time of a round goes, as one bar."""
    spent: dict[str, float] = {}
    for record in context.rounds():
        for name, value in (record.get("step_seconds") or {}).items():
            if isinstance(value, (int, float)):
                spent[name] = spent.get(name, 0.0) + value
    total = sum(spent.values())
    if total <= 0:
        return None
    order = sorted(spent, key=lambda name: -spent[name])
    width, left = 1040.0, 0.0
    marks: list[Markup] = []
    for index, name in enumerate(order):
        length = width * spent[name] / total
        hover = tag("title", f"{_STEPS.get(name, name)}: {seconds(spent[name])}")
        place = {"x": f"{left:.1f}", "y": 0, "width": f"{length:.1f}", "height": 30}
        marks.append(tag("rect", hover, **place, class_=f"seg f-c{index % 8}"))
        left += length
    legend = [
        tag("span", tag("i", class_=f"b-c{i % 8}"), f"{_STEPS.get(name, name)} {percent(spent[name] / total, 0)}")
        for i, name in enumerate(order)
    ]
    text = "; ".join(f"{_STEPS.get(name, name)} {seconds(spent[name])}" for name in order)
    title = "Where the time goes"
    picture = drawing(width, 30, title, text, *marks)
    rows = [[_STEPS.get(name, name), seconds(spent[name]), percent(spent[name] / total)] for name in order]
    data = table(["Step", "Time", "Share"], rows)
    return figure(title, join(picture, tag("div", *legend, class_="legend")), "", data, wide=True)


def cost(context: Context) -> Markup | None:
    """The section's content, or ``None`` when nothing was measured."""
    parts = [part for part in (_phase_table(context), _steps_figure(context)) if part is not None]
    return tag("div", *parts, class_="cost") if parts else None
