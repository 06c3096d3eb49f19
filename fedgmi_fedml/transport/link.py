"""A reliable link over connections that may be cut at any moment: pure bookkeeping, no socket, no clock, no thread.

Each direction of a link is one endless string of bytes: every message behind its length. It travels in frames,

    kind  offset  received  allowed  payload          1 + 3 × 8 bytes, big-endian, then at most ``chunk_bytes``

where ``offset`` is the payload's place in the string, ``received`` how much of the other direction has arrived, and
``allowed`` up to where the other side may send. Whatever is cut, doubled, lost or swapped under way, the receiver takes
the byte it expects next and no other; what it cannot take makes it cut the connection, and on the next one the sender
goes on from ``received``. A frame without payload is a heartbeat and an acknowledgement.

Offsets of bytes, rather than numbers of frames, let each connection cut the string anew: resent pieces need not
have the shape they had, several small messages share a frame, and what a sender still has to keep is exactly what was
not received. Messages are kept as references; bytes are copied once, into the frame that is leaving.
"""

from __future__ import annotations

import struct
from collections import deque

__all__ = ["HEADER_BYTES", "LARGEST_CHUNK", "MAX_MESSAGE", "Inbox", "Link", "LinkFault", "Outbox"]

LARGEST_CHUNK = 4 << 20
"""No frame carries more, bytes; a receiver need not be ready for more."""

MAX_MESSAGE = 1 << 31
"""Largest message, bytes."""

_HEADER = struct.Struct(">BQQQ")
_LENGTH = struct.Struct(">Q")
HEADER_BYTES = _HEADER.size
_DATA, _BYE = 0, 1
_LONGEST_BYE = 1000
_OVERHEAD = 256
"""What a waiting message costs beside its bytes."""

_ACK_DELAY = 0.05
"""Seconds that an acknowledgement may wait for a frame that goes that way anyway."""


class LinkFault(Exception):  # noqa: N818 - a fault of the other side's, or of the way
    """Bytes that cannot be part of this link.

    Attributes:
        fatal: sending them again cannot help.
    """

    def __init__(self, message: str, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class Outbox:
    """The sending side of one direction: what is not yet sent, and what is sent but not yet received.

    Attributes:
        acked, sent, end: places in the string: received by the other side, sent on this connection, queued, bytes.
        allowed: up to where the other side lets us send.
    """

    def __init__(self) -> None:
        self.acked = self.sent = self.end = 0
        self.allowed = 0
        self._unsent: deque[memoryview] = deque()
        self._unacked: deque[memoryview] = deque()

    @property
    def pending(self) -> int:
        """Bytes queued and not yet received by the other side."""
        return self.end - self.acked

    @property
    def sendable(self) -> int:
        """Bytes that may leave now."""
        return min(self.end, self.allowed) - self.sent

    def queue(self, payload: bytes) -> None:
        """Append one message: a reference, no copy."""
        if len(payload) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(payload)} bytes is larger than the limit of {MAX_MESSAGE}")
        self._unsent.append(memoryview(_LENGTH.pack(len(payload))))
        if payload:
            self._unsent.append(memoryview(payload).cast("B"))
        self.end += _LENGTH.size + len(payload)

    def take(self, most: int) -> list[memoryview]:
        """The next at most ``most`` bytes that may leave, as slices; they count as sent."""
        room = max(0, min(most, self.sendable))
        taken = []
        while room > 0:
            piece = self._unsent.popleft()
            if len(piece) > room:
                self._unsent.appendleft(piece[room:])
                piece = piece[:room]
            taken.append(piece)
            room -= len(piece)
            self.sent += len(piece)
        self._unacked.extend(taken)
        return taken

    def heard(self, received: int, allowed: int) -> None:
        """What the other side has of ours, and how far it lets us go.

        Raises:
            LinkFault: it claims to have what was never sent.
        """
        if received > self.sent:
            raise LinkFault("the other side acknowledges bytes that were never sent")
        self.allowed = max(self.allowed, allowed)
        while self.acked < received:
            piece = self._unacked.popleft()
            gone = min(len(piece), received - self.acked)
            if gone < len(piece):
                self._unacked.appendleft(piece[gone:])
            self.acked += gone

    def resume(self, received: int, allowed: int) -> None:
        """A new connection: go on where the other side says it is.

        Raises:
            LinkFault: that is a place where it cannot be.
        """
        if not self.acked <= received <= self.sent:
            raise LinkFault("the other side resumes where it cannot be", fatal=True)
        self.allowed = 0
        self.heard(received, allowed)
        self._unsent.extendleft(reversed(self._unacked))
        self._unacked.clear()
        self.sent = received


class Inbox:
    """The receiving side of one direction: the place expected next, and the message under way.

    Args:
        window: how much may arrive beyond what has been taken out, bytes; a message under way does not count.
        largest: largest message taken, bytes.
    """

    def __init__(self, window: int, largest: int = MAX_MESSAGE) -> None:
        self.received = 0
        self.waiting = 0
        self._window = window
        self._largest = largest
        self._allowed = window
        self._length = bytearray()
        self._parts: list[memoryview] | None = None
        self._missing = 0

    @property
    def allowed(self) -> int:
        """Up to where the other side may send. Never goes back."""
        self._allowed = max(self._allowed, self.received + self._window - self.waiting)
        return self._allowed

    def taken(self, payload: bytes) -> None:
        """A whole message has been taken out by whom it was for."""
        self.waiting -= len(payload) + _OVERHEAD

    def feed(self, offset: int, piece: memoryview) -> list[bytes]:
        """The messages that ``piece`` makes whole.

        Raises:
            LinkFault: a gap, more than allowed, or a message over the limit.
        """
        if offset != self.received:
            if offset + len(piece) <= self.received:
                return []  # had it already
            raise LinkFault("bytes are missing" if offset > self.received else "bytes overlap")
        if offset + len(piece) > self._allowed:
            raise LinkFault("the other side sends more than it was allowed to", fatal=True)
        whole: list[bytes] = []
        place, end = 0, len(piece)
        while place < end:
            place = self._begin(piece, place) if self._parts is None else self._go_on(piece, place)
            if self._parts is not None and not self._missing:
                whole.append(self._whole())
        self.received += end
        self.waiting += sum(len(message) + _OVERHEAD for message in whole)
        return whole

    def _begin(self, piece: memoryview, place: int) -> int:
        """Read (the rest of) a length."""
        wanted = piece[place : place + _LENGTH.size - len(self._length)]
        self._length += wanted
        if len(self._length) == _LENGTH.size:
            (length,) = _LENGTH.unpack(self._length)
            if length > self._largest:
                raise LinkFault(f"a message of {length} bytes is larger than the limit of {self._largest}", fatal=True)
            self._length.clear()
            self._parts, self._missing = [], length
        return place + len(wanted)

    def _go_on(self, piece: memoryview, place: int) -> int:
        """Read (more of) a message."""
        if self._parts is None:
            raise LinkFault("no message is under way")
        part = piece[place : place + self._missing]
        self._parts.append(part)
        self._missing -= len(part)
        return place + len(part)

    def _whole(self) -> bytes:
        message = b"".join(self._parts or ())
        self._parts = None
        return message


class Link:
    """Both directions of one link at one end, and when it is time to say something. Times are monotonic seconds.

    Attributes:
        bye: how the other side ended the link: (reason, failed); ``None`` while it has not.
    """

    def __init__(self, window: int, heartbeat: float) -> None:
        self.outbox = Outbox()
        self.inbox = Inbox(window)
        self.bye: tuple[str, bool] | None = None
        self._prompt = max(1, window // 4)
        self._heartbeat = heartbeat
        self._spoke = self._news_since = 0.0
        self._told = (0, 0)
        self._farewell: bytes | None = None
        self.said_bye = False

    def end(self, reason: str, failed: bool = False) -> None:
        """Say goodbye once everything queued has left."""
        if self._farewell is None:
            self._farewell = bytes([failed]) + reason.encode()[:_LONGEST_BYE]

    def opened(self, received: int, allowed: int, now: float) -> None:
        """A connection is open; the other side has so much of ours."""
        self.outbox.resume(received, allowed)
        self.said_bye = False
        self._spoke = self._news_since = now
        self._told = (self.inbox.received, self.inbox.allowed)

    def due(self, now: float) -> float:
        """Seconds until there is something to send; 0: now. Data, acknowledgements, heartbeats, goodbye."""
        if self.outbox.sendable > 0 or self._leaving:
            return 0.0
        left = self._spoke + self._heartbeat - now
        received, allowed = self.inbox.received, self.inbox.allowed
        news = max(received - self._told[0], allowed - self._told[1])
        if news >= self._prompt:
            return 0.0
        if news > 0:
            left = min(left, self._news_since + _ACK_DELAY - now)
        return max(0.0, left)

    @property
    def _leaving(self) -> bool:
        return self._farewell is not None and not self.said_bye and self.outbox.sent == self.outbox.end

    def frame(self, most: int, now: float) -> bytes:
        """The next frame: up to ``most`` bytes of data, or none."""
        offset = self.outbox.sent
        self._spoke, self._news_since = now, now
        self._told = (self.inbox.received, self.inbox.allowed)
        if self._leaving and self._farewell is not None:
            self.said_bye = True
            return _HEADER.pack(_BYE, offset, *self._told) + self._farewell
        return b"".join((_HEADER.pack(_DATA, offset, *self._told), *self.outbox.take(most)))

    def feed(self, frame: bytes, now: float) -> list[bytes]:
        """The messages that a frame makes whole.

        Raises:
            LinkFault: no frame of this link; cut the connection.
        """
        if len(frame) < HEADER_BYTES:
            raise LinkFault("no frame")
        kind, offset, received, allowed = _HEADER.unpack_from(frame)
        self.outbox.heard(received, allowed)
        if kind == _DATA:
            if self._told == (self.inbox.received, self.inbox.allowed):
                self._news_since = now
            return self.inbox.feed(offset, memoryview(frame)[HEADER_BYTES:])
        if kind != _BYE or not HEADER_BYTES < len(frame) <= HEADER_BYTES + 1 + _LONGEST_BYE:
            raise LinkFault("no frame")
        if offset != self.inbox.received:
            raise LinkFault("bytes are missing")
        self.bye = (frame[HEADER_BYTES + 1 :].decode(errors="replace"), bool(frame[HEADER_BYTES]))
        return []
