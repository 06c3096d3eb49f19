"""Step 3 on the server: which components are open, pieces onto the disk, and who has uploaded everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from secure.errors import ProtocolError
from secure.keys import SealingKey
from secure.messages import Advert, Opened, Piece, Uploaded
from secure.protocol.plane import ServerPlane
from secure.protocol.uploading import PieceKey, upload_digest
from secure.spool import Inbox, Spool
from secure.types import SessionParams, SiloId


class Intake:
    """Opened masks and uploads of one session.

    Args:
        session: 32 bytes.
        params: the proposal.
        adverts: silo → advert.
        key: the server's one-time key.
        plane: knows the length of an upload, and takes complete ones in.
        spool_dir: where uploads wait.

    Attributes:
        masks: silo → which components it says are open.
    """

    def __init__(
        self,
        session: bytes,
        params: SessionParams,
        adverts: Mapping[SiloId, Advert],
        key: SealingKey,
        plane: ServerPlane,
        spool_dir: Path | None,
    ) -> None:
        self._session, self._params, self._plane = session, params, plane
        self._keys = {silo: PieceKey(key, item.sealing_key, session, silo) for silo, item in adverts.items()}
        slots, size = {silo: slot for slot, silo in enumerate(params.cohort)}, plane.upload_bytes
        self.inbox = Inbox(Spool(spool_dir, size, len(slots)), slots, size, params.piece_bytes)
        self.masks: dict[SiloId, tuple[bool, ...]] = {}

    @property
    def agree(self) -> bool:
        """Whether all masks so far are equal."""
        return len(set(self.masks.values())) <= 1

    @property
    def open(self) -> tuple[bool, ...]:
        """The agreed mask (closed everywhere before the first has come)."""
        return next(iter(self.masks.values()), (False,) * self._params.spec.components)

    @property
    def ends_here(self) -> bool:
        """Whether this session ends without an upload: a survey, or every component closed."""
        return self._params.survey or (bool(self.masks) and not any(self.open))

    def unopened(self, silos: Sequence[SiloId]) -> tuple[SiloId, ...]:
        """Those that have not said which components are open."""
        return tuple(silo for silo in silos if silo not in self.masks)

    def take_opened(self, message: Opened) -> None:
        """Note one silo's mask.

        Raises:
            ProtocolError: wrong number of components.
        """
        if len(message.open) != self._params.spec.components:
            raise ProtocolError("number of components differs from the layout")
        self.masks[message.silo] = message.open

    def take_piece(self, sender: SiloId, piece: Piece) -> None:
        """Authenticate a piece and put it on the disk.

        Raises:
            ProtocolError: of another session or sender, too early, a repeat, or altered.
        """
        if piece.session != self._session or piece.silo != sender or sender not in self.masks:
            raise ProtocolError("piece belongs to another session or sender, or comes too early")
        if self.ends_here or self.inbox.has(sender, piece.index):
            raise ProtocolError("piece is not wanted, or a repeat")
        if not self._keys[sender].is_valid(piece.index, piece.data, piece.tag):
            raise ProtocolError("piece was altered on its way")
        self.inbox.put(sender, piece.index, piece.tag, piece.data)

    def check_uploaded(self, message: Uploaded) -> None:
        """An upload is complete when its owner's digest covers every piece; the data plane then takes it in.

        Raises:
            ProtocolError: pieces are missing, the digest differs, or it is no upload of this data plane.
        """
        tags = self.inbox.tags(message.silo)
        if tags is None or upload_digest(self._session, message.silo, tags) != message.digest:
            raise ProtocolError("upload is incomplete, or its digest differs")
        self._plane.absorb(self.inbox, message.silo)

    def close(self) -> None:
        """Erase uploads and keys. Idempotent."""
        self.inbox.close()
        self._keys.clear()
