"""The server's driver of a run: messages in, messages out, deadlines as events.

The algorithm itself is a script (``rounds.fedgmi``): a generator that yields what it waits for. This class feeds it.
It never blocks and never reads a clock; whoever pumps the messages does.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedgmi_fedml.errors import RunError
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.rounds.admission import Admission, Script, Wait
from fedgmi_fedml.rounds.agreement import Agreement
from fedgmi_fedml.rounds.cohort_step import CohortStep, Outcome, StepContext
from fedgmi_fedml.rounds.exposure import Exposure
from fedgmi_fedml.rounds.models_codec import encode_models
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.wire import (
    Failed,
    Finish,
    Finished,
    InSession,
    Join,
    Message,
    Plan,
    Ready,
    Released,
    Reveal,
    WireError,
    Witness,
    decode,
    encode,
    looks_like_join,
)
from fedgmi_fedml.version import WIRE_VERSION
from secure.api import Credentials, encode_aggregate
from secure.gate import smallest_cohort
from secure.keys import RandomBytes
from secure.types import Rules

Notify = Callable[[str, dict[str, object]], None]
"""Called with (event, fields) for whoever watches: telemetry, progress. Fields hold only what the server may know."""


@dataclass(frozen=True)
class Outgoing:
    """Deliver ``payload`` to silo ``to``."""

    to: int
    payload: bytes


@dataclass
class Traffic:
    """Bytes and messages between the server and all silos in one phase."""

    up: int = 0
    down: int = 0
    messages: int = 0


@dataclass(eq=False)
class ServerRun:
    """The server's side of one run.

    Args:
        phases: layouts and starting models.
        silos: roster ids, ascending.
        run_id: names the run on all parties.
        script: the algorithm, called with this run.
        credentials: the server's identity and the roster; ``None`` with back-end ``none``.
        spool_dir: where uploads wait until they are complete.
        notify: told of every event that the server may know.
        class_names: the agreed classes in order; ``None``: as the first silo to join says.
        agreed: what the silos agreed on before an earlier server process of this run ended.
        keep: told of every change of the agreement, before any message that rests on it leaves.
        first_attempt: number of every step's first attempt: higher in each server process of a run, for silos take
            part in an attempt only once.
        random: operating system randomness; injected in tests.
    """

    phases: Phases
    silos: tuple[int, ...]
    run_id: str
    script: Callable[[ServerRun], Script]
    credentials: Credentials | None
    spool_dir: Path
    notify: Notify = lambda event, fields: None
    class_names: tuple[str, ...] | None = None
    agreed: Agreement | None = None
    keep: Callable[[Agreement], None] = lambda agreement: None
    first_attempt: int = 0
    random: RandomBytes = os.urandom
    outgoing: deque[Outgoing] = field(default_factory=deque)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    phase: str = "join"
    finished: bool = False

    def __post_init__(self) -> None:
        self.admission = Admission(
            self.phases, self.silos, self.run_id, self.credentials, self.class_names, self.send, self.notify,
            self.keep, self.agreed,
        )  # fmt: skip
        self._left: set[int] = set()
        self._steps: list[CohortStep] = []
        self._holds: dict[int, bytes] = {}
        self._exposure = Exposure(b"", 0)
        self.stop_reason = ""
        self._encoded: tuple[Message | None, bytes] = (None, b"")
        self._script = self.script(self)
        self._wait: Wait | None = None
        deadlines = self.phases.config.fedgmi_args.secure.deadlines
        self._join_seconds, self._ready_seconds = float(deadlines.join), float(deadlines.ready)
        self._step_seconds, self._upload_seconds = float(deadlines.step), float(deadlines.upload)

    # ---- the pump's side -----------------------------------------------------------------------------------------

    def start(self) -> Iterable[Outgoing]:
        """Begin; yields what there is to send."""
        self._wait = next(self._script)
        return self._drain()

    def handle(self, silo: int, payload: bytes) -> Iterable[Outgoing]:
        """Take one message from ``silo``. Garbage and messages out of turn are ignored and noted, never fatal."""
        traffic = self.traffic.setdefault(self.phase, Traffic())
        traffic.up += len(payload)
        traffic.messages += 1
        try:
            self._take(silo, decode(payload))
        except WireError as error:
            self.notify("refused", {"silo": silo, "reason": str(error)})
            if looks_like_join(payload) and silo not in self.admission.present:
                self.admission.refuse(silo, f"the server speaks wire version {WIRE_VERSION}; {error}")
        return self._advance()

    def deadline(self) -> Iterable[Outgoing]:
        """The present stage's time is up."""
        return self._advance(timed_out=True)

    def lost(self, silo: int) -> Iterable[Outgoing]:
        """The transport says that this silo is gone; it may join again at any time."""
        if silo in self.admission.present:
            self.notify("left", {"silo": silo})
        self._forget(silo)
        return self._advance()

    @property
    def stage(self) -> str:
        """What is being waited for; the pump restarts its clock when it changes."""
        return "" if self._wait is None else self._wait.stage()

    @property
    def stage_seconds(self) -> float:
        """How long the present stage may last."""
        return 0.0 if self._wait is None else self._wait.seconds()

    # ---- the script's side ---------------------------------------------------------------------------------------

    def gather(self) -> Script:
        """Wait for the silos to join; agree on the beacon from committed nonces, or go on with the run's own."""
        yield from self.admission.gather(self._join_seconds, self._step_seconds)
        agreed = self.agreement
        if agreed is None:
            raise RunError("the silos agreed on no beacon: start the run again")
        colluders = self.phases.config.fedgmi_args.secure.rules.colluders
        self._exposure = Exposure(agreed.beacon, colluders, agreed.exposed)

    @property
    def agreement(self) -> Agreement | None:
        """The run's beacon and what else must outlive this process; ``keep`` is told of every change."""
        return self.admission.agreement

    @property
    def beacon(self) -> bytes:
        """Draws every cohort."""
        return self.agreement.beacon if self.agreement else b""

    @property
    def members(self) -> tuple[int, ...]:
        """The silos whose nonces are in the beacon, ascending: the candidates' cohorts are drawn from them."""
        return self.agreement.members if self.agreement else ()

    @property
    def available(self) -> tuple[int, ...]:
        """Silos that have joined and are there, ascending."""
        return self.admission.available

    def steps(self, drawn: Sequence[Plan], starts: Sequence[MixtureState]) -> Generator[Wait, bool, list[Outcome]]:
        """Run plans side by side (disjoint cohorts) to their outcomes; silos that lack the models get them first.

        Args:
            drawn: plans for the cohorts that were drawn; those who are there work on them. Their attempts are
                numbered from this process's first one.
        """
        self.phase = drawn[0].phase
        yield from self._enough()
        there = set(self.available)
        plans = [
            replace(plan, attempt=self.first_attempt, cohort=tuple(silo for silo in plan.cohort if silo in there))
            for plan in drawn
        ]
        for plan, start in zip(plans, starts, strict=True):
            self._provide(plan.cohort, start, plan)
        self._steps = [CohortStep(self._context(), plan) for plan in plans]
        for step in self._steps:
            step.begin()
        where = f"{self.phase} {plans[0].round}"
        wait = Wait(
            lambda: bool(self.stop_reason) or all(step.outcome for step in self._steps),
            lambda: f"{where}: " + "; ".join(step.stage for step in self._steps),
            lambda: max(step.stage_seconds for step in self._steps),
        )
        while (yield wait):
            for step in self._steps:
                step.deadline()
        outcomes = [step.outcome or Outcome(step.plan, reason=self.stop_reason) for step in self._steps]
        self._steps = []
        return outcomes

    def released(self, outcome: Outcome, end: MixtureState) -> None:
        """A step moved the models on: note who holds them, and tell the silos that were not in the cohort."""
        plan, aggregate = outcome.plan, outcome.aggregate
        if aggregate is None:
            return
        inside = set(aggregate.survivors)
        message: Released | None = None
        for silo in self.available:
            if self._holds.get(silo) != plan.start_digest:
                continue
            if silo not in inside:
                message = message or Released(
                    plan.phase, plan.round, plan.start_digest, end.digest, encode_aggregate(aggregate)
                )
                self.send(silo, message)
            self._holds[silo] = end.digest

    def finish(self, reason: str, final: MixtureState, best: MixtureState, failed: bool = False) -> Script:
        """Tell everybody, wait for their farewells, and end."""
        self.phase = "finish"
        for state in (best, final):
            for silo in self.available:
                self._provide((silo,), state, None)
        for silo in self.available:
            self.send(silo, Finish(reason, final.digest, best.digest, failed))
        yield Wait(lambda: self._left >= set(self.available), lambda: "finish", lambda: self._ready_seconds)

    def send(self, silo: int, message: Message) -> None:
        """Queue one message; one that goes to many silos, such as a release, is encoded once and shared."""
        if message != self._encoded[0]:
            self._encoded = (message, encode(message))
        self._queue(silo, self._encoded[1])

    # ---- inside --------------------------------------------------------------------------------------------------

    def _enough(self) -> Script:
        """Wait until as many silos are there as can keep the rules: a network that is down is no reason to spend rounds
        in vain. After the time for joining the run goes on with whoever is there."""
        rules = Rules(**self.phases.config.fedgmi_args.secure.rules.model_dump())
        needed = min(len(self.silos), smallest_cohort(rules))
        yield Wait(lambda: len(self.available) >= needed, lambda: "waiting for silos", lambda: self._join_seconds)

    def _forget(self, silo: int) -> None:
        self.admission.lost(silo)
        self._holds.pop(silo, None)
        for step in self._steps:
            step.lost(silo)

    def _queue(self, silo: int, payload: bytes) -> None:
        traffic = self.traffic.setdefault(self.phase, Traffic())
        traffic.down += len(payload)
        traffic.messages += 1
        self.outgoing.append(Outgoing(silo, payload))

    def _context(self) -> StepContext:
        roster = self.credentials.roster.digest() if self.credentials else bytes(32)
        return StepContext(
            self.run_id, self.phases, self.credentials, self.spool_dir, self.random, self.send, roster,
            self._exposure, self._note_exposed, self._ready_seconds, self._step_seconds, self._upload_seconds,
        )  # fmt: skip

    def _note_exposed(self) -> None:
        self.admission.note_exposed(self._exposure.cohorts)

    def _provide(self, silos: Sequence[int], state: MixtureState, plan: Plan | None) -> None:
        """Send whole models to the silos that do not hold them and cannot work them out."""
        payload: bytes | None = None
        for silo in silos:
            if self._holds.get(silo) == state.digest or not state.components:
                continue
            if plan is not None and self.phases.can_work_out(plan):
                self._holds[silo] = state.digest
                continue
            payload = payload or encode(encode_models(state))
            self._queue(silo, payload)
            self._holds[silo] = state.digest

    def _take(self, silo: int, message: Message) -> None:
        match message:
            case Join():
                if silo in self.available:  # back before its loss was noticed
                    self._forget(silo)
                self.admission.take(silo, message)
            case Reveal() | Witness():
                self.admission.take(silo, message)
            case Ready() | InSession():
                if isinstance(message, Ready):
                    self.notify("ready", {"silo": silo})
                for step in self._steps:
                    if (step.plan.phase, step.plan.round, step.plan.group) == (
                        message.phase,
                        message.round,
                        message.group,
                    ):
                        step.handle(silo, message)
            case Failed():
                self.notify("silo_failed", {"silo": silo, "round": message.round, "error": message.error_class})
                if self.phases.config.fedgmi_args.on_silo_error == "stop":
                    self.stop_reason = f"silo {silo} failed in {message.phase} {message.round}: {message.error_class}"
                for step in self._steps:
                    step.lost(silo)
            case Finished():
                self._left.add(silo)
            case _:
                self.notify("refused", {"silo": silo, "reason": f"{type(message).__name__} is not for the server"})

    def _advance(self, timed_out: bool = False) -> Iterable[Outgoing]:
        while not self.finished and self._wait and (timed_out or self._wait.ready()):
            try:
                self._wait = self._script.send(timed_out)
            except StopIteration:
                self.finished = True
            timed_out = False
        return self._drain()

    def _drain(self) -> Iterable[Outgoing]:
        while self.outgoing:
            yield self.outgoing.popleft()
