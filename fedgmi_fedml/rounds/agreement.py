"""The beacon that a run's silos agreed on, kept so that latecomers and a restarted server go on with the same one.

The silos at the run's start commit to nonces and reveal them (``secure.beacon``); the beacon draws every cohort. Each
of them then *witnesses* it: signs (run, beacon, members). A silo that was not there takes a beacon that more than c
silos of its roster have witnessed, so at least one honest silo has put its nonce into it; and no silo ever witnesses
two beacons of one run (``secure.journal``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from fedgmi_fedml.errors import CheckpointError
from secure.identity import Identity, is_valid
from secure.roster import Roster

_LABEL = "beacon"


@dataclass(frozen=True)
class Agreement:
    """What a run's parties hold on to from its start to its end.

    Attributes:
        beacon: 32 bytes; draws every cohort.
        nonces: silo → what it revealed, 32 bytes; all silos know them.
        witnesses: silo → Ed25519 signature, 64 bytes; empty with back-end ``none``.
        exposed: starting models (digest) → cohorts whose totals are out (``rounds.exposure``).
    """

    beacon: bytes
    nonces: Mapping[int, bytes]
    witnesses: Mapping[int, bytes] = field(default_factory=dict)
    exposed: Mapping[bytes, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    @property
    def members(self) -> tuple[int, ...]:
        """The silos whose nonces are in the beacon, ascending."""
        return tuple(sorted(self.nonces))

    def to_bytes(self) -> bytes:
        """For the server's disk."""
        fields = (self.beacon, dict(self.nonces), dict(self.witnesses), dict(self.exposed))
        return bytes(msgpack.packb(fields, use_bin_type=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> Agreement:
        """Inverse of ``to_bytes``.

        Raises:
            CheckpointError: not written by it.
        """
        try:
            fields: Any = msgpack.unpackb(data, raw=False, use_list=False, strict_map_key=False)
            return cls(*fields)
        except Exception as error:
            raise CheckpointError("the run's agreement is damaged: start a new run") from error


def witness(identity: Identity, run_id: str, beacon: bytes, members: tuple[int, ...]) -> bytes:
    """One silo's signature, 64 bytes: this is the run's beacon, and my nonce is in it."""
    return identity.sign(_LABEL, _statement(run_id, beacon, members))


def witnessed_by(
    roster: Roster, run_id: str, beacon: bytes, members: tuple[int, ...], witnesses: Mapping[int, bytes]
) -> tuple[int, ...]:
    """The members of the roster whose signature is good, ascending."""
    statement = _statement(run_id, beacon, members)
    keys = {entry.silo_id: entry.public_key for entry in roster.silos}
    return tuple(
        silo
        for silo, signature in sorted(witnesses.items())
        if silo in keys and silo in members and is_valid(keys[silo], _LABEL, statement, signature)
    )


def _statement(run_id: str, beacon: bytes, members: tuple[int, ...]) -> bytes:
    return bytes(msgpack.packb(("fedgmi/1/witness", run_id, beacon, list(members)), use_bin_type=True))
