"""The one door into ``secure``: sessions of a silo and of the server, sans I/O.

Bytes go in, events come out; nothing here opens a socket, starts a thread or reads a clock. The caller delivers
``Send`` events, and says when a deadline has passed.

    silo                                              server
    ────                                              ──────
    s = open_silo(params, contribution, …)            s = open_server(params, …)
    deliver(s.start())                                deliver(s.start())
    for event in s.handle(payload): …                 for event in s.handle(silo, payload): …
      TotalsKnown → s.submit(vector, metrics)           SessionReleased / SessionSurveyed / SessionAbortedEvent
      SessionReleased / SessionAbortedEvent           s.deadline() when the step's time is up
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from secure.types import Aggregate, SiloId, Totals


@dataclass(frozen=True, repr=False)
class Send:
    """Deliver ``payload`` to silo ``to`` (``to`` is ``None`` from a silo: everything goes to the server)."""

    payload: bytes
    to: SiloId | None = None

    def __repr__(self) -> str:
        return f"Send(to={self.to}, {len(self.payload)} bytes)"


@dataclass(frozen=True)
class TotalsKnown:
    """Silo only: the totals are known; ``submit`` may be called (unless the session is a survey or nothing is open)."""

    totals: Totals


@dataclass(frozen=True)
class SessionReleased:
    """Terminal: the sum of the survivors."""

    aggregate: Aggregate


@dataclass(frozen=True)
class SessionSurveyed:
    """Terminal: the silos know the totals, nothing was uploaded (a survey, or no component is open).

    ``contributors`` and ``open`` are all that the server learns.
    """

    open: tuple[bool, ...]
    cohort: tuple[SiloId, ...]


@dataclass(frozen=True)
class SessionAbortedEvent:
    """Terminal: no result. ``reason`` is for people; ``culprits`` are silos proved or presumed at fault."""

    reason: str
    culprits: tuple[SiloId, ...] = ()


Event = Send | TotalsKnown | SessionReleased | SessionSurveyed | SessionAbortedEvent


class SiloSession(Protocol):
    """One silo's side of one session."""

    def start(self) -> Iterable[Event]:
        """First messages, if this side speaks first."""

    def handle(self, payload: bytes) -> Iterable[Event]:
        """Take one message from the server. A refused message yields an abort (with its reason), never an exception."""

    def submit(self, vector: npt.NDArray[np.float32], metrics: Mapping[str, float]) -> Iterable[Event]:
        """Upload the weighted delta, once. Lazy: pieces are made as the iterator is drained.

        Args:
            vector: float32, C-contiguous, shape (spec.length,), already multiplied by ``Totals.share`` per component.
            metrics: exactly the names of ``spec.metrics``.

        Raises:
            InputError: NaN, infinity, wrong dtype, shape or names (before anything is masked).
        """

    def deadline(self) -> Iterable[Event]:
        """This step's time is up: abort and erase."""

    @property
    def done(self) -> bool:
        """Whether a terminal event was emitted."""


class ServerSession(Protocol):
    """The server's side of one session."""

    def start(self) -> Iterable[Event]:
        """First messages (the proposal)."""

    def handle(self, sender: SiloId, payload: bytes) -> Iterable[Event]:
        """Take one message. Garbage, duplicates and late messages are ignored and counted, never fatal."""

    def deadline(self) -> Iterable[Event]:
        """This step's time is up: go on without the missing silos where that is allowed, else abort."""

    def lost(self, silo: SiloId) -> Iterable[Event]:
        """The transport says that this silo is gone: count it as missing for the rest of the session."""

    @property
    def waiting_for(self) -> tuple[SiloId, ...]:
        """Silos whose message the present step still awaits."""

    @property
    def done(self) -> bool:
        """Whether a terminal event was emitted."""
