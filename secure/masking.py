"""The masked data plane: fixed point in Z_2^32 under a self-mask and pairwise masks.

One upload, in order: the vector, 4 bytes a coordinate; the metrics and the order of magnitude of clipped coordinates,
8 bytes each (Z_2^64); with verified sums two tags, 8 bytes each (modulo 2^61 − 1). One stream per mask covers all of
it, in this order, and no part of a stream is used twice.

Loops run over chunks outside and peers inside, through buffers that stay in the cache and are used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from secure.codec import BulkWriter
from secure.errors import ProtocolError
from secure.fixedpoint import (
    FRACTION_BITS,
    Segment,
    decode_metric,
    encode_metric,
    magnitude,
    quantise_into,
    segments,
)
from secure.keys import _Secretive
from secure.messages import Release
from secure.prg import CHUNK, MaskStream, accumulate, new_scratch
from secure.protocol.plane import Masks, SiloKeys
from secure.protocol.release import aggregate_of, check_step, check_vector, metric_values
from secure.spool import Inbox
from secure.types import Aggregate, SessionParams, SiloId, Totals
from secure.verified import (
    PRIME,
    TAGS,
    TAGS_BYTES,
    Tagger,
    check_sum,
    decode_tags,
    encode_tags,
    mask_of,
    offsets,
)


class Streams(_Secretive):
    """Mask streams of one party, read from front to back: vector, then scalars, then tags."""

    def __init__(self, masks: Masks) -> None:
        self.added = [MaskStream(key) for key in masks.added]
        self.subtracted = [MaskStream(key) for key in masks.subtracted]

    def words(self, chunk: npt.NDArray[Any], scratch: npt.NDArray[Any]) -> None:
        """Add and subtract the next 32- or 64-bit words, in place."""
        accumulate(chunk, self.added, self.subtracted, scratch)

    def tags(self, tags: Sequence[int]) -> list[int]:
        """Add and subtract the next masks, modulo q."""
        total = list(tags)
        for sign, streams in ((1, self.added), (-1, self.subtracted)):
            for stream in streams:
                total = [(value + sign * mask) % PRIME for value, mask in zip(total, mask_of(stream), strict=True)]
        return total


class Plane:
    """What both sides know: lengths and segments.

    The homomorphic plane is this one with other numbers in the place of the vector; everything else is shared.
    """

    def __init__(self, params: SessionParams) -> None:
        self._params, self._spec = params, params.spec
        self._words = len(params.spec.metrics) + 1
        self._vector_bytes = 4 * params.spec.length
        self._tag_bytes = TAGS_BYTES if params.rules.verified_sums else 0

    @property
    def upload_bytes(self) -> int:
        """Length of every silo's upload."""
        return self._vector_bytes + 8 * self._words + self._tag_bytes

    @property
    def release_bytes(self) -> int:
        """Length of a release's long field."""
        return self._vector_bytes

    def _bounds(self, opened: Sequence[bool]) -> list[tuple[int, int, int]]:
        """(start, stop, largest absolute sum of honest silos): clip plus rounding, zero where a component is closed."""
        rounding = (len(self._params.cohort) + 1) // 2
        parts = segments(self._spec, [1.0 if is_open else 0.0 for is_open in opened])
        return [(part.start, part.stop, part.bound + rounding if part.clip else 0) for part in parts]

    def _check_scalars(self, scalars: Sequence[int], opened: Sequence[bool]) -> None:
        """Metrics within their bounds, zero where closed; a clipped magnitude that can be."""
        silos = len(self._params.cohort)
        for item, value in zip(self._spec.metrics, scalars, strict=False):
            is_open = item.component is None or opened[item.component]
            if abs(value) > (round(item.bound / item.resolution) * silos if is_open else 0):
                raise ProtocolError("the sum of a metric is out of range: some silo's upload was not honest")
        if not 0 <= scalars[-1] <= 10 * max(1, self._spec.length) * silos:
            raise ProtocolError("the clipped share is out of range: some silo's upload was not honest")

    def _aggregate(self, message: Release, values: npt.NDArray[Any], sealed: bytes | memoryview = b"") -> Aggregate:
        """Decode the scalars of a release, and put the values beside them."""
        words = np.frombuffer(message.scalars, dtype="<i8")
        if len(words) != self._words:
            raise ProtocolError("release does not fit the layout")
        steps = [int(word) for word in words]
        metrics = tuple(decode_metric(item, step) for item, step in zip(self._spec.metrics, steps, strict=False))
        coordinates = max(1, len(message.survivors) * self._spec.length)
        clipped = min(1.0, max(0, steps[-1]) / coordinates)
        decoded = Release(message.session, message.survivors, message.open, metrics, clipped, b"", b"", b"")
        aggregate = aggregate_of(decoded, self._params, values, sealed)
        self._check_scalars(steps, message.open)
        return aggregate


class MaskedSilo(Plane):
    """A silo's half: see ``plane.SiloPlane``."""

    def __init__(self, params: SessionParams) -> None:
        super().__init__(params)
        self._norms: tuple[float, ...] = ()

    def check(self, vector: npt.NDArray[np.float32], metrics: Mapping[str, float], totals: Totals) -> tuple[int, ...]:
        """Refuse bad input; metrics as steps, zero where closed."""
        values = metric_values(self._spec, metrics, totals.open)
        self._norms = check_vector(self._spec, vector)
        check_step(self._spec, vector, totals.share)
        return tuple(encode_metric(item, value)[0] for item, value in zip(self._spec.metrics, values, strict=True))

    def pieces(
        self, vector: npt.NDArray[np.float32], scalars: tuple[int, ...], totals: Totals, keys: SiloKeys
    ) -> Iterator[memoryview]:
        """Quantise, tag and mask, piece by piece, in one buffer."""
        streams, scratch = Streams(keys.masks), new_scratch()
        tagger = Tagger(keys.shared, keys.session) if self._tag_bytes else None
        parts = segments(self._spec, totals.share)
        buffer = bytearray(min(self._params.piece_bytes, self.upload_bytes))
        words = np.frombuffer(buffer, dtype=np.uint32, count=len(buffer) // 4)
        clipped, filled = 0, 0
        for start in range(0, self._spec.length, CHUNK):
            chunk = vector[start : start + CHUNK]
            while len(chunk):
                room = words[filled : filled + len(chunk)]
                part, chunk = chunk[: len(room)], chunk[len(room) :]
                clipped += _quantise(part, start, parts, room, self._norms[start // CHUNK])
                if tagger:
                    tagger.add(room.view(np.int32))
                streams.words(room, scratch)
                start, filled = start + len(room), filled + len(room)
                if filled == len(words):
                    yield memoryview(buffer)
                    filled = 0
        tail = self._tail((*scalars, magnitude(clipped)), tagger, streams, keys)
        rest = bytes(memoryview(buffer)[: 4 * filled]) + tail
        for start in range(0, len(rest), self._params.piece_bytes):
            yield memoryview(rest)[start : start + self._params.piece_bytes]

    def _tail(self, scalars: tuple[int, ...], tagger: Tagger | None, streams: Streams, keys: SiloKeys) -> bytes:
        """Scalars and tags, masked."""
        words = np.array([value % (1 << 64) for value in scalars], dtype=np.uint64)
        streams.words(words, np.empty_like(words))
        tail = words.astype("<u8").tobytes()
        if tagger:
            own = offsets(keys.shared, keys.session, keys.silo)
            tags = [(left + right) % PRIME for left, right in zip(tagger.finish(scalars), own, strict=True)]
            tail += encode_tags(streams.tags(tags))
        return tail

    def _quantised(
        self, vector: npt.NDArray[np.float32], start: int, parts: Sequence[Segment], out: npt.NDArray[np.uint32]
    ) -> int:
        """Quantise the coordinates from ``start`` on (all in one chunk) into ``out``; returns how many clipped."""
        return _quantise(vector[start : start + len(out)], start, parts, out, self._norms[start // CHUNK])

    def read(self, release: Release, totals: Totals, shared: bytes) -> Aggregate:
        """Check and decode a release."""
        if release.open != totals.open or release.metrics:
            raise ProtocolError("release does not fit this session")
        if memoryview(release.values).nbytes != self.release_bytes:
            raise ProtocolError("release does not fit the layout")
        aggregate = self._aggregate(release, np.frombuffer(release.values, dtype="<i4"))
        values = np.asarray(aggregate.values, dtype=np.int32)
        bounds = self._bounds(release.open)
        for start in range(0, len(values), CHUNK):
            check_chunk(values[start : start + CHUNK], start, bounds)
        if self._tag_bytes:
            self._check_tags(values, release, shared)
        return aggregate

    def _check_tags(self, values: npt.NDArray[np.int32], release: Release, shared: bytes) -> None:
        steps = [int(word) for word in np.frombuffer(release.scalars, dtype="<i8")]
        chunks = (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))
        check_sum(chunks, steps, release.tags, shared, release.session, release.survivors)


def _quantise(
    chunk: npt.NDArray[np.float32], start: int, parts: Sequence[Segment], out: npt.NDArray[np.uint32], norm: float
) -> int:
    """Quantise the coordinates ``start`` … into ``out``, zeros where there is no share; returns how many clipped.

    Args:
        norm: no coordinate of the chunk is larger; where it is well below the clip, nothing needs to be looked for.
    """
    clipped, stop = 0, start + len(chunk)
    for part in parts:
        low, high = max(part.start, start) - start, min(part.stop, stop) - start
        if low >= high:
            continue
        piece, room = chunk[low:high], out[low:high]
        if not part.clip:
            room[...] = 0
        elif norm < 0.99 * part.clip and norm * part.scale < 1 << FRACTION_BITS:
            floats = room.view(np.float32)
            np.multiply(piece, np.float32(part.scale), out=floats)
            np.rint(floats, out=floats)
            np.copyto(room.view(np.int32), floats, casting="unsafe")
        else:
            clipped += quantise_into(piece, part.scale, part.clip, room.view(np.int32), part.name)
    return clipped


def check_chunk(chunk: npt.NDArray[Any], start: int, bounds: Sequence[tuple[int, int, int]]) -> None:
    """Coordinates ``start`` … of a sum, while they are in the cache.

    Raises:
        ProtocolError: one of them is beyond its bound.
    """
    for low, high, bound in bounds:
        part = chunk[max(low - start, 0) : max(high - start, 0)]
        if part.size and (int(part.max()) > bound or int(part.min()) < -bound):
            raise ProtocolError("the sum lies beyond clip and rounding: some silo's upload was not honest")


class MaskedServer(Plane):
    """The server's half: see ``plane.ServerPlane``."""

    arithmetic = ""

    def absorb(self, inbox: Inbox, silo: SiloId) -> None:
        """Nothing: any bytes of the right length are words, and wait in the inbox."""

    def release(
        self, session: bytes, inbox: Inbox, survivors: tuple[SiloId, ...], opened: tuple[bool, ...], left: Masks
    ) -> tuple[bytes, Aggregate]:
        """Add uploads and take masks off, chunk by chunk in the cache, straight into the message."""
        streams, slots = Streams(left), [inbox.slots[silo] for silo in survivors]
        blank = Release(session, survivors, opened, (), 0.0, bytes(8 * self._words), bytes(self._tag_bytes), b"")
        writer = BulkWriter(blank, self._vector_bytes)
        room, scratch, bounds = new_scratch(), new_scratch(), self._bounds(opened)
        for start in range(0, self._spec.length, CHUNK):
            chunk = room[: self._spec.length - start]
            chunk[...] = 0
            for slot in slots:
                inbox.spool.add_into(slot, 4 * start, chunk)
            streams.words(chunk, scratch)
            check_chunk(chunk.view(np.int32), start, bounds)
            writer.write(chunk.astype("<u4", copy=False))
        scalars, tags = self._scalars(inbox, slots, streams)
        payload, message = writer.finish(replace(blank, scalars=scalars, tags=tags))
        return payload, self._aggregate(message, np.frombuffer(message.values, dtype="<i4"))

    def _scalars(self, inbox: Inbox, slots: Sequence[int], streams: Streams) -> tuple[bytes, bytes]:
        """Sums of the scalars (signed, 8 bytes each) and of the tags."""
        sums = np.zeros(self._words, dtype=np.uint64)
        word = np.empty(self._words, dtype="<u8")
        tags = [0] * TAGS
        for slot in slots:
            inbox.spool.read_into(slot, self._vector_bytes, word)
            np.add(sums, word, out=sums)
            if self._tag_bytes:
                raw = np.empty(self._tag_bytes, dtype=np.uint8)
                inbox.spool.read_into(slot, self._vector_bytes + 8 * self._words, raw)
                tags = [(a + b) % PRIME for a, b in zip(tags, decode_tags(raw.tobytes()), strict=True)]
        streams.words(sums, np.empty_like(sums))
        packed_tags = encode_tags(streams.tags(tags)) if self._tag_bytes else b""
        return sums.astype("<u8").tobytes(), packed_tags
