"""A party's real process that can be told to die at a step of the protocol, or to be slow.

``Forked`` starts ``fedgmi`` with a command line, as the console would, in a process that has torch and the package
loaded already (``multiprocessing``'s fork server): a process of its own in all but the seconds that imports take.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol_steps import step_of

from fedgmi_fedml.transport.hub import Hub
from fedgmi_fedml.transport.silo_end import SiloEnd

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([
    "torch", "torch._dynamo", "sklearn.datasets", "trapped_party", "fedgmi_fedml.cli_federation", "fedgmi_fedml.data",
    "fedgmi_fedml.federation.server", "fedgmi_fedml.federation.silo", "fedgmi_fedml.provision.kit",
    "fedgmi_fedml.report",
])  # fmt: skip
"""``torch._dynamo`` is what the first step of an optimiser loads."""


@dataclass(frozen=True)
class Trap:
    """SIGKILL at the first message of a step: before it is sent, or once the other side has it.

    Attributes:
        step: as ``protocol_steps`` names it.
        when: ``before`` or ``after``.
        phase: of the messages that name one.
    """

    step: str
    when: str
    phase: str = "rounds"

    def __str__(self) -> str:
        return f"{self.when} {self.step}"


class Forked:
    """A started process, with ``subprocess.Popen``'s methods.

    Args:
        arguments: of ``fedgmi``.
        console: file that receives what it says.
        trap: where it dies.
        hold: folder; in round r of the sample-level rounds the silo is ready only when it holds a file ``r``.
    """

    def __init__(self, arguments: Sequence[str], console: Path, trap: Trap | None, hold: Path | None) -> None:
        self._process = _FORKS.Process(target=_party, args=(list(arguments), console, trap, hold), daemon=True)
        self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("fedgmi", seconds or 0.0)
        return self._process.exitcode


def _party(arguments: list[str], console: Path, trap: Trap | None, hold: Path | None) -> None:
    descriptor = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if hold is not None:
        _wrap_send(SiloEnd, lambda end, payload, send: (_wait_for(payload, hold), send()))
    if trap is not None:
        for kind in (SiloEnd, Hub):
            _wrap_send(kind, lambda end, payload, send: _die(trap, end, payload, send))
    from fedgmi_fedml.cli import run

    code = run(arguments)
    sys.stdout.flush()
    os._exit(code)


def _wrap_send(kind: type, instead: Callable[[Any, bytes, Callable[[], None]], object]) -> None:
    send = kind.send  # type: ignore[attr-defined]

    def wrapped(end: Any, *arguments: Any) -> None:
        instead(end, arguments[-1], lambda: send(end, *arguments))

    kind.send = wrapped  # type: ignore[attr-defined]


def _die(trap: Trap, end: Any, payload: bytes, send: Callable[[], None]) -> None:
    step, phase, _ = step_of(payload)
    if step != trap.step or phase not in ("", trap.phase):
        send()
        return
    if trap.when == "after":
        send()
        end.flush(20)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(payload: bytes, hold: Path) -> None:
    """Training takes as long as the test wants."""
    step, phase, number = step_of(payload)
    until = time.monotonic() + 120
    while (step, phase) == ("Ready", "rounds") and not (hold / str(number)).exists() and time.monotonic() < until:
        time.sleep(0.02)
