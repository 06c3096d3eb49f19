"""A host in a process of its own, so that silos train on several cores.

One message at a time goes to a worker; while it is busy it may answer with any number of replies. Both ends speak over
a pipe that only they know.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedgmi_fedml.config import Config
from fedgmi_fedml.errors import FedgmiError, RunError


class WorkerHost:
    """Proxy of a ``SiloHost`` in another process.

    Args:
        config, ids, scratch: as for ``SiloHost``; the worker loads the data itself.
    """

    def __init__(self, config: Config, ids: tuple[int, ...], scratch: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.ids = ids
        self.queue: deque[tuple[int, bytes]] = deque()
        self.busy = False
        self.early: list[tuple[int, bytes]] = []
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, config, ids, scratch), daemon=True)
        self._process.start()
        theirs.close()

    def post(self, command: str, *arguments: Any) -> None:
        """Send one command; replies come through ``receive``."""
        self.connection.send((command, arguments))
        self.busy = True

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """The next reply, if the next message is one; waits for that message.

        Raises:
            RunError: the worker has died. FedgmiError: what its silo raised.
        """
        kind, value = self._read()
        if kind == "reply":
            yield value

    def call(self, command: str, *arguments: Any) -> Any:
        """Run a command to its end and return its result; replies that were under way are kept in ``early``."""
        while self.busy:
            kind, value = self._read()
            if kind == "reply":
                self.early.append(value)
        self.post(command, *arguments)
        kind, value = self._read()
        return value

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.terminate()

    def _read(self) -> tuple[str, Any]:
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError) as error:
            raise RunError(
                f"a worker with {len(self.ids)} silos has died (out of memory?): resume with fewer workers"
            ) from error
        if kind in ("done", "error"):
            self.busy = False
        if kind == "error":
            raise value
        return kind, value


def _serve(connection: Connection, config: Config, ids: tuple[int, ...], scratch: Path) -> None:
    """The worker's life: load the data, then obey until the pipe closes. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host: Any = None
    while True:
        try:
            command, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if host is None:
                from fedgmi_fedml.data import load_federation
                from fedgmi_fedml.simulate.host import SiloHost

                host = SiloHost(config, load_federation(config, only={i - 1 for i in ids}), ids, scratch)
            result = getattr(host, command)(*arguments)
            if command in ("open", "handle"):
                for reply in result:
                    connection.send(("reply", reply))
                result = None
            if host.errors:
                silo, error = host.errors[0]
                raise (
                    error
                    if isinstance(error, FedgmiError)
                    else RunError(f"silo {silo}: {type(error).__name__}: {error}")
                )
            connection.send(("done", result))
        except (BrokenPipeError, ConnectionResetError):  # the parent is gone, or had enough
            return
        except FedgmiError as error:
            connection.send(("error", error))
        except Exception as error:  # the parent decides what an unexpected error means
            connection.send(("error", RunError(f"{type(error).__name__}: {error}")))
