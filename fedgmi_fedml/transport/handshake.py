"""Why a server cannot be reached, found out with Python's own sockets and TLS: gRPC's messages rarely say."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import socket
import ssl
from dataclasses import dataclass

from cryptography import x509

from fedgmi_fedml.transport.api import LinkError
from fedgmi_fedml.transport.credentials import TlsFiles, date_trouble, issuer_of, names_of, read_tls, show_date

_SECONDS = 5.0
_EXPIRED, _NOT_YET, _WRONG_HOST, _WRONG_ADDRESS = 10, 9, 62, 64
"""Verify codes of OpenSSL (X509_V_ERR_…)."""


@dataclass(frozen=True)
class Trouble:
    """What is in the way.

    Attributes:
        text: a sentence.
        fatal: dialling again cannot help.
        hung_up: the server hung up on our certificate without a word, which is how gRPC rejects one; or it died at that
            very moment. Seen again and again, it is fatal too.
    """

    text: str
    fatal: bool = False
    hung_up: bool = False


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` → host and port.

    Raises:
        LinkError: (fatal) it is neither.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or not port.isdigit() or not 0 <= int(port) < 65536:
        raise LinkError(f'"{address}" is no address: it must be host:port, e.g. fedgmi.example.org:8890', fatal=True)
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether the host is this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost" or host.lower().endswith(".localhost")


def explain(address: str, tls: TlsFiles, proxy: str | None = None) -> str | None:
    """Why no mutual TLS with the server at ``address`` comes about, in a sentence; ``None`` where it does.

    Raises:
        LinkError: the address or this party's own files are wrong.
    """
    trouble = diagnose(address, tls, proxy)
    return None if trouble is None else trouble.text


def diagnose(address: str, tls: TlsFiles, proxy: str | None = None, seconds: float = _SECONDS) -> Trouble | None:
    """As ``explain``, and whether it is any use to try again."""
    host, port = split_address(address)
    read_tls(tls)
    try:
        connection = _connect(host, port, proxy, seconds)
    except OSError as error:
        return Trouble(_no_connection(host, port, proxy, error, seconds))
    with connection:
        try:
            with _context(tls).wrap_socket(connection, server_hostname=host) as secured:
                return _settled(secured, address, tls)
        except ssl.SSLCertVerificationError as error:
            return Trouble(_bad_server(address, host, error, _its_certificate(host, port, tls, proxy, seconds)), True)
        except ssl.SSLError as error:
            return _alert(address, tls, error)
        except OSError:
            return Trouble(f"{address} cut the connection before TLS was agreed on")


def _settled(secured: ssl.SSLSocket, address: str, tls: TlsFiles) -> Trouble | None:
    """With TLS 1.3 the server judges our certificate after its own part of the handshake: wait for a first word."""
    secured.settimeout(2.0)
    try:
        if secured.recv(1):
            return None
    except ssl.SSLError as error:
        return _alert(address, tls, error)
    except TimeoutError:
        return None
    except OSError:
        pass
    return Trouble(
        _rejected(address, tls, "it hangs up on it, so it finds it out of date or of another authority"), hung_up=True
    )


def _context(tls: TlsFiles, verify: bool = True) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    return context


# ---- connecting ------------------------------------------------------------------------------------------------------


def _connect(host: str, port: int, proxy: str | None, seconds: float) -> socket.socket:
    if proxy is None or is_loopback(host):
        return socket.create_connection((host, port), timeout=seconds)
    user, _, place = proxy.removeprefix("http://").rstrip("/").rpartition("@")
    connection = socket.create_connection(split_address(place), timeout=seconds)
    shown = f"[{host}]" if ":" in host else host
    request = f"CONNECT {shown}:{port} HTTP/1.1\r\nHost: {shown}:{port}\r\n"
    if user:
        request += f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}\r\n"
    connection.sendall(request.encode() + b"\r\n")
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < 8192:
        more = connection.recv(1)
        if not more:
            break
        answer += more
    status = answer.split(b"\r\n", 1)[0].split(b" ")
    if len(status) < 2 or status[1] != b"200":
        connection.close()
        raise _ProxyRefused(status[1].decode(errors="replace") if len(status) > 1 else "no answer")
    return connection


class _ProxyRefused(OSError):  # noqa: N818 - says what happened
    """The proxy does not connect us; the text is its status."""


def _no_connection(host: str, port: int, proxy: str | None, error: OSError, seconds: float) -> str:
    if proxy is not None and not is_loopback(host):
        place = proxy.removeprefix("http://").rstrip("/").rpartition("@")[2]
        if isinstance(error, _ProxyRefused):
            return f"the proxy {place} does not connect to {host}:{port} (it answers {error})"
        return f"the proxy {place}: " + _no_connection(*split_address(place), None, error, seconds)
    match error:
        case socket.gaierror():
            return f'the name "{host}" cannot be resolved ({error.strerror})'
        case ConnectionRefusedError():
            return f"nothing listens at {host}:{port} (connection refused)"
        case TimeoutError():
            return f"no answer from {host}:{port} within {seconds:g} s: is a firewall in between?"
    return f"{host}:{port}: {error.strerror or type(error).__name__}"


# ---- certificates ----------------------------------------------------------------------------------------------------


def _its_certificate(host: str, port: int, tls: TlsFiles, proxy: str | None, seconds: float) -> x509.Certificate | None:
    """The certificate that failed, to name its dates."""
    try:
        with (
            _connect(host, port, proxy, seconds) as connection,
            _context(tls, verify=False).wrap_socket(connection, server_hostname=host) as secured,
        ):
            found = secured.getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(found) if found else None
    except (OSError, ValueError):
        return None


def _bad_server(address: str, host: str, error: ssl.SSLCertVerificationError, found: x509.Certificate | None) -> str:
    code = error.verify_code
    if code in (_EXPIRED, _NOT_YET) and found is not None:
        trouble = date_trouble(found, datetime.datetime.now(datetime.timezone.utc))
        if trouble:
            return f"the certificate of the server at {address} {trouble}"
    if code in (_WRONG_HOST, _WRONG_ADDRESS):
        names = ", ".join(names_of(found)) if found is not None else ""
        return (
            f"the certificate of the server at {address} is not for the name {host}"
            + (f" but for {names}" if names else "")
            + ": dial it by one of its names, or provision the server with this one"
        )
    if code in (_EXPIRED, _NOT_YET):
        return f"the certificate of the server at {address} is {'expired' if code == _EXPIRED else 'not yet valid'}"
    signer = f" (it is signed by “{issuer_of(found)}”)" if found is not None else ""
    return (
        f"the certificate of the server at {address} is not of this consortium's authority{signer}: is it the right "
        f"server, and this kit of the same federation? ({error.verify_message})"
    )


_ALERTS = {
    "CERTIFICATE_EXPIRED": "expired, it says",
    "UNKNOWN_CA": "signed by an authority that it does not know",
    "BAD_CERTIFICATE": "out of date or of another authority, it says",
    "CERTIFICATE_UNKNOWN": "out of date or of another authority, it says",
    "CERTIFICATE_REVOKED": "revoked, it says",
    "CERTIFICATE_REQUIRED": "none came, it says",
    "UNSUPPORTED_CERTIFICATE": "not for silos, it says",
}


def _rejected(address: str, tls: TlsFiles, words: str) -> str:
    own = x509.load_pem_x509_certificates(tls.certificate.read_bytes())[0]
    dates = f"{show_date(own.not_valid_before_utc)} to {show_date(own.not_valid_after_utc)}"
    return (
        f"the server at {address} does not accept this silo's certificate: {words}. It is valid from {dates}, signed "
        f"by “{issuer_of(own)}”: is the server's clock right, and is it of the same federation? Else ask the operator "
        "for a new kit"
    )


def _alert(address: str, tls: TlsFiles, error: ssl.SSLError) -> Trouble:
    """What the server, or whatever answers there, makes of us."""
    reason = error.reason or ""
    for alert, words in _ALERTS.items():
        if reason.endswith("ALERT_" + alert):
            return Trouble(_rejected(address, tls, words), True)
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return Trouble(f"what answers at {address} speaks no TLS: is it the right port?")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Trouble(f"{address} cut the connection before TLS was agreed on")
    return Trouble(f"no TLS with {address} ({reason or type(error).__name__})")
