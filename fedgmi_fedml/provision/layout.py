"""Names of a kit's files, and ``kit.json``, which says whose kit it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgmi_fedml.config.base import suggestion
from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.provision.registry import Role

FORMAT = "fedgmi-kit/1"

KIT = "kit.json"
CA, TLS, TLS_KEY = "ca.pem", "tls.pem", "tls.key"
IDENTITY, CARD = "identity.pem", "identity.public.json"
ROSTER, POLICY, CONFIG, README = "roster.json", "policy.json", "config.yaml", "README.md"
REQUEST, CSR, PROOF = "request", "tls.csr", "request.json"

AUTHORITY_KEY, OPERATOR, OPERATOR_CARD, REGISTRY = "ca.key", "operator.pem", "operator.public.json", "registry.json"

_MAX_BYTES = 1 << 16


class KitError(FedgmiError):
    """A kit cannot be used.

    Attributes:
        problems: everything that is wrong with it, a sentence each.
    """

    def __init__(self, where: str, problems: list[str]) -> None:
        listing = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"{where}: {problems[0]}" if len(problems) == 1 else f"{where}: cannot be used{listing}")
        self.problems = tuple(problems)


@dataclass(frozen=True)
class KitFile:
    """What ``kit.json`` says.

    Attributes:
        role, name, federation: whose kit it is.
        silo_id: the silo's number in the roster; ``None`` for the server.
        server: host:port that silos dial.
        bind: host:port to listen on; server only.
        organisation: the silo's; contributors count by organisation.
        operator: fingerprint of the operator's key, which signs rosters.
    """

    role: Role
    silo_id: int | None
    name: str
    federation: str
    server: str
    bind: str | None = None
    organisation: str | None = None
    operator: str | None = None

    def to_json(self) -> bytes:
        """The file's form."""
        document: dict[str, Any] = {"format": FORMAT, "role": self.role, "silo_id": self.silo_id, "name": self.name}
        document |= {"organisation": self.organisation} if self.organisation else {}
        document |= {"federation": self.federation, "operator": self.operator, "server": self.server}
        document |= {"bind": self.bind} if self.role == "server" else {}
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def read_kit_file(folder: Path) -> KitFile:
    """Read ``kit.json``.

    Raises:
        KitError: no folder, no kit, another format, or unknown, missing and wrong values.
    """
    path = folder / KIT
    if not folder.is_dir():
        what = "is a file; a kit is a folder" if folder.exists() else "no such folder"
        raise KitError(str(folder), [f"{what}; give the folder that the operator sent (--kit)"])
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        hint = "; the kits are in its subfolders" if any(folder.glob(f"*/{KIT}")) else ""
        raise KitError(str(folder), [f"holds no {KIT}, so it is no kit{hint}"]) from None
    except OSError as error:
        raise KitError(str(path), [f"cannot be read ({error.strerror})"]) from None
    try:
        document = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise KitError(str(path), ["is not JSON; ask the operator for the kit again"])
    if document.get("format") != FORMAT:
        raise KitError(
            str(path), [f"is of format {document.get('format')!r}, this version reads {FORMAT}; use the same version"]
        )
    problems = _problems(document)
    if problems:
        raise KitError(str(path), problems)
    return KitFile(**{key: value for key, value in document.items() if key != "format"})


def _problems(document: dict[str, Any]) -> list[str]:
    """Unknown, missing and wrong values."""
    known = ["format", *KitFile.__dataclass_fields__]
    found = [f"unknown key {key!r}: {suggestion(key, known)}" for key in document if key not in known]
    role, silo_id = document.get("role"), document.get("silo_id")
    if role not in ("silo", "server"):
        found.append(f"role must be silo or server, is {role!r}")
    for key in ("name", "federation", "server", *(["bind"] if role == "server" else [])):
        if not isinstance(document.get(key), str) or not document[key]:
            found.append(f"{key} is missing or no text")
    for key in ("organisation", "operator"):
        if not isinstance(document.get(key), (str, type(None))):
            found.append(f"{key} must be text")
    whole = isinstance(silo_id, int) and not isinstance(silo_id, bool) and 1 <= silo_id <= 65535
    if role == "silo" and not whole:
        found.append(f"silo_id must lie in 1 … 65535, is {silo_id!r}")
    if role == "server" and silo_id is not None:
        found.append("a server's kit has no silo_id (null)")
    return found
