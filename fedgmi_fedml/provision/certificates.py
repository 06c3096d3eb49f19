"""X.509 for one federation: its own authority, a certificate for each party, and requests for them.

Everything is ECDSA on P-256. A request contributes its public key only, with proof that its sender holds the private
one: names in a certificate are the operator's word. The URI in a certificate says which party it is:

    fedgmi:<federation>/server        fedgmi:<federation>/silo/<id>
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.transport.credentials import server_uri, silo_uri

__all__ = ["Authority", "CertificateError", "server_uri", "silo_uri"]

DAY = 86_400
"""Seconds."""

AUTHORITY_DAYS = 3650
LEEWAY = DAY
"""Certificates begin so much earlier, seconds: a clock that is hours off stops nobody."""

RENEW_DAYS = 30


class CertificateError(FedgmiError):
    """A key, certificate or request cannot be read or does not fit."""


@dataclass(frozen=True, repr=False)
class Authority:
    """The federation's certificate authority: its private key signs who may connect."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh key from the operating system's randomness."""
    return ec.generate_private_key(ec.SECP256R1())


def new_authority(federation: str, now: float) -> Authority:
    """A self-signed authority for ten years; it may sign parties and no further authorities."""
    key = new_key()
    name = _name(f"{federation} authority")
    builder = _builder(name, name, key.public_key(), now - LEEWAY, now + AUTHORITY_DAYS * DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Authority(key, builder.sign(key, hashes.SHA256()))


def issue(
    authority: Authority,
    public_key: ec.EllipticCurvePublicKey,
    name: str,
    uri: str,
    hosts: Sequence[str],
    now: float,
    days: int,
) -> x509.Certificate:
    """A party's certificate; ``hosts`` make it a server's. It never outlives the authority.

    Raises:
        CertificateError: the authority itself has expired.
    """
    ends = authority.certificate.not_valid_after_utc.timestamp()
    if ends <= now:
        raise CertificateError(
            f"the federation's authority expired on {date(ends)}: begin anew in an empty folder (--out), with new kits"
        )
    first = max(now - LEEWAY, authority.certificate.not_valid_before_utc.timestamp())
    builder = _builder(_name(name), authority.certificate.subject, public_key, first, min(now + days * DAY, ends))
    names: list[x509.GeneralName] = [_general(host) for host in hosts]
    names.append(x509.UniformResourceIdentifier(uri))
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(authority=False), True),
        (x509.ExtendedKeyUsage([purpose]), False),
        (x509.SubjectAlternativeName(names), False),
        (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
        (issuer, False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, first: float, last: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(first))
        .not_valid_after(_time(last))
    )


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc)


def date(seconds: float) -> str:
    """``2031-05-04`` of seconds since 1970, UTC."""
    return _time(seconds).strftime("%Y-%m-%d")


# ---- requests --------------------------------------------------------------------------------------------------------


def new_request(key: ec.EllipticCurvePrivateKey, name: str) -> x509.CertificateSigningRequest:
    """A request for a certificate over this key."""
    return x509.CertificateSigningRequestBuilder().subject_name(_name(name)).sign(key, hashes.SHA256())


def requested_key(pem: bytes, where: str) -> ec.EllipticCurvePublicKey:
    """The public key that a request asks a certificate for, its possession proved.

    Raises:
        CertificateError: no request, altered, or another kind of key.
    """
    try:
        request = x509.load_pem_x509_csr(pem)
        valid = request.is_signature_valid
        key = request.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(f"{where}: is not a certificate request in PEM form") from None
    if not valid:
        raise CertificateError(f"{where}: the certificate request is altered: ask for it again")
    return _p256(key, where)


# ---- what files hold -------------------------------------------------------------------------------------------------


def pem_of(certificate: x509.Certificate) -> bytes:
    """PEM of a certificate."""
    return certificate.public_bytes(Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey, passphrase: str | None = None) -> bytes:
    """PKCS #8 PEM of a private key, encrypted where there is a passphrase."""
    encryption: KeySerializationEncryption = NoEncryption()
    if passphrase:
        encryption = BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def read_key(pem: bytes, where: str, passphrase: str | None = None) -> ec.EllipticCurvePrivateKey:
    """Undo ``key_pem``.

    Raises:
        CertificateError: no P-256 key, encrypted without passphrase, or the wrong one.
    """
    encrypted = b"ENCRYPTED" in pem[:64]
    if encrypted and not passphrase:
        raise CertificateError(f"{where}: is encrypted; give its passphrase")
    try:
        key = load_pem_private_key(pem, passphrase.encode() if encrypted and passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        cause = "wrong passphrase or damaged" if encrypted else "is not a private key in PEM form"
        raise CertificateError(f"{where}: {cause}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"{where}: is another kind of key than ECDSA on P-256")
    return key


def read_certificate(pem: bytes, where: str) -> x509.Certificate:
    """The first certificate of a PEM file over a P-256 key.

    Raises:
        CertificateError: there is none.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(f"{where}: is not a certificate in PEM form") from None
    _p256(key, where)
    return certificate


def certificate_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Its public key."""
    return _p256(certificate.public_key(), "certificate")


def _p256(key: object, where: str) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"{where}: is over another kind of key than ECDSA on P-256")
    return key


def same_key(one: ec.EllipticCurvePublicKey, other: ec.EllipticCurvePublicKey) -> bool:
    """Whether two public keys are equal."""
    return key_bytes(one) == key_bytes(other)


def key_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """Uncompressed point, 65 bytes."""
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether this authority signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def uris(certificate: x509.Certificate) -> list[str]:
    """The URIs in a certificate."""
    return _names(certificate, x509.UniformResourceIdentifier)


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """DNS names, then addresses."""
    return _names(certificate, x509.DNSName) + _names(certificate, x509.IPAddress)


def _names(certificate: x509.Certificate, kind: type[x509.GeneralName]) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [str(name) for name in names.get_values_for_type(kind)]  # type: ignore[arg-type]  # one of the kinds it takes


def common_name(certificate: x509.Certificate) -> str:
    """The subject's name; empty where there is none."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def window(certificate: x509.Certificate) -> tuple[float, float]:
    """First and last moment of validity, seconds since 1970."""
    return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()


def is_ending(first: float, last: float, now: float) -> bool:
    """Whether something that is valid from ``first`` to ``last`` is due for renewal: within 30 days of its end, or for
    short lives within their last third."""
    return last - now < min(RENEW_DAYS * DAY, (last - first) / 3)
