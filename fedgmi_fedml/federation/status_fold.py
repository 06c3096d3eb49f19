"""How one telemetry record makes the next snapshot: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fedgmi_fedml.federation.status_snapshot import (
    MOST_EVENTS,
    PRESENT,
    SCALARS,
    VECTORS,
    PhaseStatus,
    Record,
    SiloStatus,
    Snapshot,
)

__all__ = ["fold_event", "fold_round", "with_link_ended", "with_silo"]

_ENDS = {"finished": "finished", "failed": "failed", "interrupted": "interrupted"}


def fold_round(snapshot: Snapshot, record: Record, now: float) -> Snapshot:
    """The snapshot after one line of ``rounds.jsonl``."""
    name, number = record["phase"], record["round"]
    record = _closed_unknown(record)
    phase = (snapshot.phase_status(name) or PhaseStatus(name)).with_round(record)
    latest = dict(snapshot.latest)
    for metric in (*VECTORS, *SCALARS):
        if record.get(metric) is not None:
            latest[metric] = (record[metric], name, number)
    best, accuracy = snapshot.best, record.get("validation_accuracy")
    if accuracy is not None and name in ("rounds", "evaluate") and (best is None or accuracy > best[0]):
        best = (accuracy, name, number)
    flags = record.get("open") if name in ("rounds", "warmup") else None
    matrix = record.get("separability")
    attempts, failed = record.get("attempts", 0), record.get("failed_sessions", 0)
    changed = replace(
        snapshot,
        state="running",
        phase=name,
        phases=_replaced(snapshot.phases, phase),
        latest=latest,
        best=best,
        is_open=snapshot.is_open if flags is None else tuple(flags),
        separability=snapshot.separability if matrix is None else tuple(map(tuple, matrix)),
        sessions=snapshot.sessions + attempts,
        aborted=snapshot.aborted + max(attempts - 1, 0) + failed,
        partial=snapshot.partial + (record.get("complete") is False),
        clipped_share=max(snapshot.clipped_share, record.get("clipped_share") or 0.0),
        finishing=name == "evaluate",
        updated=now,
        rounded=now,
    )
    dropped = set(record.get("dropped", ()))
    return _each(changed, lambda silo: _after_round(silo, silo.id in dropped, (name, number)))


def _closed_unknown(record: Record) -> Record:
    """A component that was closed has no loss: its sum is zero because nothing was added up."""
    flags = record.get("open")
    if flags is None or all(flags):
        return record
    losses = {
        name: [value if is_open else None for value, is_open in zip(record[name], flags, strict=False)]
        for name in VECTORS[:2]
        if record.get(name) is not None
    }
    return {**record, **losses}


def _after_round(silo: SiloStatus, dropped: bool, where: tuple[str, int]) -> SiloStatus:
    if dropped:
        return replace(silo, ready=False, dropped=silo.dropped + 1, dropped_in=where)
    return replace(silo, ready=False) if silo.ready else silo


def _replaced(phases: tuple[PhaseStatus, ...], phase: PhaseStatus) -> tuple[PhaseStatus, ...]:
    if any(old.name == phase.name for old in phases):
        return tuple(phase if old.name == phase.name else old for old in phases)
    if phase.name == "moments":  # before all others
        return (phase, *phases)
    return (*phases, phase)


def fold_event(snapshot: Snapshot, record: Record, now: float) -> Snapshot:
    """The snapshot after one line of ``events.jsonl``; ``record["event"]`` says what happened."""
    kind = record["event"]
    if kind == "left" and snapshot.finishing:
        record = {**record, "over": True}
    snapshot = replace(snapshot, events=_tail(snapshot.events, record), updated=now)
    if kind in _ENDS:
        return replace(snapshot, state=_ENDS[kind], reason=record.get("reason", ""), ended=now, stage="")
    change = _EVENTS.get(kind)
    return change(snapshot, record) if change else snapshot


def _tail(events: tuple[Record, ...], record: Record) -> tuple[Record, ...]:
    """The last events; the same thing again only counts."""
    if events and _what(events[-1]) == _what(record):
        return (*events[:-1], {**record, "times": events[-1].get("times", 1) + 1})
    return (*events, record)[-MOST_EVENTS:]


def _what(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("time", "elapsed", "times")}


def _each(snapshot: Snapshot, change: Callable[[SiloStatus], SiloStatus]) -> Snapshot:
    return replace(snapshot, silos=tuple(change(silo) for silo in snapshot.silos))


def with_silo(snapshot: Snapshot, silos: Iterable[int], **changes: Any) -> Snapshot:
    """The snapshot with some silos changed; ids outside the roster are ignored."""
    chosen = set(silos)
    return _each(snapshot, lambda silo: replace(silo, **changes) if silo.id in chosen else silo)


def _phase(snapshot: Snapshot, record: Record) -> Snapshot:
    name = record["phase"]
    phase = replace(
        snapshot.phase_status(name) or PhaseStatus(name), total=record.get("total"), done=record.get("done", 0)
    )
    return replace(snapshot, state="running", phase=name, phases=_replaced(snapshot.phases, phase))


def _failed(snapshot: Snapshot, record: Record) -> Snapshot:
    chosen, where = record.get("silo"), (snapshot.phase, record.get("round", 0))
    error = record.get("error", "")

    def change(silo: SiloStatus) -> SiloStatus:
        if silo.id != chosen:
            return silo
        return replace(silo, state="failed", ready=False, failures=silo.failures + 1, failed_in=where, error=error)

    return _each(snapshot, change)


def _refused(snapshot: Snapshot, record: Record) -> Snapshot:
    """A silo that is in had one message refused; one that is not was turned away."""
    chosen, reason = record.get("silo"), record.get("reason", "")
    return _each(
        snapshot,
        lambda silo: (
            replace(silo, state="refused", reason=reason)
            if silo.id == chosen and silo.state not in ("in", "failed")
            else silo
        ),
    )


def _gone(snapshot: Snapshot, record: Record) -> Snapshot:
    return with_link_ended(snapshot, record.get("silo", 0), "", ("in", "failed"))


def with_link_ended(
    snapshot: Snapshot, silo: int, reason: str, among: tuple[str, ...] = ("connected", "in", "failed", "lost")
) -> Snapshot:
    """The snapshot without a silo's link: it is lost, or done where the last round is over.

    Args:
        reason: why, in words. among: states of the silo in which that changes something.
    """

    def change(old: SiloStatus) -> SiloStatus:
        if old.id != silo or old.state not in among:
            return old
        if snapshot.finishing and old.state in PRESENT:
            return replace(old, state="done", ready=False, reason="")
        return replace(old, state="lost", ready=False, reason=reason or old.reason)

    return _each(snapshot, change)


_EVENTS: dict[str, Callable[[Snapshot, Record], Snapshot]] = {
    "started": lambda snapshot, record: replace(snapshot, state="waiting", ended=None),
    "resumed": lambda snapshot, record: replace(
        _each(snapshot, lambda silo: replace(silo, state="expected", ready=False, reason="")),
        state="waiting", ended=None, reason="", finishing=False,
    ),
    "joined": lambda snapshot, record: with_silo(snapshot, [record.get("silo", 0)], state="in", reason=""),
    "left": _gone,
    "absent": lambda snapshot, record: with_silo(snapshot, record.get("silos", ()), state="absent", ready=False),
    "refused": _refused,
    "silo_failed": _failed,
    "phase": _phase,
}  # fmt: skip
