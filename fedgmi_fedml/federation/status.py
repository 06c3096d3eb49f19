"""The server's status: fed by the round loop, read by the page, and unable to hurt either.

The state is a telemetry sink, so the allow-list of ``telemetry.vocabulary`` is the one gate to everything that is
shown. Each record makes a new immutable ``Snapshot`` that replaces the old one in a single assignment; readers in other
threads take whichever is there and never wait.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fedgmi_fedml.config import Config
from fedgmi_fedml.federation.status_fold import fold_event, fold_round, with_link_ended, with_silo
from fedgmi_fedml.federation.status_snapshot import PhaseStatus, SiloStatus, Snapshot
from fedgmi_fedml.federation.status_words import stage_text
from fedgmi_fedml.summary import RulesSummary, SecureSummary
from fedgmi_fedml.telemetry import EVENTS, ROUND_FIELDS, clean_record, read_json_lines
from fedgmi_fedml.telemetry.vocabulary import EVENT_FIELDS
from secure.gate import feasibility
from secure.identity import fingerprint
from secure.types import Rules

__all__ = ["Snapshot", "StatusState", "protection_in_force"]

log = logging.getLogger(__name__)

_HEAD = ("time", "elapsed")
_LINKS = ("expected", "connected", "lost")
_LONGEST = 500
_Method = TypeVar("_Method", bound=Callable[..., None])


def _harmless(method: _Method) -> _Method:
    """Whatever goes wrong in here is noted once by its class; the round loop goes on."""

    @functools.wraps(method)
    def guarded(self: StatusState, *args: Any, **named: Any) -> None:
        try:
            with self._lock:
                method(self, *args, **named)
        except Exception as error:
            self._note(error)

    return guarded  # type: ignore[return-value]


class StatusState:
    """What the status page knows of one run. Every method may be called from any thread, and none raises.

    Hand it to telemetry as a sink for the audience ``server``; tell it what telemetry has no line for with ``notify``,
    ``silo``, ``seen`` and ``stage``.

    Args:
        start: names, silos and protection (``for_run`` makes it from a configuration).
        plan: rounds of every phase to come, in order, for the time left.
        elapsed: seconds that earlier processes of the run have worked.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        start: Snapshot,
        plan: Mapping[str, int] | None = None,
        elapsed: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.RLock()
        self._noted: set[str] = set()
        self._seen: dict[int, float] = {silo.id: 0.0 for silo in start.silos}
        self.clock = clock
        phases = tuple(PhaseStatus(name, total) for name, total in (plan or {}).items() if total)
        now = clock()
        self._snapshot = replace(start, phases=phases, began=now - elapsed, updated=now)

    @classmethod
    def for_run(
        cls, config: Config, silos: Mapping[int, str], *, run_id: str = "", federation: str = "",
        roster: bytes | None = None, plan: Mapping[str, int] | None = None, elapsed: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> StatusState:  # fmt: skip
        """The state of a run that is about to begin or to go on.

        Args:
            silos: every silo's name by roster id, ascending; an empty name where there is none.
            roster: digest of the roster; ``None`` with back-end ``none``.
            plan: ``rounds.watch.rounds_to_come``.
            elapsed: seconds of earlier processes of the run.
        """
        start = Snapshot(
            federation=federation,
            run_name=config.common_args.run_name,
            run_id=run_id,
            dataset=config.data_args.dataset,
            components=config.fedgmi_args.components,
            silos=tuple(SiloStatus(number, name) for number, name in silos.items()),
            protection=protection_in_force(config, len(silos), roster),
        )
        return cls(start, plan, elapsed, clock)

    @property
    def snapshot(self) -> Snapshot:
        """The run as it is now. Never waits."""
        snapshot, seen = self._snapshot, self._seen
        silos = tuple(replace(silo, seen=seen[silo.id] or silo.seen) for silo in snapshot.silos)
        return replace(snapshot, silos=silos)

    # ---- telemetry's side ----------------------------------------------------------------------------------------

    @_harmless
    def write(self, stream: str, record: Mapping[str, Any]) -> None:
        """One record of the stream ``rounds`` or ``events``, as ``telemetry.Sink`` has it. What the server's audience
        may not see is dropped here, too."""
        if record.get("method", "fedgmi") != "fedgmi":
            return
        if stream == "rounds":
            self._round(record)
        elif record.get("event") in EVENTS:
            self._event(record)

    def close(self) -> None:
        """No more records. The page may stay."""

    def _round(self, record: Mapping[str, Any]) -> None:
        known, _, _ = clean_record(_without(record, "elapsed"), ROUND_FIELDS, "server")
        if "phase" not in known or "round" not in known:
            return
        self._become(fold_round(self._snapshot, known, self.clock()))

    def _event(self, record: Mapping[str, Any]) -> None:
        known, _, _ = clean_record(_without(record, "event", *_HEAD), EVENT_FIELDS, "server")
        known["event"] = record["event"]
        known |= {name: record[name] for name in _HEAD if name in record}
        if known["event"] == "phase" and "phase" not in known:
            return
        self._become(fold_event(self._snapshot, known, self.clock()))

    # ---- the round loop's side -----------------------------------------------------------------------------------

    @_harmless
    def notify(self, event: str, fields: Mapping[str, Any]) -> None:
        """A note of the server's driver (``rounds.server.Notify``). Only that a silo is ready is taken from here:
        everything else comes through telemetry."""
        if event == "ready":
            changed = with_silo(self._snapshot, [fields["silo"]], ready=True, state="in")
            self._become(replace(changed, updated=self.clock()))

    @_harmless
    def silo(self, silo: int, state: str, reason: str = "") -> None:
        """What became of a silo's link.

        Args:
            state: ``connected`` (a new link is open; the silo has yet to join), ``lost`` or ``expected``.
            reason: why it was lost; holds no path or address of the silo's.
        """
        if state not in _LINKS or silo not in self._seen:
            return
        if state == "connected":
            self._seen[silo] = self.clock()
        said, _, _ = clean_record({"reason": reason[:_LONGEST]}, EVENT_FIELDS, "server")
        if state == "lost":
            changed = with_link_ended(self._snapshot, silo, said.get("reason", ""))
        else:
            changed = with_silo(self._snapshot, [silo], state=state, ready=False, reason="")
        self._become(replace(changed, updated=self.clock()))

    def seen(self, silo: int) -> None:
        """Something has arrived from this silo. Cheap: to be called for every message."""
        if silo in self._seen:  # the keys never change, so this needs no lock
            self._seen[silo] = self.clock()

    @_harmless
    def stage(self, stage: str) -> None:
        """What the driver waits for now (``ServerRun.stage``)."""
        words = stage_text(stage)
        if words != self._snapshot.stage:
            finishing = self._snapshot.finishing or stage == "finish"
            self._become(replace(self._snapshot, stage=words, finishing=finishing))

    @_harmless
    def restore(self, folder: Path) -> None:
        """Take in what earlier processes of this run wrote into ``folder``, before this one's first record."""
        for stream, record in told(folder):
            self.write(stream, record)

    @_harmless
    def began(self, moment: float) -> None:
        """The run began at this moment of the state's clock."""
        self._snapshot = replace(self._snapshot, began=moment)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _become(self, snapshot: Snapshot) -> None:
        in_force = snapshot.protection.model_copy(
            update={
                "frozen_components": [j for j, is_open in enumerate(snapshot.is_open) if not is_open],
                "clipped_share": snapshot.clipped_share if snapshot.sessions else None,
                "sessions": snapshot.sessions,
                "aborted_sessions": snapshot.aborted,
                "dropped_silos": sum(silo.dropped > 0 for silo in snapshot.silos),
                "partial_rounds": snapshot.partial,
            }
        )
        self._snapshot = replace(snapshot, protection=in_force, version=self._snapshot.version + 1)

    def _note(self, error: Exception) -> None:
        name = type(error).__name__
        if name not in self._noted:
            self._noted.add(name)
            log.warning("the status page missed something (%s); the run goes on", name, exc_info=error)


def told(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """What a run has written into ``folder``, as (stream, record) in the order in which it happened.

    Raises:
        CheckpointError: a file is damaged.
    """
    lines = [(stream, line) for stream in ("rounds", "events") for line in read_json_lines(folder / f"{stream}.jsonl")]
    return sorted(lines, key=lambda item: elapsed_of(item[1]))


def elapsed_of(record: Mapping[str, Any]) -> float:
    """When a record was written, seconds since the run began."""
    value = record.get("elapsed")
    return float(value) if isinstance(value, (int, float)) else 0.0


def _without(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names and name != "not_finite"}


def protection_in_force(config: Config, silos: int, roster: bytes | None = None) -> SecureSummary:
    """What the settings promise, before the first round.

    Args:
        silos: how many there are. roster: its digest.
    """
    secure = config.fedgmi_args.secure
    cohort = min(config.train_args.client_num_per_round, silos) if silos else config.train_args.client_num_per_round
    limits = feasibility(cohort) if secure.backend != "none" else None
    rules = secure.rules.model_dump()
    return SecureSummary(
        backend=secure.backend,
        rules=RulesSummary(**rules),
        gate=Rules(**rules).gate(),
        threshold=limits.threshold if limits else None,
        quorum=limits.quorum if limits else None,
        cohort_size=cohort,
        clip=secure.clip,
        roster=fingerprint(roster) if roster else None,
    )
