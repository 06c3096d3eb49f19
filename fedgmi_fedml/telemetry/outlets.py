"""``Telemetry``: checks each record against the allow-list, once for every outlet's audience, and hands it on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from fedgmi_fedml.summary import Audience
from fedgmi_fedml.telemetry.sinks import JsonLinesSink, Sink, TensorBoardSink
from fedgmi_fedml.telemetry.vocabulary import EVENT_FIELDS, EVENTS, ROUND_FIELDS, Field, TelemetryError, clean_record

__all__ = ["Telemetry", "open_telemetry"]

_log = logging.getLogger(__name__)
_TRIES = 3


class Telemetry:
    """The run's one way to tell about itself.

    Args:
        outlets: (sink, audience) pairs; each sink gets only what its audience may see.
        strict: an entry that no outlet may take is a ``TelemetryError`` (true), or is dropped with one note (false).
            ``None``: strict when every outlet is a simulation's, where a typo should show at once and nothing is at
            stake; lenient in a deployment, where a bug here must not cost a run of hours.
        clock: monotonic seconds.
        elapsed: seconds that went before (a resumed run goes on from there).
    """

    def __init__(
        self,
        outlets: Sequence[tuple[Sink, Audience]],
        *,
        strict: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        elapsed: float = 0.0,
    ) -> None:
        self.strict = all(audience == "simulation" for _, audience in outlets) if strict is None else strict
        self._outlets = list(outlets)
        self._failures = [0] * len(self._outlets)
        self._clock, self._start = clock, clock() - elapsed
        self._noted: set[str] = set()

    def round(self, record: Mapping[str, Any]) -> None:
        """One line of ``rounds.jsonl``: names and shapes of ``ROUND_FIELDS``, ``phase`` and ``round`` required.

        Raises TelemetryError as ``strict`` says.
        """
        missing = [f"{name} is missing" for name in ("phase", "round") if name not in record]
        self._send("rounds", record, ROUND_FIELDS, {"elapsed": self._elapsed()}, missing)

    def event(self, kind: str, **fields: Any) -> None:
        """One line of ``events.jsonl``: ``kind`` is one of ``EVENTS``, fields as in ``EVENT_FIELDS``.

        Raises TelemetryError as ``strict`` says.
        """
        unknown = [] if kind in EVENTS else ["this kind of event is not in the allow-list"]
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        head = {"time": now, "elapsed": self._elapsed(), "event": kind if kind in EVENTS else "unknown"}
        self._send("events", fields, EVENT_FIELDS, head, unknown)

    def _elapsed(self) -> float:
        return round(self._clock() - self._start, 3)

    def _send(
        self,
        stream: str,
        record: Mapping[str, Any],
        vocabulary: Mapping[str, Field],
        head: Mapping[str, Any],
        problems: list[str],
    ) -> None:
        cleaned = [clean_record(record, vocabulary, audience) for _, audience in self._outlets]
        if cleaned:
            everywhere = set.intersection(*(set(withheld) for _, withheld, _ in cleaned))
            problems = [*problems, *cleaned[0][2], *(f"{name} may go to no outlet here" for name in sorted(everywhere))]
        if problems and self.strict:
            raise TelemetryError(f"{stream}: " + "; ".join(problems))
        for problem in problems:
            self._note(f"telemetry: {problem}; dropped")
        for index, (allowed, _, _) in enumerate(cleaned):
            self._hand_over(index, stream, {**head, **allowed} if stream == "events" else {**allowed, **head})

    def _hand_over(self, index: int, stream: str, record: dict[str, Any]) -> None:
        """A sink's failure is noted, and a sink that fails again and again is left out; the run goes on."""
        if self._failures[index] >= _TRIES:
            return
        sink = self._outlets[index][0]
        try:
            sink.write(stream, record)
        except Exception as error:  # monitoring must never end a run
            self._failures[index] += 1
            last = self._failures[index] == _TRIES
            ending = "it is left out from here on" if last else "the run goes on"
            self._note(f"telemetry: {type(sink).__name__} failed ({type(error).__name__}); {ending}")

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            _log.warning("%s", text)

    def close(self) -> None:
        """Close every sink; failures are noted."""
        for sink, _ in self._outlets:
            try:
                sink.close()
            except Exception as error:
                self._note(f"telemetry: {type(sink).__name__} could not be closed ({type(error).__name__})")
            if dropped := getattr(sink, "dropped", 0):
                self._note(f"telemetry: {dropped} records were dropped, their receiver was too slow")

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_telemetry(
    run_dir: Path,
    audience: Audience,
    *,
    tensorboard: bool = False,
    further: Sequence[tuple[Sink, Audience]] = (),
    strict: bool | None = None,
    elapsed: float = 0.0,
) -> Telemetry:
    """The usual telemetry of a run: JSON lines in ``run_dir``, TensorBoard files there when asked, further outlets.

    Raises ConfigError when TensorBoard is asked for and not installed.
    """
    outlets: list[tuple[Sink, Audience]] = [(JsonLinesSink(run_dir), audience)]
    if tensorboard:
        outlets.append((TensorBoardSink(Path(run_dir) / "tensorboard"), audience))
    return Telemetry([*outlets, *further], strict=strict, elapsed=elapsed)
