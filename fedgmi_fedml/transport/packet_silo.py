"""A silo's end over a carrier of packets, with mutual TLS inside them; see ``packet_stream``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

from fedgmi_fedml.transport.credentials import TlsFiles, read_own_tls, server_uri
from fedgmi_fedml.transport.packet_stream import ConnectionEnded, PacketStream, Post, read_packet, tls_context
from fedgmi_fedml.transport.settings import LinkSettings
from fedgmi_fedml.transport.silo_end import DialFailed, SiloEnd


class PacketSilo(SiloEnd):
    """``SiloTransport`` over packets. Hand every packet that arrives to ``take``.

    Args:
        where: names the server in messages.
        tls: this silo's files.
        post: sends a packet to the server.
        stop: ends the carrier; called once everything has been said.
        silo, federation, settings: as for ``GrpcSilo``.

    Raises:
        LinkError: (fatal) the files cannot be used.
    """

    def __init__(
        self, where: str, tls: TlsFiles, post: Post, stop: Callable[[], None], *, silo: int, federation: str,
        settings: LinkSettings | None = None,
    ) -> None:  # fmt: skip
        read_own_tls(tls)
        self._tls, self._post, self._stop, self._server = tls, post, stop, server_uri(federation)
        self._stream: PacketStream | None = None
        super().__init__(self._line, where, silo, federation, settings or LinkSettings())

    def _line(self, frames: Iterator[bytes]) -> _Line:
        # the files are read anew: a kit may have been renewed while we were waiting
        stream = PacketStream(
            os.urandom(16), tls_context(self._tls, server=False), self._post, server=False, peer=self._server
        )
        self._stream = stream
        return _Line(stream, frames)

    def take(self, packet: bytes) -> None:
        """A packet has arrived. Never waits. Those of an earlier connection are late, and dropped."""
        read, stream = read_packet(packet), self._stream
        if read is not None and stream is not None and read[0] == stream.connection:
            stream.arrive(*read[1:])

    def vanish(self) -> None:
        """End at once and without a word, as a killed process does."""
        super().vanish()
        self._stop()


class _Line:
    """One attempt to connect, and the connection that comes of it."""

    def __init__(self, stream: PacketStream, frames: Iterator[bytes]) -> None:
        self._stream, self._frames = stream, frames
        threading.Thread(target=self._write, name="fedgmi-writer", daemon=True).start()

    def _write(self) -> None:
        for frame in self._frames:
            if not self._stream.send(frame):
                return

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream.frames()
        except ConnectionEnded as ended:
            raise DialFailed(str(ended), ended.fatal) from ended

    def cancel(self) -> None:
        """End it from any thread."""
        self._stream.cut()

    def close(self) -> None:
        """Give it back."""
        self._stream.cut()
