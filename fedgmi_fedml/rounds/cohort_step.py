"""The server's side of one step of one cohort: plan out, "ready" in, the secure session, its outcome.

training ──all ready, or time is up──▶ session ──released / surveyed──▶ done
                                          └──aborted──▶ next attempt with the silos that are left, or done (failed)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from fedgmi_fedml.rounds.exposure import Exposure
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.wire import InSession, Message, Plan, Ready
from secure.api import (
    Credentials,
    Event,
    Send,
    ServerSession,
    SessionAbortedEvent,
    SessionReleased,
    SessionSurveyed,
    open_server,
)
from secure.errors import SecureError
from secure.keys import RandomBytes
from secure.types import Aggregate

MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Outcome:
    """How a step ended: with a released sum, with the knowledge which components are open, or failed with a reason."""

    plan: Plan
    aggregate: Aggregate | None = None
    open: tuple[bool, ...] = ()
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether the step reached nothing."""
        return bool(self.reason)


@dataclass(frozen=True)
class StepContext:
    """What a step needs of the run it belongs to."""

    run_id: str
    phases: Phases
    credentials: Credentials | None
    spool_dir: Path
    random: RandomBytes
    send: Callable[[int, Message], None]
    roster_digest: bytes
    exposure: Exposure
    note_exposed: Callable[[], None]
    ready_seconds: float
    step_seconds: float
    upload_seconds: float


class CohortStep:
    """Drives one plan to its outcome. Sans I/O: it never waits; ``deadline`` says that the present wait is over."""

    def __init__(self, context: StepContext, plan: Plan) -> None:
        self._context, self.plan, self._first = context, plan, plan.attempt
        self._present = set(plan.cohort)
        self._ready: set[int] = set()
        self._session: ServerSession | None = None
        self._aborted: ServerSession | None = None
        self._noted: ServerSession | None = None
        self._cohort: tuple[int, ...] = ()
        self.outcome: Outcome | None = None

    @property
    def stage(self) -> str:
        """``training``, ``session`` (with the silos waited for) or ``done``; the clock restarts when it changes."""
        if self.outcome:
            return "done"
        if self._session is None:
            return f"training {self.plan.attempt}"
        return f"session {self.plan.attempt}: waiting for {len(self._session.waiting_for)}"

    @property
    def stage_seconds(self) -> float:
        """How long the present stage may last."""
        if self._session is None:
            return self._context.ready_seconds
        return self._context.upload_seconds if self._session.state == "uploads" else self._context.step_seconds

    def begin(self) -> None:
        """Announce the plan to its cohort."""
        for silo in self.plan.cohort:
            self._context.send(silo, self.plan)
        self._start_if_ready()  # at once, and in vain, where nobody is there

    def handle(self, silo: int, message: Ready | InSession) -> None:
        """Take one message of this step; messages of other attempts and of silos outside the cohort are ignored."""
        late = message.attempt == self.plan.attempt - 1 and isinstance(message, InSession)
        if late and self._aborted is not None and isinstance(message, InSession):
            self._take(self._aborted.handle(silo, message.payload))  # "no share released" from the aborted attempt
        if self.outcome or message.attempt != self.plan.attempt or silo not in self._present:
            return
        if isinstance(message, InSession):
            if self._session is not None:
                self._take(self._session.handle(silo, message.payload))
            return
        self._ready.add(silo)
        self._start_if_ready()

    def lost(self, silo: int) -> None:
        """The silo is gone, or its local work failed."""
        if self.outcome or silo not in self._present:
            return
        self._present.discard(silo)
        self._ready.discard(silo)
        if self._session is not None:
            self._take(self._session.lost(silo))
        else:
            self._start_if_ready()

    def deadline(self) -> None:
        """The present stage's time is up."""
        if self.outcome:
            return
        if self._session is not None:
            self._take(self._session.deadline())
        else:
            self._present = set(self._ready)
            self._start_if_ready()

    def _start_if_ready(self) -> None:
        if self._session is not None or self._ready != self._present:
            return
        plan = self.plan
        cohort = self._context.exposure.choose(plan.start_digest, self._ready)
        if not cohort:
            self._fail("too few silos got ready")
            return
        self._cohort = cohort
        context = self._context
        params = context.phases.session_params(context.run_id, self.plan, cohort, context.roster_digest)
        try:
            self._session = open_server(
                params, credentials=context.credentials, spool_dir=context.spool_dir, random=context.random,
                voids=() if self._aborted is None else self._aborted.voids,
            )  # fmt: skip
        except SecureError as error:
            self._fail(str(error))
            return
        self._take(self._session.start())

    def _take(self, events: Iterable[Event]) -> None:
        plan = self.plan
        for event in events:
            match event:
                case Send(payload, to):
                    if to is not None and to in self._present:
                        self._context.send(to, InSession(plan.phase, plan.round, plan.attempt, plan.group, payload))
                case SessionReleased(aggregate):
                    self.outcome = Outcome(plan, aggregate, aggregate.open)
                case SessionSurveyed(is_open, _):
                    self.outcome = Outcome(plan, None, is_open)
                case SessionAbortedEvent(reason, culprits):
                    self._retry(reason, culprits)
        self._expose()

    def _retry(self, reason: str, culprits: tuple[int, ...]) -> None:
        """Repeat with fresh keys and without those at fault. Trained updates are kept by the silos."""
        self._aborted, self._session = self._session, None
        self._present -= set(culprits)
        self._ready = set()
        self._expose()
        self._present = set(self._context.exposure.choose(self.plan.start_digest, self._present))
        if self.plan.attempt + 1 - self._first >= MAX_ATTEMPTS or not self._present:
            self._fail(reason)
            return
        self.plan = replace(self.plan, attempt=self.plan.attempt + 1, cohort=tuple(sorted(self._present)))
        self.begin()

    def _expose(self) -> None:
        """Remember whose totals are out, on the disk before they leave, for what starts from the same models later."""
        session = self._session or self._aborted
        if session is not None and session.totals_out and session is not self._noted:
            self._noted = session
            self._context.exposure.note(self.plan.start_digest, self._cohort)
            self._context.note_exposed()

    def _fail(self, reason: str) -> None:
        self.outcome = Outcome(self.plan, reason=reason)
