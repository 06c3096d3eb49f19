"""What the status page shows, as an immutable snapshot: whoever reads one needs no lock.

However long a run is, a snapshot holds at most ``MOST_POINTS`` rounds of each phase and ``MOST_EVENTS`` events.
``status_fold`` makes the next snapshot of one.

A silo's states: expected ─▶ connected ─▶ in ⇄ lost, failed ─▶ done;  refused or absent where it could not join.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedgmi_fedml.summary import SecureSummary

__all__ = ["PhaseStatus", "SiloStatus", "Snapshot"]

Record = Mapping[str, Any]

MOST_POINTS = 200
MOST_EVENTS = 60
VECTORS = ("vae_loss", "expert_loss", "candidate_loss")
SCALARS = ("validation_accuracy", "test_accuracy", "confidence", "beta", "temperature")
_KEPT = ("phase", "round", "seconds", *VECTORS, *SCALARS)
PRESENT = ("in", "failed", "done")


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
