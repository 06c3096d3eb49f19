"""Both ends within one process, over the very links that gRPC carries, with faults injected frame by frame."""

from __future__ import annotations

import enum
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from fedgmi_fedml.transport.hub import Admission, Hub
from fedgmi_fedml.transport.settings import LinkSettings
from fedgmi_fedml.transport.silo_end import DialFailed, SiloEnd

__all__ = ["Fault", "FrameSeen", "MemoryNetwork"]

_QUICK = LinkSettings(
    heartbeat_seconds=0.25, silence_seconds=10.0, grace_seconds=10.0, dial_seconds=30.0, backoff=(0.01, 0.2)
)


class Fault(enum.Enum):
    """What happens to a frame."""

    DROP = "lost; the connection stays"
    TWICE = "arrives twice"
    SWAP = "arrives after the next one"
    CUT = "lost, and the connection with it"


@dataclass(frozen=True)
class FrameSeen:
    """A frame under way, as a fault injector sees it.

    Attributes:
        silo: whose connection it is.
        upwards: from the silo to the server.
        number: counts the frames of this direction of this connection from 0, the first frame (who is it) included.
        size: bytes.
    """

    silo: int
    upwards: bool
    number: int
    size: int


Injector = Callable[[FrameSeen], "Fault | float | None"]
"""Judges each frame: a fault, seconds of delay for it and all behind it, or ``None``: it passes."""


class _Way:
    """One direction of one connection."""

    def __init__(self, silo: int, upwards: bool, fault: Injector | None, cut: Callable[[], None]) -> None:
        self._silo, self._upwards, self._fault, self._cut = silo, upwards, fault, cut
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._held: bytes | None = None
        self._number = 0

    def put(self, frame: bytes) -> None:
        """Send a frame, or what the injector makes of it."""
        seen = FrameSeen(self._silo, self._upwards, self._number, len(frame))
        self._number += 1
        fate = None if self._fault is None else self._fault(seen)
        match fate:
            case Fault.DROP:
                return
            case Fault.CUT:
                self._cut()
                return
            case Fault.SWAP if self._held is None:
                self._held = frame
                return
            case float() | int():
                time.sleep(fate)
        self._frames.put(frame)
        if fate is Fault.TWICE:
            self._frames.put(frame)
        if self._held is not None:
            self._frames.put(self._held)
            self._held = None

    def end(self) -> None:
        """Nothing follows."""
        self._frames.put(None)

    def __iter__(self) -> Iterator[bytes]:
        while (frame := self._frames.get()) is not None:
            yield frame
        self._frames.put(None)


class _MemoryLine:
    """A connection and its three threads; the silo's own thread is the fourth."""

    def __init__(self, network: MemoryNetwork, silo: int, frames: Iterator[bytes]) -> None:
        self._hub = network.listening
        self._silo = silo
        self._up = _Way(silo, True, network.fault, self.cancel)
        self._down = _Way(silo, False, network.fault, self.cancel)
        if self._hub is not None:
            self.connection = self._hub.expect(self.cancel)
            network.lines.setdefault(silo, []).append(self)
            _start(self._send, frames)
            _start(self._serve, self._hub)

    def _send(self, frames: Iterator[bytes]) -> None:
        for frame in frames:
            self._up.put(frame)
        self._up.end()

    def _serve(self, hub: Hub) -> None:
        first = next(iter(self._up), None)
        admission = None if first is None else hub.admit(self.connection, first, None)
        if admission is not None:
            self._down.put(admission.answer)
            if admission.station is not None:
                _start(self._read, hub, admission)
            for frame in admission.frames():
                self._down.put(frame)
            hub.over(admission)
        self._down.end()

    def _read(self, hub: Hub, admission: Admission) -> None:
        for frame in self._up:
            if not admission.feed(frame):
                break
        hub.over(admission)

    def __iter__(self) -> Iterator[bytes]:
        if self._hub is None:
            raise DialFailed("there is no server")
        heard = False
        for frame in self._down:
            heard = True
            yield frame
        if not heard:
            raise DialFailed("the server hung up without an answer")

    def cancel(self) -> None:
        """Cut, both ways at once."""
        self._up.end()
        self._down.end()

    def close(self) -> None:
        """Nothing is left to give back."""
        self.cancel()


def _start(work: Callable[..., None], *args: object) -> None:
    threading.Thread(target=work, args=args, name="fedgmi-memory", daemon=True).start()


class MemoryNetwork:
    """A server and its silos in one process.

    Args:
        run_id: the run's.
        silos: their ids.
        fault: judges every frame; may be called from several threads at once.
        settings: sizes and patience; the default's is short.

    Attributes:
        server: the present server's end.
        fault: may be exchanged at any time; connections made from then on obey it.
    """

    def __init__(
        self, run_id: str, silos: Collection[int], fault: Injector | None = None, settings: LinkSettings | None = None
    ) -> None:
        self.fault = fault
        self.lines: dict[int, list[_MemoryLine]] = {}
        self._run_id, self._admitted = run_id, tuple(silos)
        self._settings = settings or _QUICK
        self._silos: dict[int, SiloEnd] = {}
        self.listening: Hub | None = None
        self.server = self._serve()

    def _serve(self) -> Hub:
        self.listening = Hub(self._run_id, "memory", lambda: self._admitted, self._settings)
        return self.listening

    def silo(self, silo: int) -> SiloEnd:
        """This silo's present end; the first call makes it."""
        if silo not in self._silos:
            self._silos[silo] = SiloEnd(
                lambda frames: _MemoryLine(self, silo, frames), "the server", silo, "memory", self._settings
            )
        return self._silos[silo]

    def cut(self, silo: int) -> None:
        """Cut the silo's connection; it will dial again."""
        for line in self.lines.pop(silo, []):
            line.cancel()

    def stop_server(self) -> None:
        """The server is killed; nobody listens."""
        self.listening = None
        self.server.vanish()

    def restart_server(self) -> Hub:
        """The server is killed and another process takes its place."""
        self.stop_server()
        self.server = self._serve()
        return self.server

    def restart_silo(self, silo: int) -> SiloEnd:
        """The silo is killed and another process takes its place."""
        self.stop_silo(silo)
        return self.silo(silo)

    def stop_silo(self, silo: int) -> None:
        """The silo is killed."""
        if silo in self._silos:
            self._silos.pop(silo).vanish()

    def close(self) -> None:
        """End everything in good order."""
        self.server.close()
        for silo in self._silos.values():
            silo.close()
