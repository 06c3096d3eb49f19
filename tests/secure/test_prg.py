"""Mask streams against published AES-256-CTR vectors; streaming, ring arithmetic, and no array-sized temporaries."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from secure.errors import InputError
from secure.prg import CHUNK, MaskStream, accumulate, new_scratch

# NIST SP 800-38A, section F.5.5 (CTR-AES256.Encrypt): key, initial counter, the four output blocks.
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
NIST_OUTPUT = bytes.fromhex(
    "0bdf7df1591716335e9a8b15c860c5025a6e699d536119065433863c8f657b94"
    "1bc12c9c01610d5d0d8bd6a3378eca622956e1c8693536b1bee99c73a31576b6"
)
# The same section: plaintext (shared by all of appendix F) and ciphertext.
NIST_PLAIN = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
NIST_CIPHER = bytes.fromhex(
    "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
    "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
)
# AES-256 of counter block 2 under the zero key: first block of our streams for that key (ciphertext of GCM test case
# 14, whose plaintext, key and nonce are all zero; McGrew and Viega, submission to NIST).
ZERO_BLOCK = bytes.fromhex("cea7403d4d606b6e074ec5d3baf39d18")


def keystream(key: bytes, count: int) -> bytes:
    """An independent path through the library: encrypt zeros in one go."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(15) + b"\2")).encryptor().update(bytes(count))


def test_nist_vector():
    out = bytearray(64)
    MaskStream(NIST_KEY, NIST_COUNTER).into(out)
    assert bytes(out) == NIST_OUTPUT
    assert bytes(a ^ b for a, b in zip(out, NIST_PLAIN, strict=True)) == NIST_CIPHER


def test_zero_key_starts_at_counter_two():
    out = np.zeros(4, np.uint32)
    MaskStream(bytes(32)).into(out)
    assert out.tobytes() == ZERO_BLOCK


def test_words_are_little_endian():
    out = np.zeros(1, "<u4")
    MaskStream(bytes(32)).into(out)
    assert int(out[0]) == int.from_bytes(ZERO_BLOCK[:4], "little")


@given(st.lists(st.integers(0, 3000), max_size=8))
def test_pieces_of_any_size_continue_the_stream(sizes):
    stream, out = MaskStream(NIST_KEY), bytearray()
    for size in sizes:
        piece = bytearray(size)
        stream.into(piece)
        out += piece
    assert bytes(out) == keystream(NIST_KEY, sum(sizes))


@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_longer_than_a_chunk(count):
    out = np.empty(count, np.uint32)
    MaskStream(NIST_KEY).into(out)
    assert out.tobytes() == keystream(NIST_KEY, 4 * count)


def test_older_cryptography_that_wants_spare_room():
    class Strict:
        """Behaves like cryptography before version 45: refuses a buffer without 15 spare bytes."""

        def __init__(self, inner):
            self._inner = inner

        def update_into(self, data, buffer):
            raise ValueError(f"buffer must be at least {len(data) + 15} bytes for this payload")

        def update(self, data):
            return self._inner.update(data)

    stream = MaskStream(NIST_KEY)
    stream._encryptor = Strict(stream._encryptor)
    out = np.empty(100_000, np.uint32)
    stream.into(out)
    assert out.tobytes() == keystream(NIST_KEY, 400_000)


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
def test_key_size(size):
    with pytest.raises(InputError):
        MaskStream(bytes(size))


def test_counter_size():
    with pytest.raises(InputError):
        MaskStream(bytes(32), bytes(12))


def test_buffers_that_cannot_be_written():
    stream = MaskStream(bytes(32))
    frozen = np.zeros(8, np.uint32)
    frozen.flags.writeable = False
    for buffer in (frozen, memoryview(bytes(8)), np.zeros(8, np.uint32)[::2]):
        with pytest.raises(InputError):
            stream.into(buffer)
    out = bytearray(16)
    stream.into(out)
    assert bytes(out) == ZERO_BLOCK  # refusals moved nothing


@pytest.mark.parametrize(("dtype", "bits"), [(np.uint32, 32), (np.uint64, 64)])
def test_accumulate_is_modular(dtype, bits):
    rng = np.random.default_rng(1)
    start = rng.integers(0, 1 << bits, 1000, dtype=np.uint64).astype(dtype)
    plus, minus = [bytes([k]) * 32 for k in (1, 2, 3)], [bytes([k]) * 32 for k in (4, 5)]
    chunk = start.copy()
    accumulate(chunk, map(MaskStream, plus), map(MaskStream, minus), new_scratch(dtype))
    expected = [int(v) for v in start]
    for sign, streams in ((1, plus), (-1, minus)):
        for key in streams:
            words = np.frombuffer(keystream(key, 1000 * bits // 8), dtype)
            expected = [(e + sign * int(w)) % (1 << bits) for e, w in zip(expected, words, strict=True)]
    assert [int(v) for v in chunk] == expected


@settings(max_examples=30)
@given(st.integers(0, 500), st.integers(1, 4))
def test_pairwise_masks_cancel(length, peers):
    keys = [bytes([k]) * 32 for k in range(peers)]
    chunk, scratch = np.arange(length, dtype=np.uint32), new_scratch()
    accumulate(chunk, [MaskStream(k) for k in keys], [], scratch)
    accumulate(chunk, [], [MaskStream(k) for k in keys], scratch)
    assert (chunk == np.arange(length)).all()


def test_accumulate_refuses_mismatches():
    for chunk, scratch in (
        (np.zeros(4, np.int32), new_scratch()),
        (np.zeros(4, np.uint64), new_scratch()),
        (np.zeros(4, np.float32), np.zeros(4, np.float32)),
        (np.zeros(CHUNK + 1, np.uint32), new_scratch()),
        (np.zeros(CHUNK + 1, np.uint32), np.zeros(CHUNK + 1, np.uint32)),
    ):
        with pytest.raises(InputError):
            accumulate(chunk, [], [], scratch)


def test_no_array_sized_temporaries():
    out, scratch = np.zeros(16 * CHUNK, np.uint32), new_scratch()
    streams = [MaskStream(bytes([k]) * 32) for k in range(4)]
    tracemalloc.start()
    try:
        for start in range(0, out.size, CHUNK):
            accumulate(out[start : start + CHUNK], streams[:2], streams[2:], scratch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024  # the vector has 4 MiB


def test_different_keys_and_bytes_look_unrelated():
    one, other = np.empty(1 << 16, np.uint32), np.empty(1 << 16, np.uint32)
    MaskStream(b"\1" * 32).into(one)
    MaskStream(b"\2" * 32).into(other)
    assert (one == other).sum() < 8
    ones = np.unpackbits(one.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.002  # 2 million bits: six standard deviations are 0.0021


def test_stream_is_secretive():
    stream = MaskStream(b"\xc3" * 32)
    assert repr(stream) == str(stream) == "<MaskStream, hidden>"
    for how in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            how(stream)
