"""What the tests of real links share: a consortium's certificates, and a TCP proxy that misbehaves to order."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgmi_fedml.transport.credentials import TlsFiles
from fedgmi_fedml.transport.settings import LinkSettings

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
QUICK = LinkSettings(
    heartbeat_seconds=0.2, silence_seconds=3.0, grace_seconds=5.0, dial_seconds=20.0, backoff=(0.05, 0.3)
)


class Consortium:
    """An authority, and the kits it gives out."""

    def __init__(self, folder: Path, name: str = "clinics") -> None:
        self.folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"{name} authority")
        self.certificate = (
            _builder(subject, subject, self.key.public_key(), NOW - 30 * DAY, NOW + 900 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def server(self, hosts: tuple[str, ...] = ("localhost", "127.0.0.1"), **dates: datetime.datetime) -> TlsFiles:
        """The server's files."""
        return self.issue("server", [f"fedgmi:{self.name}/server"], hosts, **dates)

    def silo(self, silo: int, **dates: datetime.datetime) -> TlsFiles:
        """A silo's files."""
        return self.issue(f"silo-{silo}", [f"fedgmi:{self.name}/silo/{silo}"], (), **dates)

    def issue(
        self, party: str, uris: list[str], hosts: tuple[str, ...],
        first: datetime.datetime = NOW - DAY, last: datetime.datetime = NOW + 90 * DAY,
    ) -> TlsFiles:  # fmt: skip
        """A party's files: certificate, key, and the authority's certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        for host in hosts:
            numeric = host.replace(".", "").isdigit()
            names.append(x509.IPAddress(ipaddress.ip_address(host)) if numeric else x509.DNSName(host))
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        certificate = (
            _builder(_name(party), self.certificate.subject, key.public_key(), first, last)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        folder = self.folder / party
        folder.mkdir(exist_ok=True)
        (folder / "tls.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return TlsFiles(self.ca, folder / "tls.pem", folder / "tls.key")


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey,
    first: datetime.datetime, last: datetime.datetime,
) -> x509.CertificateBuilder:  # fmt: skip
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(first).not_valid_after(last)


class TcpProxy:
    """Forwards one port to another, and cuts, stalls or delays to order.

    Attributes:
        cut_after: bytes (up and down together) after which each further connection is cut; one entry a connection.
        stalled: while set, bytes are swallowed and connections stay open, as behind a firewall that forgot them.
        delay: seconds by which each piece is late.
        connections: how many there have been.
    """

    def __init__(self, target: int, pick: Callable[[bytes], int] | None = None) -> None:
        self.target = target
        self.cut_after: list[int] = []
        self.stalled = threading.Event()
        self.delay = 0.0
        self.connections = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                self.connections += 1
                far = self.reach(near)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                continue
            self._pairs.append((near, far))
            left = [self.cut_after.pop(0) if self.cut_after else 1 << 60]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink, left), daemon=True).start()

    def reach(self, near: socket.socket) -> socket.socket:
        """The connection to the target; a proxy that speaks some protocol first overrides this."""
        try:
            return socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            near.close()
            raise

    def _pump(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.stalled.is_set():
                    continue
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data[: max(0, left[0])])
                left[0] -= len(data)
                if left[0] <= 0:
                    break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all present connections."""
        for pair in self._pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        """Stop listening and cut."""
        self._listener.close()
        self.cut()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])
