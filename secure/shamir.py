"""Shamir's secret sharing over GF(2^521 − 1), additively homomorphic.

Why this prime: 2^521 − 1 is the smallest Mersenne prime above 2^256 with room to spare. It holds a 32-byte secret, and
as a total about 65 bytes of packed values; reduction is a mask and a shift; and no packed total can wrap, as
``pack_totals`` keeps below 2^520. A silo's share abscissa is its roster id (never zero).

Sums of shares are shares of sums: silos add up, per holder, the shares they received of their peers' packed totals, and
any t of these sums give the sum of the totals. Fields never spill over, because the widths given to ``pack_totals``
are those of the *sum* over the cohort.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from secure.errors import CapacityError, InputError, ProtocolError
from secure.keys import RandomBytes, random_bytes

BITS = 521
PRIME = (1 << BITS) - 1
SHARE_BYTES = 66
"""Bytes of one encoded share."""

PACK_BITS = 520
"""Bits of packed totals that one field element carries without ever wrapping."""

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


def add_shares(shares: Iterable[int]) -> int:
    """Share of the sum, from one holder's shares of each summand."""
    return _reduce(sum(shares))


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


def _slots(widths: Sequence[int]) -> list[tuple[int, int]]:
    """(element, bit offset) of each value: first fit in order, never across two elements."""
    places, element, offset = [], 0, 0
    for width in widths:
        if not 1 <= width <= PACK_BITS:
            raise CapacityError(f"a packed total is {width} bits wide; 1 … {PACK_BITS} fit a field element")
        if offset + width > PACK_BITS:
            element, offset = element + 1, 0
        places.append((element, offset))
        offset += width
    return places


def packed_elements(widths: Sequence[int]) -> int:
    """How many field elements ``pack_totals`` needs for these widths (0 for none)."""
    places = _slots(widths)
    return places[-1][0] + 1 if places else 0


def pack_totals(values: Sequence[int], widths: Sequence[int]) -> tuple[int, ...]:
    """Pack non-negative integers at fixed bit offsets of as few field elements as needed (each below 2^520).

    Args:
        values: 0 ≤ value < 2^width; signed values by an offset (``fixedpoint.encode_statistic``).
        widths: bits of each value *summed over the cohort*, so that sums never spill into the neighbour.

    Raises:
        InputError: numbers of values and widths differ, or a value is negative or too wide.
        CapacityError: a width does not fit a field element.
    """
    if len(values) != len(widths):
        raise InputError(f"{len(values)} totals for {len(widths)} widths")
    packed = [0] * packed_elements(widths)
    for (element, offset), value, width in zip(_slots(widths), values, widths, strict=True):
        if not 0 <= value < 1 << width:
            raise InputError(f"a total does not fit its {width} bits")
        packed[element] |= value << offset
    return tuple(packed)


def unpack_totals(packed: Sequence[int], widths: Sequence[int]) -> tuple[int, ...]:
    """Undo ``pack_totals`` (also on sums of packed totals).

    Raises:
        ProtocolError: another number of elements, or bits beyond the declared widths (a peer lied about a share).
        CapacityError: a width does not fit a field element.
    """
    places = _slots(widths)
    if len(packed) != packed_elements(widths):
        raise ProtocolError("another number of packed totals than declared")
    used = [0] * len(packed)
    for (element, offset), width in zip(places, widths, strict=True):
        used[element] = offset + width
    if any(not 0 <= value < 1 << bits for value, bits in zip(packed, used, strict=True)):
        raise ProtocolError("packed totals exceed their declared widths")
    return tuple(
        packed[element] >> offset & (1 << width) - 1 for (element, offset), width in zip(places, widths, strict=True)
    )
