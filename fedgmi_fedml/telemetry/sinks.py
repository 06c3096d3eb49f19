"""Where records go: JSON lines, memory, TensorBoard, or another sink behind a queue that never blocks the run."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedgmi_fedml import atomic
from fedgmi_fedml.errors import CheckpointError, ConfigError

__all__ = [
    "BackgroundSink",
    "JsonLinesSink",
    "MemorySink",
    "Sink",
    "TensorBoardSink",
    "read_json_lines",
    "rewind",
    "scalars",
]

Record = Mapping[str, Any]


class Sink(Protocol):
    """Takes records that are already allowed and finite. ``stream`` is ``"rounds"`` or ``"events"``."""

    def write(self, stream: str, record: Record) -> None:
        """Take one record. An exception is noted; after several the sink is left out."""

    def close(self) -> None:
        """No more records."""


class MemorySink:
    """Keeps records in two lists, for tests and for the end of a run."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def write(self, stream: str, record: Record) -> None:
        """Append a copy."""
        (self.rounds if stream == "rounds" else self.events).append(json.loads(json.dumps(record, allow_nan=False)))

    def close(self) -> None:
        """Nothing to close."""


class JsonLinesSink:
    """``rounds.jsonl`` and ``events.jsonl`` in one folder: one line a record, on the disk's cache when written.

    A line that a crash cut short is removed before the first new line, so that a resumed run leaves whole lines.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, Any] = {}

    def write(self, stream: str, record: Record) -> None:
        """Append one line and hand it to the operating system."""
        if stream not in self._files:
            path = self.folder / f"{stream}.jsonl"
            _drop_torn_line(path)
            self._files[stream] = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))
        self._files[stream].write(line + "\n")
        self._files[stream].flush()

    def close(self) -> None:
        """Close both files."""
        for handle in self._files.values():
            handle.close()
        self._files = {}


def _drop_torn_line(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        atomic.write_bytes(path, data[: data.rfind(b"\n") + 1])


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """All records of a file; none where it does not exist. A last line that a crash cut short is left out.

    Raises CheckpointError for a damaged line before the last.
    """
    if not Path(path).exists():
        return []
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise CheckpointError(
                f"{path}, line {number}, is damaged: remove that line or restore the file."
            ) from error
    return records


def rewind(path: Path, keep: Callable[[dict[str, Any]], bool]) -> int:
    """Drop the records for which ``keep`` is false (rounds that a resumed run does again). Returns how many went."""
    records = read_json_lines(path)
    kept = [record for record in records if keep(record)]
    if len(kept) != len(records):
        lines = (json.dumps(record, ensure_ascii=False, separators=(", ", ": ")) + "\n" for record in kept)
        atomic.write_bytes(Path(path), "".join(lines).encode())
    return len(records) - len(kept)


class TensorBoardSink:
    """TensorBoard event files: one scalar a number, ``phase/name`` or ``phase/name/component``, over all rounds.

    Raises ConfigError when TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "tracking_args.enable_tensorboard: TensorBoard is not installed; install fedgmi-fedml[tensorboard] "
                "or set it to false"
            ) from None
        self._writer: Any = SummaryWriter(str(folder))

    def write(self, stream: str, record: Record) -> None:
        """Write the numbers of a round; events are left out."""
        if stream != "rounds":
            return
        step = int(record.get("round", 0))
        head = str(record.get("phase", "rounds"))
        if record.get("method", "fedgmi") != "fedgmi":
            head = f"{record['method']}/{head}"
        for name, value in record.items():
            if name not in ("round", "phase", "method", "cohort", "survivors", "dropped", "frozen", "elapsed"):
                for tag, number in scalars(f"{head}/{name}", value):
                    self._writer.add_scalar(tag, number, step)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()


def scalars(tag: str, value: Any) -> list[tuple[str, float]]:
    """Every number inside ``value`` with its tag; text and ``None`` are left out."""
    if isinstance(value, (bool, int, float)):
        return [(tag, float(value))]
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in scalars(f"{tag}/{key}", item)]
    if isinstance(value, list):
        return [pair for index, item in enumerate(value) for pair in scalars(f"{tag}/{index}", item)]
    return []


class BackgroundSink:
    """Another sink behind a bounded queue and a thread of its own: a service that hangs never holds up the run.

    Args:
        sink: where records go in the end.
        capacity: records that may wait; further ones are dropped and counted in ``dropped``.
        patience: seconds that ``close`` waits for the queue to empty.
    """

    def __init__(self, sink: Sink, capacity: int = 1000, patience: float = 2.0) -> None:
        self._sink = sink
        self._queue: queue.Queue[tuple[str, Record] | None] = queue.Queue(capacity)
        self._patience = patience
        self.dropped = 0
        self.failed = 0
        self._thread = threading.Thread(target=self._run, name="fedgmi-telemetry", daemon=True)
        self._thread.start()

    def write(self, stream: str, record: Record) -> None:
        """Queue a copy; never waits."""
        try:
            self._queue.put_nowait((stream, dict(record)))
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._sink.write(*item)
            except Exception:  # whatever a service's client raises must not end the thread
                self.failed += 1
        try:
            self._sink.close()
        except Exception:
            self.failed += 1

    def close(self) -> None:
        """Let the queue empty for at most ``patience`` seconds, then go on without it."""
        try:
            self._queue.put(None, timeout=self._patience)
        except queue.Full:
            self.dropped += self._queue.qsize()
            return
        self._thread.join(self._patience)
        if self._thread.is_alive():
            self.dropped += self._queue.qsize()
