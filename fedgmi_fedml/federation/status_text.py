"""A status document as plain text for a terminal of at least 60 columns. Control characters never get through."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from fedgmi_fedml.federation.status_words import RUN_STATES, SILO_STATES, event_text, round_name
from fedgmi_fedml.report.words import decimal, duration, percent, phase, size

__all__ = ["status_text"]

_WIDTH = 78
_BAR = 24
_EVENTS = 8
_METRICS = (
    ("validation_accuracy", "Validation accuracy"),
    ("test_accuracy", "Test accuracy"),
    ("confidence", "Confidence of the gate"),
    ("vae_loss", "VAE loss, nats"),
    ("expert_loss", "Expert loss, nats"),
    ("candidate_loss", "Candidates' loss, nats"),
)
Document = Mapping[str, Any]


def status_text(found: Document, note: str = "") -> str:
    """The document in lines; what is not known is left out.

    Args:
        note: a line on where this comes from.
    """
    lines = [_head(found), "─" * _WIDTH, *_state(found), *_progress(found), *_silos(found), *_metrics(found)]
    lines += [*_cost(found), *_events(found), "─" * _WIDTH]
    return "\n".join(_safe(line) for line in [*lines, *([note] if note else [])])


def _safe(text: str) -> str:
    """Names and reasons come from elsewhere: nothing in them may steer a terminal."""
    return "".join("·" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


def _head(found: Document) -> str:
    names = [found.get("federation") or found.get("run_name") or "FedGMI run", found.get("run_id") or ""]
    return " · ".join(name for name in names if name)


def _state(found: Document) -> list[str]:
    words = RUN_STATES.get(found["state"], (found["state"],))[0]
    stage, reason = found.get("stage"), found.get("reason")
    text = f"  {words}" + (f": {reason}" if reason else f": {stage}" if stage else "")
    spent = found.get("elapsed_seconds")
    over = found["state"] in ("finished", "failed", "stopped_early", "interrupted")
    times = [] if spent is None else [f"took {duration(spent)}" if over else f"{duration(spent)} elapsed"]
    if found.get("left_seconds") is not None:
        times.append(f"about {duration(found['left_seconds'])} left")
    if found["state"] == "stale":
        times = [f"last line written {found['updated']}"]
    return [text, "  " + ", ".join(times)]


def _progress(found: Document) -> list[str]:
    lines = []
    for item in found["phases"]:
        total, done = item["total"], item["done"]
        if not total:
            continue
        full = round(_BAR * min(1.0, done / total))
        here = " ◀" if item["name"] == found["phase"] and found["state"] == "running" else ""
        lines.append(f"  {phase(item['name'])[:24]:24} {'━' * full}{'─' * (_BAR - full)} {done}/{total}{here}")
    return ["", *lines] if lines else []


def _silos(found: Document) -> list[str]:
    silos = found["silos"]
    if not silos:
        return []
    lines = ["", f"  Silos: {found['silos_in']} of {len(silos)} in"]
    width = max(len(_name(silo)) for silo in silos)
    for silo in silos:
        words = "" if silo["state"] == "failed" else SILO_STATES.get(silo["state"], (silo["state"],))[0]
        marks = [words + (", ready" if silo["ready"] else ""), *_mishaps(silo)]
        lines.append(f"    {_name(silo):{min(width, 28)}}  " + "; ".join(marks))
    return lines


def _name(silo: Document) -> str:
    return f"{silo['id']:>3} {silo['name']}".rstrip()


def _where(place: Document) -> str:
    return round_name((place["phase"], place["round"]))


def _mishaps(silo: Document) -> list[str]:
    marks = []
    if silo["reason"]:
        marks.append(silo["reason"])
    if silo["dropped"]:
        sums = "1 sum," if silo["dropped"] == 1 else f"{silo['dropped']} sums, last"
        marks.append(f"missing from {sums} {_where(silo['dropped_in'])}")
    if silo["failures"]:
        marks.append(f"failed in {_where(silo['failed_in'])}: {silo['error']}")
    return marks


def _metrics(found: Document) -> list[str]:
    lines = []
    for name, words in _METRICS:
        if name not in found["latest"]:
            continue
        entry = found["latest"][name]
        value = entry["value"]
        shown = ", ".join(decimal(v, 2) for v in value) if isinstance(value, Sequence) else percent(value)
        best = found.get("best") if name == "validation_accuracy" else None
        best = None if best is not None and _where(best) == _where(entry) else best
        extra = f"   best {percent(best['validation_accuracy'])} in {_where(best)}" if best else ""
        lines.append(f"  {words:24} {shown}   ({_where(entry)}){extra}")
    return ["", *lines] if lines else []


def _cost(found: Document) -> list[str]:
    used = [item for item in found["phases"] if item["bytes_up"] or item["bytes_down"]]
    up, down = sum(item["bytes_up"] for item in used), sum(item["bytes_down"] for item in used)
    secure = found["protection"]
    lines = [f"  Protection: {secure.get('backend') or 'not recorded'}"]
    if secure.get("sessions"):
        lines[0] += f"; {secure['sessions']} secure sums, {secure['aborted_sessions']} discarded"
    if used:
        lines.append(f"  Bytes: {size(up)} up, {size(down)} down, all silos together")
    return ["", *lines]


def _events(found: Document) -> list[str]:
    names = {silo["id"]: silo["name"] for silo in found["silos"]}
    lines = []
    for event in found["events"][-_EVENTS:]:
        clock = str(event.get("time", ""))[11:19]
        lines.append(f"  {clock:8} {event_text(event, names)}")
    return ["", *lines] if lines else []
