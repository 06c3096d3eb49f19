"""One end of a link as several threads share it: senders, the connection's writer and reader, and the watch.

A connection is open (``attach``) until it is cut or ends (``detach``); the next one goes on where it stopped. Whatever
arrives on a connection that is no longer the present one is ignored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fedgmi_fedml.transport.link import Link, LinkFault
from fedgmi_fedml.transport.settings import LinkSettings


@dataclass(eq=False)
class Connection:
    """One connection's life: ``cut`` ends it from any thread; ``over`` says that it has ended for this link."""

    cut: Callable[[], None]
    over: threading.Event = field(default_factory=threading.Event)


class Pipe:
    """A link and its lock.

    Args:
        settings: sizes and patience.
        deliver: takes each whole message, in order; called with the lock held, must not block.
        window: how much may wait here unread, bytes.
    """

    def __init__(self, settings: LinkSettings, deliver: Callable[[bytes], None], window: int) -> None:
        self.settings = settings
        self.link = Link(window, settings.heartbeat_seconds)
        self.changed = threading.Condition()
        self.connection: Connection | None = None
        self.heard = self.cut_since = time.monotonic()
        self.fault: LinkFault | None = None
        self.ended = False
        self._wakes = 0.0  # when the writer will look again by itself
        self._deliver = deliver

    # ---- connections -------------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, received: int, allowed: int) -> None:
        """Go on over this connection; an older one is cut.

        Raises:
            LinkFault: the other side's ``received`` cannot be.
        """
        with self.changed:
            older = self.connection
            self.link.opened(received, allowed, time.monotonic())
            self.connection, self.heard = connection, time.monotonic()
            self.changed.notify_all()
        if older is not None:
            _cut(older)

    def detach(self, connection: Connection) -> None:
        """This connection is over; the link may go on over another."""
        with self.changed:
            if self.connection is connection:
                self.connection, self.cut_since = None, time.monotonic()
            self.changed.notify_all()
        _cut(connection)

    def cut(self) -> None:
        """The present connection is over; the link may go on over another."""
        connection = self.connection
        if connection is not None:
            self.detach(connection)

    def end(self) -> None:
        """The link is over: waiting senders go, the connection is cut, nothing more is delivered."""
        with self.changed:
            self.ended = True
            connection, self.connection = self.connection, None
            self.changed.notify_all()
        if connection is not None:
            _cut(connection)

    # ---- what the connection's threads do ----------------------------------------------------------------------------

    def frames(self, connection: Connection) -> Iterator[bytes]:
        """What leaves on this connection, waiting for more to say, until it is over."""
        link, most = self.link, self.settings.chunk_bytes
        while True:
            with self.changed:
                while True:
                    if self.connection is not connection or connection.over.is_set():
                        return
                    now = time.monotonic()
                    wait = link.due(now)
                    if wait <= 0:
                        break
                    self._wakes = now + wait
                    self.changed.wait(wait)
                self._wakes = 0.0
                frame = link.frame(most, now)
            yield frame

    def feed(self, connection: Connection, frame: bytes) -> bool:
        """Take in a frame of this connection; whether another should be read."""
        with self.changed:
            if self.connection is not connection:
                return False
            now, before = time.monotonic(), self.link.outbox.acked
            try:
                messages = self.link.feed(frame, now)
            except LinkFault as fault:
                self.fault = fault
                return False
            self.heard = now
            for message in messages:
                self._deliver(message)
            if self.link.outbox.acked > before or now + self.link.due(now) < self._wakes:
                self.changed.notify_all()  # not for every frame: each waking costs a change of threads
            return self.link.bye is None

    # ---- what the other threads do -----------------------------------------------------------------------------------

    def taken(self, payload: bytes) -> None:
        """A delivered message has left the queue: there is room for more."""
        with self.changed:
            self.link.inbox.taken(payload)
            now = time.monotonic()
            if now + self.link.due(now) < self._wakes:
                self.changed.notify_all()

    def flush(self, deadline: float) -> bool:
        """Wait until all is acknowledged (true) or the time has come or the link has ended (false)."""
        with self.changed:
            while self.link.outbox.pending and not self.ended:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(left)
            return not self.link.outbox.pending

    def queue(self, payload: bytes) -> None:
        """Append a message; never waits. After the end: dropped."""
        with self.changed:
            if not self.ended:
                self.link.outbox.queue(payload)
                self.changed.notify_all()

    def queue_when_room(self, payload: bytes, seconds: float) -> bool:
        """Append a message if the window has room within so long; whether it has gone, or has nowhere to go."""
        with self.changed:
            if self.link.outbox.pending >= self.settings.window_bytes and not self.ended:
                self.changed.wait(seconds)
                if self.link.outbox.pending >= self.settings.window_bytes and not self.ended:
                    return False
            self.queue(payload)
            return True

    def end_soon(self, reason: str, failed: bool) -> None:
        """Tell the other side, after everything queued, that the link ends."""
        with self.changed:
            self.link.end(reason, failed)
            self.changed.notify_all()

    def wait_until_over(self, deadline: float) -> None:
        """Wait until the connection is over, which the other side sees to when it has heard of the end."""
        with self.changed:
            while self.connection is not None and time.monotonic() < deadline:
                self.changed.wait(max(0.0, deadline - time.monotonic()))

    def silent(self, now: float) -> bool:
        """Whether the connection has said nothing for too long."""
        with self.changed:
            return self.connection is not None and now - self.heard > self.settings.silence_seconds

    def lost(self, now: float) -> bool:
        """Whether no connection has come back for too long."""
        with self.changed:
            return self.connection is None and now - self.cut_since > self.settings.grace_seconds


def _cut(connection: Connection) -> None:
    connection.over.set()
    connection.cut()
