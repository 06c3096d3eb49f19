"""What the status page shows, as an immutable snapshot, and how one telemetry record makes the next one of it.

Pure functions: a snapshot is never changed, so whoever reads one needs no lock. However long a run is, a snapshot
holds at most ``MOST_POINTS`` rounds of each phase and ``MOST_EVENTS`` events.

A silo's states: expected ─▶ connected ─▶ in ⇄ lost, failed ─▶ done;  refused or absent where it could not join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedgmi_fedml.summary import SecureSummary

__all__ = ["PhaseStatus", "SiloStatus", "Snapshot", "fold_event", "fold_round", "with_link_ended", "with_silo"]

Record = Mapping[str, Any]

MOST_POINTS = 200
MOST_EVENTS = 60
VECTORS = ("vae_loss", "expert_loss", "candidate_loss")
SCALARS = ("validation_accuracy", "test_accuracy", "confidence", "beta", "temperature")
_KEPT = ("phase", "round", "seconds", *VECTORS, *SCALARS)
PRESENT = ("in", "failed", "done")
_ENDS = {"finished": "finished", "failed": "failed", "interrupted": "interrupted"}


@dataclass(frozen=True)
class SiloStatus:
    """One silo, as the server sees it: presence and mishaps, never sizes.

    Attributes:
        state: ``expected`` (nothing heard yet), ``connected`` (not in the run yet), ``in``, ``absent`` (not there in
            time), ``lost`` (its link ended), ``failed`` (its local work raised), ``done`` (gone after the last round),
            ``refused``.
        ready: whether it has finished its local work of the present round.
        seen: when something last arrived from it, seconds on the snapshot's clock; ``None``: never.
        dropped: rounds in whose sum it is missing though it was asked; ``dropped_in``: the last (phase, round).
        failures: times that its local work raised; ``failed_in``: the last (phase, round); ``error``: its class.
        reason: why it was lost or refused, in words.
    """

    id: int
    name: str = ""
    state: str = "expected"
    ready: bool = False
    seen: float | None = None
    dropped: int = 0
    dropped_in: tuple[str, int] | None = None
    failures: int = 0
    failed_in: tuple[str, int] | None = None
    error: str = ""
    reason: str = ""


@dataclass(frozen=True)
class PhaseStatus:
    """One phase: how far it is, what it cost (all silos together), and its rounds, thinned where there are many.

    Attributes:
        total: rounds it will have, ``None`` where that is not known.
        seconds, bytes_up, bytes_down, messages, attempts: sums over its rounds.
        recent: seconds of the last rounds, for the time left.
        kept: every ``stride``-th round's record; ``last``: the newest; ``counted``: how many there were.
    """

    name: str
    total: int | None = None
    done: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    attempts: int = 0
    recent: tuple[float, ...] = ()
    kept: tuple[Record, ...] = ()
    last: Record | None = None
    counted: int = 0
    stride: int = 1

    @property
    def points(self) -> tuple[Record, ...]:
        """The rounds to draw, in order, the newest always among them."""
        if self.last is None or (self.kept and self.kept[-1] is self.last):
            return self.kept
        return (*self.kept, self.last)

    def with_round(self, record: Record) -> PhaseStatus:
        """One more round."""
        point = {name: record[name] for name in _KEPT if record.get(name) is not None}
        kept, stride = self.kept, self.stride
        if self.counted % stride == 0:
            kept = (*kept, point)
        if len(kept) > MOST_POINTS:
            kept, stride = kept[::2], 2 * stride
        sums = {
            name: getattr(self, name) + (record.get(name) or 0)
            for name in ("seconds", "bytes_up", "bytes_down", "messages", "attempts")
        }
        done = max(self.done, record["round"] + 1)
        recent = (*self.recent, record.get("seconds") or 0.0)[-5:]
        return replace(
            self, kept=kept, stride=stride, last=point, counted=self.counted + 1, done=done, recent=recent, **sums
        )

    @property
    def pace(self) -> float | None:
        """Mean seconds of the last rounds."""
        return sum(self.recent) / len(self.recent) if self.recent else None


@dataclass(frozen=True)
class Snapshot:
    """The whole run at one moment.

    Attributes:
        federation, run_name, run_id, dataset: names.
        state: ``waiting`` (for silos), ``running``, ``finished``, ``failed`` (ended early, the last whole models kept)
            or ``interrupted``.
        reason: why it ended, in words.
        finishing: whether the last round is over, so that silos may leave.
        stage: what the server waits for, in words.
        phase: name of the present phase; empty before the first.
        phases: in the order in which they began or are planned.
        latest: the newest known value of each summed metric, ``(value, phase, round)`` by name.
        best: the best validation accuracy so far, with its phase and round.
        is_open: which components the last sum opened, from the rounds.
        separability: symmetric KL divergence of every two VAEs, nats.
        sessions, aborted, partial: secure sessions begun, those that were discarded, rounds that went on without a
            silo of their cohort.
        clipped_share: largest so far.
        events: the last ones, oldest first; one that came several times in a row once, with ``times``.
        began, updated, rounded, ended: seconds on the snapshot's clock: the start (earlier processes of the run
            counted in), the last change, the last round's end, the run's end.
        protection: what is in force.
        version: higher in every later snapshot of a state.
    """

    federation: str = ""
    run_name: str = ""
    run_id: str = ""
    dataset: str = ""
    components: int = 0
    state: str = "waiting"
    reason: str = ""
    finishing: bool = False
    stage: str = ""
    phase: str = ""
    silos: tuple[SiloStatus, ...] = ()
    phases: tuple[PhaseStatus, ...] = ()
    latest: Mapping[str, tuple[Any, str, int]] = field(default_factory=dict)
    best: tuple[float, str, int] | None = None
    is_open: tuple[bool, ...] = ()
    separability: tuple[tuple[float | None, ...], ...] = ()
    sessions: int = 0
    aborted: int = 0
    partial: int = 0
    clipped_share: float = 0.0
    events: tuple[Record, ...] = ()
    began: float = 0.0
    updated: float = 0.0
    rounded: float = 0.0
    ended: float | None = None
    protection: SecureSummary = field(default_factory=SecureSummary)
    version: int = 0

    def phase_status(self, name: str) -> PhaseStatus | None:
        """A phase by name, ``None`` where it is not known yet."""
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def present(self) -> int:
        """Silos that take part, or did until the end."""
        return sum(silo.state in PRESENT for silo in self.silos)

    @property
    def over(self) -> bool:
        """Whether the run has ended, one way or another."""
        return self.state in ("finished", "failed", "interrupted")

    def seconds_left(self, now: float) -> float | None:
        """Of the known phases, at the pace of the last rounds; phases to come count at the mean pace of the others."""
        present = self.phase_status(self.phase)
        if self.over or present is None or present.pace is None:
            return None
        paces = [phase.pace for phase in self.phases if phase.pace is not None]
        mean = sum(paces) / len(paces)
        coming = self.phases[self.phases.index(present) :]
        left = sum((phase.pace or mean) * max(0, (phase.total or 0) - phase.done) for phase in coming)
        return max(0.0, left - min(max(0.0, now - self.rounded), present.pace))


def fold_round(snapshot: Snapshot, record: Record, now: float) -> Snapshot:
    """The snapshot after one line of ``rounds.jsonl``."""
    name, number = record["phase"], record["round"]
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
