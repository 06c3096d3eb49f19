"""Cohorts that nobody chose: drawn from nonces to which every silo committed before any was shown.

1. Each silo sends ``commitment(silo, nonce)``; all commitments are shown to all.
2. Each silo reveals its nonce; ``from_reveals`` checks every one and hashes them all: the run's beacon.
3. ``draw`` and ``disjoint_cohorts`` turn beacon and label into cohorts, the same on every party.

One honest nonce makes the beacon unpredictable at step 1. Whoever reveals last could still withhold, so a missing
reveal ends the draw: it is never computed from a part of the commitments.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence

from secure.errors import BlameError, InputError
from secure.keys import RandomBytes, frame, random_bytes
from secure.types import SiloId

NONCE_BYTES = 32

_COMMITMENT = b"fedgmi/1/beacon/commitment"
_BEACON = b"fedgmi/1/beacon"
_DRAW = b"fedgmi/1/beacon/draw"


def new_nonce(random: RandomBytes = os.urandom) -> bytes:
    """32 random bytes, secret until everybody has committed."""
    return random_bytes(random, NONCE_BYTES)


def commitment(silo: SiloId, nonce: bytes) -> bytes:
    """SHA-256 over the silo's id and its nonce: 32 bytes. The id keeps a silo from copying another's commitment.

    Raises:
        InputError: the nonce is not 32 bytes.
    """
    if len(nonce) != NONCE_BYTES:
        raise InputError(f"a nonce has {NONCE_BYTES} bytes")
    return hashlib.sha256(frame(_COMMITMENT, silo.to_bytes(8, "big"), nonce)).digest()


def from_reveals(reveals: Mapping[SiloId, tuple[bytes, bytes]], context: bytes = b"") -> bytes:
    """The beacon, 32 bytes.

    Args:
        reveals: silo → (commitment, nonce), of *every* silo that committed.
        context: what the beacon is for (run id and roster digest, say).

    Raises:
        InputError: nobody revealed.
        BlameError: a nonce does not open its silo's commitment; names the silo.
    """
    if not reveals:
        raise InputError("a beacon needs at least one nonce")
    fields = [_BEACON, context]
    for silo in sorted(reveals):
        committed, nonce = reveals[silo]
        if len(nonce) != NONCE_BYTES or not hmac.compare_digest(commitment(silo, nonce), committed):
            raise BlameError(silo, "its nonce does not open its commitment")
        fields += [silo.to_bytes(8, "big"), nonce]
    return hashlib.sha256(frame(*fields)).digest()


class _Stream:
    """Public, deterministic, unbiased numbers: SHA-256 in counter mode over beacon and label."""

    def __init__(self, beacon: bytes, label: str) -> None:
        self._seed = frame(_DRAW, beacon, label.encode())
        self._counter = 0

    def below(self, bound: int) -> int:
        """Uniform in 0 … bound − 1, by rejection."""
        limit = (1 << 64) // bound * bound
        while True:
            block = hashlib.sha256(self._seed + self._counter.to_bytes(8, "big")).digest()
            self._counter += 1
            value = int.from_bytes(block[:8], "big")
            if value < limit:
                return value % bound


def _shuffled(beacon: bytes, label: str, available: Sequence[SiloId], count: int) -> list[SiloId]:
    """First ``count`` places of a Fisher–Yates shuffle of the silos (their order of arrival does not matter)."""
    if len(set(available)) != len(available):
        raise InputError("available silos must be distinct")
    silos = sorted(available)
    stream = _Stream(beacon, label)
    for place in range(count):
        other = place + stream.below(len(silos) - place)
        silos[place], silos[other] = silos[other], silos[place]
    return silos[:count]


def draw(beacon: bytes, label: str, available: Sequence[SiloId], k: int) -> tuple[SiloId, ...]:
    """A cohort of ``k`` silos, ascending; every subset is equally likely.

    Args:
        label: names the draw, e.g. ``"rounds/7/0"`` (phase, round, attempt).

    Raises:
        InputError: fewer than ``k`` silos are available, k < 1, or one is named twice.
    """
    if not 1 <= k <= len(available):
        raise InputError(f"a cohort of {k} cannot be drawn from {len(available)} silos")
    return tuple(sorted(_shuffled(beacon, label, available, k)))


def disjoint_cohorts(
    beacon: bytes, label: str, available: Sequence[SiloId], size: int
) -> tuple[tuple[SiloId, ...], ...]:
    """As many disjoint cohorts of at least ``size`` silos as there can be; every silo is in exactly one.

    What is left over is spread: sizes differ by at most one. Each cohort is ascending.

    Raises:
        InputError: fewer than ``size`` silos are available, size < 1, or one is named twice.
    """
    if not 1 <= size <= len(available):
        raise InputError(f"cohorts of {size} cannot be drawn from {len(available)} silos")
    silos = _shuffled(beacon, label, available, len(available))
    groups = len(silos) // size
    return tuple(tuple(sorted(silos[index::groups])) for index in range(groups))
