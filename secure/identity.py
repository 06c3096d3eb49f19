"""Long-term Ed25519 identities: made by the silo itself, kept in a file that only its owner can read.

Signatures are domain-separated: what is signed is a label and the data, each behind its length, so a signature made for
one purpose never serves another. The roster is in ``roster.py``, the local policy in ``policy.py``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from secure._files import write_atomic
from secure.errors import IdentityError, InputError, ProtocolError
from secure.keys import KEY_BYTES, RandomBytes, _Secretive, frame, random_bytes

PASSPHRASE_VARIABLE = "FEDGMI_KEY_PASSPHRASE"  # noqa: S105 - the variable's name, not a passphrase
SIGNATURE_BYTES = 64

_SIGNING_DOMAIN = b"fedgmi/1/sign"
_FINGERPRINT_DOMAIN = b"fedgmi/1/fingerprint"
_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aiou"


def proquint(data: bytes) -> str:
    """Bytes as pronounceable five-letter groups, 16 bits each (D. Wilkerson, arXiv:0901.4016).

    Raises:
        InputError: an odd number of bytes.
    """
    if len(data) % 2:
        raise InputError("proquints need an even number of bytes")
    groups = []
    for start in range(0, len(data), 2):
        word = int.from_bytes(data[start : start + 2], "big")
        groups.append(
            _CONSONANTS[word >> 12]
            + _VOWELS[word >> 10 & 3]
            + _CONSONANTS[word >> 6 & 15]
            + _VOWELS[word >> 4 & 3]
            + _CONSONANTS[word & 15]
        )
    return "-".join(groups)


def fingerprint(public_key: bytes) -> str:
    """Eight pronounceable groups (128 bits of a SHA-256) that two people compare by telephone."""
    return proquint(hashlib.sha256(frame(_FINGERPRINT_DOMAIN, public_key)).digest()[:16])


@lru_cache(maxsize=1024)
def _public(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)


def is_valid(public_key: bytes, label: str, data: bytes, signature: bytes) -> bool:
    """Whether ``signature`` was made by the owner of ``public_key`` over this label and data."""
    try:
        _public(public_key).verify(signature, frame(_SIGNING_DOMAIN, label.encode(), data))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def verify(public_key: bytes, label: str, data: bytes, signature: bytes) -> None:
    """Like ``is_valid``, as an exception.

    Raises:
        ProtocolError: the signature does not verify (or key or signature are malformed).
    """
    if not is_valid(public_key, label, data, signature):
        raise ProtocolError(f"signature over {label!r} does not verify")


class Identity(_Secretive):
    """An Ed25519 key pair (RFC 8032). ``repr`` shows the public fingerprint only; pickling is refused."""

    __slots__ = ("_private", "public_key")

    public_key: bytes
    """32 bytes."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_key = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, random: RandomBytes = os.urandom) -> Identity:
        """A fresh identity from 32 random bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(random_bytes(random, KEY_BYTES)))

    def sign(self, label: str, data: bytes) -> bytes:
        """64-byte signature over the label and the data.

        Raises:
            InputError: empty label.
        """
        if not label:
            raise InputError("a signature needs a label")
        return self._private.sign(frame(_SIGNING_DOMAIN, label.encode(), data))

    def fingerprint(self) -> str:
        """See the function of this name."""
        return fingerprint(self.public_key)

    def __repr__(self) -> str:
        return f"<Identity {self.fingerprint()}>"

    def save(
        self,
        path: str | os.PathLike[str],
        passphrase: str | None = None,
        *,
        replace: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Write PKCS #8 PEM, mode 0600, atomically; encrypted when there is a passphrase.

        Args:
            passphrase: ``None`` takes ``FEDGMI_KEY_PASSPHRASE`` when that is set; without either the key stays bare.
            replace: whether an existing file may be overwritten.

        Raises:
            IdentityError: the file exists, or cannot be written.
        """
        secret = passphrase or environ.get(PASSPHRASE_VARIABLE)
        encryption: KeySerializationEncryption = NoEncryption()
        if secret:
            encryption = BestAvailableEncryption(secret.encode())
        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        try:
            write_atomic(Path(path), pem, mode=0o600, replace=replace)
        except FileExistsError:
            raise IdentityError(f"{path} exists already; rotate the key or choose another file") from None
        except OSError as error:
            raise IdentityError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        passphrase: str | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> Identity:
        """Read what ``save`` wrote.

        Args:
            passphrase: ``None`` takes ``FEDGMI_KEY_PASSPHRASE`` for an encrypted file.

        Raises:
            IdentityError: missing, readable by others than its owner, wrong passphrase, or no Ed25519 key.
        """
        pem = _read_private(Path(path))
        encrypted = b"ENCRYPTED" in pem.split(b"\n", 1)[0]
        secret = (passphrase or environ.get(PASSPHRASE_VARIABLE)) if encrypted else None
        if encrypted and not secret:
            raise IdentityError(f"{path} is encrypted: give its passphrase, or set {PASSPHRASE_VARIABLE}")
        try:
            private = load_pem_private_key(pem, secret.encode() if secret else None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            cause = "wrong passphrase or damaged file" if encrypted else "not a private key in PEM form"
            raise IdentityError(f"{path} cannot be read: {cause}") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise IdentityError(f"{path} holds another kind of key than Ed25519")
        return cls(private)


def _read_private(path: Path) -> bytes:
    """The file's bytes, from one open file whose mode was checked (no window between check and read)."""
    try:
        with path.open("rb") as handle:
            mode = os.fstat(handle.fileno()).st_mode
            if os.name == "posix" and mode & 0o077:
                raise IdentityError(f"{path} can be read by others; run: chmod 600 {path}")
            return handle.read(1 << 16)
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror}") from None
