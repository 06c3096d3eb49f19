"""Uploads on disk until they are complete: the server holds one vector in memory, whatever the number of silos.

One unlinked temporary file per session (it has no name, and vanishes with the process), one slot per silo. It holds
masked, sealed or public bytes only. Pieces may arrive in any order and more than once; nothing is ever overwritten.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from secure.errors import InputError, ProtocolError

_WINDOW = 8 << 20
"""Bytes of the file that may be mapped into memory at a time."""

_ALIGNMENT = 256 << 10
"""Slots start at multiples of this: the page cache then keeps them in large pages, which map with fewer faults."""


class Spool:
    """Random-access slots of equal size in one anonymous temporary file.

    Args:
        directory: where the file is made; ``None``: the system's directory for temporary files.
        slot_bytes: size of one silo's slot.
        slots: how many there are.

    Raises:
        InputError: the directory cannot be written.
    """

    def __init__(self, directory: Path | None, slot_bytes: int, slots: int) -> None:
        self._slot_bytes = slot_bytes
        self._stride = -(-max(1, slot_bytes) // _ALIGNMENT) * _ALIGNMENT
        self._size = self._stride * slots
        self._map: mmap.mmap | None = None
        self._touched = 0
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - closed by close()
            self._file.truncate(self._size)  # sparse: takes no space before it is written
        except OSError as error:
            raise InputError(f"uploads cannot be spooled to disk: {error.strerror}") from None

    def write(self, slot: int, offset: int, data: bytes | memoryview) -> None:
        """Store bytes of one slot.

        Raises:
            ProtocolError: they reach beyond the slot.
            InputError: the disk is full or failing.
        """
        view = memoryview(data).cast("B")
        if offset < 0 or offset + len(view) > self._slot_bytes:
            raise ProtocolError("piece reaches beyond the upload")
        place = slot * self._stride + offset
        try:
            while view:
                written = os.pwrite(self._file.fileno(), view, place)
                view, place = view[written:], place + written
        except OSError as error:
            raise InputError(f"uploads cannot be spooled to disk: {error.strerror}") from None

    def read_into(self, slot: int, offset: int, buffer: npt.NDArray[Any]) -> None:
        """Fill a contiguous array from one slot.

        Raises:
            InputError: fewer bytes than asked for are stored, or the disk fails.
        """
        view = buffer.data.cast("B")
        place = slot * self._stride + offset
        try:
            while view:
                read = os.preadv(self._file.fileno(), [view], place)
                if read == 0:
                    raise InputError("spooled upload ends early")
                view, place = view[read:], place + read
        except OSError as error:
            raise InputError(f"spooled uploads cannot be read: {error.strerror}") from None

    def read(self, slot: int, offset: int, size: int) -> bytes:
        """Bytes of one slot.

        Raises:
            InputError: the disk fails.
        """
        buffer = np.empty(size, dtype=np.uint8)
        self.read_into(slot, offset, buffer)
        return buffer.tobytes()

    def add_into(self, slot: int, offset: int, total: npt.NDArray[np.uint32]) -> None:
        """Add the words of one slot to ``total``, modulo 2^32, straight from the page cache (no copy).

        Pages are given back every ``_WINDOW`` bytes, so the process stays small whatever the number of slots.
        """
        if self._map is None:
            self._map = mmap.mmap(self._file.fileno(), self._size, prot=mmap.PROT_READ)
        place = slot * self._stride + offset
        np.add(total, np.frombuffer(self._map, dtype="<u4", count=len(total), offset=place), out=total)
        self._touched += total.nbytes
        if self._touched >= _WINDOW:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0

    def close(self) -> None:
        """Give the disk space back. Idempotent."""
        if self._map is not None:
            self._map.close()
            self._map = None
        self._file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass
class Inbox:
    """Which pieces of which silo's upload have come in.

    Attributes:
        spool: where the bytes go.
        slots: silo → slot.
        upload_bytes: size of one whole upload.
        piece_bytes: size of every piece but the last.
    """

    spool: Spool
    slots: dict[int, int]
    upload_bytes: int
    piece_bytes: int
    _tags: dict[int, dict[int, bytes]] = field(default_factory=dict)

    @property
    def pieces(self) -> int:
        """Pieces of one upload."""
        return -(-self.upload_bytes // self.piece_bytes)

    def has(self, silo: int, index: int) -> bool:
        """Whether this piece is stored already."""
        return index in self._tags.get(silo, {})

    def put(self, silo: int, index: int, tag: bytes, data: bytes | memoryview) -> None:
        """Store a piece that its caller has authenticated.

        Raises:
            ProtocolError: no such piece, or wrong size.
        """
        offset = index * self.piece_bytes
        if not 0 <= index < self.pieces or len(data) != min(self.piece_bytes, self.upload_bytes - offset):
            raise ProtocolError("piece of an upload has the wrong index or size")
        self.spool.write(self.slots[silo], offset, data)
        self._tags.setdefault(silo, {})[index] = tag

    def tags(self, silo: int) -> tuple[bytes, ...] | None:
        """Tags of all pieces in order, or ``None`` while some are missing."""
        got = self._tags.get(silo, {})
        if len(got) != self.pieces:
            return None
        return tuple(got[index] for index in range(self.pieces))

    def close(self) -> None:
        """Erase everything. Idempotent."""
        self.spool.close()
        self._tags.clear()
