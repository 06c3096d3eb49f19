"""A silo's driver of a run: bytes in, bytes out. What it works on locally is the method's business (``rounds.local``).

Every reply is an iterator of bytes for the server, so that an upload is made piece by piece as it is sent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import FloatVector
from fedgmi_fedml.rounds.admission import MAX_GATHERS
from fedgmi_fedml.rounds.agreement import witness, witnessed_by
from fedgmi_fedml.rounds.models_codec import decode_models
from fedgmi_fedml.rounds.phases import CANDIDATES, EVALUATE, Phases
from fedgmi_fedml.rounds.store import StateStore
from fedgmi_fedml.rounds.update import LocalUpdate, LocalWork
from fedgmi_fedml.rounds.wire import (
    Again,
    Agreed,
    Beacon,
    Commitments,
    Failed,
    Finish,
    Finished,
    InSession,
    Join,
    Message,
    Models,
    Plan,
    Ready,
    Released,
    Reveal,
    WireError,
    Witness,
    decode,
    encode,
)
from fedgmi_fedml.version import WIRE_VERSION, __version__
from secure.api import (
    Credentials,
    Event,
    Send,
    SessionAbortedEvent,
    SessionReleased,
    SessionSurveyed,
    SiloSession,
    TotalsKnown,
    decode_aggregate,
    open_silo,
)
from secure.beacon import commitment, from_reveals
from secure.errors import ProtocolError, SecureError
from secure.journal import Journal
from secure.keys import RandomBytes
from secure.types import Contribution, Totals

log = logging.getLogger(__name__)


class SiloRun:
    """One silo's side of one run.

    Args:
        silo: this silo's roster id.
        phases: layouts and starting models.
        work: the method's local work on this silo's data.
        store: models by digest; silos of one process may share it.
        run_id: names the run on all parties.
        class_names: the agreed classes, in order.
        credentials, journal: identity, roster, policy and what outlives a round; ``None`` with back-end ``none``.
        spool_dir: where the trained update waits for its turn.
        nonce: makes this silo's part of the beacon (from the system, or from the seed where the run says so).
        random: operating system randomness; injected in tests.
        on_error: called with an exception of the local work; the server learns its class only.
    """

    def __init__(
        self, silo: int, phases: Phases, work: LocalWork, store: StateStore, *, run_id: str,
        class_names: tuple[str, ...], credentials: Credentials | None, journal: Journal | None, spool_dir: Path,
        nonce: Callable[[], bytes], random: RandomBytes = os.urandom,
        on_error: Callable[[Exception], None] = lambda error: None,
    ) -> None:  # fmt: skip
        self.silo, self.phases, self.work, self.store = silo, phases, work, store
        self._run_id, self._class_names = run_id, class_names
        self._credentials, self._journal, self._random = credentials, journal, random
        self._spool, self._new_nonce, self._on_error = spool_dir / f"update-{silo}.f32", nonce, on_error
        self._nonce, self._reveals = b"", 0
        self._roster_digest = credentials.roster.digest() if credentials else bytes(32)
        self._commitments: dict[int, bytes] = {}
        self._revealed: tuple[dict[int, bytes], bytes] = ({}, b"")
        self._beacon = b""
        self._members: tuple[int, ...] = ()
        self._plan: Plan | None = None
        self._update: LocalUpdate | None = None
        self._update_of: tuple[str, int, bytes] | None = None
        self._session: SiloSession | None = None
        self.finished: Finish | None = None

    # ---- the pump's side -----------------------------------------------------------------------------------------

    def start(self) -> Iterator[bytes]:
        """Ask to join; again after the link or the server was lost. What a session left open is erased first."""
        yield from self.deadline()
        self._session, self._plan = None, None
        self._nonce, self._commitments = self._new_nonce(), {}
        config = self.phases.config
        join = Join(
            self.silo, WIRE_VERSION, __version__, config.fedgmi_args.secure.backend, config.digest(),
            config.item_digests(), self._class_names, tuple(self.phases.shape.input_shape),
            self.phases.schema_digest(), commitment(self.silo, self._nonce),
        )  # fmt: skip
        yield encode(join)

    def handle(self, payload: bytes) -> Iterator[bytes]:
        """Take one message from the server; yields the replies. Garbage and messages out of turn are ignored."""
        try:
            message = decode(payload)
        except WireError as error:
            log.warning("silo %d: %s", self.silo, error)
            return
        yield from self._take(message)

    def deadline(self) -> Iterator[bytes]:
        """The server has been silent for too long within a session: abort it and erase its secrets."""
        if self._session is not None and not self._session.done:
            yield from self._events(self._session.deadline())

    # ---- inside --------------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> Iterator[bytes]:
        match message:
            case Commitments(commitments=commitments):
                yield from self._reveal(commitments)
            case Again(reason=reason):
                yield from self._again(reason)
            case Beacon(nonces=nonces):
                yield from self._agree(nonces)
            case Agreed():
                self._take_over(message)
            case Models():
                if message.digest not in self.store:
                    self.store.put(decode_models(message))
            case Plan():
                yield from self._begin(message)
            case InSession():
                yield from self._in_session(message)
            case Released():
                self._catch_up(message)
            case Finish():
                yield from self._finish(message)
            case _:
                log.warning("silo %d: a %s is not for a silo", self.silo, type(message).__name__)

    def _begin(self, plan: Plan) -> Iterator[bytes]:
        """Train first, then say "ready"; an update already made for the same start is used again."""
        if not self._drawn_fairly(plan):
            log.warning(
                "silo %d: %s %d: the cohort is not the one that the beacon draws", self.silo, plan.phase, plan.round
            )
            return
        yield from self.deadline()  # what an earlier attempt left open is erased, and said to be void
        self._session, self._plan = None, plan
        what = (plan.phase, plan.round, plan.start_digest)
        if self._update_of != what:
            try:
                self._update, self._update_of = self._train(plan), what
            except Exception as error:
                log.exception("silo %d: local work of %s %d failed", self.silo, plan.phase, plan.round)
                self._on_error(error)
                yield encode(Failed(self.silo, plan.phase, plan.round, type(error).__name__))
                return
        yield encode(Ready(self.silo, plan.phase, plan.round, plan.attempt, plan.group))

    def _again(self, reason: str) -> Iterator[bytes]:
        """Join with a fresh nonce, for the server says that a silo vanished while the beacon was made."""
        if not self._beacon:
            log.info("silo %d: joining again: %s", self.silo, reason)
            yield from self.start()

    def _reveal(self, commitments: dict[int, bytes]) -> Iterator[bytes]:
        """This silo's nonce, once per set of commitments that has it, and a few times at most: else a server could draw
        until it likes the cohorts."""
        if commitments.get(self.silo) != commitment(self.silo, self._nonce) or self._commitments or self._beacon:
            return
        if self._reveals >= MAX_GATHERS:
            log.warning("silo %d: the server wants to draw the cohorts too often: refused", self.silo)
            return
        self._reveals += 1
        self._commitments = dict(commitments)
        self._revealed = (self._commitments, self._nonce)
        yield encode(Reveal(self.silo, self._nonce))

    def _agree(self, nonces: dict[int, bytes]) -> Iterator[bytes]:
        """The beacon from everybody's nonces: with this silo's own among them, nobody else can have steered it. They
        may come twice, or after a link was lost: they belong to what this silo revealed last."""
        commitments, own = self._revealed
        if not own or set(nonces) != set(commitments) or nonces.get(self.silo) != own:
            log.warning("silo %d: nonces that do not belong to the commitments", self.silo)
            return
        try:
            reveals = {silo: (commitments[silo], nonce) for silo, nonce in nonces.items()}
            beacon, members = from_reveals(reveals, self._run_id.encode()), tuple(sorted(nonces))
            if self._beacon not in (b"", beacon):
                raise ProtocolError("the server shows another beacon than the one agreed on")
            if self._journal is not None:
                self._journal.note_beacon(self._run_id, beacon)
        except SecureError as error:
            log.warning("silo %d: %s", self.silo, error)
            return
        self._beacon, self._members = beacon, members
        if self._credentials is not None:
            yield encode(Witness(self.silo, witness(self._credentials.identity, self._run_id, beacon, members)))

    def _take_over(self, message: Agreed) -> None:
        """The beacon of a run that began without this silo (or this process), on the word of more than c silos."""
        if self._beacon:
            if (self._beacon, self._members) != (message.beacon, message.members):
                log.warning("silo %d: the server shows another beacon than the one agreed on", self.silo)
            return
        try:
            if self._credentials is not None:
                self._check_witnesses(self._credentials, message)
            if self._journal is not None:
                self._journal.note_beacon(self._run_id, message.beacon)
        except SecureError as error:
            log.warning("silo %d: %s", self.silo, error)
            return
        self._beacon, self._members = message.beacon, message.members

    def _check_witnesses(self, credentials: Credentials, message: Agreed) -> None:
        good = witnessed_by(credentials.roster, self._run_id, message.beacon, message.members, message.witnesses)
        needed = self.phases.config.fedgmi_args.secure.rules.colluders + 1
        if len(good) < needed:
            raise ProtocolError(f"the run's beacon has {len(good)} witnesses of this roster, and needs {needed}")

    def _drawn_fairly(self, plan: Plan) -> bool:
        """Whether the plan's cohort lies within one that the beacon draws (the server chooses nobody)."""
        if not self._beacon or self.silo not in plan.cohort:
            return False
        silos = self._members if plan.phase == CANDIDATES else self._everyone
        return any(set(plan.cohort) <= set(cohort) for cohort in self.phases.drawn_cohorts(plan, self._beacon, silos))

    @property
    def _everyone(self) -> tuple[int, ...]:
        """All silos of the run, there or not: the server does not choose whom a cohort is drawn from either."""
        if self._credentials is not None:
            return tuple(entry.silo_id for entry in self._credentials.roster.silos)
        return tuple(range(1, self.phases.config.train_args.client_num_in_total + 1))

    def _train(self, plan: Plan) -> LocalUpdate:
        state = self._start_of(plan)
        update = self.work.work(plan, state)
        if update.vector is not None:
            self._spool.parent.mkdir(parents=True, exist_ok=True)
            update.vector.tofile(self._spool)  # while other silos train, an update waits on disk, not in memory
        return update.without_vector()

    def _start_of(self, plan: Plan) -> MixtureState:
        if plan.start_digest not in self.store and self.phases.can_work_out(plan):
            self.store.put(self.phases.candidate_start(self.phases.draw_of(plan)))
        empty = MixtureState()
        return empty if plan.start_digest == empty.digest else self.store.get(plan.start_digest)

    def _in_session(self, message: InSession) -> Iterator[bytes]:
        plan = self._plan
        if plan is None or self._update is None:
            return
        if (message.phase, message.round, message.attempt, message.group) != (
            plan.phase,
            plan.round,
            plan.attempt,
            plan.group,
        ):
            return
        if self._session is None:
            expected = self.phases.session_params(self._run_id, plan, plan.cohort, self._roster_digest)
            self._session = open_silo(
                self.silo, expected, Contribution(self._update.samples, self._update.statistics),
                credentials=self._credentials, journal=self._journal, random=self._random,
            )  # fmt: skip
            yield from self._events(self._session.start())
        yield from self._events(self._session.handle(message.payload))

    def _events(self, events: Iterable[Event]) -> Iterator[bytes]:
        plan, session = self._plan, self._session
        if plan is None:
            return
        for event in events:
            match event:
                case Send(payload=payload):
                    yield encode(InSession(plan.phase, plan.round, plan.attempt, plan.group, payload))
                case TotalsKnown(totals=totals):
                    self.work.on_totals(plan, totals)
                    if not plan.survey and any(totals.open) and session is not None:
                        yield from self._events(session.submit(*self._weighted(plan, totals)))
                case SessionReleased(aggregate=aggregate):
                    if plan.phase != EVALUATE:
                        start = self.store.get(plan.start_digest)
                        end = self.store.advance(start, aggregate, self.phases.layout(plan.phase))
                        self.work.on_release(plan, end.digest)
                case SessionSurveyed():
                    self.work.on_release(plan, plan.start_digest)
                case SessionAbortedEvent(reason=reason):
                    log.warning("silo %d: %s %d: session aborted: %s", self.silo, plan.phase, plan.round, reason)

    def _weighted(self, plan: Plan, totals: Totals) -> tuple[FloatVector, dict[str, float]]:
        """The weighted delta (n_i^j / N^j)·(local − global) and the weighted metrics (algorithm.md, step 4)."""
        update = self._update
        if update is None:
            raise WireError("no update to submit")
        if plan.phase == EVALUATE:
            return np.zeros(0, dtype=np.float32), dict(update.metrics)
        layout = self.phases.layout(plan.phase)
        vector: FloatVector = np.fromfile(self._spool, dtype=np.float32)
        for j, share in enumerate(totals.share):
            layout.component(vector, j)[:] *= np.float32(share)
        return vector, update.weighted_metrics(totals.share)

    def _catch_up(self, message: Released) -> None:
        """Apply a sum that this silo took no part in."""
        if message.start_digest not in self.store:
            return
        layout = self.phases.layout(message.phase)
        aggregate = decode_aggregate(message.aggregate, self.phases.spec(message.phase))
        end = self.store.advance(self.store.get(message.start_digest), aggregate, layout)
        if end.digest == message.end_digest:
            self.work.on_release(None, end.digest)

    def _finish(self, message: Finish) -> Iterator[bytes]:
        self.finished = message
        if message.final_digest in self.store:
            best = message.best_digest if message.best_digest in self.store else message.final_digest
            self.work.finish(self.store.get(message.final_digest), self.store.get(best))
        self._spool.unlink(missing_ok=True)
        yield encode(Finished(self.silo))
