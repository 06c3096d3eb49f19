"""Coordinates in slots modulo t, masks that are exactly uniform there, and the coarse profile's bound."""

from __future__ import annotations

import os

import numpy as np
import pytest

from secure.errors import CapacityError, InputError
from secure.fixedpoint import COMPACT_BITS, check_capacity, scale_of, sum_bound
from secure.protocol.release import COARSEST, check_step
from secure.types import Block, VectorSpec

pytest.importorskip("tenseal.sealapi")

from secure.homomorphic.plane import check_encrypted_capacity
from secure.homomorphic.scheme import DEGREE, PLAIN_MODULUS
from secure.homomorphic.slots import SlotMasks, pack, per_ciphertext, unpack
from secure.prg import MaskStream
from secure.protocol.plane import Masks


def largest(profile):
    """A sum at its bound, with 128 silos' rounding, at the worst clip."""
    return sum_bound(8.0, 128, profile)


@pytest.mark.parametrize("profile", ["standard", "compact"])
def test_sums_at_their_bound_come_back(profile):
    top, count = largest(profile), 3 * per_ciphertext(profile)
    draw = np.random.default_rng(0).integers(-top, top + 1, count)
    draw[: 2 * DEGREE] = np.random.default_rng(1).choice([-top, -1, 0, 1, top], 2 * DEGREE)
    slots = pack(draw.astype(np.int32), profile)
    assert len(slots) == 3 * DEGREE
    assert np.abs(slots).max() < PLAIN_MODULUS // 2
    assert (unpack(slots % PLAIN_MODULUS, profile) == draw).all()


@pytest.mark.parametrize("profile", ["standard", "compact"])
def test_packing_is_linear(profile):
    """Sums of packed vectors unpack to sums, with carries and borrows between the two coordinates of a slot."""
    draw, count = np.random.default_rng(2), per_ciphertext(profile)
    bound = largest(profile) // 128
    vectors = [draw.integers(-bound, bound + 1, count) for _ in range(128)]
    slots = sum(pack(vector.astype(np.int32), profile) for vector in vectors) % PLAIN_MODULUS
    assert (unpack(slots, profile) == sum(vectors)).all()


def masks_of(added, subtracted, modulus=PLAIN_MODULUS):
    streams = [[MaskStream(key) for key in keys] for keys in (added, subtracted)]
    return SlotMasks(Masks(tuple(added), tuple(subtracted)), *streams, modulus)


KEYS = [bytes([n]) * 32 for n in range(1, 6)]
# With the second, three of eight words are drawn again.
MODULI = pytest.mark.parametrize("modulus", [PLAIN_MODULUS, 5 << 37])


@MODULI
def test_masks_cancel_between_silos_and_against_their_inverse(modulus):
    values = np.random.default_rng(3).integers(0, modulus, 4 * DEGREE)
    one, two = values.copy(), np.zeros_like(values)
    masks_of(KEYS[:1], KEYS[1:3], modulus).apply(one)
    masks_of(KEYS[1:3], KEYS[:1], modulus).apply(two)
    assert not (one == values).any()
    assert ((one + two) % modulus == values).all()
    assert one.min() >= 0
    assert one.max() < modulus


@MODULI
def test_masks_do_not_depend_on_how_they_are_cut(modulus):
    whole = np.zeros(5 * DEGREE, dtype=np.int64)
    masks_of(KEYS[:3], KEYS[3:], modulus).apply(whole)
    pieces, cut = [np.zeros(n * DEGREE, dtype=np.int64) for n in (1, 3, 1)], masks_of(KEYS[:3], KEYS[3:], modulus)
    for piece in pieces:
        cut.apply(piece)
    assert (np.concatenate(pieces) == whole).all()


def test_known_answer_of_a_mask():
    """Low 40 bits of eight bytes of AES-256-CTR from block 2; written down from an independent computation."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(KEYS[0]), modes.CTR(bytes(15) + b"\2")).encryptor().update(bytes(8 * DEGREE))
    words = [int.from_bytes(stream[i : i + 8], "little") % (1 << 40) for i in range(0, len(stream), 8)]
    assert max(words) < PLAIN_MODULUS, "none is drawn again here"
    slots = np.zeros(DEGREE, dtype=np.int64)
    masks_of(KEYS[:1], []).apply(slots)
    assert slots.tolist() == words


def test_numbers_are_uniform_where_many_are_drawn_again():
    """Reduction instead of redrawing would make the low three eighths twice as frequent."""
    modulus = 5 << 37
    slots = np.zeros(32 * DEGREE, dtype=np.int64)
    masks_of([os.urandom(32)], [], modulus).apply(slots)
    counts = np.bincount(slots // (modulus // 40), minlength=40)
    expected = len(slots) / 40
    assert ((counts - expected) ** 2 / expected).sum() < 110  # 39 degrees of freedom: beyond 1e-8


def test_most_streams_do_not_overflow():
    slots = np.full(DEGREE, -PLAIN_MODULUS + 1, dtype=np.int64)
    masks_of([], [bytes([n]) * 32 for n in range(1, 129)]).apply(slots)
    streams = np.zeros((128, DEGREE), dtype=np.int64)
    for n, row in enumerate(streams, 1):
        masks_of([bytes([n]) * 32], []).apply(row)
    assert ((slots - (1 - streams.sum(axis=0))) % PLAIN_MODULUS == 0).all()


# --- profile compact --------------------------------------------------------------------------------------------------


def spec(profile="compact", clip=8.0, length=4000):
    return VectorSpec(2, (Block("a", length, clip, 0), Block("b", length, 1.0, 1)), profile=profile)


def test_profiles_differ_in_their_digest_only_where_they_must():
    standard = VectorSpec(2, spec().blocks)
    assert spec("standard").digest() == standard.digest()
    assert spec("standard").digest().hex()[:16] == "ffda798a6929558e", "runs of earlier versions keep theirs"
    assert spec().digest() != standard.digest()
    with pytest.raises(CapacityError, match="neither standard nor compact"):
        check_capacity(spec("tiny"), 5)
    check_capacity(spec(), 128)
    assert scale_of(8.0, "compact") == 2.0**15
    assert scale_of(1.0, "compact") == 2.0**COMPACT_BITS


def normal(spread, size=8000):
    return (np.random.default_rng(4).normal(0, 1, size) * spread).astype(np.float32)


def test_compact_refuses_updates_that_it_would_erase():
    """Spread 1e-4 over 100 silos, the design's own example: nothing of it would be left."""
    erased = normal(1e-6)
    assert not np.rint(erased * scale_of(8.0, "compact"))[:4000].any()
    with pytest.raises(InputError, match=r"component 0: .*25%.*2\^-18 of the clip.*standard"):
        check_step(spec(), erased, (0.01, 0.01))
    check_step(spec("standard"), erased, (0.01, 0.01))


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_bound_is_a_quarter_of_the_norm(factor):
    """Rounding changes a wide update by 1/√12 of a step; the bound is met at a spread of 1.15 steps."""
    step = 1 / scale_of(8.0, "compact")
    vector = normal(step / np.sqrt(12) / COARSEST * factor)
    vector[4000:] = 0
    steps = vector[:4000] / step
    lost = np.linalg.norm(steps - np.rint(steps)) / np.linalg.norm(steps)
    assert (lost > COARSEST) == (factor < 1)
    if factor < 1:
        with pytest.raises(InputError):
            check_step(spec(), vector, (0.5, 0.5))
    else:
        check_step(spec(), vector, (0.5, 0.5))


def test_components_without_a_share_and_without_an_update_are_not_looked_at():
    vector = normal(1e-7)
    vector[4000:] = 0  # exactly representable
    check_step(spec(), vector, (0.0, 0.5))
    with pytest.raises(InputError, match="component 0"):
        check_step(spec(), vector, (0.5, 0.5))
    vector[:4000] = 0
    check_step(spec(), vector, (0.5, 0.5))


def test_messages_of_four_gigabytes_are_refused_up_front():
    from harness import World

    world = World(range(1, 6))
    fits = VectorSpec(1, (Block("a", 250_000_000, 8.0, 0),))
    check_encrypted_capacity(world.params(spec=fits))
    with pytest.raises(CapacityError, match="several rounds"):
        check_encrypted_capacity(world.params(spec=VectorSpec(1, (Block("a", 300_000_000, 8.0, 0),))))
    check_encrypted_capacity(world.params(spec=VectorSpec(1, (Block("a", 500_000_000, 8.0, 0),), profile="compact")))
