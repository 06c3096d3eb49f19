"""The operator's register: every party that ever took part, with its id, public key and certificate. Nothing secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cryptography import x509

from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.provision.certificates import pem_of, read_certificate
from secure.card import Card
from secure.errors import SecureError

FORMAT = "fedgmi-registry/1"

Role = Literal["silo", "server"]


class RegistryError(FedgmiError):
    """The register is missing or damaged."""


@dataclass
class Party:
    """The server or a silo.

    Attributes:
        role, name: as in the project.
        silo_id: 1, 2, …; ``None`` for the server. Never given to another silo.
        card: public key card; ``None`` while its own request is awaited.
        certificate: its TLS certificate; ``None`` likewise.
    """

    role: Role
    name: str
    silo_id: int | None
    card: Card | None = None
    certificate: x509.Certificate | None = None

    @property
    def folder(self) -> str:
        """Name of its kit's folder."""
        return "server" if self.role == "server" else f"silo-{self.name}"


@dataclass
class Registry:
    """All parties of a federation.

    Attributes:
        federation: its name; certificates carry it.
        server, silos: who takes part; silos by name, in the order of their ids.
        revoked: former silos: name, id, fingerprint, serial of the last certificate.
    """

    federation: str
    server: Party | None = None
    silos: dict[str, Party] = field(default_factory=dict)
    revoked: list[dict[str, Any]] = field(default_factory=list)

    def next_id(self) -> int:
        """An id that nobody ever had."""
        return (
            max([0, *(party.silo_id or 0 for party in self.silos.values()), *(gone["id"] for gone in self.revoked)]) + 1
        )

    def retired(self) -> tuple[int, ...]:
        """Ids of silos that left."""
        return tuple(sorted(gone["id"] for gone in self.revoked))

    def revoke(self, name: str) -> Party:
        """Take a silo off; its id is remembered."""
        party = self.silos.pop(name)
        self.revoked.append(
            {
                "name": name,
                "id": party.silo_id,
                "fingerprint": party.card.fingerprint() if party.card else None,
                "serial": f"{party.certificate.serial_number:x}" if party.certificate else None,
            }
        )
        return party

    def to_json(self) -> bytes:
        """The file's form: readable, the same bytes for the same content."""
        document = {
            "format": FORMAT,
            "federation": self.federation,
            "server": _write(self.server) if self.server else None,
            "silos": [_write(party) for party in self.silos.values()],
            "revoked": self.revoked,
        }
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def load(cls, path: Path) -> Registry:
        """Read the register. Raises RegistryError."""
        try:
            document = json.loads(path.read_bytes())
            if document["format"] != FORMAT:
                raise ValueError("format")
            silos = [_read(entry, "silo") for entry in document["silos"]]
            server = None if document["server"] is None else _read(document["server"], "server")
            revoked = [{"name": str(gone["name"]), "id": int(gone["id"]), **gone} for gone in document["revoked"]]
            return cls(str(document["federation"]), server, {party.name: party for party in silos}, revoked)
        except OSError as error:
            raise RegistryError(f"{path}: cannot be read ({error.strerror}); restore it from a backup") from None
        except (ValueError, TypeError, KeyError, AttributeError, SecureError, FedgmiError):
            raise RegistryError(f"{path}: is damaged, or not of format {FORMAT}; restore it from a backup") from None


def _write(party: Party) -> dict[str, Any]:
    card, certificate = party.card, party.certificate
    return {
        "name": party.name,
        "id": party.silo_id,
        "fingerprint": card.fingerprint() if card else None,
        "serial": f"{certificate.serial_number:x}" if certificate else None,
        "card": json.loads(card.to_json()) if card else None,
        "certificate": pem_of(certificate).decode() if certificate else None,
    }


def _read(entry: Mapping[str, Any], role: Role) -> Party:
    card = None if entry["card"] is None else Card.from_json(json.dumps(entry["card"]).encode())
    text = entry["certificate"]
    certificate = None if text is None else read_certificate(text.encode(), entry["name"])
    silo_id = entry["id"] if role == "server" else int(entry["id"])
    return Party(role, str(entry["name"]), silo_id, card, certificate)
