"""The server's process: the run's driver over a transport, with a clock and a disk.

Everything that a message rests on is on the disk before the message leaves, so the process may be killed at any moment
and started again with the same command: it goes on from the last whole round, and the silos find it again.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgmi_fedml.checkpoint import Checkpointer
from fedgmi_fedml.config import Config
from fedgmi_fedml.data.announced import Announced
from fedgmi_fedml.errors import FedgmiError, Interrupted, RunError
from fedgmi_fedml.federation.folder import finished_summary, locked
from fedgmi_fedml.federation.notes import Notes
from fedgmi_fedml.federation.outcome import Outcome, write_server_outcome
from fedgmi_fedml.federation.separability import Separability
from fedgmi_fedml.federation.state import RunState, open_state
from fedgmi_fedml.progress import Progress, open_progress
from fedgmi_fedml.rounds import fedgmi
from fedgmi_fedml.rounds.agreement import Agreement
from fedgmi_fedml.rounds.checkpoints import begin_folder, forget_after, restore, save
from fedgmi_fedml.rounds.outcome import RunEnd
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.server import Notify, Outgoing, ServerRun
from fedgmi_fedml.rounds.watch import Watch, rounds_to_come
from fedgmi_fedml.summary import Audience
from fedgmi_fedml.telemetry import Sink, Telemetry, open_telemetry, read_json_lines
from fedgmi_fedml.telemetry.logs import log_to_file
from fedgmi_fedml.transport.api import Arrived, Lost, Received, ServerEvent, ServerTransport
from secure.api import Credentials

if TYPE_CHECKING:
    from fedgmi_fedml.federation.status import StatusState

log = logging.getLogger(__name__)

TICK = 1.0
"""Longest wait for an event, seconds: signals are noticed in between."""

FAREWELL = 10.0
"""How long the server waits for its last messages to arrive, seconds."""


class FederationServer:
    """One process's work on a run.

    Args:
        config: the agreed configuration.
        out: the run's folder; goes on where an earlier process of the same run stopped.
        transport: the server's end, open.
        run_id: names the run on all parties; ``None``: as ``out`` says, or a new one.
        credentials: the server's identity and the roster; ``None`` with back-end ``none``.
        announced: what samples look like.
        status: what the status page shows; fed here.
        further: further outlets of the telemetry.

    Raises:
        RunError: ``out`` belongs to something else.
    """

    def __init__(
        self, config: Config, out: Path, transport: ServerTransport, *, run_id: str | None = None,
        credentials: Credentials | None, announced: Announced, status: StatusState | None = None,
        further: Sequence[tuple[Sink, Audience]] = (),
    ) -> None:  # fmt: skip
        self.config, self.out, self.transport = config, Path(out), transport
        self.credentials, self.announced = credentials, announced
        self.silos, self.names = roster_of(config, credentials)
        _check_numbers(config, self.silos)
        self.state: RunState = open_state(self.out, config, run_id)
        self.phases = Phases(config, announced.shape, schema=announced.schema)
        self.phases.check_capacity(len(self.silos))
        self._status, self._further = status, tuple(further)
        self._checkpointer = Checkpointer(self.out / "checkpoints", config.run_digest())
        self._position = "before the first round"
        self._stage, self._since, self._earlier = "", 0.0, 0.0

    def run(self) -> Outcome:
        """Serve until the run has ended.

        Raises:
            Interrupted: Ctrl-C or SIGTERM; start again to go on. RunError: the run could not go on.
        """
        with locked(self.out):
            if finished_summary(self.out):
                return Outcome("stood", self.out, self.out / "report.html", "has finished already")
            begin_folder(self.config, self.out)
            self.state = self.state.begun(self.config, self.silos)
            self.state.save(self.out)
            self._earlier = seconds_before(self.out)
            with log_to_file(self.out / "server.log"), self._telemetry() as telemetry, self._progress() as progress:
                return self._serve(telemetry, progress)

    # ---- start ---------------------------------------------------------------------------------------------------

    def _serve(self, telemetry: Telemetry, progress: Progress) -> Outcome:
        began = time.monotonic()
        watch = Watch("fedgmi", telemetry, progress)
        script = self._script(watch)
        run = self._driver(script, watch)
        telemetry.event("resumed" if self.state.starts > 1 else "started", backend=self._backend)
        log.info(
            "run %s: waiting for %d silos%s", self.state.run_id, len(self.silos),
            f"; going on {self._position}, start {self.state.starts}" if self.state.starts > 1 else "",
        )  # fmt: skip
        try:
            self._loop(run, watch)
        except KeyboardInterrupt:
            telemetry.event("interrupted")
            self._vanish()
            hint = "start the server again with the same command to go on"
            raise Interrupted(self.out, self._position, hint) from None
        except Exception as error:
            telemetry.event("failed", error=type(error).__name__)
            log.error("the server cannot go on: %s", error, exc_info=not isinstance(error, FedgmiError))
            self._vanish()
            raise
        finally:
            shutil.rmtree(self.out / "spool", ignore_errors=True)
        watch.flush({})
        telemetry.event(script.outcome, **({"reason": script.reason} if script.reason else {}))
        return self._end(script, run, watch, self._earlier + time.monotonic() - began)

    @property
    def _backend(self) -> str:
        return self.config.fedgmi_args.secure.backend

    def _script(self, watch: Watch) -> fedgmi.FedGMI:
        """The algorithm, from its start or from the last whole step."""
        restored = restore(self._checkpointer) if self.state.starts > 1 else None
        if restored is not None:
            forget_after(self.out, restored.progress)
            watch.restore(read_json_lines(self.out / "rounds.jsonl"))
            if self._status is not None:
                self._status.restore(self.out)
            self._note_position(restored.progress)

        shown = Separability(self.phases) if self._status is not None else None

        def keep(progress: fedgmi.Progress) -> None:
            watch.flush(shown.figures(progress.state) if shown and watch.pending else {})
            save(self._checkpointer, progress, {})
            self._note_position(progress)

        return fedgmi.FedGMI(save=keep, resume=None if restored is None else restored.progress)

    def _driver(self, script: fedgmi.FedGMI, watch: Watch) -> ServerRun:
        spool = self.out / "spool"  # what a killed process left there is of no use
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir()
        run = ServerRun(
            self.phases, self.silos, self.state.run_id, script, self.credentials, spool, self._notes(watch),
            class_names=self.announced.class_names, agreed=self.state.agreed, keep=self._keep,
            first_attempt=self.state.first_attempt,
        )  # fmt: skip
        watch.server = run
        return run

    def _notes(self, watch: Watch) -> Notify:
        """Who hears what the driver notes."""
        notes = Notes(watch, self.names)

        def notify(event: str, fields: dict[str, Any]) -> None:
            notes(event, fields)
            if self._status is not None:
                self._status.notify(event, fields)

        return notify

    def _keep(self, agreement: Agreement) -> None:
        """The silos agreed on something that outlives this process."""
        self.state = self.state.with_agreement(agreement)
        self.state.save(self.out)

    def _note_position(self, progress: fedgmi.Progress) -> None:
        self._position = f"before {progress.phase} {progress.round}"

    # ---- the loop ------------------------------------------------------------------------------------------------

    def _loop(self, run: ServerRun, watch: Watch) -> None:
        """Events in, messages out, until the run has finished."""
        self._send(run.start())
        while not run.finished:
            left = self._seconds_left(run)
            if left <= 0:
                log.info("time is up: %s", run.stage)
                self._stage = ""
                self._send(run.deadline())
                continue
            event = self.transport.receive(min(left, TICK))
            if event is not None:
                self._send(self._handle(run, event))
                watch.flush({})

    def _seconds_left(self, run: ServerRun) -> float:
        """Of the present stage; the clock starts again when the stage changes."""
        now = time.monotonic()
        if run.stage != self._stage:
            self._stage, self._since = run.stage, now
            if self._status is not None:
                self._status.stage(run.stage)
        return self._since + run.stage_seconds - now

    def _handle(self, run: ServerRun, event: ServerEvent) -> Iterable[Outgoing]:
        match event:
            case Received(silo, payload):
                if self._status is not None:
                    self._status.seen(silo)
                return run.handle(silo, payload)
            case Arrived(silo):  # a new process of the silo's knows nothing of what the old one did
                self._note_link(silo, "connected")
            case Lost(silo, reason):
                if run.phase != "finish":
                    log.info("silo %d: its link has ended: %s", silo, reason)
                self._note_link(silo, "lost", reason)
        return run.lost(event.silo)

    def _note_link(self, silo: int, what: str, reason: str = "") -> None:
        if self._status is not None:
            self._status.silo(silo, what, reason)

    def _send(self, outgoing: Iterable[Outgoing]) -> None:
        for message in outgoing:
            self.transport.send(message.to, message.payload)

    def _vanish(self) -> None:
        """Go without a farewell, as a killed process does: silos wait for the next server process of this run."""
        getattr(self.transport, "vanish", self.transport.close)()

    # ---- end -----------------------------------------------------------------------------------------------------

    def _end(self, script: fedgmi.FedGMI, run: ServerRun, watch: Watch, seconds: float) -> Outcome:
        self.transport.flush(FAREWELL)
        self.transport.close()
        roster = self.credentials.roster if self.credentials else None
        end = RunEnd(self.phases, len(self.silos), script.progress, watch, run.traffic, roster)
        failed = script.outcome != "finished"
        page = write_server_outcome(end, self.out, self.announced.class_names, seconds, failed, script.reason)
        return Outcome("failed" if failed else "finished", self.out, page, script.reason)

    def _telemetry(self) -> Telemetry:
        tensorboard = self.config.tracking_args.enable_tensorboard
        shown: list[tuple[Sink, Audience]] = [(self._status, "server")] if self._status else []
        further = [*shown, *self._further]
        return open_telemetry(self.out, "server", tensorboard=tensorboard, further=further, elapsed=self._earlier)

    def _progress(self) -> Progress:
        silos, quiet = len(self.silos), not log.isEnabledFor(logging.INFO)
        return open_progress(silos=silos, plan=rounds_to_come(self.config, silos), quiet=quiet)


def roster_of(config: Config, credentials: Credentials | None) -> tuple[tuple[int, ...], dict[int, str]]:
    """The silos of a run: ids, ascending, and names: the roster's; without one, as many as the configuration says."""
    if credentials is None:
        return tuple(range(1, config.train_args.client_num_in_total + 1)), {}
    names = {entry.silo_id: entry.name for entry in credentials.roster.silos}
    return tuple(sorted(names)), names


def _check_numbers(config: Config, silos: tuple[int, ...]) -> None:
    """The configuration was checked for the number of silos that it names; the roster must not have another."""
    asked = config.train_args.client_num_in_total
    if len(silos) != asked:
        raise RunError(
            f"train_args.client_num_in_total is {asked}, but the roster lists {len(silos)} silos: make both the same "
            "(and client_num_per_round no larger)"
        )


def seconds_before(out: Path) -> float:
    """Seconds that earlier processes of the run in ``out`` have worked, by their last whole round."""
    return max((line.get("elapsed") or 0.0 for line in read_json_lines(out / "rounds.jsonl")), default=0.0)
