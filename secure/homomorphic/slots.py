"""From coordinates to slots modulo t and back; and the masks on slots.

A coordinate of profile ``standard`` has a slot for itself. In profile ``compact`` slot i of a ciphertext holds
coordinate i and, 2^20 times, coordinate 2048 + i of its 4096: a sum of coordinates is at most 2^18 + 64 in size, half
of what its 20 bits hold, and the slot's at most 2^38 + 2^27, below t / 2.

A mask's number for a slot is uniform modulo t, exactly: the low 40 bits of eight bytes of stream; where they are not
below t (three of 10^8), the next ones that are from a second stream, kept for that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from secure.homomorphic.scheme import DEGREE, PLAIN_MODULUS
from secure.keys import _Secretive, derive
from secure.prg import CHUNK, MaskStream
from secure.protocol.plane import Masks
from secure.types import Profile

COMPACT_SHIFT = 20
"""The second coordinate of a slot counts 2^20 times."""


def per_ciphertext(profile: Profile) -> int:
    """Coordinates in one ciphertext."""
    return DEGREE if profile == "standard" else 2 * DEGREE


def pack(coordinates: npt.NDArray[np.int32], profile: Profile) -> npt.NDArray[np.int64]:
    """Coordinates as slots, not yet reduced.

    Args:
        coordinates: int32, as many as fill whole ciphertexts.
    """
    wide: npt.NDArray[np.int64] = coordinates.astype(np.int64)
    if profile == "standard":
        return wide
    pairs = wide.reshape(-1, 2, DEGREE)
    return np.ascontiguousarray(pairs[:, 0] + (pairs[:, 1] << COMPACT_SHIFT)).reshape(-1)


def unpack(slots: npt.NDArray[np.int64], profile: Profile) -> npt.NDArray[np.int64]:
    """Undo ``pack`` on sums, given as numbers 0 … t − 1 (overwritten)."""
    np.subtract(slots, PLAIN_MODULUS, out=slots, where=slots > PLAIN_MODULUS // 2)
    if profile == "standard":
        return slots
    half = 1 << (COMPACT_SHIFT - 1)
    pairs = np.empty((len(slots) // DEGREE, 2, DEGREE), dtype=np.int64)
    rows = slots.reshape(-1, DEGREE)
    pairs[:, 0] = ((rows + half) & (2 * half - 1)) - half
    pairs[:, 1] = (rows - pairs[:, 0]) >> COMPACT_SHIFT
    return pairs.reshape(-1)


class _Numbers(_Secretive):
    """Uniform numbers modulo ``modulus`` from one mask's stream.

    Args:
        stream: the mask's.
        key: the mask's, for the second stream.
    """

    def __init__(self, stream: MaskStream, key: bytes, modulus: int) -> None:
        self._stream, self._key, self._modulus = stream, key, modulus
        self._low = np.int64((1 << modulus.bit_length()) - 1)
        self._spare: MaskStream | None = None

    def into(self, buffer: npt.NDArray[np.int64]) -> None:
        """Overwrite ``buffer`` with the next ones."""
        self._stream.into(buffer)
        np.bitwise_and(buffer, self._low, out=buffer)
        if buffer.size and int(buffer.max()) >= self._modulus:
            for place in np.flatnonzero(buffer >= self._modulus):
                buffer[place] = self._draw()

    def _draw(self) -> int:
        if self._spare is None:
            self._spare = MaskStream(derive(self._key, "slot redraws"))
        word = bytearray(8)
        while True:
            self._spare.into(word)
            number = int.from_bytes(word, "little") & int(self._low)
            if number < self._modulus:
                return number


class SlotMasks(_Secretive):
    """All masks on the slots of one upload, or left in one sum, from the first slot to the last.

    Args:
        masks: their keys.
        added, subtracted: their streams, which are read on (for the scalars) when the slots are done.
        modulus: t; another one for tests only.
    """

    def __init__(
        self,
        masks: Masks,
        added: Sequence[MaskStream],
        subtracted: Sequence[MaskStream],
        modulus: int = PLAIN_MODULUS,
    ) -> None:
        self._added = [_Numbers(s, key, modulus) for s, key in zip(added, masks.added, strict=True)]
        self._subtracted = [_Numbers(s, key, modulus) for s, key in zip(subtracted, masks.subtracted, strict=True)]
        self._modulus, self._scratch = modulus, np.empty(CHUNK, dtype=np.int64)

    def apply(self, slots: npt.NDArray[np.int64]) -> None:
        """Add and subtract the next numbers of every mask; leaves 0 … t − 1.

        Args:
            slots: at most ``CHUNK``, each below t in size; overwritten. No sum of 128 numbers below 2^40 overflows.
        """
        number = self._scratch[: len(slots)]
        for numbers in self._added:
            numbers.into(number)
            np.add(slots, number, out=slots)
        for numbers in self._subtracted:
            numbers.into(number)
            np.subtract(slots, number, out=slots)
        np.add(slots, (len(self._subtracted) + 1) * self._modulus, out=slots)
        whole = np.floor_divide(slots.view(np.uint64), np.uint64(self._modulus), out=number.view(np.uint64))
        np.multiply(whole, np.uint64(self._modulus), out=whole)
        np.subtract(slots, number, out=slots)
