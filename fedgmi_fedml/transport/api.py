"""The two ends of a transport, as the federation's processes see them.

A *link* is one silo process's stay with one server process. Within a link every message arrives whole, in order and
once, across any number of cuts. A link ends when either process ends, when the silo has been silent for longer than
the grace period, or when one side closes it; what was under way is then gone, and the other side is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedgmi_fedml.errors import RunError


class LinkError(RunError):
    """The other side cannot be reached, or refuses us; the message says which host, why, and what to do.

    Attributes:
        fatal: trying again cannot help (wrong certificate, not on the roster, another protocol version).
    """

    def __init__(self, message: str, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


# ---- the server's end ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrived:
    """A silo process has opened a new link (its first, or it has restarted: what it was doing before is lost)."""

    silo: int


@dataclass(frozen=True)
class Received:
    """One whole message of a silo."""

    silo: int
    payload: bytes


@dataclass(frozen=True)
class Lost:
    """A silo's link has ended. ``reason`` is for people and names no path or address of the silo's."""

    silo: int
    reason: str


ServerEvent = Arrived | Received | Lost


class ServerTransport(Protocol):
    """The server's end of all links."""

    def receive(self, seconds: float) -> ServerEvent | None:
        """The next event, or ``None`` when there was none for so long. Events of one silo keep their order."""

    def send(self, silo: int, payload: bytes) -> None:
        """Queue a message; never blocks, keeps a reference and no copy. A silo without a link: dropped."""

    def flush(self, seconds: float) -> bool:
        """Wait until everything queued has been acknowledged by the silos that have a link; whether it was."""

    def close(self) -> None:
        """End all links in good order. Idempotent."""


# ---- a silo's end ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """A link with a server process is open: join the run. Again after a new server process has taken over.

    Attributes:
        run_id: names the run on all parties; the server's.
    """

    run_id: str


@dataclass(frozen=True)
class Delivered:
    """One whole message of the server."""

    payload: bytes


@dataclass(frozen=True)
class Closed:
    """The link has ended for good: the server closed it, or refuses this silo. No event follows."""

    reason: str
    failed: bool


SiloEvent = Opened | Delivered | Closed


class SiloTransport(Protocol):
    """A silo's end of its link. It dials, and dials again, by itself."""

    def receive(self, seconds: float) -> SiloEvent | None:
        """The next event, or ``None`` when there was none for so long.

        Raises:
            LinkError: the server could not be reached for as long as the settings allow, or never will be (``fatal``).
        """

    def send(self, payload: bytes) -> None:
        """Queue a message; waits while the window of unacknowledged bytes is full. After the link ended: dropped.

        Raises:
            LinkError: as for ``receive``.
        """

    def flush(self, seconds: float) -> bool:
        """Wait until everything queued has been acknowledged; whether it was."""

    def close(self) -> None:
        """End the link in good order. Idempotent."""
