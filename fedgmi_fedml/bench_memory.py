"""How much memory one party of a session takes at most: a silo in this process, the server in one of its own."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np

from fedgmi_fedml.bench_session import Federation, Stopwatch
from secure.api import Credentials, Send, SessionReleased, open_server
from secure.types import SessionParams

__all__ = ["MemoryMeter", "RemoteServer"]

_R = TypeVar("_R")


class MemoryMeter(Stopwatch):
    """Instead of seconds, the bytes that one party holds at most: ``peak``. Needs ``tracemalloc`` to be running.

    What leaves the party in a message counts while it is being made; afterwards it is the transport's.

    Args:
        party: whom to watch.
    """

    times = False

    def __init__(self, party: int) -> None:
        super().__init__()
        self.peak, self._party, self._kept = 0, party, 0

    def around(self, party: int, action: Callable[[], _R], stage_of: Callable[[_R], str]) -> _R:
        """Run an action, and look at its peak."""
        if party != self._party:
            return action()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = action()
        after, peak = tracemalloc.get_traced_memory()
        self.peak = max(self.peak, self._kept + peak - before)
        self._kept += after - before - sum({id(e): len(e.payload) for e in _events(result) if _is_send(e)}.values())
        return result


def _is_send(event: Any) -> bool:
    return isinstance(event, Send)


def _events(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


class RemoteServer:
    """A server's session in a process of its own, which says how much memory it took: ``close``.

    Args:
        federation, params: as for ``Session``.
    """

    def __init__(self, federation: Federation, params: SessionParams) -> None:
        context = get_context("fork")  # an identity can be forked, not pickled
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, params, federation.server_credentials()), daemon=True
        )
        self._process.start()
        theirs.close()

    def start(self) -> Iterator[Any]:
        """See ``api.ServerSession``."""
        return self._ask("start")

    def handle(self, sender: int, payload: bytes) -> Iterator[Any]:
        """See ``api.ServerSession``."""
        return self._ask("handle", sender, payload)

    def lost(self, silo: int) -> Iterator[Any]:
        """See ``api.ServerSession``."""
        return self._ask("lost", silo)

    def mark(self) -> None:
        """Uploads begin."""
        self._call("mark")

    def close(self) -> tuple[int, int]:
        """End the process.

        Returns:
            The most bytes that Python and NumPy held in it beyond what it began with: ever, and since ``mark``.
        """
        peaks: tuple[int, int] = self._call("close")
        self._pipe.close()
        self._process.join(timeout=10)
        return peaks

    def _ask(self, name: str, *arguments: Any) -> Iterator[Any]:
        self._pipe.send((name, arguments))
        while (event := self._pipe.recv()) is not None:
            yield event

    def _call(self, name: str) -> Any:
        self._pipe.send((name, ()))
        return self._pipe.recv()


def _serve(pipe: Connection, params: SessionParams, credentials: Credentials | None) -> None:
    """Life of the other process. What the pipe itself needs is not counted."""
    tracemalloc.start()
    base, _ = tracemalloc.get_traced_memory()
    server, early, late = open_server(params, credentials=credentials), 0, 0
    while True:
        name, arguments = pipe.recv()
        if name == "close":
            pipe.send((max(early, late), late))
            return
        if name == "mark":
            early, late = late, 0
            pipe.send(None)
            continue
        tracemalloc.reset_peak()
        for event in getattr(server, name)(*arguments):  # a transport sends each message as it is made
            late = max(late, tracemalloc.get_traced_memory()[1] - base)
            pipe.send(_without_sum(event))
            del event
            tracemalloc.reset_peak()
        late = max(late, tracemalloc.get_traced_memory()[1] - base)
        pipe.send(None)
        del arguments


def _without_sum(event: Any) -> Any:
    """A terminal event without its megabytes, which the other side knows from a silo."""
    if not isinstance(event, SessionReleased):
        return event
    empty = replace(event.aggregate, values=np.zeros(0, dtype=np.int32), sealed=b"")
    return SessionReleased(empty)
