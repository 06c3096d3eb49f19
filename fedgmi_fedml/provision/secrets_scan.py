"""Private keys that must not be in a kit: a server that held one could act for a silo, or for the operator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedgmi_fedml.provision import certificates
from fedgmi_fedml.provision.layout import IDENTITY, TLS_KEY
from fedgmi_fedml.provision.registry import Role
from secure.roster import Roster

_MAX_BYTES = 1 << 16
"""Files that hold a key are small; whatever else a kit's folder has come to hold is passed over."""

_MAX_FILES = 2000
_PEM = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.+?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


def foreign_secrets(folder: Path, role: Role, roster: Roster | None, ca: x509.Certificate | None) -> Iterator[str]:
    """Every private key below ``folder`` that this party must not have.

    Refused in any kit: the authority's, the operator's, another party's. In the server's kit also whatever cannot be
    told apart from these: encrypted or unknown keys beyond its own two (a rotated key that was kept aside may stay).
    """
    for path in sorted(folder.rglob("*"))[:_MAX_FILES]:
        name = str(path.relative_to(folder))
        own = name in (IDENTITY, TLS_KEY)
        for match in _keys(path):
            owner = _owner(match, roster, ca)
            if owner in ("the authority", "the operator"):
                yield f"{name}: holds the private key of {owner}, which must stay with the operator; remove it"
            elif owner.startswith("silo") and role == "server":
                yield f"{name}: holds the private key of {owner}; a server could act for it; remove it"
            elif role == "server" and not own and owner == "" and ".old" not in path.name:
                yield f"{name}: holds a private key that is not the server's own ({TLS_KEY}, {IDENTITY}); remove it"


def _keys(path: Path) -> Iterator[bytes]:
    """PEM private keys in a file; nothing for folders, links out of the kit and large files."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return
        data = path.read_bytes()
    except OSError:
        return
    for match in _PEM.finditer(data):
        yield match.group()


def _owner(pem: bytes, roster: Roster | None, ca: x509.Certificate | None) -> str:
    """Whose key it is, in words; empty when nobody's that can be told."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return ""
    if isinstance(key, EllipticCurvePrivateKey):
        is_ca = ca is not None and certificates.same_key(key.public_key(), certificates.certificate_key(ca))
        return "the authority" if is_ca else ""
    if not isinstance(key, Ed25519PrivateKey) or roster is None:
        return ""
    public = key.public_key().public_bytes_raw()
    if public == roster.operator_key:
        return "the operator"
    return next((f"silo {e.silo_id} ({e.name})" for e in roster.silos if e.public_key == public), "")
