"""Moves messages between one server and the hosts of its silos, in this process or in workers, until the run has ended.

There is no clock: when nothing is under way and the server still waits, its deadline has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from typing import Any

from fedgmi_fedml.rounds.server import Outgoing, ServerRun
from fedgmi_fedml.simulate.host import SiloHost, Start
from fedgmi_fedml.simulate.worker import WorkerHost

Fault = Callable[[str, int, bytes], Iterable[bytes]]
"""(direction "up" or "down", silo, payload) → payloads to deliver instead: none drops, two duplicate, others tamper."""


def no_fault(direction: str, silo: int, payload: bytes) -> Iterable[bytes]:
    """Deliver as it is."""
    return (payload,)


class Pump:
    """Runs one server against hosts.

    Args:
        server: the run's server.
        hosts: all in this process, or all workers.
        fault: what the network does to messages.
        after_server: called whenever the server has handled a message and its replies have not left yet.
        check: called between messages; raises to stop the run.
    """

    def __init__(
        self, server: ServerRun, hosts: list[SiloHost] | list[WorkerHost], *, fault: Fault = no_fault,
        after_server: Callable[[], None] = lambda: None, check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.server, self.hosts = server, hosts
        self._fault, self._after, self._check = fault, after_server, check
        self._of = {silo: host for host in hosts for silo in host.ids}
        self._down: deque[Outgoing] = deque()

    def run(self, start: Start) -> None:
        """Until the server has finished."""
        self._collect(self.server.start())
        workers = [host for host in self.hosts if isinstance(host, WorkerHost)]
        if workers:
            self._run_workers(workers, start)
        else:
            self._run_inline(start)

    # ---- one process ---------------------------------------------------------------------------------------------

    def _run_inline(self, start: Start) -> None:
        for host in self.hosts:
            self._up(host.open(start))  # type: ignore[arg-type]
        while not self.server.finished:
            self._check()
            if not self._down:
                self._collect(self.server.deadline())
                continue
            message = self._down.popleft()
            host: Any = self._of[message.to]
            for payload in self._fault("down", message.to, message.payload):
                self._up(host.handle(message.to, payload))

    # ---- workers -------------------------------------------------------------------------------------------------

    def _run_workers(self, workers: list[WorkerHost], start: Start) -> None:
        for worker in workers:
            worker.post("open", start)
        while not self.server.finished:
            self._check()
            for worker in workers:
                early, worker.early = worker.early, []
                self._up(early)
            self._feed(workers)
            busy = {worker.connection: worker for worker in workers if worker.busy}
            if not busy and not self._down and not any(worker.queue or worker.early for worker in workers):
                self._collect(self.server.deadline())
                continue
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                if worker.busy:  # a checkpoint may have heard it out meanwhile
                    self._up(worker.receive())

    def _feed(self, workers: list[WorkerHost]) -> None:
        """Sort what there is to send by worker; each idle worker gets its next message."""
        while self._down:
            message = self._down.popleft()
            for payload in self._fault("down", message.to, message.payload):
                host: Any = self._of[message.to]
                host.queue.append((message.to, payload))
        for worker in workers:
            if worker.queue and not worker.busy:
                worker.post("handle", *worker.queue.popleft())

    # ---- both ----------------------------------------------------------------------------------------------------

    def _up(self, replies: Iterable[tuple[int, bytes]]) -> None:
        for silo, reply in replies:
            for payload in self._fault("up", silo, reply):
                self._collect(self.server.handle(silo, payload))

    def _collect(self, outgoing: Iterable[Outgoing]) -> None:
        self._after()
        self._down.extend(outgoing)
