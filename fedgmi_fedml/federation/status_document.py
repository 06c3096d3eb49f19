"""A snapshot as a plain document: ``/status.json``, and what ``fedgmi status`` prints from.

``fedgmi-status/1``. Times are ISO 8601 in UTC, ``…seconds`` are durations, rounds count from 0, bytes are sums over all
silos. What is not known is ``null``.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Any

from fedgmi_fedml.federation.status_snapshot import PhaseStatus, SiloStatus, Snapshot
from fedgmi_fedml.version import __version__

__all__ = ["FORMAT", "document"]

FORMAT = "fedgmi-status/1"


def document(snapshot: Snapshot, now: float, wall: datetime | None = None) -> dict[str, Any]:
    """The snapshot in JSON's own types.

    Args:
        now: the present moment on the snapshot's clock, seconds.
        wall: the same moment by the calendar; default: now.
    """
    moment = wall or datetime.now(timezone.utc)

    def at(seconds: float | None) -> str | None:
        return None if seconds is None else (moment - timedelta(seconds=now - seconds)).isoformat(timespec="seconds")

    left = snapshot.seconds_left(now)
    best = snapshot.best
    return {
        "format": FORMAT,
        "version": __version__,
        "time": at(now),
        **{name: getattr(snapshot, name) for name in ("federation", "run_name", "run_id", "dataset", "components")},
        **{name: getattr(snapshot, name) for name in ("state", "reason", "stage", "phase")},
        "began": at(snapshot.began),
        "updated": at(snapshot.updated),
        "ended": at(snapshot.ended),
        "elapsed_seconds": round((snapshot.ended or now) - snapshot.began, 1),
        "left_seconds": None if left is None else round(left, 1),
        "silos_in": snapshot.present,
        "silos": [_silo(silo, at(silo.seen), now) for silo in snapshot.silos],
        "phases": [_phase(phase) for phase in snapshot.phases],
        "latest": {
            name: {"value": value, "phase": phase, "round": number}
            for name, (value, phase, number) in snapshot.latest.items()
        },
        "best": None if best is None else {"validation_accuracy": best[0], "phase": best[1], "round": best[2]},
        "open": list(snapshot.is_open),
        "separability": [list(row) for row in snapshot.separability],
        "rounds": [dict(point) for phase in snapshot.phases for point in phase.points],
        "protection": snapshot.protection.model_dump(mode="json"),
        "events": [dict(event) for event in snapshot.events],
    }


def _silo(silo: SiloStatus, seen: str | None, now: float) -> dict[str, Any]:
    shown = asdict(silo)
    for name in ("dropped_in", "failed_in"):
        shown[name] = shown[name] and {"phase": shown[name][0], "round": shown[name][1]}
    age = None if silo.seen is None else round(max(0.0, now - silo.seen), 1)
    return {**shown, "seen": seen, "seen_seconds_ago": age}


def _phase(phase: PhaseStatus) -> dict[str, Any]:
    names = ("name", "total", "done", "seconds", "bytes_up", "bytes_down", "messages", "attempts")
    shown = {name: getattr(phase, name) for name in names}
    return {**shown, "seconds": round(phase.seconds, 3), "every": phase.stride}
