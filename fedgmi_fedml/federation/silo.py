"""A silo's process: its driver over a transport, its data, and a folder in which all that is its own stays.

It dials the server, joins, works, and writes its report. Killed at any moment and started again with the same command,
it joins again at the next round with what it remembered. Of an error in its local work the server learns the class
alone; the whole story is in ``silo.log``.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedgmi_fedml.config import Config
from fedgmi_fedml.data import SiloData
from fedgmi_fedml.data.announced import Announced
from fedgmi_fedml.errors import Interrupted, Refused, RunEndedEarly
from fedgmi_fedml.federation.diary import Diary
from fedgmi_fedml.federation.folder import finished_summary, locked
from fedgmi_fedml.federation.memory import load_memory, save_memory
from fedgmi_fedml.federation.outcome import Outcome
from fedgmi_fedml.federation.own_report import write_own_outcome
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.rounds.checkpoints import begin_folder
from fedgmi_fedml.rounds.local import FedGMIWork
from fedgmi_fedml.rounds.nonces import beacon_nonce
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.silo import SiloRun
from fedgmi_fedml.rounds.store import StateStore
from fedgmi_fedml.rounds.update import Memory
from fedgmi_fedml.rounds.workbench import Workbench
from fedgmi_fedml.summary import Audience
from fedgmi_fedml.telemetry import Sink, Telemetry, open_telemetry
from fedgmi_fedml.telemetry.logs import log_to_file
from fedgmi_fedml.transport.api import Closed, Delivered, LinkError, Opened, SiloTransport
from secure.api import Credentials
from secure.journal import Journal

log = logging.getLogger(__name__)

TICK = 1.0
"""Longest wait for an event, seconds: signals are noticed in between."""

FAREWELL = 10.0
"""How long the silo waits for its last messages to arrive, seconds."""


class FederationSilo:
    """One process's work on a silo's side of a run.

    Args:
        config: the agreed configuration.
        data: this silo's samples; its name names the silo's files.
        out: the silo's own folder.
        transport: the silo's end of its link.
        silo: roster id.
        credentials, journal: identity, roster, policy, and what outlives a run; ``None`` with back-end ``none``.
        announced: what samples look like everywhere.
        further: further outlets of the telemetry.

    Raises:
        DataError: the data are not what was announced; names the difference. RangeError: values out of range.
    """

    def __init__(
        self, config: Config, data: SiloData, out: Path, transport: SiloTransport, *, silo: int,
        credentials: Credentials | None, journal: Journal | None, announced: Announced,
        further: Sequence[tuple[Sink, Audience]] = (),
    ) -> None:  # fmt: skip
        announced.check(data)
        self.config, self.data, self.out, self.transport = config, data, Path(out), transport
        self.silo, self.credentials, self.journal, self.announced = silo, credentials, journal, announced
        self._further = tuple(further)
        self.phases = Phases(config, announced.shape, schema=announced.schema)
        self.bench = Workbench(self.phases)
        if self.bench.vae is not None and len(data.x_train) and not data.needs_moments:
            self.bench.vae.check_range(data.x_train)
        deadlines = config.fedgmi_args.secure.deadlines
        self._patience = deadlines.upload + 2 * deadlines.step
        self._run: SiloRun | None = None
        self._work: FedGMIWork | None = None
        self._run_id = ""
        self._saved: Memory | None = None
        self._page: Path | None = None
        self._began = self._heard = time.monotonic()

    def run(self) -> Outcome:
        """Take part until the run has ended.

        Raises:
            Refused: the server does not let this silo take part. LinkError: it cannot be reached.
            RunEndedEarly: the run ended before its last round. Interrupted: Ctrl-C or SIGTERM; start again to rejoin.
        """
        with locked(self.out):
            if finished_summary(self.out):
                return Outcome("stood", self.out, self.out / "report.html", "has finished already")
            begin_folder(self.config, self.out)
            telemetry = open_telemetry(self.out, "silo", further=self._further)
            with log_to_file(self.out / "silo.log"), telemetry:
                return self._take_part(telemetry)

    def _take_part(self, telemetry: Telemetry) -> Outcome:
        telemetry.event("started", silo=self.silo, backend=self.config.fedgmi_args.secure.backend)
        try:
            self._loop(telemetry)
            self.transport.flush(FAREWELL)
        except KeyboardInterrupt:
            telemetry.event("interrupted")
            raise Interrupted(self.out, hint="start the silo again with the same command to rejoin the run") from None
        except LinkError as error:
            telemetry.event("failed", error=type(error).__name__)
            if error.fatal:
                raise Refused(str(error)) from error
            raise
        except Exception as error:
            telemetry.event("failed", error=type(error).__name__)
            log.exception("this silo cannot go on")
            raise
        finally:
            self.transport.close()
            shutil.rmtree(self.out / "spool", ignore_errors=True)
        return self._end(telemetry)

    # ---- the loop ------------------------------------------------------------------------------------------------

    def _loop(self, telemetry: Telemetry) -> None:
        """Events in, messages out, until the server says that the run is over."""
        while self._run is None or self._run.finished is None:
            event = self.transport.receive(TICK)
            match event:
                case Opened(run_id):
                    self._heard = time.monotonic()
                    self._send(self._joining(run_id, telemetry))
                case Delivered(payload):
                    self._heard = time.monotonic()
                    if self._run is not None:
                        self._send(self._run.handle(payload))
                case Closed(reason, failed):
                    if failed:
                        raise Refused(f"the server does not let this silo take part: {reason}")
                    raise RunEndedEarly(f"the server ended the run: {reason}; its own log says why", self.out)
                case None:
                    self._watch_silence()

    def _joining(self, run_id: str, telemetry: Telemetry) -> Iterable[bytes]:
        """Ask to join; a server process of the same run finds this silo with all that it holds."""
        if self._run is None or run_id != self._run_id:
            self._begin(run_id, telemetry)
        log.info("joining run %s", run_id)
        if self._run is None:
            raise ValueError("no run has begun")
        return self._run.start()

    def _begin(self, run_id: str, telemetry: Telemetry) -> None:
        """A driver for this run, with the memory of an earlier process of the same run."""
        spool = self.out / "spool"
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir()
        self._run_id = run_id
        work = self._work = FedGMIWork(self.silo, self.data, self.bench, on_finish=self._finish)
        found = load_memory(self.out)
        if found is not None and found[0] == run_id:
            work.remember(found[1])
            log.info("what this silo remembered of run %s is restored", run_id)
        self._saved = work.memory
        self._run = SiloRun(
            self.silo, self.phases, Diary(work, telemetry), StateStore(), run_id=run_id,
            class_names=self.announced.class_names, credentials=self.credentials, journal=self.journal,
            spool_dir=spool, nonce=lambda: beacon_nonce(self.config, self.silo),
            on_error=lambda error: telemetry.event("silo_failed", silo=self.silo, error=type(error).__name__),
        )  # fmt: skip

    def _send(self, replies: Iterable[bytes]) -> None:
        """What this silo remembers is on its disk before a message that rests on it leaves."""
        for reply in replies:
            self._save()
            self.transport.send(reply)
        self._save()

    def _save(self) -> None:
        if self._work is not None and self._work.memory is not self._saved:
            save_memory(self.out, self._run_id, self._work.memory)
            self._saved = self._work.memory

    def _watch_silence(self) -> None:
        """Nothing from the server for longer than any step takes: what a session left open is erased."""
        if self._run is not None and time.monotonic() - self._heard > self._patience:
            self._heard = time.monotonic()
            self._send(self._run.deadline())

    # ---- end -----------------------------------------------------------------------------------------------------

    def _finish(self, work: FedGMIWork, final: MixtureState, best: MixtureState) -> None:
        """The run is over: everything is written before the server hears a farewell."""
        told = None if self._run is None else self._run.finished
        failed, reason = (told.failed, told.reason) if told else (True, "the server did not say why")
        roster = self.credentials.roster if self.credentials else None
        self._page = write_own_outcome(
            work, final, best, self.out, self.announced, silos=len(roster.silos) if roster else None, roster=roster,
            seconds=time.monotonic() - self._began, failed=failed, reason=reason,
        )  # fmt: skip

    def _end(self, telemetry: Telemetry) -> Outcome:
        told = None if self._run is None else self._run.finished
        if told is None:
            raise ValueError("the run has not ended")
        telemetry.event("failed" if told.failed else "finished")
        if told.failed and not told.final_digest:
            raise Refused(f"the server refuses this silo: {told.reason}")
        if told.failed or self._page is None:
            kept = "the last whole models are kept" if self._page else "no models had come that far"
            raise RunEndedEarly(f"{told.reason}; {kept}", self.out)
        return Outcome("finished", self.out, self._page, told.reason)
