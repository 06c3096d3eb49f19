"""Strict decoding: one byte string per message, limits before parsing, nothing of the content in texts."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import secure.messages as messages
from secure.codec import CONTROL_LIMIT, VERSION, BulkWriter, Message, Signed, decode, encode, packed, peek_kind
from secure.errors import DecodeError, InputError
from secure.messages import Abort, Advert, Adverts, Consent, Opened, Piece, Proposal, Release, Reveal, Sum

KINDS = sorted(
    (item for item in vars(messages).values() if isinstance(item, type) and issubclass(item, Message) and item.KIND),
    key=lambda item: item.KIND,
)


def example(kind, draw=0):
    """A valid message of a kind, by trying plausible values for each field."""
    rng = np.random.default_rng([kind.KIND, draw])
    values = []
    for field in dataclasses.fields(kind):
        check = field.metadata["check"]
        candidates = (
            rng.bytes(32),
            rng.bytes(16),
            b"",
            (3, 70, 65535),
            (3, 70),
            (True, False),
            (1.5, -2.0),
            (b"abc",),
            True,
            2.5,
            7,
            4096,
            "text",
        )
        values.append(next(value for value in candidates if check(value)))
    return kind(*values)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_and_kind(kind):
    message = example(kind)
    data = encode(message)
    assert decode(data, kind) == message
    assert decode(data, Adverts, kind) == message
    assert peek_kind(data) == kind.KIND
    assert encode(decode(data, kind)) == data


def test_kinds_are_distinct_and_documented():
    numbers = [kind.KIND for kind in KINDS]
    assert len(set(numbers)) == len(numbers)
    for kind in KINDS:
        assert kind.__doc__
        assert not kind.__doc__.startswith(kind.__name__)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_kind_version_count_and_tail(kind):
    values = msgpack.unpackb(encode(example(kind)), use_list=False)
    other = Advert if kind is not Advert else Opened
    bad = [
        packed([VERSION + 1, *values[1:]]),
        packed([True, *values[1:]]),
        packed([VERSION, 99, *values[2:]]),
        packed(values[:-1]),
        packed([*values, 0]),
        encode(example(kind)) + b"\x00",
        encode(example(kind))[:-1],
        b"",
        b"\x90",
        b"\xc1",
        packed({"version": 1}),
        packed("text"),
    ]
    for data in bad:
        with pytest.raises(DecodeError):
            decode(data, kind)
    with pytest.raises(DecodeError):
        decode(encode(example(kind)), other)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_another_type(kind):
    values = list(msgpack.unpackb(encode(example(kind)), use_list=False))
    for place in range(2, len(values)):
        old = values[place]
        for wrong in (None, {}, [[]], -1, 1 << 63, 0.5, "x" * 2000, b"y" * 5, True, (0,), (None,), float("nan")):
            if type(wrong) is type(old) and not isinstance(wrong, bytes | tuple | int | str | float):
                continue
            check = dataclasses.fields(kind)[place - 2].metadata["check"]
            probe = tuple(wrong) if isinstance(wrong, list) else wrong
            if check(probe):
                continue
            with pytest.raises(DecodeError):
                decode(packed([*values[:place], wrong, *values[place + 1 :]]), kind)


def test_only_the_shortest_encoding_is_read():
    data = encode(Abort("no", (3,)))
    assert data == b"\x94\x01\x12\xa2no\x91\x03"
    longer = [
        b"\xdc\x00\x04\x01\x12\xa2no\x91\x03",  # array 16
        b"\x94\xcc\x01\x12\xa2no\x91\x03",  # uint 8
        b"\x94\x01\x12\xd9\x02no\x91\x03",  # str 8
        b"\x94\x01\x12\xa2no\x91\xcc\x03",
        b"\x94\x01\x12\xa2no\xdc\x00\x01\x03",
    ]
    for other in longer:
        with pytest.raises(DecodeError):
            decode(other, Abort)


def test_bulk_messages_have_one_encoding_too():
    for size in (0, 1, 255, 256, 65535, 65536, 70_000):
        piece = Piece(b"s" * 32, 3, 1, b"t" * 16, bytes(range(256)) * (size // 256) + bytes(size % 256))
        data = encode(piece)
        assert data == packed([VERSION, 11, piece.session, 3, 1, piece.tag, piece.data])
        assert decode(data, Piece) == piece
        for wrong in (data[:-1], data + b"\x00", data.replace(b"t" * 16, b"t" * 15, 1)):
            with pytest.raises(DecodeError):
                decode(wrong, Piece)
    head = packed([VERSION, 11, b"s" * 32, 3, 1, b"t" * 16, b""])[:-2]
    for wide in (b"\xc6\x00\x00\x00\x05hello", b"\xc5\x00\x05hello", b"\xa5hello", b"\xc7\x05\x01hello"):
        with pytest.raises(DecodeError):
            decode(head + wide, Piece)
    assert bytes(decode(head + b"\xc4\x05hello", Piece).data) == b"hello"


def test_bulk_is_not_copied():
    data = encode(Piece(b"s" * 32, 3, 1, b"t" * 16, bytes(100_000)))
    view = decode(data, Piece).data
    assert isinstance(view, memoryview)
    assert view.obj is data


def test_a_bulk_message_written_piece_by_piece_is_the_same_message():
    for size in (0, 1, 63, 64, 16383, 16384, 70_000):
        words = np.arange(size, dtype="<u4")
        whole = Piece(b"s" * 32, 3, 1, b"t" * 16, words.tobytes())
        writer = BulkWriter(replace(whole, tag=bytes(16), data=b""), words.nbytes)
        for start in range(0, size, 1000):
            writer.write(words[start : start + 1000])
        payload, item = writer.finish(replace(whole, data=b""))
        assert payload == encode(whole)
        assert item == whole
        assert decode(payload, Piece) == whole


def test_a_bulk_message_of_another_size_than_announced_is_not_sent():
    blank = Piece(b"s" * 32, 3, 1, b"t" * 16, b"")
    writer = BulkWriter(blank, 8)
    writer.write(np.zeros(1, dtype="<u4"))
    with pytest.raises(InputError, match="announced"):
        writer.finish(blank)
    writer.write(np.zeros(1, dtype="<u4"))
    with pytest.raises(InputError, match="range"):
        writer.finish(replace(blank, tag=b"t" * 15))


def test_sizes_are_limited_before_parsing():
    piece = encode(Piece(b"s" * 32, 3, 1, b"t" * 16, bytes(1000)))
    with pytest.raises(DecodeError, match="exceeds"):
        decode(piece, Piece, limit=len(piece) - 1)
    with pytest.raises(DecodeError, match="exceeds"):
        decode(bytes(CONTROL_LIMIT + 1), Abort)
    with pytest.raises(DecodeError):
        decode(b"\xdd\xff\xff\xff\xff", Abort)  # an array of four thousand million elements
    with pytest.raises(DecodeError):
        decode(b"\x94\x01\x12\xdb\xff\xff\xff\xff", Abort)
    with pytest.raises(DecodeError):
        decode(b"\x91" * 100_000, Abort)  # deep nesting


def test_only_bytes_are_messages():
    for other in (None, "text", bytearray(encode(Abort("", ()))), 5):
        with pytest.raises(DecodeError):
            decode(other, Abort)
        with pytest.raises(DecodeError):
            peek_kind(other)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(data):
    for kind in (Proposal, Advert, Release, Piece):
        try:
            decode(data, kind)
        except DecodeError as error:
            assert data.hex() not in str(error) or len(data) < 2


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_altered_bytes_never_decode_to_the_same_message(place, value):
    for kind in (Consent, Piece, Reveal):
        data = bytearray(encode(example(kind)))
        place %= len(data)
        if data[place] == value:
            continue
        data[place] = value
        with contextlib.suppress(DecodeError):
            assert decode(bytes(data), kind) != example(kind)


def test_nothing_malformed_is_ever_sent():
    for wrong in (
        Abort("x" * 600, ()),
        Abort("", (3, 2)),
        Abort("", (2, 2)),
        Abort("", (0,)),
        Abort("", (65536,)),
        Opened(b"s" * 32, 0, (True,), b""),
        Opened(b"s" * 31, 1, (True,), b""),
        Opened(b"s" * 32, 1, (1,), b""),
        Opened(b"s" * 32, True, (True,), b""),
        Sum(b"s" * 32, "<f4", (True,), (1,), (1,), (float("inf"),), 0.0, b""),
    ):
        with pytest.raises(InputError):
            encode(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_printed_form_shows_no_field(kind):
    message = example(kind)
    for text in (repr(message), str(message), f"{message}"):
        assert text.startswith(f"<{kind.__name__},")
        assert "text" not in text
        assert "4096" not in text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, Signed)])
def test_signed_body_covers_kind_and_every_field(kind):
    message = example(kind)
    assert dataclasses.fields(kind)[-1].name == "signature"
    assert message.body() == dataclasses.replace(message, signature=b"z" * 8).body()
    assert message.label() == f"message/{kind.__name__.lower()}"
    bodies = {message.body()}
    for field in dataclasses.fields(kind)[:-1]:
        check, old = field.metadata["check"], getattr(message, field.name)
        candidates = (b"q" * 32, b"q" * 16, (5, 6), (False,), (b"z",), not old, 3.25, 9, 4097, "other")
        other = next(value for value in candidates if value != old and check(value))
        bodies.add(dataclasses.replace(message, **{field.name: other}).body())
    assert len(bodies) == len(dataclasses.fields(kind))


def test_readme_lists_every_message_and_field():
    """The table "each message, field by field" of the README is this code's."""
    text = (Path(messages.__file__).parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|[^|]*\| ([^|]*) \|", text, flags=re.M)
    listed = {int(kind): (name, tuple(re.findall(r"`(\w+)`", fields))) for kind, name, fields in rows}
    wanted = {kind.KIND: (kind.__name__, tuple(item.name for item in dataclasses.fields(kind))) for kind in KINDS}
    assert listed == wanted
