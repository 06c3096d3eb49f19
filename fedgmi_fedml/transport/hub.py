"""The server's end of all links, whatever carries the frames: who is admitted, which link goes on, what is lost.

A carrier (``grpc_server``, ``memory``) calls ``expect`` for each connection and ``admit`` with its first frame, hands
every further frame to ``Admission.feed``, sends what ``Admission.frames`` yields, and calls ``over`` at the end.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from fedgmi_fedml.transport.api import Arrived, Lost, Received, ServerEvent
from fedgmi_fedml.transport.credentials import silo_uri
from fedgmi_fedml.transport.hello import VERSION, Answer, Hello, OtherVersion, decode_first, encode_first
from fedgmi_fedml.transport.link import LinkFault
from fedgmi_fedml.transport.pipe import Connection, Pipe
from fedgmi_fedml.transport.settings import LinkSettings
from fedgmi_fedml.transport.watch import FAREWELL_SECONDS, FIRST_FRAME_SECONDS, Watch, period_of

log = logging.getLogger(__name__)


_LEAST_SHARE = 1 << 20
"""However many silos there are, each may have so much waiting here, bytes."""


class _Station:
    """One silo's link at the server."""

    def __init__(self, hub: Hub, silo: int, link: bytes) -> None:
        self.silo, self.link, self.token = silo, link, os.urandom(16)
        self.pipe = Pipe(hub.settings, lambda payload: hub.events.put((self, payload)), hub.share())


@dataclass(frozen=True)
class Admission:
    """A connection that may go on after ``answer``; refused ones have no ``station``."""

    answer: bytes
    connection: Connection
    station: _Station | None = None

    def frames(self) -> Iterator[bytes]:
        """What leaves on this connection, until it is over."""
        return iter(()) if self.station is None else self.station.pipe.frames(self.connection)

    def feed(self, frame: bytes) -> bool:
        """Take in a frame; whether another should be read."""
        return self.station is not None and self.station.pipe.feed(self.connection, frame)


class Hub:
    """``ServerTransport`` without a carrier.

    Args:
        run_id: told to every silo.
        federation: the name that silos must claim too.
        silos: the ids admitted, asked anew for every connection.
        settings: sizes and patience.
    """

    def __init__(
        self, run_id: str, federation: str, silos: Callable[[], Collection[int]], settings: LinkSettings
    ) -> None:
        self.settings = settings
        self.events: queue.SimpleQueue[tuple[_Station, bytes | ServerEvent]] = queue.SimpleQueue()
        self._run_id, self._federation, self._silos = run_id, federation, silos
        self._lock = threading.Lock()
        self._stations: dict[int, _Station] = {}
        self._seen: dict[int, _Station] = {}  # as the events taken so far tell it
        self._nameless: dict[Connection, float] = {}
        self._closed = False
        self._watch = Watch("fedgmi-links", period_of(settings), self._look)

    def share(self) -> int:
        """How much of one silo may wait here unread, bytes: of all the roster together at most one window, so that
        memory does not grow with the number of silos."""
        return min(
            self.settings.window_bytes, max(_LEAST_SHARE, self.settings.window_bytes // max(1, len(self._silos())))
        )

    # ---- the carrier's side ------------------------------------------------------------------------------------------

    def expect(self, cut: Callable[[], None]) -> Connection:
        """A new connection, which has to say who it is before long."""
        connection = Connection(cut)
        with self._lock:
            self._nameless[connection] = time.monotonic() + FIRST_FRAME_SECONDS
        return connection

    def admit(self, connection: Connection, frame: bytes, uris: Collection[str] | None) -> Admission | None:
        """Judge a connection by its first frame.

        Args:
            connection: from ``expect``.
            frame: the first frame.
            uris: those in the other side's certificate; ``None`` where the carrier has no certificates.

        Returns:
            What to answer, or ``None`` for bytes that deserve no answer.
        """
        with self._lock:
            self._nameless.pop(connection, None)
            if self._closed:
                return None
            try:
                hello = decode_first(frame, Hello)
            except OtherVersion as other:
                reason = (
                    f"the server speaks version {VERSION} of the link's protocol, this silo version {other.version}"
                )
                return self._refuse(connection, f"{reason}: install the same version of fedgmi-fedml on both")
            except LinkFault as fault:
                log.debug("a connection was dropped: %s", fault)
                return None
            objection = self._objection(hello, uris)
            if objection:
                log.warning("silo %d was refused: %s", hello.silo, objection)
                return self._refuse(connection, objection)
            return self._welcome(connection, hello)

    def forget(self, connection: Connection) -> None:
        """The connection has ended before it said anything."""
        with self._lock:
            self._nameless.pop(connection, None)

    def over(self, admission: Admission) -> None:
        """The connection has ended, whatever the reason."""
        station = admission.station
        if station is None:
            return
        station.pipe.detach(admission.connection)
        bye, fault = station.pipe.link.bye, station.pipe.fault
        if bye is not None:
            self._lose(station, bye[0])
        elif fault is not None:
            log.debug("silo %d: a connection was cut: %s", station.silo, fault)
            station.pipe.fault = None
            if fault.fatal:
                self._lose(station, f"broke the link's protocol: {fault}")

    # ---- admission ---------------------------------------------------------------------------------------------------

    def _objection(self, hello: Hello, uris: Collection[str] | None) -> str:
        """Why this silo may not take part; empty: it may."""
        if hello.federation != self._federation:
            return f'the silo belongs to federation "{hello.federation}", the server to "{self._federation}"'
        if uris is not None and silo_uri(self._federation, hello.silo) not in uris:
            found = ", ".join(sorted(uris)) or "nobody by a URI"
            return (
                f"the silo says it is silo {hello.silo} ({silo_uri(self._federation, hello.silo)}), but its "
                f"certificate names {found}: use the kit of silo {hello.silo}, or the id that the kit was made for"
            )
        if hello.silo not in self._silos():
            return f"silo {hello.silo} is not on the server's roster"
        return ""

    def _refuse(self, connection: Connection, reason: str) -> Admission:
        return Admission(encode_first(Answer(VERSION, self._run_id, b"", True, 0, 0, reason)), connection)

    def _welcome(self, connection: Connection, hello: Hello) -> Admission:
        """Go on with the silo's link, or begin one; the lock is held."""
        station = self._stations.get(hello.silo)
        if station is not None and not self._goes_on(station, hello, connection):
            self._lose_locked(station, "started again" if station.link != hello.link else "lost count of the link")
            station = None
        if station is None:
            station = self._stations[hello.silo] = _Station(self, hello.silo, hello.link)
            self.events.put((station, Arrived(hello.silo)))
            station.pipe.attach(connection, 0, hello.allowed)
        inbox = station.pipe.link.inbox
        answer = Answer(
            VERSION, self._run_id, station.token, hello.token != station.token, inbox.received, inbox.allowed
        )
        return Admission(encode_first(answer), connection, station)

    def _goes_on(self, station: _Station, hello: Hello, connection: Connection) -> bool:
        """Whether the silo's link goes on over this connection."""
        if station.link != hello.link or station.pipe.ended:
            return False
        unheard = hello.token != station.token  # our answer never arrived: to the silo, this link does not exist yet
        if unheard and station.pipe.link.inbox.received:
            return False
        try:
            station.pipe.attach(connection, 0 if unheard else hello.received, hello.allowed)
        except LinkFault as fault:
            log.debug("silo %d: %s", station.silo, fault)
            return False
        return True

    # ---- endings -----------------------------------------------------------------------------------------------------

    def _lose(self, station: _Station, reason: str) -> None:
        with self._lock:
            self._lose_locked(station, reason)

    def _lose_locked(self, station: _Station, reason: str) -> None:
        if self._stations.get(station.silo) is station:
            del self._stations[station.silo]
            station.pipe.end()
            self.events.put((station, Lost(station.silo, reason)))

    def _look(self) -> None:
        """The watch: connections that say nothing are cut, links that nobody comes back to are given up."""
        now = time.monotonic()
        with self._lock:
            stations = list(self._stations.values())
            late = [connection for connection, until in self._nameless.items() if now > until]
            for connection in late:
                del self._nameless[connection]
        for connection in late:
            connection.cut()
        for station in stations:
            if station.pipe.silent(now):
                silence = self.settings.silence_seconds
                log.info("silo %d: nothing heard for %g s; its connection is cut", station.silo, silence)
                station.pipe.cut()
            elif station.pipe.lost(now):
                self._lose(station, f"cut off, and not back within {self.settings.grace_seconds:g} s")

    # ---- ServerTransport ---------------------------------------------------------------------------------------------

    def receive(self, seconds: float) -> ServerEvent | None:
        """See ``ServerTransport``."""
        try:
            # Python 3.10's SimpleQueue waits for ever where the timeout is zero
            station, item = self.events.get(seconds > 0, max(0.0, seconds))
        except queue.Empty:
            return None
        if isinstance(item, bytes):
            station.pipe.taken(item)
            return Received(station.silo, item)
        if isinstance(item, Arrived):
            self._seen[item.silo] = station
        elif isinstance(item, Lost):
            self._seen.pop(item.silo, None)
        return item

    def send(self, silo: int, payload: bytes) -> None:
        """See ``ServerTransport``. A message for a link that the events taken so far do not tell of is dropped: it was
        meant for an earlier process of the silo's."""
        station = self._seen.get(silo)
        if station is not None:
            station.pipe.queue(payload)

    def flush(self, seconds: float) -> bool:
        """See ``ServerTransport``."""
        deadline = time.monotonic() + seconds
        with self._lock:
            stations = list(self._stations.values())
        return all(station.pipe.flush(deadline) or station.pipe.ended for station in stations)

    def close(self) -> None:
        """See ``ServerTransport``."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            stations = list(self._stations.values())
        for station in stations:
            station.pipe.end_soon("it has stopped", failed=False)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for station in stations:
            station.pipe.wait_until_over(deadline)
            station.pipe.end()
        self._watch.stop()
        self._stop()

    def vanish(self) -> None:
        """End at once and without a word, as a killed process does."""
        with self._lock:
            self._closed = True
            stations = list(self._stations.values())
        self._watch.stop()
        for station in stations:
            station.pipe.end()
        self._stop()

    def _stop(self) -> None:
        """The carrier's own end, once all links have ended; those that hold nothing have none."""
