"""A finished kit, as the server and the silos read it: checked whole, every fault told at once.

``load_kit`` checks what never changes: files, rights, and that keys, certificate, roster and policy belong together.
Dates depend on the clock: ``Kit.check_dates``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.provision import certificates
from fedgmi_fedml.provision.layout import (
    CA,
    CONFIG,
    IDENTITY,
    POLICY,
    REQUEST,
    ROSTER,
    TLS,
    TLS_KEY,
    KitError,
    KitFile,
    read_kit_file,
)
from fedgmi_fedml.provision.registry import Role
from fedgmi_fedml.provision.secrets_scan import foreign_secrets
from secure.errors import IdentityError, SecureError
from secure.identity import Identity, fingerprint
from secure.policy import Policy
from secure.roster import Roster, iso_time

__all__ = ["Kit", "KitError", "load_kit"]

WARN_DAYS = 30


@dataclass(frozen=True)
class Kit:
    """One party's kit. Read with ``load_kit``.

    Attributes:
        folder: where it lies.
        role, silo_id, name, federation: whose it is; ``silo_id`` is ``None`` for the server.
        server_address: host:port that silos dial.
        bind: host:port that the server listens on; ``None`` for a silo.
        ca, certificate, key: files for TLS.
        config: the training configuration's file.
    """

    folder: Path
    role: Role
    silo_id: int | None
    name: str
    federation: str
    server_address: str
    bind: str | None
    ca: Path
    certificate: Path
    key: Path
    config: Path

    def identity(self, passphrase: str | None = None) -> Identity:
        """The party's Ed25519 identity; FEDGMI_KEY_PASSPHRASE opens an encrypted one. Raises IdentityError."""
        return Identity.load(self.folder / IDENTITY, passphrase)

    def roster(self) -> Roster:
        """The roster, its signature checked. Raises IdentityError."""
        roster = Roster.load(self.folder / ROSTER)
        policy = self.policy()
        roster.verify(roster.operator_key if policy is None else policy.operator_key)
        return roster

    def policy(self) -> Policy | None:
        """The silo's policy; ``None`` for the server. Raises IdentityError."""
        return Policy.load(self.folder / POLICY) if self.role == "silo" else None

    def window(self) -> tuple[float, float]:
        """First and last moment of the certificate's validity, seconds since 1970."""
        certificate = certificates.read_certificate(self.certificate.read_bytes(), str(self.certificate))
        return certificates.window(certificate)

    def check_dates(self, now: float) -> list[str]:
        """Every certificate, roster and consent that is not in force at ``now``, with the remedy."""
        return self.certificate_dates(now) + self.roster_dates(now)

    def certificate_dates(self, now: float) -> list[str]:
        """This party's certificate and the authority's."""
        found: list[str] = []
        for path in (self.certificate, self.ca):
            first, last = certificates.window(certificates.read_certificate(path.read_bytes(), str(path)))
            found += _dates(path.name, first, last, now)
        return found

    def roster_dates(self, now: float) -> list[str]:
        """The roster, and whether the silo accepted it."""
        roster, policy = self.roster(), self.policy()
        try:
            if policy is None:
                roster.check_current(now)
            else:
                policy.check_roster(roster, now)
        except IdentityError as error:
            return [f"{ROSTER}: {error}"]
        return []

    def ending(self, now: float) -> list[str]:
        """What ends within 30 days, for an early warning."""
        certificate = self.window()[1]
        ends = {TLS: certificate, ROSTER: float(self.roster().expires)}
        return [
            f"{name} ends on {certificates.date(last)}: ask the operator for a renewed kit"
            for name, last in ends.items()
            if 0 < last - now < WARN_DAYS * certificates.DAY
        ]


def _dates(name: str, first: float, last: float, now: float) -> Iterator[str]:
    clock = f"this machine's clock says {iso_time(int(now))}"
    if now < first:
        yield f"{name}: not valid before {iso_time(int(first))}, and {clock}; set the clock right"
    if now > last:
        yield f"{name}: expired on {iso_time(int(last))} ({clock}); ask the operator for a renewed kit"


def load_kit(path: str | os.PathLike[str], passphrase: str | None = None) -> Kit:
    """Read a kit and check that everything in it is there, private where it must be, and belongs together.

    Args:
        passphrase: of an encrypted identity; ``None`` takes FEDGMI_KEY_PASSPHRASE.

    Raises:
        KitError: with every fault: file, reason, remedy.
    """
    folder = Path(path)
    about = read_kit_file(folder)
    missing = list(_missing(folder, about))
    if missing:
        raise KitError(str(folder), missing)
    kit = Kit(
        folder,
        about.role,
        about.silo_id,
        about.name,
        about.federation,
        about.server,
        about.bind,
        folder / CA,
        folder / TLS,
        folder / TLS_KEY,
        folder / CONFIG,
    )
    problems = [*_modes(folder), *_Fit(kit, about, passphrase).problems()]
    if problems:
        raise KitError(str(folder), problems)
    return kit


def _missing(folder: Path, about: KitFile) -> Iterator[str]:
    """Files that are not there, and what each absence means."""
    wanted = [CA, TLS, TLS_KEY, IDENTITY, ROSTER, CONFIG, *([POLICY] if about.role == "silo" else [])]
    absent = [name for name in wanted if not (folder / name).is_file()]
    if not absent:
        return
    keys = [name for name in (IDENTITY, TLS_KEY) if name in absent]
    if keys and TLS in absent:
        yield f"lacks {' and '.join(keys)}: make them here with: fedgmi provision request {folder}"
    elif keys:
        yield (
            f"lacks {' and '.join(keys)}: this is an update; copy its files over the kit that holds the private keys. "
            "Are they lost? Tell the operator, who replaces them (--rekey)"
        )
    waiting = [name for name in (TLS, ROSTER) if name in absent]
    if waiting and not keys:
        sent = f"send the folder {folder / REQUEST} to the operator, and " if (folder / REQUEST).is_dir() else ""
        yield f"lacks {' and '.join(waiting)}, which the operator makes: {sent}wait for the completed kit"
    if POLICY in absent and not keys and not waiting:
        yield f"lacks {POLICY}, this silo's consent: fedgmi provision accept {folder}"
    for name in (CA, CONFIG):
        if name in absent:
            yield f"lacks {name}; ask the operator for the kit again"


def _modes(folder: Path) -> Iterator[str]:
    """Private files that others can read."""
    for name in (TLS_KEY, IDENTITY):
        mode = (folder / name).stat().st_mode & 0o777
        if os.name == "posix" and mode & 0o077:
            yield f"{name} can be read by others (mode {mode:04o}); run: chmod 600 {folder / name}"


class _Fit:
    """Do the parts of a kit belong together?"""

    def __init__(self, kit: Kit, about: KitFile, passphrase: str | None) -> None:
        self.kit, self.about = kit, about
        self.found: list[str] = []
        self.ca = self._read(CA)
        self.certificate = self._read(TLS)
        self.roster, self.policy = self._roster(), self._policy()
        self.identity = self._identity(passphrase)

    def problems(self) -> list[str]:
        """Everything that does not fit."""
        self.found += self._tls()
        self.found += self._people()
        self.found += foreign_secrets(self.kit.folder, self.kit.role, self.roster, self.ca)
        return self.found

    def _read(self, name: str) -> x509.Certificate | None:
        try:
            return certificates.read_certificate((self.kit.folder / name).read_bytes(), name)
        except (FedgmiError, OSError) as error:
            self.found.append(f"{error}; ask the operator for the kit again")
            return None

    def _roster(self) -> Roster | None:
        try:
            roster = Roster.load(self.kit.folder / ROSTER)
            roster.verify(roster.operator_key)
        except SecureError as error:
            self.found.append(_short(error, self.kit.folder))
            return None
        operator = fingerprint(roster.operator_key)
        if self.about.operator is not None and operator != self.about.operator:
            self.found.append(f"{ROSTER}: is signed by {operator}, the kit's operator is {self.about.operator}")
        return roster

    def _policy(self) -> Policy | None:
        if self.kit.role == "server":
            return None
        try:
            return Policy.load(self.kit.folder / POLICY)
        except SecureError as error:
            self.found.append(_short(error, self.kit.folder))
            return None

    def _identity(self, passphrase: str | None) -> Identity | None:
        path = self.kit.folder / IDENTITY
        if os.name == "posix" and path.stat().st_mode & 0o077:
            return None  # told already
        try:
            return Identity.load(path, passphrase)
        except SecureError as error:
            self.found.append(_short(error, self.kit.folder))
            return None

    def _tls(self) -> Iterator[str]:
        """Certificate, key, authority and the party that the certificate names."""
        about, certificate = self.about, self.certificate
        if certificate is None:
            return
        if self.ca is not None and not certificates.is_issued_by(certificate, self.ca):
            yield f"{TLS}: is not signed by {CA} beside it: they are of two federations, or of two authorities"
        wanted = certificates.server_uri(about.federation)
        if about.silo_id is not None:
            wanted = certificates.silo_uri(about.federation, about.silo_id)
        found = certificates.uris(certificate)
        if found != [wanted]:
            yield f"{TLS}: is the certificate of {', '.join(found) or 'nobody'}, this kit is {wanted}"
        try:
            key = certificates.read_key((self.kit.folder / TLS_KEY).read_bytes(), TLS_KEY)
        except (FedgmiError, OSError) as error:
            yield f"{error}"
            return
        if not certificates.same_key(key.public_key(), certificates.certificate_key(certificate)):
            yield f"{TLS_KEY}: does not belong to {TLS}: the kit is mixed from two, or a new certificate is awaited"

    def _people(self) -> Iterator[str]:
        """Identity, roster and policy."""
        roster, policy, identity = self.roster, self.policy, self.identity
        if roster is None:
            return
        if self.about.silo_id is None:
            listed, place = roster.server_key, "the server's key"
        else:
            entry = next((entry for entry in roster.silos if entry.silo_id == self.about.silo_id), None)
            if entry is None:
                gone = "was revoked" if self.about.silo_id in roster.retired else "is not listed"
                yield f"{ROSTER}: silo {self.about.silo_id} {gone} in version {roster.version}; ask the operator"
                return
            if entry.name != self.about.name:
                yield f"{ROSTER}: silo {entry.silo_id} is {entry.name!r}, this kit is {self.about.name!r}'s"
            listed, place = entry.public_key, f"the key of silo {entry.silo_id}"
        if identity is not None and identity.public_key != listed:
            yield (
                f"{IDENTITY}: is {identity.fingerprint()}, but {place} in roster version {roster.version} is "
                f"{fingerprint(listed)}; after a rotation the operator's new roster is needed"
            )
        if policy is not None and policy.operator_key != roster.operator_key:
            yield f"{POLICY}: trusts another operator ({fingerprint(policy.operator_key)}) than signed {ROSTER}"
        elif policy is not None and policy.roster_digest != roster.digest():
            yield (
                f"{POLICY}: accepts roster version {policy.roster_version}, the kit holds version {roster.version}; "
                f"review it, then: fedgmi provision accept {self.kit.folder}"
            )


def _short(error: Exception, folder: Path) -> str:
    """Messages of ``secure`` name the whole path; the kit's folder is said once."""
    return str(error).replace(f"{folder}{os.sep}", "")
