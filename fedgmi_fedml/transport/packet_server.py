"""The server's end over a carrier of packets, with mutual TLS inside them; see ``packet_stream``."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection

from fedgmi_fedml.transport.credentials import TlsFiles, read_own_tls
from fedgmi_fedml.transport.hub import Admission, Hub
from fedgmi_fedml.transport.packet_stream import (
    DATA,
    ConnectionEnded,
    PacketStream,
    PostFailed,
    end_packet,
    read_packet,
    tls_context,
)
from fedgmi_fedml.transport.settings import LinkSettings

log = logging.getLogger(__name__)

PostTo = Callable[[int, bytes], None]
"""Sends a packet to the party at an address of the carrier's. Raises ``PostFailed``."""

_REMEMBERED = 1024
"""Connections whose late packets are known to be late."""


class PacketServer(Hub):
    """``ServerTransport`` over packets. Hand every packet that arrives to ``take``.

    Args:
        tls: the server's files.
        post: sends a packet to an address.
        stop: ends the carrier; called once everything has been said.
        run_id, federation, silos, settings: as for ``GrpcServer``.

    Raises:
        LinkError: (fatal) the files cannot be used.
    """

    def __init__(
        self, tls: TlsFiles, post: PostTo, stop: Callable[[], None], *, run_id: str, federation: str,
        silos: Callable[[], Collection[int]], settings: LinkSettings | None = None,
    ) -> None:  # fmt: skip
        read_own_tls(tls)
        self._context = tls_context(tls, server=True)
        self._post, self._end_carrier = post, stop
        self._guard = threading.Lock()
        self._streams: dict[bytes, PacketStream] = {}
        self._past: OrderedDict[bytes, None] = OrderedDict()
        super().__init__(run_id, federation, silos, settings or LinkSettings())

    def take(self, sender: int, packet: bytes) -> None:
        """A packet has arrived from ``sender``, an address that nothing rests on but where to answer. Never waits."""
        read = read_packet(packet)
        if read is None:
            return
        connection, number, kind, body = read
        with self._guard:
            stream = self._streams.get(connection)
            if stream is None and (kind != DATA or connection in self._past):
                return  # late
            if stream is None and number == 0:
                stream = self._open(connection, sender)
        if stream is not None:
            stream.arrive(number, kind, body)
        elif number:
            self._tell_unknown(sender, connection)

    def _open(self, connection: bytes, sender: int) -> PacketStream | None:
        """A new connection, unless too many have not yet said who they are; the guard is held."""
        if len(self._streams) >= 8 + 4 * len(self._silos()):
            return None
        stream = PacketStream(connection, self._context, lambda packet: self._post(sender, packet), server=True)
        self._streams[connection] = stream
        threading.Thread(target=self._serve, args=(stream,), name="fedgmi-reader", daemon=True).start()
        return stream

    def _tell_unknown(self, sender: int, connection: bytes) -> None:
        """A silo goes on with a connection of an earlier server process: it had better dial anew."""

        def tell() -> None:
            with contextlib.suppress(PostFailed):
                self._post(sender, end_packet(connection))

        with self._guard:
            self._forget(connection)
        threading.Thread(target=tell, name="fedgmi-unknown", daemon=True).start()

    def _serve(self, stream: PacketStream) -> None:
        """One connection: this thread reads, another writes."""
        connection = self.expect(stream.cut)
        admission: Admission | None = None
        try:
            for frame in stream.frames():
                if admission is not None:
                    if not admission.feed(frame):
                        break
                    continue
                admission = self.admit(connection, frame, stream.peer_uris())
                if admission is None or not stream.send(admission.answer) or admission.station is None:
                    break
                writing = (stream, admission)
                threading.Thread(target=self._write, args=writing, name="fedgmi-writer", daemon=True).start()
        except ConnectionEnded as ended:
            log.debug("a connection has ended: %s", ended)
        except Exception:
            log.exception("reading a silo's connection failed; it is cut")
        finally:
            self.forget(connection)
            if admission is not None:
                self.over(admission)
            self._close(stream)

    def _write(self, stream: PacketStream, admission: Admission) -> None:
        for frame in admission.frames():
            if not stream.send(frame):
                break
        self.over(admission)
        stream.cut()

    def _close(self, stream: PacketStream) -> None:
        stream.cut()
        with self._guard:
            self._streams.pop(stream.connection, None)
            self._forget(stream.connection)

    def _forget(self, connection: bytes) -> None:
        """Whatever still arrives of it is late; the guard is held."""
        self._past[connection] = None
        while len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)

    def _stop(self) -> None:
        with self._guard:
            streams = list(self._streams.values())
        for stream in streams:
            stream.cut()
        self._end_carrier()
