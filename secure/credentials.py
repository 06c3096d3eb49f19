"""Who a party is and whom it trusts. Outsiders import this from ``secure.api``."""

from __future__ import annotations

from dataclasses import dataclass

from secure.identity import Identity
from secure.policy import Policy
from secure.roster import Roster


@dataclass(frozen=True, repr=False)
class Credentials:
    """Who a party is and whom it trusts.

    Attributes:
        identity: own Ed25519 key pair.
        roster: the roster; the caller has checked it (``Policy.check_roster``).
        policy: the silo's local policy; ``None`` for the server only.
    """

    identity: Identity
    roster: Roster
    policy: Policy | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.identity!r}, roster version {self.roster.version})"
