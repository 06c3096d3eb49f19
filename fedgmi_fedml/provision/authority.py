"""The operator's own folder: certificate authority, operator's identity, register and the roster in force.

It must never be on the server: whoever holds it decides who takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.provision import certificates
from fedgmi_fedml.provision.certificates import Authority
from fedgmi_fedml.provision.layout import AUTHORITY_KEY, CA, OPERATOR, OPERATOR_CARD, README, REGISTRY, ROSTER
from fedgmi_fedml.provision.readmes import authority_readme
from fedgmi_fedml.provision.registry import Registry
from fedgmi_fedml.provision.staging import PRIVATE, Stage
from secure.card import Card
from secure.identity import Identity
from secure.roster import Roster

FOLDER = "authority"


class AuthorityError(FedgmiError):
    """The operator's folder is incomplete, damaged or of another federation."""


@dataclass
class Office:
    """What the operator works with.

    Attributes:
        ca: signs TLS certificates.
        operator: signs rosters; ``card`` is its public card.
        registry: who takes part.
        roster: in force; ``None`` before the first.
        is_new: made just now.
    """

    ca: Authority
    operator: Identity
    card: Card
    registry: Registry
    roster: Roster | None
    is_new: bool = False


def open_office(out: Path, federation: str, operator: str, now: float, passphrase: str | None) -> Office:
    """The operator's folder below ``out``, read, or made in memory where there is none.

    Raises:
        AuthorityError, CertificateError, RegistryError, IdentityError: say which file and what to do.
    """
    folder = out / FOLDER
    names = (AUTHORITY_KEY, CA, OPERATOR, OPERATOR_CARD, REGISTRY)
    missing = [name for name in names if not (folder / name).exists()]
    if len(missing) == len(names):
        identity = Identity.generate()
        card = Card.issue(identity, "operator", operator, operator)
        return Office(certificates.new_authority(federation, now), identity, card, Registry(federation), None, True)
    if missing:
        raise AuthorityError(
            f"{folder}: lacks {', '.join(missing)}; restore it from a backup, or begin anew in an empty folder (--out) "
            "with new kits for everybody"
        )
    registry = Registry.load(folder / REGISTRY)
    if registry.federation != federation:
        raise AuthorityError(
            f"{folder}: is the authority of federation {registry.federation!r}, the project names {federation!r}; "
            "correct federation, or choose another --out"
        )
    ca = _authority(folder, passphrase)
    identity = Identity.load(folder / OPERATOR, passphrase)
    roster = Roster.load(folder / ROSTER) if (folder / ROSTER).exists() else None
    if roster is not None:
        roster.verify(identity.public_key)
    return Office(ca, identity, Card.load(folder / OPERATOR_CARD), registry, roster)


def _authority(folder: Path, passphrase: str | None) -> Authority:
    """Key and certificate, which belong together."""
    path = folder / AUTHORITY_KEY
    try:
        if path.stat().st_mode & 0o077:
            raise AuthorityError(f"{path}: can be read by others; run: chmod 600 {path}")
        key_pem, certificate_pem = path.read_bytes(), (folder / CA).read_bytes()
    except OSError as error:
        raise AuthorityError(f"{error.filename}: cannot be read ({error.strerror})") from None
    key = certificates.read_key(key_pem, str(path), passphrase)
    certificate = certificates.read_certificate(certificate_pem, str(folder / CA))
    if not certificates.same_key(key.public_key(), certificates.certificate_key(certificate)):
        raise AuthorityError(f"{folder}: {CA} is not the certificate of {AUTHORITY_KEY}; restore both from a backup")
    return Authority(key, certificate)


def stage_office(stage: Stage, out: Path, office: Office, passphrase: str | None) -> None:
    """Whatever of the operator's folder is new or has changed."""
    folder = out / FOLDER
    if office.is_new:
        stage.put(folder / AUTHORITY_KEY, certificates.key_pem(office.ca.key, passphrase), PRIVATE)
        stage.put(folder / CA, certificates.pem_of(office.ca.certificate))
        office.operator.save(stage.reserve(folder / OPERATOR), passphrase, environ={})
        stage.put(folder / OPERATOR_CARD, office.card.to_json())
    if office.roster is not None:
        stage.put(folder / ROSTER, office.roster.to_json())
    stage.put(folder / README, authority_readme(office.registry, office.card.fingerprint()).encode())
    stage.put(folder / REGISTRY, office.registry.to_json())
