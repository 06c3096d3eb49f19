"""Messages between drivers: what goes in comes out; anything else is refused."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgmi_fedml.rounds import wire
from fedgmi_fedml.rounds.wire import WireError, decode, encode

MESSAGES = [
    wire.Join(1, 1, "0.1.0", "masked", "ab", {"x.y": b"12345678"}, ("cat", "dog"), (1, 8, 8), b"s" * 32, b"n" * 32),
    wire.Commitments({1: b"a", 70: b"b"}),
    wire.Witness(3, b"s" * 64),
    wire.Agreed(b"b" * 32, (1, 2), {1: b"s" * 64}),
    wire.Again("a silo vanished"),
    wire.Reveal(2, b"n"),
    wire.Beacon({1: b"a"}),
    wire.Models(b"d", b"tensors"),
    wire.Plan("warmup", 3, 0, 1, (1, 2, 9), b"d" * 32, True, 2.5),
    wire.Ready(1, "rounds", 0, 0, 0),
    wire.InSession("rounds", 0, 1, 0, b"payload"),
    wire.Released("rounds", 1, b"a", b"b", b"c"),
    wire.Failed(1, "rounds", 2, "MemoryError"),
    wire.Finish("done", b"f", b"b", False),
    wire.Finished(4),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_round_trip(message):
    assert decode(encode(message)) == message


def test_every_message_is_tried():
    assert {type(m).__name__ for m in MESSAGES} == set(wire._KINDS)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_wrong_types_and_numbers_of_fields_are_refused(message):
    kind, *fields = msgpack.unpackb(encode(message), strict_map_key=False)
    for change in ([kind, *fields, 0], [kind, *fields[:-1]], [kind, None, *fields[1:]], ["Nonsense", *fields]):
        with pytest.raises(WireError):
            decode(msgpack.packb(change))


@given(st.binary(max_size=200))
def test_garbage_is_refused(data):
    with pytest.raises(WireError):
        decode(data)


def test_a_negative_or_boolean_number_is_no_silo():
    for silo in (-1, True, "1"):
        with pytest.raises(WireError):
            decode(msgpack.packb(["Finished", silo]))
