"""Uploads on disk: any order, nothing overwritten, nothing left behind, little memory."""

from __future__ import annotations

import os

import numpy as np
import pytest

from secure.errors import InputError, ProtocolError
from secure.spool import Inbox, Spool


def test_slots_do_not_touch(tmp_path):
    with Spool(tmp_path, 5000, 3) as spool:
        for slot in (2, 0, 1):
            spool.write(slot, 0, bytes([slot + 1]) * 5000)
        for slot in range(3):
            out = np.empty(5000, np.uint8)
            spool.read_into(slot, 0, out)
            assert set(out) == {slot + 1}
        assert list(tmp_path.iterdir()) == []  # the file has no name


def test_writing_beyond_a_slot_is_refused():
    with Spool(None, 100, 2) as spool:
        for offset, size in ((0, 101), (100, 1), (-1, 1), (99, 2)):
            with pytest.raises(ProtocolError):
                spool.write(0, offset, bytes(size))


def test_adding_from_the_page_cache():
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 1 << 32, (4, 3_000_000), dtype=np.uint32)
    with Spool(None, rows.shape[1] * 4, 4) as spool:
        for slot, row in enumerate(rows):
            spool.write(slot, 0, row.tobytes())
        total = np.zeros(rows.shape[1], np.uint32)
        for start in range(0, len(total), 65536):
            for slot in range(4):
                spool.add_into(slot, 4 * start, total[start : start + 65536])
        np.testing.assert_array_equal(total, rows.sum(axis=0, dtype=np.uint32))


def test_reading_what_was_never_written_is_zero_and_beyond_the_file_an_error():
    with Spool(None, 4096, 1) as spool:
        out = np.ones(16, np.uint8)
        spool.read_into(0, 4000, out)
        assert not out.any()
        with pytest.raises(InputError):
            spool.read_into(1, 0, out)


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="spooled"):
        Spool(tmp_path / "missing", 10, 1)


def test_space_is_given_back(tmp_path):
    spool = Spool(tmp_path, 1 << 20, 2)
    handle = spool._file.fileno()
    spool.write(0, 0, bytes(1 << 20))
    spool.add_into(0, 0, np.zeros(10, np.uint32))
    spool.close()
    spool.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def inbox():
    return Inbox(Spool(None, 2500, 2), {3: 0, 9: 1}, 2500, 1000)


def test_pieces_in_any_order_once_each():
    box = inbox()
    assert box.pieces == 3
    for index in (2, 0):
        box.put(3, index, bytes([index]), bytes(1000 if index < 2 else 500))
        assert box.has(3, index)
        assert not box.has(9, index)
        assert box.tags(3) is None
    box.put(3, 1, b"\x01", bytes(1000))
    assert box.tags(3) == (b"\x00", b"\x01", b"\x02")
    box.close()


@pytest.mark.parametrize(("index", "size"), [(0, 999), (0, 1001), (2, 1000), (2, 499), (3, 0), (3, 500), (-1, 1000)])
def test_pieces_of_the_wrong_size_or_index(index, size):
    with pytest.raises(ProtocolError):
        inbox().put(3, index, b"", bytes(size))
