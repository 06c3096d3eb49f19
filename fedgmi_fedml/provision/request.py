"""A party that makes its own keys: what it sends to the operator, and how the operator reads it.

KIT/identity.pem, KIT/tls.key           made here, mode 0600, never leave
KIT/request/identity.public.json        the card: public key, name, organisation, signed by the key
KIT/request/tls.csr                     asks for a certificate over tls.key
KIT/request/request.json                the identity's signature over the request: whoever compares the card's
                                        fingerprint by telephone has compared the request as well
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.provision import certificates
from fedgmi_fedml.provision.layout import CARD, CSR, IDENTITY, PROOF, REQUEST, TLS_KEY, KitFile, read_kit_file
from fedgmi_fedml.provision.staging import PRIVATE, Stage, recover
from secure.card import Card
from secure.errors import IdentityError
from secure.identity import Identity, is_valid

FORMAT = "fedgmi-request/1"
_LABEL = "certificate-request"
_MAX_BYTES = 1 << 16


class RequestError(FedgmiError):
    """A request cannot be made or is not to be trusted."""


@dataclass(frozen=True)
class Request:
    """What a party asks for, checked: the card's owner signed the certificate request."""

    card: Card
    tls_key: ec.EllipticCurvePublicKey


def make_request(kit: Path, passphrase: str | None = None) -> Request:
    """Make whatever keys a kit lacks, and the folder ``request`` to send back. Again: the same request.

    Args:
        kit: the kit's folder, as the operator sent it.
        passphrase: encrypts a new identity; ``None`` takes FEDGMI_KEY_PASSPHRASE where that is set.

    Raises:
        KitError, RequestError, CertificateError: say what is wrong; nothing has been written then.
    """
    about = read_kit_file(kit)
    stage = Stage(kit)
    try:
        recover(kit)
        identity = _identity(kit, stage, passphrase)
        card = _card(kit, stage, about, identity)
        key = _tls_key(kit, stage)
        try:
            present = read_request(kit / REQUEST, about.federation, about.name)
        except (FedgmiError, IdentityError):
            present = None
        if present is None or present.card != card or not certificates.same_key(present.tls_key, key.public_key()):
            _write(kit / REQUEST, stage, about, identity, card, key)
        stage.commit()
    except OSError as error:
        raise RequestError(f"{kit}: cannot be written ({error.strerror}); nothing was changed") from None
    finally:
        stage.abandon()
    return Request(card, key.public_key())


def _identity(kit: Path, stage: Stage, passphrase: str | None) -> Identity:
    if (kit / IDENTITY).exists():
        return Identity.load(kit / IDENTITY, passphrase)
    identity = Identity.generate()
    identity.save(stage.reserve(kit / IDENTITY), passphrase)
    return identity


def _card(kit: Path, stage: Stage, about: KitFile, identity: Identity) -> Card:
    """The card beside the identity (after ``fedgmi keys rotate`` it carries the old key's word), or a new one."""
    if (kit / CARD).exists():
        card = Card.load(kit / CARD)
        if card.public_key != identity.public_key:
            raise RequestError(f"{kit / CARD}: belongs to another key than {IDENTITY} beside it; remove the wrong one")
        if card.name == about.name and card.role == about.role:
            return card
    card = Card.issue(identity, about.role, about.name, about.organisation or about.name)
    stage.put(kit / CARD, card.to_json())
    return card


def _tls_key(kit: Path, stage: Stage) -> ec.EllipticCurvePrivateKey:
    path = kit / TLS_KEY
    if path.exists():
        return certificates.read_key(path.read_bytes(), str(path))
    key = certificates.new_key()
    stage.put(path, certificates.key_pem(key), PRIVATE)
    return key


def _write(
    folder: Path, stage: Stage, about: KitFile, identity: Identity, card: Card, key: ec.EllipticCurvePrivateKey
) -> None:
    csr = certificates.new_request(key, about.name).public_bytes(Encoding.PEM)
    signature = identity.sign(_LABEL, _signed(about.federation, about.name, csr))
    proof = {"format": FORMAT, "federation": about.federation, "name": about.name, "signature": signature.hex()}
    stage.put(folder / CARD, card.to_json())
    stage.put(folder / CSR, csr)
    stage.put(folder / PROOF, (json.dumps(proof, indent=2) + "\n").encode())


def _signed(federation: str, name: str, csr: bytes) -> bytes:
    return "\0".join((federation, name)).encode() + b"\0" + csr


def read_request(folder: Path, federation: str, name: str) -> Request:
    """Read and check what a party sent.

    Raises:
        RequestError: a file is missing, altered, or meant for another federation or party.
        CertificateError, IdentityError: of the request or the card.
    """
    missing = [file for file in (CARD, CSR, PROOF) if not (folder / file).is_file()]
    if missing:
        raise RequestError(f"{folder}: lacks {', '.join(missing)}; it must hold all files of the silo's folder request")
    card = Card.load(folder / CARD)
    csr, proof = _bytes(folder / CSR), _proof(folder / PROOF)
    if (proof["federation"], proof["name"]) != (federation, name):
        raise RequestError(
            f"{folder}: was made by {proof['name']!r} of federation {proof['federation']!r}, not by {name!r} of "
            f"{federation!r}; put each request into requests/ under its own name"
        )
    if card.name != name:
        raise RequestError(f"{folder / CARD}: is the card of {card.name!r}, not of {name!r}")
    if not is_valid(card.public_key, _LABEL, _signed(federation, name, csr), bytes.fromhex(proof["signature"])):
        raise RequestError(
            f"{folder}: the certificate request is not signed by the card's key: it was altered on its way, or mixed "
            "from two requests; ask for it again"
        )
    return Request(card, certificates.requested_key(csr, str(folder / CSR)))


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > _MAX_BYTES:
        raise RequestError(f"{path}: {len(data):,} bytes is no request (limit {_MAX_BYTES:,})")
    return data


def _proof(path: Path) -> dict[str, str]:
    try:
        document = json.loads(_bytes(path))
        if document["format"] != FORMAT:
            raise ValueError("format")
        bytes.fromhex(document["signature"])
        return {key: str(document[key]) for key in ("federation", "name", "signature")}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RequestError(f"{path}: is not of format {FORMAT}; ask for the request again") from None
