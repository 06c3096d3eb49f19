"""A TCP proxy on a bad day: it cuts, delays, duplicates and reorders what passes, and replays old connections."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import socket
import threading
import time
from collections import Counter

MISCHIEF = ("cut", "delay", "duplicate", "reorder", "replay")


class RoughProxy:
    """Forwards a port of its own to ``target``; connections meet one mischief after another.

    Args:
        target: port on this machine.
        seed: of what happens when.
        rounds: how often each mischief is done before connections are left alone.

    Attributes:
        done: how often each was done.
        connections: how many there have been.
    """

    def __init__(self, target: int, seed: int, rounds: int) -> None:
        self.target, self.done, self.connections = target, Counter[str](), 0
        self._chance = random.Random(seed)
        kinds = [kind for _ in range(rounds) for kind in self._chance.sample(MISCHIEF, len(MISCHIEF))]
        self._plan = itertools.chain(kinds, itertools.repeat(""))
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            connection = _Connection(self)
            for source, sink, up in ((near, far, True), (far, near, False)):
                threading.Thread(target=connection.pump, args=(source, sink, up), daemon=True).start()

    def bytes_to_mischief(self) -> int:
        """How many bytes a connection passes on before it meets one: some end sooner, as they only try the server."""
        return self._chance.randrange(4_000, 14_000)

    def next_mischief(self) -> str:
        """What happens now; empty: nothing any more."""
        mischief = next(self._plan)
        self.done.update([mischief] if mischief else [])
        return mischief

    def replay(self, said: bytes) -> None:
        """Say it all again on a connection of one's own, and listen to nothing."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as again:
            again.sendall(said)
            again.settimeout(2)
            while again.recv(65536):
                pass

    def close(self) -> None:
        """Listen no more, and cut."""
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class _Connection:
    """Both directions of one connection, and what is to happen to it."""

    def __init__(self, proxy: RoughProxy) -> None:
        self._proxy, self._said = proxy, b""
        self._left: float = proxy.bytes_to_mischief()
        self._lock = threading.Lock()

    def pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        """Forward one direction until it ends, or is cut."""
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                for piece in self._pieces(data, up):
                    sink.sendall(piece)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _pieces(self, data: bytes, up: bool) -> list[bytes]:
        """What is passed on in place of ``data``. Raises OSError where it is cut."""
        with self._lock:
            self._said += data if up else b""
            self._left -= len(data)
            if self._left > 0 or len(data) < 2:
                return [data]
            mischief = self._proxy.next_mischief()
            self._left = self._proxy.bytes_to_mischief() if mischief == "delay" else math.inf
        half = len(data) // 2
        match mischief:
            case "delay":
                time.sleep(1.0)
            case "duplicate":
                return [data, data]
            case "reorder":
                return [data[half:], data[:half]]
            case "replay":
                threading.Thread(target=self._proxy.replay, args=(self._said,), daemon=True).start()
        if mischief in ("cut", "replay"):
            raise OSError(mischief)
        return [data]
