"""What a session emits. Outsiders import these from ``secure.api``."""

from __future__ import annotations

from dataclasses import dataclass

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
