"""X25519 keys, labelled HKDF-SHA256 derivations and AES-256-GCM sealing.

Every derived key carries a label, so that no two purposes ever share one. Secrets never show in ``repr`` and refuse to
be pickled or copied; ``erase`` drops them (best effort: CPython may have copied the bytes before).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secure.errors import InputError, ProtocolError

RandomBytes = Callable[[int], bytes]
"""Source of secret randomness: ``os.urandom`` by default, injected so that tests can replay."""

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
SEAL_OVERHEAD = NONCE_BYTES + TAG_BYTES
"""Bytes that sealing adds to a plaintext: nonce in front, tag behind."""

_HKDF_LIMIT = 255 * 32
_NAMESPACE = "fedgmi/1/"

_Key = TypeVar("_Key", bound="_X25519Key")


def random_bytes(random: RandomBytes, count: int) -> bytes:
    """Draw ``count`` bytes and refuse a source that answers short.

    Raises:
        InputError: the source returned another number of bytes.
    """
    drawn = random(count)
    if len(drawn) != count:
        raise InputError(f"random source returned {len(drawn)} bytes instead of {count}")
    return drawn


def frame(*fields: bytes) -> bytes:
    """Concatenate fields, each behind its length (8 bytes, big-endian), so that no two field lists collide."""
    return b"".join(len(field).to_bytes(8, "big") + field for field in fields)


class _Secretive:
    """Mixin: no pickling, no copying, nothing in ``repr``."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a secret and cannot be pickled or copied")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.__reduce__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, hidden>"

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, format_spec: str) -> str:
        return repr(self)


class Secret(_Secretive):
    """Secret bytes (a seed, say) that hide from ``repr`` and can be erased.

    Args:
        data: the secret, any length; kept in a private buffer that ``erase`` overwrites.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data: bytearray | None = bytearray(data)

    @classmethod
    def generate(cls, random: RandomBytes = os.urandom, length: int = KEY_BYTES) -> Secret:
        """Draw a fresh secret of ``length`` bytes."""
        return cls(random_bytes(random, length))

    def reveal(self) -> bytes:
        """The bytes themselves.

        Raises:
            ProtocolError: erased already.
        """
        if self._data is None:
            raise ProtocolError("secret was erased")
        return bytes(self._data)

    def erase(self) -> None:
        """Overwrite and drop. Idempotent."""
        if self._data is not None:
            self._data[:] = bytes(len(self._data))
            self._data = None


class _X25519Key(_Secretive):
    """One X25519 key pair (RFC 7748)."""

    __slots__ = ("_private", "public")

    public: bytes
    """The public half, 32 bytes; stays readable after ``erase``."""

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private: X25519PrivateKey | None = private
        self.public = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls: type[_Key], random: RandomBytes = os.urandom) -> _Key:
        """A fresh pair from 32 random bytes."""
        return cls(X25519PrivateKey.from_private_bytes(random_bytes(random, KEY_BYTES)))

    def _key(self) -> X25519PrivateKey:
        if self._private is None:
            raise ProtocolError("key was erased")
        return self._private

    def shared(self, peer_public: bytes) -> bytes:
        """Diffie–Hellman: 32 secret bytes, to be fed to ``derive`` and never used as they are.

        Raises:
            ProtocolError: ``peer_public`` is not 32 bytes or of small order (all-zero result, RFC 7748 section 6.1),
                or this key was erased.
        """
        private = self._key()
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except (ValueError, TypeError):
            raise ProtocolError("peer's public key is malformed or of small order") from None
        if not any(secret):  # the library refuses this itself; a second look costs nothing and survives its changes
            raise ProtocolError("peer's public key is malformed or of small order")
        return secret

    def erase(self) -> None:
        """Drop the private half. Idempotent."""
        self._private = None


class SealingKey(_X25519Key):
    """Short-lived pair whose shared secrets seal packets between two silos."""

    __slots__ = ()


class MaskingKey(_X25519Key):
    """Short-lived pair whose shared secrets seed pairwise masks; its private half is Shamir-shared."""

    __slots__ = ()

    def private_bytes(self) -> bytes:
        """The private half, 32 bytes, only to be split into shares.

        Raises:
            ProtocolError: erased already.
        """
        return self._key().private_bytes_raw()

    @classmethod
    def from_private_bytes(cls, private: bytes) -> MaskingKey:
        """Rebuild a dropped silo's pair from its combined shares.

        Raises:
            ProtocolError: not 32 bytes.
        """
        if len(private) != KEY_BYTES:
            raise ProtocolError(f"a masking key has {KEY_BYTES} bytes")
        return cls(X25519PrivateKey.from_private_bytes(private))


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """HKDF-SHA256 (RFC 5869), bare: use ``derive``, which adds the label.

    Args:
        secret: input keying material.
        salt: empty for the RFC's default (32 zero bytes).
        length: bytes wanted, 1 … 8160.

    Raises:
        InputError: length out of range.
    """
    if not 0 < length <= _HKDF_LIMIT:
        raise InputError(f"derived length must lie in 1 … {_HKDF_LIMIT}, not {length}")
    return HKDF(algorithm=SHA256(), length=length, salt=salt or None, info=info).derive(secret)


def derive(secret: bytes, label: str, *context: bytes, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 (RFC 5869) with ``info`` = our namespace, label and context fields, each behind its length.

    Args:
        secret: input keying material, e.g. an X25519 shared secret.
        label: names the purpose; two purposes never share one.
        context: what the key is bound to (session, the pair's ids …); order matters.
        length: bytes wanted.

    Raises:
        InputError: empty label or length out of range.
    """
    if not label:
        raise InputError("a derived key needs a label")
    return hkdf(secret, b"", frame((_NAMESPACE + label).encode(), *context), length)


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:  # AESGCM would quietly take 16 or 24 bytes
        raise InputError(f"a sealing key has {KEY_BYTES} bytes")
    return AESGCM(key)


def seal(key: bytes, plaintext: bytes, associated: bytes, random: RandomBytes = os.urandom) -> bytes:
    """AES-256-GCM with a fresh 12-byte nonce in front: ``len(plaintext) + SEAL_OVERHEAD`` bytes.

    Keys live for one session and one direction, so random nonces stay far below the limit of 2^32 messages a key.

    Raises:
        InputError: the key is not 32 bytes.
    """
    nonce = random_bytes(random, NONCE_BYTES)
    return nonce + _cipher(key).encrypt(nonce, plaintext, associated)


def open_sealed(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Undo ``seal``.

    Raises:
        ProtocolError: too short, altered, other key or other associated data; one message for all of them.
        InputError: the key is not 32 bytes.
    """
    cipher = _cipher(key)
    if len(sealed) < SEAL_OVERHEAD:
        raise ProtocolError("sealed packet cannot be opened")
    try:
        return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
    except InvalidTag:
        raise ProtocolError("sealed packet cannot be opened") from None
