"""Mask streams: AES-256 in counter mode, written straight into the caller's buffer.

A stream is the keystream of AES-256-CTR (NIST SP 800-38A) from counter block 2; the key is unique to session, pair
and purpose (``keys.derive``), so every stream may start at the same block. Read as little-endian 32- or 64-bit words it
is uniform over Z_2^32 or Z_2^64.

Why block 2: it is where AES-GCM with the all-zero nonce starts its own counter mode (NIST SP 800-38D), so the library's
GCM, whose tag nobody looks at, gives the same bytes. On processors with vector AES it does so at twice the speed of its
plain counter mode. A stream ends after 64 GiB.

Use it chunk by chunk, so that nothing leaves the second-level cache::

    scratch = new_scratch()
    for start in range(0, length, CHUNK):
        chunk = upload[start : start + CHUNK]                  # uint32 view
        accumulate(chunk, added, subtracted, scratch)          # loops over the peers' streams
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secure.errors import InputError
from secure.keys import KEY_BYTES, _Secretive

CHUNK = 65536
"""Elements of one chunk: 64 Ki, i.e. 256 KiB of 32-bit words."""

FIRST_BLOCK = bytes(15) + b"\2"

_PIECE = 4 * CHUNK
_ZEROS = memoryview(bytes(8 * CHUNK))


class MaskStream(_Secretive):
    """Keystream of AES-256-CTR; successive calls go on where the last one stopped.

    Args:
        key: 32 bytes.
        counter: first counter block, 16 bytes; other than ``FIRST_BLOCK`` only for published test vectors.

    Raises:
        InputError: key or counter have another length.
    """

    __slots__ = ("_encryptor",)

    def __init__(self, key: bytes, counter: bytes = FIRST_BLOCK) -> None:
        if len(key) != KEY_BYTES or len(counter) != 16:
            raise InputError(f"a mask stream's key has {KEY_BYTES} bytes and its counter block 16")
        mode = modes.GCM(bytes(12)) if counter == FIRST_BLOCK else modes.CTR(counter)
        self._encryptor = Cipher(algorithms.AES(key), mode).encryptor()

    def into(self, buffer: npt.NDArray[Any] | memoryview | bytearray) -> None:
        """Overwrite ``buffer`` with the next bytes of the stream.

        Args:
            buffer: writable, C-contiguous, any item size (NumPy arrays, memoryviews, bytearrays).

        Raises:
            InputError: read-only or not contiguous.
        """
        view = _byte_view(buffer)
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            self._fill(piece, _ZEROS[: len(piece)])

    def _fill(self, piece: memoryview, zeros: memoryview) -> None:
        """Encrypt ``zeros`` into ``piece``, both of one length."""
        try:
            self._encryptor.update_into(zeros, piece)
        except ValueError:  # cryptography < 45 wants 15 spare bytes even in counter mode, and says so before it starts
            piece[:] = self._encryptor.update(zeros)


def _byte_view(buffer: npt.NDArray[Any] | memoryview | bytearray) -> memoryview:
    view = memoryview(buffer)  # type: ignore[arg-type]  # NumPy 1's stubs do not say that arrays are buffers
    if view.readonly or not view.c_contiguous:
        raise InputError("a mask stream needs a writable, contiguous buffer")
    if view.nbytes == 0:  # an empty view cannot be cast
        return memoryview(bytearray())
    return view.cast("B")


def new_scratch(dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[Any]:
    """One reusable chunk, shape (CHUNK,), little-endian unsigned words."""
    return np.empty(CHUNK, dtype=dtype)


def accumulate(
    chunk: npt.NDArray[Any],
    added: Iterable[MaskStream],
    subtracted: Iterable[MaskStream],
    scratch: npt.NDArray[Any],
) -> None:
    """Add and subtract the next ``len(chunk)`` words of each stream, modulo 2^32 or 2^64, in place.

    Args:
        chunk: uint32 or uint64, contiguous, at most ``len(scratch)`` and CHUNK elements.
        added, subtracted: streams of the peers; the order does not matter.
        scratch: same dtype as ``chunk``; overwritten.

    Raises:
        InputError: dtypes differ, are not unsigned, or the chunk is longer than the scratch.
    """
    if chunk.dtype != scratch.dtype or chunk.dtype.kind != "u" or chunk.size > min(scratch.size, CHUNK):
        raise InputError("chunk and scratch must be of one unsigned dtype, the chunk no longer than the scratch")
    mask = scratch[: chunk.size]
    view = _byte_view(mask)
    zeros = _ZEROS[: len(view)]
    for stream in added:
        stream._fill(view, zeros)
        np.add(chunk, mask, chunk)
    for stream in subtracted:
        stream._fill(view, zeros)
        np.subtract(chunk, mask, chunk)
