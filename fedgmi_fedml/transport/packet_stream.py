"""One connection over a carrier of packets (FedML's messages) that may lose, double, delay or swap them, and be read.

    packet:  connection (16 random bytes)  number  kind  body

Inside the packets runs mutual TLS 1.3 with the kits' certificates (``ssl.MemoryBIO``), and inside that the link's
frames, each behind its length. Whoever carries the packets sees ciphertext; who the two ends are stands in their
certificates, as over gRPC. Packets are put in order, and doubles dropped; one that stays away ends the connection, and
the link goes on over the next.
"""

from __future__ import annotations

import contextlib
import queue
import ssl
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator

from cryptography import x509

from fedgmi_fedml.transport.credentials import TlsFiles, read_tls, uris_of
from fedgmi_fedml.transport.link import HEADER_BYTES, LARGEST_CHUNK

__all__ = ["DATA", "ConnectionEnded", "PacketStream", "Post", "PostFailed", "end_packet", "read_packet", "tls_context"]

_PACKET = struct.Struct(">16sIB")
_LENGTH = struct.Struct(">I")
DATA, _END, _UNKNOWN = 0, 1, 2

GAP_SECONDS = 10.0
"""A packet that others have overtaken is waited for so long."""

ANSWER_SECONDS = 8.0
"""So long the other side may take over each of its steps of the TLS handshake."""

_MOST_EARLY = 64
"""Packets that may wait for one they have overtaken."""

_READ = 1 << 16

Post = Callable[[bytes], None]
"""Sends one packet to the other side; may wait, never for ever. Raises ``PostFailed``."""


class PostFailed(Exception):  # noqa: N818 - says what happened
    """The carrier could not send; the text says why."""


class ConnectionEnded(Exception):  # noqa: N818 - says what happened
    """The connection is over; the text says why.

    Attributes:
        fatal: another one cannot fare better (a certificate that is not of this consortium).
    """

    def __init__(self, reason: str, fatal: bool = False) -> None:
        super().__init__(reason)
        self.fatal = fatal


def tls_context(tls: TlsFiles, *, server: bool) -> ssl.SSLContext:
    """TLS 1.3 in which both sides show a certificate of the consortium's authority.

    Raises:
        LinkError: (fatal) the files cannot be used.
    """
    files = read_tls(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nobody is dialled by name here: the URI in the certificate is what counts
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate, tls.key)
    context.load_verify_locations(cadata=files.ca.decode())
    if server:
        context.num_tickets = 0
    return context


def read_packet(packet: bytes) -> tuple[bytes, int, int, bytes] | None:
    """Connection, number, kind and body; ``None``: no packet of ours."""
    if len(packet) < _PACKET.size:
        return None
    connection, number, kind = _PACKET.unpack_from(packet)
    return (connection, number, kind, packet[_PACKET.size :]) if kind in (DATA, _END, _UNKNOWN) else None


def end_packet(connection: bytes) -> bytes:
    """What answers a packet of a connection that is not, or no longer, known here."""
    return _PACKET.pack(connection, 0, _UNKNOWN)


class PacketStream:
    """One end of a connection: ``arrive`` takes the carrier's packets in, ``frames`` yields the link's frames.

    Args:
        connection: 16 random bytes, the dialling side's.
        context: from ``tls_context``.
        post: sends a packet to the other side.
        server: whether this is the server's end.
        peer: the URI that the other side's certificate must hold; ``None``: whoever is asked later decides.
    """

    def __init__(
        self, connection: bytes, context: ssl.SSLContext, post: Post, *, server: bool, peer: str | None = None
    ) -> None:
        self.connection = connection
        self._peer = peer
        self._post = post
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._secured = threading.Event()  # the handshake is done, or the connection over
        self._lock = threading.Lock()  # of the TLS object and the count of packets sent
        self._sent = 0
        self._order = threading.Lock()
        self._next = 0
        self._early: dict[int, tuple[int, bytes]] = {}
        self._gap_since = 0.0
        self._bodies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._over = False
        self._reason = "the connection was cut"

    # ---- from the carrier --------------------------------------------------------------------------------------------

    def arrive(self, number: int, kind: int, body: bytes) -> None:
        """Take in a packet, in whatever order; never waits."""
        with self._order:
            if kind == _UNKNOWN:
                self._end("the other side does not know this connection: has it started again?")
                return
            if self._over or number < self._next or number in self._early:
                return
            if len(self._early) >= _MOST_EARLY:
                self._end("a packet was lost")
                return
            if not self._early:
                self._gap_since = time.monotonic()
            self._early[number] = (kind, body)
            while self._next in self._early:
                kind, body = self._early.pop(self._next)
                self._next, self._gap_since = self._next + 1, time.monotonic()
                if kind == _END:
                    self._end("the other side has ended the connection")
                else:
                    self._bodies.put(body)

    def _end(self, reason: str) -> None:
        if not self._over:
            self._over, self._reason = True, reason
        self._secured.set()
        self._bodies.put(None)

    def cut(self) -> None:
        """End it, from any thread, and tell the other side."""
        with self._order:
            if self._over:
                return
            self._end("the connection was cut")
        threading.Thread(target=self._say_end, name="fedgmi-end", daemon=True).start()  # posting may wait

    def _say_end(self) -> None:
        with self._lock:
            number, self._sent = self._sent, self._sent + 1
        with contextlib.suppress(PostFailed):  # the other side will notice the silence
            self._post(_PACKET.pack(self.connection, number, _END))

    # ---- out ---------------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> bool:
        """Send a frame once the connection is secured; whether the connection still stands."""
        self._secured.wait()
        if self._over:
            return False
        with self._lock:
            self._tls.write(_LENGTH.pack(len(frame)))
            rest = memoryview(frame)
            while rest:
                rest = rest[self._tls.write(rest) :]
            packet = self._packet()
        return self._leave(packet)

    def _packet(self) -> bytes:
        """What TLS wants sent, behind its head; the lock is held."""
        body = self._outgoing.read()
        number, self._sent = self._sent, self._sent + 1
        return _PACKET.pack(self.connection, number, DATA) + body

    def _leave(self, packet: bytes) -> bool:
        try:
            self._post(packet)
        except PostFailed as failed:
            with self._order:
                self._end(str(failed))
            return False
        return True

    # ---- in ----------------------------------------------------------------------------------------------------------

    def frames(self) -> Iterator[bytes]:
        """The other side's frames, after the handshake, until the connection ends.

        Raises:
            ConnectionEnded: it ended otherwise than by the other side's will.
        """
        try:
            self._shake_hands()
            yield from self._read()
        except ssl.SSLCertVerificationError as error:
            raise ConnectionEnded(
                f"the other side's certificate is none of this consortium's ({error.verify_message}): are both kits of "
                "one federation, and in force?",
                fatal=True,
            ) from None
        except ssl.SSLError as error:
            reason = error.reason or "broken"
            if "ALERT" in reason:
                raise ConnectionEnded(f"the other side refuses this party's certificate ({reason})") from None
            raise ConnectionEnded(f"what arrives is not TLS of ours ({reason})") from None
        finally:
            self._flush()

    def _flush(self) -> None:
        """An alert that TLS has left for the other side."""
        with self._lock:
            packet = self._packet() if self._outgoing.pending and not self._over else None
        if packet is not None:
            self._leave(packet)

    def _shake_hands(self) -> None:
        while True:
            with self._lock:
                try:
                    self._tls.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    done = False
                packet = self._packet() if self._outgoing.pending else None
            if packet is not None and not self._leave(packet):
                raise ConnectionEnded(self._reason)
            if done:
                if self._peer is not None and self._peer not in self.peer_uris():
                    raise ConnectionEnded(f"what answers is not {self._peer}, by its certificate", fatal=True)
                self._secured.set()
                return
            body = self._await(time.monotonic() + ANSWER_SECONDS)
            if body is None:
                raise ConnectionEnded(self._reason)
            self._incoming.write(body)

    def _read(self) -> Iterator[bytes]:
        buffer = bytearray()
        while True:
            self._decrypt(buffer)
            while len(buffer) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer)
                if length > LARGEST_CHUNK + HEADER_BYTES:
                    raise ConnectionEnded("a frame of the other side's is larger than any of ours")
                if len(buffer) < _LENGTH.size + length:
                    break
                frame = bytes(memoryview(buffer)[_LENGTH.size : _LENGTH.size + length])
                del buffer[: _LENGTH.size + length]
                yield frame
            body = self._await(None)
            if body is None:
                return
            with self._lock:
                self._incoming.write(body)

    def _decrypt(self, buffer: bytearray) -> None:
        """Append everything that has arrived."""
        with self._lock:
            while True:
                try:
                    piece = self._tls.read(_READ)
                except ssl.SSLWantReadError:
                    return
                if not piece:
                    return
                buffer += piece

    def _await(self, deadline: float | None) -> bytes | None:
        """The next body in order; ``None``: the connection is over."""
        while True:
            try:
                return self._bodies.get(timeout=0.5)
            except queue.Empty:
                pass
            now = time.monotonic()
            with self._order:
                overdue = bool(self._early) and now - self._gap_since > GAP_SECONDS
            if overdue:
                raise ConnectionEnded("a packet was lost")
            if deadline is not None and now > deadline:
                raise ConnectionEnded("the other side does not answer")

    # ---- who ---------------------------------------------------------------------------------------------------------

    def peer_uris(self) -> Collection[str]:
        """The URIs in the other side's certificate, which TLS has held against the authority; after the handshake."""
        found = self._tls.getpeercert(binary_form=True)
        return () if found is None else uris_of(x509.load_der_x509_certificate(found))
