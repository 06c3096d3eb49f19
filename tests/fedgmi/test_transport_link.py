"""The link's bookkeeping: whatever the network does to frames, messages arrive whole, in order and once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmi_fedml.transport.link import HEADER_BYTES, Inbox, Link, LinkFault, Outbox

WINDOW = 64


def take_all(outbox: Outbox, most: int) -> bytes:
    """Everything that may leave."""
    return b"".join(b"".join(outbox.take(most)) for _ in range(outbox.sendable // most + 1))


def carry(sender: Link, receiver: Link, most: int, now: float) -> list[bytes]:
    """One frame from end to end."""
    return receiver.feed(sender.frame(most, now), now)


def open_both(a: Link, b: Link, now: float = 0.0) -> None:
    """A new connection between two ends."""
    a.opened(b.inbox.received, b.inbox.allowed, now)
    b.opened(a.inbox.received, a.inbox.allowed, now)


def pair(window: int = WINDOW, heartbeat: float = 10.0) -> tuple[Link, Link]:
    """Two ends with an open connection."""
    a, b = Link(window, heartbeat), Link(window, heartbeat)
    open_both(a, b)
    return a, b


@given(
    up=st.lists(st.binary(max_size=200), max_size=12),
    down=st.lists(st.binary(max_size=200), max_size=12),
    most=st.integers(1, 70),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_any_pattern_of_faults_delivers_everything_once_and_in_order(up, down, most, seed) -> None:
    chance = random.Random(seed)
    a, b = pair()
    a_got, b_got = [], []
    for message in up:
        a.outbox.queue(message)
    for message in down:
        b.outbox.queue(message)
    now = 0.0
    for step in range(20_000):
        now += 1.0
        if a_got == down and b_got == up and not a.outbox.pending and not b.outbox.pending:
            break
        for sender, receiver, got in ((a, b, b_got), (b, a, a_got)):
            frames = [sender.frame(most, now) for _ in range(chance.randint(0, 3))]
            fate = chance.random() if step < 1000 else 1.0
            if fate < 0.1:
                frames = frames[: chance.randint(0, len(frames))]
            elif fate < 0.2:
                frames += frames
            elif fate < 0.3:
                chance.shuffle(frames)
            elif fate < 0.35 and frames:
                frames[-1] = chance.randbytes(chance.randint(0, 40))
            try:
                for frame in frames:
                    messages = receiver.feed(frame, now)
                    got += messages
                    for message in messages:
                        receiver.inbox.taken(message)
            except LinkFault as fault:
                # random bytes may claim anything; only our own frames must never be called fatal
                if fault.fatal and not 0.3 <= fate < 0.35:
                    raise
                open_both(a, b, now)
                break
        if chance.random() < 0.05:
            open_both(a, b, now)
    assert a_got == down
    assert b_got == up


def test_frames_are_no_larger_than_asked_and_messages_are_not_copied_until_they_leave() -> None:
    a, b = pair(window=1 << 20)
    payload = bytearray(b"x" * 1000)
    a.outbox.queue(payload)  # type: ignore[arg-type]
    payload[:] = b"y" * 1000
    frames = []
    while a.outbox.sendable:
        frames.append(a.frame(100, 0.0))
    assert {len(frame) for frame in frames[:-1]} == {100 + HEADER_BYTES}
    assert [m for frame in frames for m in b.feed(frame, 0.0)] == [b"y" * 1000]


def test_small_messages_share_a_frame() -> None:
    a, b = pair(window=1000)
    for _ in range(10):
        a.outbox.queue(b"abc")
    assert carry(a, b, 500, 0.0) == [b"abc"] * 10


def test_what_was_acknowledged_is_forgotten_and_the_rest_is_sent_again() -> None:
    box = Outbox()
    box.heard(0, 1000)
    box.queue(b"a" * 92)
    first = take_all(box, 30)
    assert len(first) == 100
    box.heard(40, 1000)
    assert box.pending == 60
    box.resume(70, 1000)
    assert take_all(box, 7) == first[70:]
    box.heard(100, 1000)
    assert box.pending == 0
    assert not box._unacked
    assert not box._unsent


def test_nothing_leaves_beyond_what_the_other_side_allows() -> None:
    a, b = pair(window=50)
    a.outbox.queue(b"x" * 20)
    a.outbox.queue(b"y" * 200)
    got = carry(a, b, 1000, 0.0)
    assert got == [b"x" * 20]
    assert a.outbox.sendable == 0
    carry(b, a, 1000, 0.0)
    assert a.outbox.sendable == 0, "what waits unread must hold the sender back"
    b.inbox.taken(got[0])
    carry(b, a, 1000, 0.0)
    assert a.outbox.sendable == 50


def test_a_message_larger_than_the_window_gets_through() -> None:
    a, b = pair(window=50)
    a.outbox.queue(b"z" * 5000)
    got: list[bytes] = []
    for _ in range(1000):
        got += carry(a, b, 10, 0.0)
        carry(b, a, 10, 0.0)
        if got:
            break
    assert got == [b"z" * 5000]


@pytest.mark.parametrize(
    ("offset", "size"),
    [(10, 5), (0, 2000)],
    ids=["gap", "more than allowed"],
)
def test_what_cannot_be_is_a_fault(offset: int, size: int) -> None:
    with pytest.raises(LinkFault):
        Inbox(window=100).feed(offset, memoryview(bytes(size)))


def test_an_absurd_length_is_a_fault_before_anything_is_kept() -> None:
    with pytest.raises(LinkFault, match="larger than the limit of 1000") as fault:
        Inbox(window=100, largest=1000).feed(0, memoryview((1 << 40).to_bytes(8, "big")))
    assert fault.value.fatal


def test_acknowledging_what_was_never_sent_is_a_fault() -> None:
    box = Outbox()
    box.queue(b"abc")
    with pytest.raises(LinkFault, match="never sent"):
        box.heard(5, 0)


def test_resuming_before_what_was_acknowledged_or_after_what_was_sent_is_a_fault() -> None:
    box = Outbox()
    box.heard(0, 100)
    box.queue(b"a" * 92)
    box.take(50)
    box.heard(20, 100)
    for place in (10, 60):
        with pytest.raises(LinkFault):
            box.resume(place, 100)


def test_when_there_is_something_to_say() -> None:
    a, b = pair(window=1000, heartbeat=10.0)
    assert a.due(0.0) == 10.0
    a.outbox.queue(b"x" * 10)
    assert a.due(3.0) == 0.0
    carry(a, b, 1000, 3.0)
    assert a.due(3.0) == 10.0, "every frame is a heartbeat too"
    assert 0 < b.due(3.0) < 0.1, "an acknowledgement waits a little for company"
    assert b.due(3.2) == 0.0
    carry(b, a, 1000, 3.2)
    assert a.outbox.pending == 0
    a.outbox.queue(b"x" * 900)
    carry(a, b, 1000, 4.0)
    assert b.due(4.0) == 0.0, "much is acknowledged at once"


def test_goodbye_comes_after_everything_queued() -> None:
    a, b = pair(window=1000)
    a.outbox.queue(b"x" * 100)
    a.end("it has left")
    assert carry(a, b, 50, 0.0) == []
    assert b.bye is None
    assert carry(a, b, 500, 0.0) == [b"x" * 100]
    assert carry(a, b, 500, 0.0) == []
    assert b.bye == ("it has left", False)
    assert a.due(0.0) > 0
