"""Verified sums: two affine tags per upload, by which silos check the released sum (an option of masking).

A silo adds to its upload, modulo q = 2^61 − 1 and under its masks, tag_n = Σ_k r_nk x_k + a_n for n = 1, 2, where x are
its fixed-point coordinates and scalars, the coefficients r_n (32 bits each for coordinates, 60 for scalars) come from
the key κ that only silos share, and the offset a_n from κ and the silo's id. Sums of tags are tags of sums: silos
recompute Σ r_nk X_k + Σ a_n over the survivors. A server that does not know κ and changes any coordinate by less than
2^32, or any scalar by less than q, goes unnoticed with probability ≤ 2^-32 a tag: 2^-64 in all. Multiplying the sum
fails as well (the offsets). It is no protection from a server with a colluder, who knows κ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from secure.errors import CapacityError, ProtocolError
from secure.keys import _Secretive, derive
from secure.prg import CHUNK, MaskStream
from secure.types import SiloId, VectorSpec

PRIME = (1 << 61) - 1
TAGS = 2
TAG_BYTES = 8
TAGS_BYTES = TAGS * TAG_BYTES
MASK_BYTES = 16
"""Bytes of mask stream for one tag: 128 bits modulo q leave a bias below 2^-66."""


def check_tag_capacity(spec: VectorSpec, cohort_size: int) -> None:
    """Sums of scalars must stay below q, or a multiple of q could be added to one unnoticed.

    Raises:
        CapacityError: names the metric.
    """
    for item in spec.metrics:
        if round(item.bound / item.resolution) * cohort_size >= 1 << 59:
            raise CapacityError(f"metric {item.name}: too fine for verified sums; raise its resolution")


class Tagger(_Secretive):
    """Accumulates Σ r_nk x_k, chunk by chunk in order; ``finish`` adds the scalars.

    Args:
        shared: κ.
        session: 32 bytes.
    """

    def __init__(self, shared: bytes, session: bytes) -> None:
        keys = derive(shared, "tag coefficients", session, length=32 * TAGS)
        self._streams = [MaskStream(keys[32 * n : 32 * n + 32]) for n in range(TAGS)]
        self._sums = [0] * TAGS
        self._shared, self._session = shared, session
        self._coefficients = np.empty(CHUNK, dtype="<u4")
        self._half = np.empty(CHUNK, dtype=np.int64)
        self._wide = np.empty(CHUNK, dtype=np.int64)

    def add(self, chunk: npt.NDArray[np.int32]) -> None:
        """Take the next coordinates, at most ``CHUNK``, each below 2^30 in size (so that no product sum overflows)."""
        size = len(chunk)
        wide, half, coefficients = self._wide[:size], self._half[:size], self._coefficients[:size]
        np.copyto(wide, chunk)
        for n, stream in enumerate(self._streams):
            stream.into(coefficients)
            np.copyto(half, coefficients & np.uint32(0xFFFF))
            low = int(np.dot(half, wide))
            np.copyto(half, coefficients >> np.uint32(16))
            self._sums[n] += low + (int(np.dot(half, wide)) << 16)

    def finish(self, scalars: Sequence[int]) -> list[int]:
        """The linear parts of both tags, modulo q, scalars included."""
        data = derive(self._shared, "tag scalars", self._session, length=8 * TAGS * max(1, len(scalars)))
        result = []
        for n in range(TAGS):
            total = self._sums[n]
            for i, value in enumerate(scalars):
                at = 8 * (n * len(scalars) + i)
                total += (int.from_bytes(data[at : at + 8], "little") >> 4) * value
            result.append(total % PRIME)
        return result


def offsets(shared: bytes, session: bytes, silo: SiloId) -> list[int]:
    """a_n of one silo."""
    data = derive(shared, "tag offset", session, silo.to_bytes(2, "big"), length=16 * TAGS)
    return [int.from_bytes(data[16 * n : 16 * n + 16], "little") % PRIME for n in range(TAGS)]


def mask_of(stream: MaskStream) -> list[int]:
    """The next masks of both tags, modulo q."""
    buffer = bytearray(MASK_BYTES * TAGS)
    stream.into(buffer)
    return [int.from_bytes(buffer[i : i + MASK_BYTES], "little") % PRIME for i in range(0, len(buffer), MASK_BYTES)]


def encode_tags(tags: Sequence[int]) -> bytes:
    """Eight bytes a tag, little-endian."""
    return b"".join([tag.to_bytes(TAG_BYTES, "little") for tag in tags])


def decode_tags(data: bytes) -> list[int]:
    """Undo ``encode_tags``.

    Raises:
        ProtocolError: wrong length or out of range.
    """
    tags = [int.from_bytes(data[i : i + TAG_BYTES], "little") for i in range(0, len(data), TAG_BYTES)]
    if len(data) != TAGS_BYTES or any(tag >= PRIME for tag in tags):
        raise ProtocolError("verification tags are malformed")
    return tags


def check_sum(
    chunks: Iterator[npt.NDArray[np.int32]],
    scalars: Sequence[int],
    tags: bytes,
    shared: bytes,
    session: bytes,
    survivors: Sequence[SiloId],
) -> None:
    """Check a released sum against the tags of its survivors.

    Raises:
        ProtocolError: the sum was altered.
    """
    tagger = Tagger(shared, session)
    for chunk in chunks:
        tagger.add(chunk)
    wanted = tagger.finish(scalars)
    for silo in survivors:
        wanted = [(left + right) % PRIME for left, right in zip(wanted, offsets(shared, session, silo), strict=True)]
    if decode_tags(tags) != wanted:
        raise ProtocolError("the released sum fails its verification tags")
