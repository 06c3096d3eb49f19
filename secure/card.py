"""Public key cards: what a party sends the operator, so that the roster can list it.

A card is signed by its own key, which proves possession; after a rotation also by the key before, which proves that
the silo itself changed it. A card introduces nobody by itself: the operator compares fingerprints by voice.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from secure._files import write_atomic
from secure.errors import IdentityError
from secure.identity import Identity, fingerprint, is_valid
from secure.keys import KEY_BYTES, frame

FORMAT = "fedgmi-public-key/1"
Role = Literal["silo", "server", "operator"]

_LABEL = "public-key-card"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Card:
    """A party's public key with its name.

    Attributes:
        role: ``"silo"``, ``"server"`` or ``"operator"``.
        name: for people.
        organisation: contributors count by organisation.
        public_key: Ed25519, 32 bytes.
        previous_key: the key before the last rotation, 32 bytes, or empty.
        proof: signature by ``public_key``.
        previous_proof: signature by ``previous_key``, or empty.
    """

    role: Role
    name: str
    organisation: str
    public_key: bytes
    previous_key: bytes = b""
    proof: bytes = field(default=b"", repr=False)
    previous_proof: bytes = field(default=b"", repr=False)

    @classmethod
    def issue(
        cls, identity: Identity, role: Role, name: str, organisation: str, previous: Identity | None = None
    ) -> Card:
        """Make and sign a card; ``previous`` signs too after a rotation.

        Raises:
            IdentityError: unknown role, or an empty name or organisation.
        """
        before = previous.public_key if previous else b""
        draft = cls(role, name.strip(), organisation.strip(), identity.public_key, before)
        if role not in get_args(Role) or not draft.name or not draft.organisation:
            raise IdentityError("a public key card needs a role, a name and an organisation")
        proof = identity.sign(_LABEL, draft._body())
        return replace(draft, proof=proof, previous_proof=previous.sign(_LABEL, draft._body()) if previous else b"")

    def _body(self) -> bytes:
        texts = (FORMAT, self.role, self.name, self.organisation)
        return frame(*(text.encode() for text in texts), self.public_key, self.previous_key)

    def fingerprint(self) -> str:
        """Readable aloud."""
        return fingerprint(self.public_key)

    def verify(self) -> None:
        """Check the card's own signatures.

        Raises:
            IdentityError: altered, or not made by the key's owner.
        """
        good = is_valid(self.public_key, _LABEL, self._body(), self.proof)
        if good and self.previous_key:
            good = is_valid(self.previous_key, _LABEL, self._body(), self.previous_proof)
        if not good:
            raise IdentityError(f"the public key card of {self.name!r} is altered or was not made by its key's owner")

    def to_json(self) -> bytes:
        """The file's form, readable."""
        document = {
            "format": FORMAT,
            "role": self.role,
            "name": self.name,
            "organisation": self.organisation,
            "public_key": self.public_key.hex(),
            "fingerprint": self.fingerprint(),
            "previous_key": self.previous_key.hex(),
            "proof": self.proof.hex(),
            "previous_proof": self.previous_proof.hex(),
        }
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> Card:
        """Undo ``to_json`` and verify. The printed fingerprint is not trusted but computed.

        Raises:
            IdentityError: not a card, or its signatures do not verify.
        """
        try:
            card = _parse(data)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise IdentityError(f"not a public key card of format {FORMAT}") from None
        card.verify()
        return card

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write atomically, mode 0644: a card is public.

        Raises:
            IdentityError: the file exists, or cannot be written.
        """
        try:
            write_atomic(Path(path), self.to_json(), mode=0o644, replace=overwrite)
        except FileExistsError:
            raise IdentityError(f"{path} exists already; choose another file") from None
        except OSError as error:
            raise IdentityError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Card:
        """Read and verify.

        Raises:
            IdentityError: missing, not a card, or its signatures do not verify.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise IdentityError(f"{path} cannot be read: {error.strerror}") from None
        try:
            return cls.from_json(data)
        except IdentityError as error:
            raise IdentityError(f"{path}: {error}") from None


def _parse(data: bytes) -> Card:
    document = json.loads(data) if len(data) <= _MAX_BYTES else None
    if not isinstance(document, dict) or document["format"] != FORMAT or document["role"] not in get_args(Role):
        raise ValueError("unknown form")
    name, organisation = document["name"], document["organisation"]
    if not isinstance(name, str) or not isinstance(organisation, str) or not name.strip() or not organisation.strip():
        raise ValueError("names must be texts")
    fields = ("public_key", "previous_key", "proof", "previous_proof")
    public_key, previous_key, proof, previous_proof = (bytes.fromhex(document[key]) for key in fields)
    if len(public_key) != KEY_BYTES or len(previous_key) not in (0, KEY_BYTES):
        raise ValueError("keys have 32 bytes")
    return Card(document["role"], name, organisation, public_key, previous_key, proof, previous_proof)
