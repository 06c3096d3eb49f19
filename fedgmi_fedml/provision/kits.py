"""The files of each kit, made from the register; only what differs from the disk is written."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from fedgmi_fedml.provision import certificates
from fedgmi_fedml.provision.authority import Office
from fedgmi_fedml.provision.consent import policy_for
from fedgmi_fedml.provision.layout import (
    CA,
    CARD,
    CONFIG,
    IDENTITY,
    KIT,
    POLICY,
    README,
    ROSTER,
    TLS,
    TLS_KEY,
    KitFile,
)
from fedgmi_fedml.provision.project import Settled
from fedgmi_fedml.provision.readmes import Facts, kit_readme
from fedgmi_fedml.provision.registry import Party
from fedgmi_fedml.provision.staging import PRIVATE, Stage
from secure.errors import IdentityError
from secure.identity import Identity

_TOLD = {ROSTER: "roster", CONFIG: "configuration", KIT: "kit.json", POLICY: "policy"}


class KitWriter:
    """Puts kits on a stage.

    Args:
        stage: collects the files.
        out: folder of all kits.
        office: authority, register and roster, as they will be.
        settled: the project.
    """

    def __init__(self, stage: Stage, out: Path, office: Office, settled: Settled) -> None:
        self.stage, self.out, self.office, self.settled = stage, out, office, settled

    def write(
        self,
        party: Party,
        identity: Identity | None,
        tls_key: ec.EllipticCurvePrivateKey | None,
        superseded: bool = False,
    ) -> list[str]:
        """All files of one kit. Returns, in words, which of those that matter have changed.

        Args:
            identity, tls_key: private keys made just now; those made before are in the kit, or were given out.
            superseded: keys in the kit that are no longer the party's are moved aside.
        """
        folder = self.out / party.folder
        existed = (folder / KIT).exists()
        holds_keys = identity is not None or self._holds_keys(party)
        if superseded and not holds_keys:
            self._set_aside(folder)
        if identity is not None:
            identity.save(self.stage.reserve(folder / IDENTITY), environ={})
        if tls_key is not None:
            self.stage.put(folder / TLS_KEY, certificates.key_pem(tls_key), PRIVATE)
        files = self._files(party)
        if self._has_policy(party, holds_keys) and self.office.roster is not None:
            policy = policy_for(self.office.roster, self.settled.config)
            files[POLICY] = (json.dumps(policy.to_mapping(), indent=2) + "\n").encode()
        files[README] = kit_readme(self._facts(party, holds_keys)).encode()
        changed = [name for name, data in files.items() if self.stage.put(folder / name, data, mode_of(name))]
        if not existed:
            return ["kit written"]
        return [f"new {_TOLD[name]}" for name in changed if name in _TOLD]

    def _holds_keys(self, party: Party) -> bool:
        """Whether the operator made the party's present identity, and it is still in the kit here."""
        path = self.out / party.folder / IDENTITY
        if party.card is None or self._source(party) != "make" or not path.exists():
            return False
        try:
            return Identity.load(path).public_key == party.card.public_key
        except IdentityError:  # encrypted by its owner, say: not the operator's to use
            return False

    def _set_aside(self, folder: Path) -> None:
        for name in (IDENTITY, TLS_KEY):
            if (folder / name).exists():
                self.stage.move(folder / name, folder / f"{name}.old")

    def _files(self, party: Party) -> dict[str, bytes]:
        """What can be read by anybody among the parties."""
        project, office = self.settled.project, self.office
        is_server = party.role == "server"
        about = KitFile(
            role=party.role,
            silo_id=party.silo_id,
            name=party.name,
            federation=project.federation,
            server=project.server.address,
            bind=self.settled.bind if is_server else None,
            organisation=None if is_server else self._organisation(party),
            operator=office.operator.fingerprint(),
        )
        files = {KIT: about.to_json(), CA: certificates.pem_of(office.ca.certificate), CONFIG: self.settled.config_text}
        if party.certificate is not None:
            files[TLS] = certificates.pem_of(party.certificate)
        if party.card is not None:
            files[CARD] = party.card.to_json()
        if office.roster is not None and (is_server or self._is_listed(party)):
            files[ROSTER] = office.roster.to_json()
        return files

    def _has_policy(self, party: Party, holds_keys: bool) -> bool:
        """Whether the operator consents for a silo: only where the operator has its keys anyway."""
        return party.role == "silo" and holds_keys and self._is_listed(party)

    def _is_listed(self, party: Party) -> bool:
        roster = self.office.roster
        return roster is not None and any(entry.silo_id == party.silo_id for entry in roster.silos)

    def _source(self, party: Party) -> str:
        project = self.settled.project
        if party.role == "server":
            return project.server.identity
        return next(entry.identity for entry in project.silos if entry.name == party.name)

    def _organisation(self, party: Party) -> str:
        return next(e.organisation or e.name for e in self.settled.project.silos if e.name == party.name)

    def _facts(self, party: Party, holds_keys: bool) -> Facts:
        certificate = party.certificate
        return Facts(
            party=party,
            federation=self.settled.project.federation,
            operator_name=self.settled.project.operator,
            operator=self.office.operator.fingerprint(),
            server=self.settled.project.server.address,
            bind=self.settled.bind,
            hosts=self.settled.hosts,
            until=None if certificate is None else certificates.date(certificates.window(certificate)[1]),
            roster=self.office.roster if party.role == "server" or self._is_listed(party) else None,
            holds_keys=holds_keys,
            unprotected=self.settled.config.fedgmi_args.secure.backend == "none",
        )


def mode_of(name: str) -> int:
    """Permission bits of a kit's file: what ``secure`` keeps to the owner stays there."""
    return PRIVATE if name in (POLICY, IDENTITY, TLS_KEY) else 0o644
