"""The narrow door between the control plane and a data plane.

The control plane decides who is in the session, which components are open, who survived, and hands out keys. A data
plane turns one silo's vector into a stream of bytes of known length, and the survivors' streams, blindly, into one
release; it never sees a key that the control plane did not hand it. Masking is one; the homomorphic one is another,
with the same keys masking the plaintext under its encryption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from secure.keys import _Secretive
from secure.messages import Release
from secure.spool import Inbox
from secure.types import Aggregate, SiloId, Totals

STREAM_KEY_BYTES = 32
"""Key of one mask's stream."""


@dataclass(frozen=True, repr=False)
class Masks(_Secretive):
    """Keys of mask streams.

    A silo adds its own mask and, of each pair, adds or subtracts the one it shares: the lower id adds. The server is
    handed what is left in the sum, with the signs with which it must be taken off.
    """

    added: tuple[bytes, ...]
    subtracted: tuple[bytes, ...]


@dataclass(frozen=True, repr=False)
class SiloKeys(_Secretive):
    """What a silo's data plane needs: its masks, the key that only silos share, and who and where it is."""

    session: bytes
    silo: SiloId
    masks: Masks
    shared: bytes


class SiloPlane(Protocol):
    """A silo's half of a data plane."""

    @property
    def release_bytes(self) -> int:
        """Length of a release's long field."""

    def check(self, vector: npt.NDArray[np.float32], metrics: Mapping[str, float], totals: Totals) -> tuple[int, ...]:
        """Refuse bad input before anything is masked; returns the metrics as integers.

        Raises:
            InputError: names the block or metric.
        """

    def pieces(
        self, vector: npt.NDArray[np.float32], scalars: tuple[int, ...], totals: Totals, keys: SiloKeys
    ) -> Iterator[memoryview]:
        """The upload, ``piece_bytes`` at a time (the last piece may be shorter). A view is valid until the next one."""

    def read(self, release: Release, totals: Totals, shared: bytes) -> Aggregate:
        """Check a release (bounds, closed components, verification tags) and decode it.

        Raises:
            ProtocolError: says which check failed.
        """


class ServerPlane(Protocol):
    """The server's half of a data plane."""

    @property
    def arithmetic(self) -> str:
        """What all parties must have alike beyond the quantiser, for the proposal; empty when nothing."""

    @property
    def upload_bytes(self) -> int:
        """Length of every silo's upload."""

    def absorb(self, inbox: Inbox, silo: SiloId) -> None:
        """Look at a complete upload, and take in what can be: its owner signed it and is a survivor from now on.

        Raises:
            ProtocolError: it is no upload of this data plane; nothing of it was taken in.
        """

    def release(
        self, session: bytes, inbox: Inbox, survivors: tuple[SiloId, ...], opened: tuple[bool, ...], left: Masks
    ) -> tuple[bytes, Aggregate]:
        """Add the survivors' uploads, take off what is left of their masks: the encoded ``Release``, and its content.

        Raises:
            ProtocolError: the sum is beyond what the survivors may have sent; the round is discarded.
        """
