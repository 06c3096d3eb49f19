"""Back-end ``none``: totals and float32 vectors in the clear, for measurement only.

Same session interface, size classes, gate, shares, clips and rules about drops as the masked back-end; no secrecy, no
signatures, no quantiser. It runs only where every party names it.

    server ── Proposal ──▶ silos ── PlainJoin ──▶ server ── PlainTotals ──▶ silos ── Piece …, PlainUploaded ──▶ server
    server ── Release ──▶ silos
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from secure.codec import BULK_OVERHEAD, decode, encode, peek_kind
from secure.errors import InputError, PolicyRefusal, ProtocolError
from secure.events import Event, Send, SessionReleased, SessionSurveyed, TotalsKnown
from secure.fixedpoint import Segment, magnitude, segments
from secure.gate import capped_share, open_components, size_classes
from secure.messages import Abort, Piece, PlainJoin, PlainTotals, PlainUploaded, Proposal, Release
from secure.policy import Policy
from secure.protocol.machine import ServerMachine, SiloMachine
from secure.protocol.proposal import agreed, make_proposal, objections, proposal_hash
from secure.protocol.release import byte_view, check_contribution, check_vector, metric_values, read_release
from secure.roster import Roster
from secure.spool import Inbox, Spool
from secure.types import Contribution, SessionParams, SiloId, Totals

CHUNK = 65536


class PlainSilo(SiloMachine):
    """A silo's session of back-end ``none``.

    Args:
        silo: own roster id.
        expected: what this silo expects of the proposal.
        contribution: sample counts and statistics.
        policy: local policy, or ``None``.
    """

    def __init__(
        self, silo: SiloId, expected: SessionParams, contribution: Contribution, policy: Policy | None = None
    ) -> None:
        super().__init__()
        check_contribution(expected, contribution)
        self._silo, self._expected, self._policy = silo, expected, policy
        self._contribution: Contribution | None = contribution
        self._params = expected
        self._classes: tuple[int, ...] = ()
        self._totals: Totals | None = None
        self._session = b""
        self._state = "proposal"

    def _take(self, payload: bytes) -> Iterable[Event]:
        if peek_kind(payload) == Abort.KIND:
            return self._told_to_abort(decode(payload, Abort))
        if self._state == "proposal":
            return self._join(decode(payload, Proposal))
        if self._state == "totals":
            return self._learn(decode(payload, PlainTotals))
        if self._state == "release":
            limit = 4 * self._params.spec.length + BULK_OVERHEAD
            return self._read(decode(payload, Release, limit=limit))
        raise ProtocolError("no message is expected before the upload")

    def _join(self, proposal: Proposal) -> list[Event]:
        problems = objections(proposal, self._expected, self._silo)
        if problems:
            raise PolicyRefusal("; ".join(problems))
        self._params = agreed(proposal, self._expected)
        if self._policy is not None and "none" not in self._policy.backends:
            raise PolicyRefusal("back-end 'none' is not allowed here")
        held, statistics = self._contribution, self._params.spec.statistics
        if held is None:
            raise ProtocolError("the contribution was erased")
        self._classes = size_classes(held.samples, self._params.rules.min_samples)
        values = tuple(
            max(-item.bound, min(item.bound, float(value)))
            for item, value in zip(statistics, held.statistics, strict=True)
        )
        self._session, self._state = proposal_hash(proposal), "totals"
        return [Send(encode(PlainJoin(self._session, self._silo, self._classes, values)))]

    def _learn(self, message: PlainTotals) -> list[Event]:
        spec, rules = self._params.spec, self._params.rules
        counts = (len(message.weights), len(message.holders), len(message.statistics))
        if message.session != self._session or counts != (spec.components, spec.components, len(spec.statistics)):
            raise ProtocolError("totals do not fit this session")
        opened = open_components(message.holders, rules)
        share = tuple(
            capped_share(own, total, rules.w_max) if is_open else 0.0
            for own, total, is_open in zip(self._classes, message.weights, opened, strict=True)
        )
        weights = tuple(float(weight) for weight in message.weights)
        cohort = self._params.cohort
        self._totals = Totals(weights, message.holders, message.statistics, len(cohort), opened, share)
        if self._params.survey or not any(opened):
            totals = self._totals
            self._finish()
            return [TotalsKnown(totals), SessionSurveyed(opened, cohort)]
        self._state = "submit"
        return [TotalsKnown(self._totals)]

    def submit(self, vector: npt.NDArray[np.float32], metrics: Mapping[str, float]) -> Iterable[Event]:
        """Upload the weighted delta, once; see ``api.SiloSession.submit``.

        Raises:
            InputError: NaN, infinity, wrong dtype, shape or names, or not the time to submit.
        """
        if self._done or self._state != "submit" or self._totals is None:
            raise InputError("nothing can be submitted now: before the totals, for the second time, or after the end")
        values = metric_values(self._params.spec, metrics, self._totals.open)
        check_vector(self._params.spec, vector)
        self._state = "release"
        return self._upload(vector, values, segments(self._params.spec, self._totals.share))

    def _upload(
        self, vector: npt.NDArray[np.float32], metrics: tuple[float, ...], parts: tuple[Segment, ...]
    ) -> Iterator[Event]:
        clipped, step = 0, self._params.piece_bytes // 4
        for index, start in enumerate(range(0, len(vector), step)):
            piece = vector[start : start + step].copy()
            clipped += _clip(piece, start, parts)
            data = piece.astype("<f4", copy=False).tobytes()
            yield Send(encode(Piece(self._session, self._silo, index, hashlib.sha256(data).digest()[:16], data)))
        yield Send(encode(PlainUploaded(self._session, self._silo, metrics, magnitude(clipped))))

    def _read(self, message: Release) -> list[Event]:
        totals = self._totals
        if totals is None or message.session != self._session or message.open != totals.open:
            raise ProtocolError("release does not fit this session")
        aggregate = read_release(message, self._params, "<f4")
        self._finish()
        return [SessionReleased(aggregate)]

    def _erase(self) -> None:
        self._contribution = self._totals = None
        self._classes = ()


def _clip(piece: npt.NDArray[np.float32], start: int, parts: tuple[Segment, ...]) -> int:
    """Hold the coordinates ``start`` … of a piece to their clips, in place; returns how many were clipped."""
    clipped = 0
    for part in parts:
        low, high = max(part.start - start, 0), min(part.stop - start, len(piece))
        if low < high:
            view, limit = piece[low:high], np.float32(part.clip)
            if limit > 0:  # closed components are set to zero, which is no clipping
                clipped += int(np.count_nonzero(np.abs(view) > limit))
            np.clip(view, -limit, limit, out=view)
    return clipped


class PlainServer(ServerMachine):
    """The server's session of back-end ``none``.

    Args:
        params: the proposal.
        spool_dir: where uploads wait; ``None``: the system's directory for temporary files.
        roster: says which silos are of one organisation and count once; ``None``: each is its own.
    """

    def __init__(self, params: SessionParams, spool_dir: Path | None = None, roster: Roster | None = None) -> None:
        super().__init__(params)
        self._counted = params.cohort if roster is None else roster.representatives(params.cohort)
        segments(params.spec, (1.0,) * params.spec.components)  # refuses impossible clips
        self._spool_dir = spool_dir
        proposal = make_proposal(params)
        self._proposal, self._session = encode(proposal), proposal_hash(proposal)
        self._joined: dict[SiloId, PlainJoin] = {}
        self._uploaded: dict[SiloId, PlainUploaded] = {}
        self._open: tuple[bool, ...] = ()
        self._inbox: Inbox | None = None

    def start(self) -> Iterable[Event]:
        """The proposal, to every silo."""
        return self._to_all(self._proposal)

    @property
    def state(self) -> str:
        """The step in progress, for logs."""
        return "done" if self._done else "uploads" if self._inbox else "joins"

    @property
    def waiting_for(self) -> tuple[SiloId, ...]:
        """Silos whose message the present step still awaits."""
        got: Mapping[SiloId, object] = self._uploaded if self._inbox else self._joined
        return () if self._done else tuple(silo for silo in self.alive if silo not in got)

    def _take(self, sender: SiloId, payload: bytes) -> Iterable[Event]:
        if peek_kind(payload) == Abort.KIND:
            self.complaints.append((sender, decode(payload, Abort).reason))
            return self.lost(sender)
        if self._inbox is None:
            return self._take_join(sender, decode(payload, PlainJoin))
        limit = self.params.piece_bytes + BULK_OVERHEAD
        if peek_kind(payload) == Piece.KIND:
            piece = decode(payload, Piece, limit=limit)
            self._check_sender(sender, piece)
            return self._take_piece(self._inbox, piece)
        end = decode(payload, PlainUploaded)
        self._check_sender(sender, end)
        return self._take_end(self._inbox, end)

    def _check_sender(self, sender: SiloId, message: Piece | PlainUploaded) -> None:
        if message.session != self._session or message.silo != sender or sender in self._gone:
            raise ProtocolError("message does not fit this session or its sender")

    def _take_join(self, sender: SiloId, message: PlainJoin) -> list[Event]:
        spec = self.params.spec
        if message.proposal != self._session or message.silo != sender or sender in self._joined:
            raise ProtocolError("join does not fit this session or its sender, or is a repeat")
        if (len(message.classes), len(message.statistics)) != (spec.components, len(spec.statistics)):
            raise ProtocolError("join has the wrong number of totals")
        self._joined[sender] = message
        return [] if self.waiting_for else self._tell_totals()

    def _tell_totals(self) -> list[Event]:
        joined = [self._joined[silo] for silo in sorted(self._joined)]
        weights = tuple(sum(classes) for classes in zip(*(item.classes for item in joined), strict=True))
        counted = [self._joined[silo] for silo in self._counted]
        holders = tuple(sum(map(bool, classes)) for classes in zip(*(item.classes for item in counted), strict=True))
        statistics = tuple(sum(values) for values in zip(*(item.statistics for item in joined), strict=True))
        self._open = open_components(holders, self.params.rules)
        events = self._to_all(PlainTotals(self._session, weights, holders, statistics))
        if self.params.survey or not any(self._open):
            self._finish()
            return [*events, SessionSurveyed(self._open, self.params.cohort)]
        slots = {silo: slot for slot, silo in enumerate(self.params.cohort)}
        upload_bytes = 4 * self.params.spec.length
        spool = Spool(self._spool_dir, upload_bytes, len(slots))
        self._inbox = Inbox(spool, slots, upload_bytes, self.params.piece_bytes // 4 * 4)
        return events

    def _take_piece(self, inbox: Inbox, piece: Piece) -> list[Event]:
        if inbox.has(piece.silo, piece.index):
            raise ProtocolError("piece came twice")
        if hashlib.sha256(piece.data).digest()[:16] != piece.tag:
            raise ProtocolError("piece was altered on its way")
        inbox.put(piece.silo, piece.index, piece.tag, piece.data)
        return []

    def _take_end(self, inbox: Inbox, message: PlainUploaded) -> list[Event]:
        if message.silo in self._uploaded or inbox.tags(message.silo) is None:
            raise ProtocolError("upload ends twice, or before all its pieces came")
        if len(message.metrics) != len(self.params.spec.metrics):
            raise ProtocolError("upload has the wrong number of metrics")
        self._uploaded[message.silo] = message
        return [] if self.waiting_for else self._release(inbox)

    def _went(self, silo: SiloId) -> list[Event]:
        if self._inbox is None:
            self._gone.discard(silo)
            return self._abort_missing((silo,))
        return self._maybe_release(self._inbox)

    def deadline(self) -> Iterable[Event]:
        """Go on with the complete uploads when enough came, else abort."""
        if self._done:
            return ()
        missing = self.waiting_for
        if self._inbox is None:
            return self._abort_missing(missing)
        self._gone.update(missing)
        return self._maybe_release(self._inbox)

    def _abort_missing(self, missing: tuple[SiloId, ...]) -> list[Event]:
        return self._stop("silos are missing before the totals: repeat with the others", missing)

    def _maybe_release(self, inbox: Inbox) -> list[Event]:
        """Release once every silo has uploaded or gone; abort when too many are gone."""
        least = max(1, len(self.params.cohort) - self.params.rules.max_drops)
        gone = tuple(silo for silo in self.params.cohort if silo in self._gone and silo not in self._uploaded)
        if len(self.params.cohort) - len(gone) < least:
            return self._stop("fewer silos uploaded than the rules demand", gone)
        return [] if self.waiting_for else self._release(inbox)

    def _release(self, inbox: Inbox) -> list[Event]:
        survivors, spec = tuple(sorted(self._uploaded)), self.params.spec
        sent = [self._uploaded[silo] for silo in survivors]
        metrics = tuple(float(sum(values)) for values in zip(*(item.metrics for item in sent), strict=True))
        most = sum(item.clipped for item in sent) / max(1, len(survivors) * spec.length)
        values = self._sum(inbox, survivors)
        message = Release(self._session, survivors, self._open, metrics, min(1.0, most), b"", b"", byte_view(values))
        payload = encode(message)
        aggregate = read_release(message, self.params, "<f4")
        events = self._to_all(payload)
        self._finish()
        return [*events, SessionReleased(aggregate)]

    def _sum(self, inbox: Inbox, survivors: tuple[SiloId, ...]) -> npt.NDArray[np.float32]:
        """Sum in float64, silo after silo in ascending order, rounded once: the same bits in every run."""
        length = self.params.spec.length
        total = np.empty(length, dtype="<f4")
        chunk, sums = np.empty(CHUNK, dtype="<f4"), np.empty(CHUNK, dtype=np.float64)
        for start in range(0, length, CHUNK):
            size = min(CHUNK, length - start)
            sums[:size] = 0
            for silo in survivors:
                inbox.spool.read_into(inbox.slots[silo], 4 * start, chunk[:size])
                sums[:size] += chunk[:size]
            total[start : start + size] = sums[:size]
        return total

    def _erase(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
        self._joined.clear()
