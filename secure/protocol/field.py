"""The field of the totals: GF(p), p = 2^127 − 1, and Shamir sharing of lists of its elements.

Why another field than ``shamir``'s: totals need one element for each number (a packed one could not carry a proof that
a number is 0 or 1), and an element of 16 bytes costs a sixth of the time. 2^127 − 1 holds any sum of size classes or
fixed-point statistics, and a check at a random point fails to notice a lie with probability below 2^-118.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from secure.errors import InputError, ProtocolError
from secure.keys import RandomBytes, random_bytes

BITS = 127
PRIME = (1 << BITS) - 1
ELEMENT_BYTES = 16


def elements(data: bytes) -> list[int]:
    """Decode 16-byte little-endian elements.

    Raises:
        ProtocolError: wrong length, or an element outside the field.
    """
    if len(data) % ELEMENT_BYTES:
        raise ProtocolError("not a list of field elements")
    values = [int.from_bytes(data[i : i + ELEMENT_BYTES], "little") for i in range(0, len(data), ELEMENT_BYTES)]
    if max(values, default=0) >= PRIME:
        raise ProtocolError("a field element is out of range")
    return values


def encoded(values: Iterable[int]) -> bytes:
    """Undo ``elements``."""
    return b"".join([value.to_bytes(ELEMENT_BYTES, "little") for value in values])


def uniform(count: int, random: RandomBytes) -> list[int]:
    """``count`` uniform elements, by rejection (once in 2^127 draws)."""
    data = random_bytes(random, ELEMENT_BYTES * count)
    values = []
    for i in range(0, len(data), ELEMENT_BYTES):
        value = int.from_bytes(data[i : i + ELEMENT_BYTES], "little") & PRIME
        values.append(value if value != PRIME else uniform(1, random)[0])
    return values


def share_lists(values: Sequence[int], threshold: int, holders: Sequence[int], random: RandomBytes) -> dict[int, bytes]:
    """Shamir shares of each value for each holder: any ``threshold`` of them give it back, fewer say nothing.

    Horner's rule on all values at once, in lanes of one long integer: Python multiplies that by a small number at the
    speed of memory. A lane has 192 bits and is folded (2^127 = 1) before it could spill into the next.

    Returns:
        Holder → one encoded share per value, in order.
    """
    lanes = len(values)
    if not lanes:
        return dict.fromkeys(holders, b"")
    drawn = random_bytes(random, ELEMENT_BYTES * lanes * (threshold - 1))
    coefficients = [_spread(drawn[i : i + ELEMENT_BYTES * lanes]) for i in range(0, len(drawn), ELEMENT_BYTES * lanes)]
    coefficients.append(_spread(encoded(value % PRIME for value in values)))
    steps = (8 * _LANE - BITS - 1) // max(holders).bit_length()  # multiplications that a folded lane has room for
    shares = {}
    for holder in holders:
        total = 0
        for number, coefficient in enumerate(coefficients, start=1):
            total = total * holder + coefficient
            if number % steps == 0:
                total = _fold(total, lanes)
        shares[holder] = _gather(total, lanes)
    return shares


_LANE = 24
"""Bytes of one lane."""


@lru_cache(maxsize=64)
def _masks(lanes: int) -> tuple[int, int, int]:
    """Per lane: a one, the 127 low bits, and the bits that folding moves down."""
    ones = sum(1 << 8 * _LANE * lane for lane in range(lanes))
    return ones, ones * PRIME, ones * ((1 << 8 * _LANE - BITS) - 1)


def _fold(total: int, lanes: int) -> int:
    """Every lane modulo 2^127 − 1, though not yet below it."""
    _, low, high = _masks(lanes)
    return (total & low) + (total >> BITS & high)


def _spread(data: bytes) -> int:
    """Encoded elements, 16 bytes each, into lanes; the top bit of each is dropped (random bytes become elements)."""
    rows = np.zeros((len(data) // ELEMENT_BYTES, _LANE), dtype=np.uint8)
    rows[:, :ELEMENT_BYTES] = np.frombuffer(data, dtype=np.uint8).reshape(-1, ELEMENT_BYTES)
    rows[:, ELEMENT_BYTES - 1] &= 0x7F
    return int.from_bytes(rows.tobytes(), "little")


def _gather(total: int, lanes: int) -> bytes:
    """Lanes to encoded elements."""
    ones, _, _ = _masks(lanes)
    total = _fold(_fold(total, lanes), lanes)  # now at most 2^127 − 1, which still stands for zero
    spoilt = total + ones >> BITS & ones
    total -= spoilt * PRIME
    rows = np.frombuffer(total.to_bytes(_LANE * lanes, "little"), dtype=np.uint8).reshape(lanes, _LANE)
    return rows[:, :ELEMENT_BYTES].tobytes()


@lru_cache(maxsize=512)
def weights(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Lagrange weights: f(at) = Σ weight · f(point) for every polynomial of degree < len(points).

    Raises:
        InputError: points are not distinct.
    """
    if len(set(points)) != len(points):
        raise InputError("interpolation needs distinct points")
    if at in points:
        return tuple(int(point == at) for point in points)
    product = 1
    for point in points:
        product = product * (at - point) % PRIME
    below = [own * (at - point) for point, own in zip(points, _derivatives(points), strict=True)]
    return tuple(product * inverse % PRIME for inverse in inverses(below))


def inverses(values: Sequence[int]) -> list[int]:
    """1 / value for each, with a single inversion (Montgomery's trick).

    Raises:
        ValueError: one of them is zero.
    """
    prefix = [1]
    for value in values:
        prefix.append(prefix[-1] * value % PRIME)
    rest, result = pow(prefix[-1], -1, PRIME), []
    for value, before in zip(reversed(values), reversed(prefix[:-1]), strict=True):
        result.append(rest * before % PRIME)
        rest = rest * value % PRIME
    return result[::-1]


@lru_cache(maxsize=64)
def _derivatives(points: tuple[int, ...]) -> tuple[int, ...]:
    """Π over the other points of (point − other)."""
    result = []
    for point in points:
        product = 1
        for other in points:
            if other != point:
                product = product * (point - other) % PRIME
        result.append(product)
    return tuple(result)


@lru_cache(maxsize=64)
def _inverse_derivatives(points: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(inverses(_derivatives(points)))


def dot(left: Sequence[int], right: Sequence[int]) -> int:
    """Inner product, reduced once."""
    return sum([a * b for a, b in zip(left, right, strict=True)]) % PRIME


def is_codeword(shares: Mapping[int, int], threshold: int, random: RandomBytes) -> bool:
    """Whether all shares lie on one polynomial of degree < ``threshold`` (always true for up to ``threshold`` shares).

    Tested against one random word of the dual code (Cascudo and David, SCRAPE, 2017): wrong answers have
    probability 1 / p.
    """
    holders = tuple(sorted(shares))
    spare = len(holders) - threshold
    if spare <= 0:
        return True
    draws = uniform(spare, random)
    total = 0
    for holder, inverse in zip(holders, _inverse_derivatives(holders), strict=True):
        test = 0
        for coefficient in draws:
            test = (test * holder + coefficient) % PRIME
        total += shares[holder] * test % PRIME * inverse
    return total % PRIME == 0
