"""Step 3 on both sides: pieces that the server can authenticate, and the digest that their owner signs.

A piece's tag is AES-256-GCM's over the piece, with nothing encrypted (GMAC, NIST SP 800-38D), under a key agreed by the
silo's sealing key and the server's one-time key: a fraction of a hash's cost. The signed digest covers the tags, hence
every byte, towards the one party that reads them, the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure.keys import SealingKey, _Secretive, derive
from secure.protocol.proposal import digest, id_bytes
from secure.types import SiloId


class PieceKey(_Secretive):
    """Makes and checks the tags of one silo's pieces.

    Args:
        own: the silo's sealing key, or the server's one-time key.
        peer: the other one's public half.
    """

    __slots__ = ("_cipher",)

    def __init__(self, own: SealingKey, peer: bytes, session: bytes, silo: SiloId) -> None:
        self._cipher = AESGCM(derive(own.shared(peer), "upload", session, id_bytes(silo)))

    def tag(self, index: int, data: bytes | memoryview) -> bytes:
        """16 bytes; the index is the nonce, and is used once."""
        return self._cipher.encrypt(index.to_bytes(12, "big"), b"", data)

    def is_valid(self, index: int, data: bytes | memoryview, tag: bytes) -> bool:
        """Whether the tag is this piece's."""
        try:
            self._cipher.decrypt(index.to_bytes(12, "big"), tag, data)
        except InvalidTag:
            return False
        return True


def upload_digest(session: bytes, silo: SiloId, tags: Sequence[bytes]) -> bytes:
    """What the owner signs at the end of its upload."""
    return digest("upload", session, id_bytes(silo), *tags)
