"""The homomorphic data plane: the masked one's numbers, as masked slots in ciphertexts that only silos can open.

One upload, in order: ``FRESH_BYTES`` for each ciphertext; then, exactly as in the masked data plane, the metrics and
the order of magnitude of clipped coordinates, and the verification tags (always), under the same masks' streams. A
release: ``SUM_BYTES`` for each ciphertext, and the sums of scalars and tags, which the server learns.

**Two layers.** The ciphertexts' key (the *group key*) is known to every silo of the session and to nobody else: it is
derived from κ, to which each silo sealed a part for each other one. Beneath it lie the masks, so a silo that opens
another's upload, as one that sides with the server could, finds noise. The server removes what is left of the masks
from the sum it cannot read, by adding plaintext. Together with a colluding silo it sees what the masked back-end shows.

**No single silo holds the key.** It has no dealer who could die or whom the others would have to trust: every silo puts
in 256 bits, sealed to the signed keys of the others, so it is random if one silo is honest, and it is on every silo as
soon as the packets are open. What q silos sign before anything is unmasked (``Consent.totals``) is keyed with κ, so a
silo that was given another key refuses to go on. It lives for one session. Whatever is wrong with a sum (it does not
open, lies beyond its bounds, fails its tags), a silo says the same words, and the key is gone: a server that alters
ciphertexts learns, once, that it was noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from secure.codec import BulkWriter
from secure.errors import CapacityError, InputError, ProtocolError
from secure.fixedpoint import magnitude, segments
from secure.homomorphic.bindings import unavailable
from secure.homomorphic.scheme import DEGREE, FRESH_BYTES, SEED_BYTES, SUM_BYTES, GroupKey, Scheme
from secure.homomorphic.slots import SlotMasks, pack, per_ciphertext, unpack
from secure.keys import derive
from secure.masking import MaskedServer, MaskedSilo, Plane, Streams, check_chunk
from secure.messages import Release
from secure.prg import CHUNK
from secure.protocol.plane import Masks, SiloKeys
from secure.spool import Inbox
from secure.types import Aggregate, SessionParams, SiloId, Totals
from secure.verified import TAGS_BYTES, Tagger

REFUSED = (
    "the released sum does not open, lies beyond its bounds or fails its verification tags: the server altered it, or "
    "some silo's upload was not honest; this session's group key is burnt"
)
"""What every silo says, whatever is wrong with a sum."""

_BATCH = CHUNK // DEGREE
"""Ciphertexts whose masks are made at a time."""

_LOOKED_AT = 8
"""Ciphertexts of a sum whose noise budget is measured, evenly spaced."""


def check_encrypted_capacity(params: SessionParams) -> None:
    """Prove that a release fits a message (4 GiB).

    Raises:
        CapacityError: says how many coordinates would.
    """
    per = per_ciphertext(params.spec.profile)
    most = ((1 << 32) - (1 << 20)) // SUM_BYTES * per
    if params.spec.length > most:
        raise CapacityError(
            f"{params.spec.length} coordinates: an encrypted sum holds at most {most} in profile "
            f"{params.spec.profile}; split the model over several rounds"
        )


def group_key(scheme: Scheme, shared: bytes, session: bytes) -> GroupKey:
    """The session's key for ciphertexts.

    Args:
        shared: κ, which only the silos of the session know.
    """
    return GroupKey(scheme, derive(shared, "group key", session, length=SEED_BYTES))


class _Ciphertexts(Plane):
    """What both sides know beyond the masked plane: how many ciphertexts there are."""

    def __init__(self, params: SessionParams, scheme: Scheme) -> None:
        super().__init__(params)
        self._scheme, self._profile = scheme, params.spec.profile
        self._per = per_ciphertext(self._profile)
        self._count = -(-self._spec.length // self._per)
        self._vector_bytes, self._tag_bytes = FRESH_BYTES * self._count, TAGS_BYTES

    @property
    def release_bytes(self) -> int:
        """Length of a release's long field."""
        return SUM_BYTES * self._count


class HomomorphicSilo(_Ciphertexts, MaskedSilo):
    """A silo's half: see ``plane.SiloPlane``."""

    def __init__(self, params: SessionParams, scheme: Scheme | None = None) -> None:
        self._norms = ()
        super().__init__(params, scheme or Scheme())

    def pieces(
        self, vector: npt.NDArray[np.float32], scalars: tuple[int, ...], totals: Totals, keys: SiloKeys
    ) -> Iterator[memoryview]:
        """Quantise, tag, mask and encrypt, ciphertext by ciphertext."""
        size, waiting = self._params.piece_bytes, bytearray()
        for part in self._parts(vector, scalars, totals, keys):
            waiting += part
            whole = len(waiting) // size * size
            for start in range(0, whole, size):
                yield memoryview(bytes(waiting[start : start + size]))
            del waiting[:whole]
        if waiting:
            yield memoryview(bytes(waiting))

    def _parts(
        self, vector: npt.NDArray[np.float32], scalars: tuple[int, ...], totals: Totals, keys: SiloKeys
    ) -> Iterator[bytes]:
        """Every ciphertext, then the masked scalars and tags."""
        key = group_key(self._scheme, keys.shared, keys.session)
        streams, tagger = Streams(keys.masks), Tagger(keys.shared, keys.session)
        masks = SlotMasks(keys.masks, streams.added, streams.subtracted)
        parts, clipped = segments(self._spec, totals.share), 0
        for start in range(0, self._spec.length, CHUNK):
            count = min(CHUNK, self._spec.length - start)
            room = np.zeros(-(-count // self._per) * self._per, dtype=np.uint32)
            clipped += self._quantised(vector, start, parts, room[:count])
            coordinates = room.view(np.int32)
            tagger.add(coordinates[:count])
            slots = pack(coordinates, self._profile)
            masks.apply(slots)
            for at in range(0, len(slots), DEGREE):
                yield key.encrypt(slots[at : at + DEGREE])
        yield self._tail((*scalars, magnitude(clipped)), tagger, streams, keys)

    def read(self, release: Release, totals: Totals, shared: bytes) -> Aggregate:
        """Open, check and decode a release."""
        sealed = memoryview(release.values)
        if release.open != totals.open or release.metrics or sealed.nbytes != self.release_bytes:
            raise ProtocolError("release does not fit this session")
        try:
            values = self._opened(sealed, release, group_key(self._scheme, shared, release.session))
            aggregate = self._aggregate(release, values)
            self._check_tags(values, release, shared)
        except Exception as error:  # SEAL has its own, and a server must not be able to tell one from another
            raise ProtocolError(REFUSED) from error
        return aggregate

    def _opened(self, sealed: memoryview, release: Release, key: GroupKey) -> npt.NDArray[np.int32]:
        """Decrypt everything; hold it against the bounds of honest sums.

        Raises:
            ProtocolError: a ciphertext is none, its noise has used up its budget, or a coordinate is out of bounds.
        """
        length, item = self._spec.length, self._scheme.seal.Ciphertext()
        values, bounds = np.empty(length, dtype=np.int32), self._bounds(release.open)
        looked_at = set(range(0, self._count, -(-self._count // _LOOKED_AT))) if self._count else set()
        for index in range(self._count):
            self._scheme.load(sealed[SUM_BYTES * index : SUM_BYTES * (index + 1)], item)
            if index in looked_at and key.budget(item) < 1:
                raise ProtocolError("noise")
            start = self._per * index
            numbers = unpack(key.decrypt(item), self._profile)
            count = min(self._per, length - start)
            check_chunk(numbers[:count], start, bounds)
            if numbers[count:].any():
                raise ProtocolError("padding")
            values[start : start + count] = numbers[:count]
        return values


class HomomorphicServer(_Ciphertexts, MaskedServer):
    """The server's half: see ``plane.ServerPlane``.

    Uploads are added as they become complete, so the sum is in memory (16 bytes a slot), and a malformed one drops its
    silo while the session can still go on without it.

    Raises:
        InputError: it was handed a secret key.
    """

    def __init__(self, params: SessionParams, scheme: Scheme | None = None) -> None:
        if scheme is not None and type(scheme) is not Scheme:
            raise InputError("the server was handed a secret key of the silos; it refuses to start: keep keys on silos")
        super().__init__(params, scheme or Scheme())
        self._sums: list[Any] = []
        self._absorbed: set[SiloId] = set()

    @property
    def arithmetic(self) -> str:  # type: ignore[override]
        """Parameter set, and SEAL's version: ciphertexts of one are not read by another."""
        return self._scheme.name

    def _ciphertexts(self, inbox: Inbox, silo: SiloId) -> Iterator[memoryview]:
        """One upload's ciphertexts as they were sent."""
        batch = FRESH_BYTES * _BATCH
        for start in range(0, self._vector_bytes, batch):
            data = memoryview(inbox.spool.read(inbox.slots[silo], start, min(batch, self._vector_bytes - start)))
            for at in range(0, len(data), FRESH_BYTES):
                yield data[at : at + FRESH_BYTES]

    def absorb(self, inbox: Inbox, silo: SiloId) -> None:
        """Add a complete upload, or none of it."""
        scheme, first, done = self._scheme, not self._absorbed, 0
        item = scheme.seal.Ciphertext()
        try:
            for packed in self._ciphertexts(inbox, silo):
                if first:
                    self._sums.append(scheme.load(packed))
                else:
                    scheme.add(self._sums[done], scheme.load(packed, item))
                done += 1
        except ProtocolError:
            self._undo(inbox, silo, 0 if first else done)
            raise ProtocolError("upload holds something else than ciphertexts of this session's parameters") from None
        self._absorbed.add(silo)

    def _undo(self, inbox: Inbox, silo: SiloId, done: int) -> None:
        """Take the first ciphertexts of an upload out of the sum again."""
        if not self._absorbed:
            self._sums = []
        for index, packed in zip(range(done), self._ciphertexts(inbox, silo), strict=False):
            self._scheme.subtract(self._sums[index], self._scheme.load(packed))

    def release(
        self, session: bytes, inbox: Inbox, survivors: tuple[SiloId, ...], opened: tuple[bool, ...], left: Masks
    ) -> tuple[bytes, Aggregate]:
        """Take masks off the sum, blindly, straight into the message."""
        if self._absorbed != set(survivors):
            raise ProtocolError("the sum is not of the survivors' uploads")
        streams, slots = Streams(left), [inbox.slots[silo] for silo in survivors]
        masks = SlotMasks(left, streams.added, streams.subtracted)
        blank = Release(session, survivors, opened, (), 0.0, bytes(8 * self._words), bytes(self._tag_bytes), b"")
        writer = BulkWriter(blank, self.release_bytes)
        for start in range(0, self._count, _BATCH):
            batch = self._sums[start : start + _BATCH]
            self._sums[start : start + _BATCH] = [None] * len(batch)  # its memory is given back batch by batch
            numbers = np.zeros(DEGREE * len(batch), dtype=np.int64)
            masks.apply(numbers)
            for index, item in enumerate(batch):
                self._scheme.add_plain(item, numbers[DEGREE * index : DEGREE * (index + 1)])
                packed = self._scheme.save(item, SUM_BYTES)
                if not packed:
                    raise ProtocolError("a sum of ciphertexts needs more room than the protocol has for it")
                writer.write(np.frombuffer(packed, dtype=np.uint8))
        scalars, tags = self._scalars(inbox, slots, streams)
        payload, message = writer.finish(replace(blank, scalars=scalars, tags=tags))
        return payload, self._aggregate(message, np.empty(0, dtype=np.int32), message.values)


def check_available() -> None:
    """Whether this party's TenSEAL does what is needed: one known answer, through everything.

    Raises:
        HomomorphicUnavailable: it does not; says what to install.
    """
    scheme = Scheme()
    key, numbers = GroupKey(scheme, bytes(range(SEED_BYTES))), np.arange(DEGREE, dtype=np.int64)
    total = scheme.load(memoryview(key.encrypt(numbers)))
    scheme.add(total, scheme.load(memoryview(key.encrypt(numbers))))
    scheme.add_plain(total, numbers)
    if not np.array_equal(key.decrypt(total), 3 * numbers) or key.budget(total) < 1:
        raise unavailable("it adds up wrongly")


def silo_plane(params: SessionParams) -> tuple[Callable[[SessionParams], HomomorphicSilo], str]:
    """How a silo makes its half once the parameters are agreed; and its ``arithmetic``.

    Raises:
        CapacityError: the layout does not fit.
    """
    check_encrypted_capacity(params)
    scheme = Scheme()
    return lambda agreed: HomomorphicSilo(agreed, scheme), scheme.name


def server_plane(params: SessionParams) -> HomomorphicServer:
    """The server's half.

    Raises:
        CapacityError: the layout does not fit.
    """
    check_encrypted_capacity(params)
    return HomomorphicServer(params)
