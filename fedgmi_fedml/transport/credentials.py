"""The files behind mutual TLS, read and judged before anything is dialled or bound; all trouble in words and dates."""

from __future__ import annotations

import datetime
import logging
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from fedgmi_fedml.transport.api import LinkError

log = logging.getLogger(__name__)

WARNING_DAYS = 14
"""So long before a certificate's end it is said."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the consortium's authority, this party's certificate (chain), and its private key."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, repr=False)
class TlsBytes:
    """What the files hold, judged fit."""

    ca: bytes
    certificate: bytes
    key: bytes


def server_uri(federation: str) -> str:
    """What the server's certificate says it is."""
    return f"fedgmi:{federation}/server"


def silo_uri(federation: str, silo: int) -> str:
    """What a silo's certificate says it is."""
    return f"fedgmi:{federation}/silo/{silo}"


def certificate_dates(tls: TlsFiles) -> tuple[datetime.datetime, datetime.datetime]:
    """First and last moment of this party's certificate, UTC.

    Raises:
        LinkError: it cannot be read.
    """
    certificate = _certificates(tls.certificate)[0]
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def expiry_warning(tls: TlsFiles, now: datetime.datetime | None = None) -> str | None:
    """A sentence where the certificate or its authority ends within a fortnight, else ``None``.

    Raises:
        LinkError: they cannot be read.
    """
    moment = now or _now()
    for path, what in ((tls.certificate, "this party's TLS certificate"), (tls.ca, "the consortium's TLS authority")):
        ends = _certificates(path)[0].not_valid_after_utc
        if ends - moment < datetime.timedelta(days=WARNING_DAYS):
            return f"{what} ({path.name}) expires on {show_date(ends)}: ask the operator for a new kit"
    return None


def read_own_tls(tls: TlsFiles) -> TlsBytes:
    """``read_tls`` as a party starts: certificates that end soon are said, once.

    Raises:
        LinkError: (fatal) as for ``read_tls``.
    """
    content, warning = read_tls(tls), expiry_warning(tls)
    if warning:
        log.warning("%s", warning)
    return content


def read_tls(tls: TlsFiles, now: datetime.datetime | None = None) -> TlsBytes:
    """The three files, once they can be used together and today.

    Raises:
        LinkError: (fatal) missing, unreadable, no PEM, encrypted, not a pair, expired, not yet valid, or not of this
            authority; the message names the file and what to do.
    """
    content = TlsBytes(_read(tls.ca), _read(tls.certificate), _read(tls.key))
    chain, authorities = _certificates(tls.certificate), _certificates(tls.ca)
    if b"ENCRYPTED" in content.key:
        raise _fatal(f"{tls.key}: is encrypted; the TLS key of a kit is kept without a passphrase, mode 0600")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: b"-")
    except (ssl.SSLError, ValueError, OSError):
        raise _fatal(f"{tls.key}: is not the private key of {tls.certificate.name}: take both from one kit") from None
    for certificate, path in [(chain[0], tls.certificate), (authorities[0], tls.ca)]:
        trouble = date_trouble(certificate, now or _now())
        if trouble:
            raise _fatal(f"{path}: {trouble}")
    if not any(_issued(chain[-1], authority) for authority in authorities):
        raise _fatal(
            f"{tls.certificate}: is signed by “{_name(chain[-1].issuer)}”, not by the consortium's authority "
            f"“{_name(authorities[0].subject)}” ({tls.ca.name}): take both from one kit"
        )
    return content


def date_trouble(certificate: x509.Certificate, now: datetime.datetime) -> str:
    """``expired on …`` or ``not valid before …``; empty where neither."""
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        return f"expired on {show_date(last)} (today is {show_date(now)}): ask the operator for a new kit"
    if now < first:
        return f"is not valid before {show_date(first)}; this machine's clock says {show_date(now)}: is it right?"
    return ""


def uris_of(certificate: x509.Certificate) -> Collection[str]:
    """The URIs in a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def names_of(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses in a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def issuer_of(certificate: x509.Certificate) -> str:
    """The common name of whoever signed it."""
    return _name(certificate.issuer)


def show_date(moment: datetime.datetime) -> str:
    """``2031-05-04 12:30 UTC``."""
    return moment.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _fatal(message: str) -> LinkError:
    return LinkError(message, fatal=True)


def _read(path: Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _fatal(
            f"{path}: cannot be read ({error.strerror or type(error).__name__}); it belongs to the kit"
        ) from None


def _certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, at least one."""
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except (ValueError, UnsupportedAlgorithm):
        raise _fatal(f"{path}: holds no certificate in PEM form") from None


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()
