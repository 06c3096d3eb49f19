"""Shamir's secret sharing over GF(2^521 − 1): self-mask seeds and masking keys, t of K.

Why this prime: 2^521 − 1 is the smallest Mersenne prime above 2^256, so it holds any 32-byte secret, its primality has
been known since 1952, and reduction is a mask and a shift. A silo's share abscissa is its roster id (never zero).
Totals have a smaller field of their own (``protocol/field.py``), where each number is an element.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

from secure.errors import InputError, ProtocolError
from secure.keys import RandomBytes, random_bytes

BITS = 521
PRIME = (1 << BITS) - 1
SHARE_BYTES = 66
"""Bytes of one encoded share."""

_MAX_HOLDER = 65535


def _reduce(value: int) -> int:
    """``value`` mod 2^521 − 1 for ``value`` ≥ 0: fold the high bits onto the low ones."""
    while value >> BITS:
        value = (value & PRIME) + (value >> BITS)
    return 0 if value == PRIME else value


def random_element(random: RandomBytes = os.urandom) -> int:
    """A uniform field element, by rejection."""
    while True:
        value = int.from_bytes(random_bytes(random, SHARE_BYTES), "big") & PRIME
        if value != PRIME:
            return value


def _coefficients(count: int, random: RandomBytes) -> list[int]:
    """``count`` uniform field elements from a single draw (redrawn one by one in the 2^-521 case of a rejection)."""
    drawn = random_bytes(random, SHARE_BYTES * count)
    values = [int.from_bytes(drawn[i : i + SHARE_BYTES], "big") & PRIME for i in range(0, len(drawn), SHARE_BYTES)]
    return [value if value != PRIME else random_element(random) for value in values]


def _check_holders(holders: Sequence[int]) -> None:
    if len(set(holders)) != len(holders):
        raise InputError("share holders must be distinct")
    if not all(0 < holder <= _MAX_HOLDER for holder in holders):
        raise InputError(f"share holders must lie in 1 … {_MAX_HOLDER}")


def split(secret: int, threshold: int, holders: Sequence[int], random: RandomBytes = os.urandom) -> dict[int, int]:
    """Split a secret so that any ``threshold`` of the holders' shares give it back, and fewer say nothing.

    Shamir, "How to share a secret", CACM 22(11), 1979: f(x) = secret + a_1 x + … + a_{t−1} x^{t−1}, share = f(holder).

    Args:
        secret: 0 ≤ secret < 2^521 − 1.
        threshold: t, 1 … len(holders).
        holders: distinct silo ids, 1 … 65535.

    Returns:
        Holder → share (field element).

    Raises:
        InputError: secret outside the field, bad threshold or holders.
    """
    if not 0 <= secret < PRIME:
        raise InputError("secret lies outside the field")
    if not 1 <= threshold <= len(holders):
        raise InputError(f"threshold {threshold} does not suit {len(holders)} holders")
    _check_holders(holders)
    falling = _coefficients(threshold - 1, random)
    falling.append(secret)
    shares = {}
    for holder in holders:
        # Horner without reducing: holders are small, so the value grows by a few bits a step; one reduction at the end.
        value = 0
        for coefficient in falling:
            value = value * holder + coefficient
        shares[holder] = _reduce(value)
    return shares


@lru_cache(maxsize=1024)
def _weights(holders: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Lagrange weights of the points ``holders`` for abscissa ``at``; one inversion for all (Montgomery's trick)."""
    numerators, denominators = [], []
    for own in holders:
        numerator = denominator = 1
        for other in holders:
            if other != own:
                numerator *= at - other
                denominator *= own - other
        numerators.append(numerator)
        denominators.append(denominator % PRIME)
    prefix = [1]
    for denominator in denominators:
        prefix.append(prefix[-1] * denominator % PRIME)
    inverse = pow(prefix[-1], -1, PRIME)
    weights = []
    for index in reversed(range(len(holders))):
        weights.append(numerators[index] * inverse * prefix[index] % PRIME)
        inverse = inverse * denominators[index] % PRIME
    return tuple(reversed(weights))


def interpolate(shares: Mapping[int, int], at: int) -> int:
    """Value at ``at`` of the one polynomial of degree < len(shares) through the shares.

    ``interpolate(shares, holder)`` says what a further holder's share must be, if all shares are good.

    Raises:
        InputError: no shares, bad holders.
        ProtocolError: a share lies outside the field.
    """
    if not shares:
        raise InputError("no shares to combine")
    holders = tuple(sorted(shares))
    _check_holders(holders)
    if not all(0 <= share < PRIME for share in shares.values()):
        raise ProtocolError("a share lies outside the field")
    weights = _weights(holders, at)
    # The sum of at most 128 products of two 521-bit numbers: reduced once.
    return _reduce(sum(weight * shares[holder] for weight, holder in zip(weights, holders, strict=True)))


def combine(shares: Mapping[int, int]) -> int:
    """The secret, from *exactly* t good shares (the caller picks them): Lagrange interpolation at zero.

    With fewer than t, or a bad one among them, the answer is a meaningless field element: check it against a
    commitment. Weights are cached per set of holders, so combine many secrets from the same set.

    Raises:
        InputError: no shares, bad holders.
        ProtocolError: a share lies outside the field.
    """
    return interpolate(shares, 0)


def encode_share(share: int) -> bytes:
    """66 bytes, big-endian."""
    return share.to_bytes(SHARE_BYTES, "big")


def decode_share(data: bytes) -> int:
    """Undo ``encode_share``.

    Raises:
        ProtocolError: wrong length or outside the field.
    """
    value = int.from_bytes(data, "big")
    if len(data) != SHARE_BYTES or value >= PRIME:
        raise ProtocolError("not an encoded share")
    return value
