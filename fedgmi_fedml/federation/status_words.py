"""States and events of a run in words, for the page and the terminal alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fedgmi_fedml.report.words import enumerated, phase

__all__ = ["RUN_STATES", "SILO_STATES", "event_text", "round_name", "stage_text"]

RUN_STATES = {
    "waiting": ("Waiting for silos", "soft"),
    "running": ("Running", "good"),
    "finished": ("Finished", "good"),
    "failed": ("Ended early", "bad"),
    "interrupted": ("Interrupted", "warn"),
    "stopped_early": ("Finished, stopped early", "good"),
    "stale": ("No news", "warn"),
}
"""State of a run → words and how good that is."""

SILO_STATES = {
    "expected": ("not seen yet", "soft"),
    "connected": ("connected, not in yet", "soft"),
    "in": ("in", "good"),
    "absent": ("not there in time", "warn"),
    "lost": ("lost", "bad"),
    "failed": ("failed in its last round", "bad"),
    "done": ("done", "good"),
    "refused": ("refused", "bad"),
}
"""State of a silo → words and how good that is."""

Record = Mapping[str, Any]


def round_name(where: tuple[str, int] | None) -> str:
    """``warm-up round 3`` for round 2 of the warm-up: people count from one."""
    if where is None:
        return ""
    name, number = where
    if name in ("moments", "evaluate"):  # there is only one
        return phase(name).lower()
    return f"round {number + 1}" if name in ("", "rounds") else f"{phase(name).lower()} round {number + 1}"


def stage_text(stage: str) -> str:
    """The driver's own name of what it waits for (``rounds 3: session 0: waiting for 2``), for people."""
    if stage in _STAGES:
        return _STAGES[stage]
    training = len(re.findall(r"\btraining \d+", stage))
    waiting = sum(map(int, re.findall(r"waiting for (\d+)", stage)))
    sums = len(re.findall(r"\bsession \d+", stage))
    parts = []
    if training:
        parts.append("silos are at work" if training == 1 else f"{training} cohorts are at work")
    if sums:
        what = "secure sum" if sums == 1 else f"{sums} secure sums"
        parts.append(f"{what}, waiting for {waiting} silo{'' if waiting == 1 else 's'}")
    return "; ".join(parts)


_STAGES = {
    "join": "waiting for silos to join",
    "beacon": "the silos agree on the draw of cohorts",
    "witnesses": "the silos witness the draw of cohorts",
    "waiting for silos": "too few silos are there for a secure sum: waiting for more",
    "finish": "handing over the models",
}


def _silo(record: Record, names: Mapping[int, str]) -> str:
    number = record.get("silo")
    return "A silo" if number is None else f"Silo {_named(number, names)}"


def _party(record: Record, names: Mapping[int, str]) -> str:
    """Who writes: a silo names itself."""
    return "The server" if record.get("silo") is None else _silo(record, names)


def _silos(record: Record, names: Mapping[int, str]) -> str:
    listed = [_named(number, names) for number in record.get("silos", ())]
    return f"Silo{'' if len(listed) == 1 else 's'} {enumerated(listed)}"


def _named(number: int, names: Mapping[int, str]) -> str:
    return f"{number} ({names[number]})" if names.get(number) else str(number)


def _where(record: Record) -> str:
    return round_name((record.get("phase", ""), record["round"])) if "round" in record else ""


def _phase(record: Record, names: Mapping[int, str]) -> str:
    total, done = record.get("total"), record.get("done", 0)
    rounds = "" if total is None else f": {total} round{'' if total == 1 else 's'}"
    return f"{phase(record.get('phase', ''))}{rounds}" + (f", {done} done before" if done else "")


def _because(text: str, record: Record, key: str = "reason") -> str:
    return f"{text}: {record[key]}" if record.get(key) else text


_TEXTS: dict[str, Callable[[Record, Mapping[int, str]], str]] = {
    "started": lambda r, n: f"{_party(r, n)} started" + (f", back-end {r['backend']}" if r.get("backend") else ""),
    "resumed": lambda r, n: f"{_party(r, n)} started again and goes on from the last whole round",
    "joined": lambda r, n: f"{_silo(r, n)} joined",
    "left": lambda r, n: f"{_silo(r, n)} " + ("took its leave" if r.get("over") else "is gone; it may come back"),
    "absent": lambda r, n: f"{_silos(r, n)}: not there in time",
    "refused": lambda r, n: _because(f"{_silo(r, n)}: refused", r),
    "silo_failed": lambda r, n: _because(f"{_silo(r, n)}: local work failed in {_where(r)}", r, "error"),
    "phase": _phase,
    "aborted": lambda r, n: _because(f"A secure sum of {_where(r)} was discarded, nothing revealed", r),
    "selected": lambda r, n: (
        f"{len(r.get('chosen', ()))} of {r.get('candidates', '?')} candidates start the components"
    ),
    "component_frozen": lambda r, n: f"Component {r.get('component')} stays closed: too few silos hold it",
    "component_reseeded": lambda r, n: f"Component {r.get('component')} starts again from a spare candidate",
    "stopped_early": lambda r, n: "The validation accuracy has ceased to rise: stopping early",
    "checkpoint": lambda r, n: "Checkpoint written",
    "finished": lambda r, n: _because("The run has finished", r),
    "failed": lambda r, n: _because(_because("The run ended early", r), r, "error"),
    "interrupted": lambda r, n: f"{_party(r, n)} was stopped; started again, it goes on from the last whole round",
    "warning": lambda r, n: str(r.get("text", "")),
}


def event_text(record: Record, names: Mapping[int, str]) -> str:
    """One event as a sentence without a full stop.

    Args:
        record: a line of ``events.jsonl``.
        names: silos by roster id.
    """
    kind = str(record.get("event", ""))
    known = _TEXTS.get(kind)
    text = (known(record, names) if known else "") or kind.replace("_", " ").capitalize()
    times = record.get("times", 1)
    return f"{text} ({times} times)" if times > 1 else text
