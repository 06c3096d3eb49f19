"""A silo's side of the control plane: one state machine, from the proposal to the release.

    proposal → adverts → packets → receipts → sums → submit → survivors → request → release
       0          1         2          2       2        3         4          5         5

The state is named after what it waits for (``submit``: the caller). Every message that a state does not name, and every
one that fails a check, ends the session: state erased, the server told, and, as long as no share of a seed or key has
left, a signed ``Void``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from secure.codec import BULK_OVERHEAD, CONTROL_LIMIT, Message, Signed, decode, encode, peek_kind
from secure.credentials import Credentials
from secure.errors import InputError, ProtocolError, SecureError
from secure.events import Event, Send, SessionReleased, SessionSurveyed, TotalsKnown
from secure.gate import feasibility, size_classes
from secure.journal import Journal
from secure.keys import RandomBytes, random_bytes
from secure.messages import (
    Abort,
    Advert,
    Adverts,
    Consent,
    Opened,
    Packets,
    Piece,
    Proposal,
    Receipt,
    Receipts,
    Release,
    Reveal,
    Shares,
    SubSums,
    SubSumsRelay,
    Survivors,
    UnmaskRequest,
    Uploaded,
    Void,
)
from secure.protocol import consistency
from secure.protocol.agreement import accept_proposal, bind_totals, read_adverts, thresholds, verified
from secure.protocol.dealing import (
    Dealt,
    Packet,
    Secrets,
    deal_packets,
    leaves_of,
    open_packets,
    open_views,
    seal_view,
    seed_commitment,
    shared_key,
    totals_of,
    transcript_of,
)
from secure.protocol.field import encoded
from secure.protocol.machine import SiloMachine, need
from secure.protocol.plane import SiloKeys, SiloPlane
from secure.protocol.proposal import proposal_hash
from secure.protocol.totals import (
    HolderView,
    Layout,
    add_up,
    challenge,
    combine,
    deal,
    read_totals,
    totals_bytes,
)
from secure.protocol.uploading import PieceKey, upload_digest
from secure.types import Contribution, SessionParams, SiloId, Totals

_S = TypeVar("_S", bound=Signed)

PlaneOf = Callable[[SessionParams], SiloPlane]


class ControlSilo(SiloMachine):
    """A silo's session, whatever the data plane.

    Args:
        expected: what the proposal must say.
        credentials: identity, roster and policy.
        journal: what outlives the session.
        plane_of: makes the data plane once the parameters are agreed.
        random: source of secrets.
        arithmetic: ``ServerPlane.arithmetic`` as this silo has it.
    """

    def __init__(
        self,
        silo: SiloId,
        expected: SessionParams,
        contribution: Contribution,
        credentials: Credentials,
        journal: Journal,
        plane_of: PlaneOf,
        random: RandomBytes,
        arithmetic: str = "",
    ) -> None:
        super().__init__()
        self._silo, self._expected, self._params = silo, expected, expected
        self._contribution: Contribution | None = contribution
        self._credentials, self._journal, self._random = credentials, journal, random
        self._plane_of, self._layout, self._arithmetic = plane_of, Layout.of(expected.spec), arithmetic
        self._state = "proposal"
        self._revealed = False
        self._session = b""
        self._forget()

    def _forget(self) -> None:
        """Everything secret, and everything that only a live session needs."""
        self._secrets: Secrets | None = None
        self._proposal, self._advert, self._server_key = b"", b"", b""
        self._classes: tuple[int, ...] = ()
        self._dealt: Dealt | None = None
        self._packets: dict[SiloId, Packet] = {}
        self._transcript, self._shared = b"", b""
        self._view: HolderView | None = None
        self._challenge = 0
        self._totals: Totals | None = None
        self._sums: tuple[int, ...] = ()
        self._plane: SiloPlane | None = None
        self._digest = b""
        self._consent: Consent | None = None

    def _erase(self) -> None:
        if self._secrets is not None:
            self._secrets.erase()
        self._contribution = None
        self._forget()

    @property
    def _steps(self) -> dict[str, tuple[type[Message], Callable[[Any], Iterable[Event]]]]:
        """The one message that each state names."""
        return {
            "proposal": (Proposal, self._agree),
            "adverts": (Adverts, self._share),
            "packets": (Packets, self._receive),
            "receipts": (Receipts, self._add_up),
            "sums": (SubSumsRelay, self._learn),
            "survivors": (Survivors, self._consent_to),
            "request": (UnmaskRequest, self._reveal),
            "release": (Release, self._read),
        }

    def _take(self, payload: bytes) -> Iterable[Event]:
        if peek_kind(payload) == Abort.KIND:
            return self._told_to_abort(decode(payload, Abort))
        if self._state not in self._steps:
            raise ProtocolError("no message is expected before the upload")
        kind, step = self._steps[self._state]
        limit = need(self._plane).release_bytes + BULK_OVERHEAD if kind is Release else CONTROL_LIMIT
        message = decode(payload, kind, limit=limit)
        session = getattr(message, "session", self._session)
        if session != self._session:
            raise ProtocolError("message belongs to another session")
        return step(message)

    def _sign(self, message: _S) -> _S:
        signature = self._credentials.identity.sign(message.label(), message.body())
        return replace(message, signature=signature)  # type: ignore[call-arg]

    def _send(self, message: Message) -> Send:
        return Send(encode(self._sign(message) if isinstance(message, Signed) else message))

    def _agree(self, proposal: Proposal) -> list[Event]:
        """Step 0 → 1: check the proposal, note it in the journal, make fresh keys."""
        held = need(self._contribution)
        self._params = accept_proposal(
            proposal, self._expected, self._silo, self._credentials, self._journal, self._arithmetic
        )
        self._plane = self._plane_of(self._params)
        self._classes = size_classes(held.samples, self._params.rules.min_samples)
        self._secrets = secrets = Secrets(self._random)
        self._proposal, self._server_key = proposal_hash(proposal), proposal.server_key
        seed = seed_commitment(self._proposal, self._silo, secrets.seed.reveal())
        nonce, sealing, masking = random_bytes(self._random, 32), secrets.sealing.public, secrets.masking.public
        self._advert = encode(self._sign(Advert(self._proposal, self._silo, nonce, sealing, masking, seed, b"")))
        self._state = "adverts"
        return [Send(self._advert)]

    def _share(self, message: Adverts) -> list[Event]:
        """Step 1 → 2: fix the session, deal shares."""
        secrets, held, cohort = need(self._secrets), need(self._contribution), self._params.cohort
        roster = self._credentials.roster
        self._session, adverts = read_adverts(message, self._proposal, cohort, roster, self._advert)
        secrets.meet(self._session, self._silo, adverts, self._server_key)
        numbers = deal(self._params.spec, self._classes, held.statistics, self._random)
        self._contribution = None
        self._dealt = deal_packets(
            secrets, self._session, self._silo, cohort, thresholds(self._params), numbers, self._random
        )
        self._state = "packets"
        return [self._send(Shares(self._session, self._silo, self._dealt.hashes, self._dealt.sealed, b""))]

    def _receive(self, message: Packets) -> list[Event]:
        """Step 2: open and check every packet, sign their receipt."""
        dealt, cohort = need(self._dealt), self._params.cohort
        if len(message.leaves) != len(cohort) or message.leaves[self._rank] != leaves_of(dealt.hashes):
            raise ProtocolError("hashes of the cohort are incomplete, or this silo's own were altered")
        self._packets = open_packets(need(self._secrets), message, self._silo, cohort, self._layout)
        self._packets[self._silo] = dealt.own
        self._dealt = None
        self._transcript = transcript_of(self._session, message.leaves)
        self._shared = shared_key({dealer: packet.part for dealer, packet in self._packets.items()}, self._session)
        self._state = "receipts"
        return [self._send(Receipt(self._session, self._silo, self._transcript, b""))]

    @property
    def _rank(self) -> int:
        return self._params.cohort.index(self._silo)

    def _add_up(self, message: Receipts) -> list[Event]:
        """Step 2: only when everybody holds everything do sub-sums leave."""
        cohort, roster = self._params.cohort, self._credentials.roster
        if len(message.signatures) != len(cohort):
            raise ProtocolError("receipts of the cohort are incomplete")
        for silo, signature in zip(cohort, message.signatures, strict=True):
            receipt = Receipt(self._session, silo, self._transcript, b"")
            if silo != self._silo and not verified(roster, silo, receipt, signature):
                raise ProtocolError(f"silo {silo} has not signed receipt of the packets that this silo saw")
        bind_totals(self._journal, self._params, self._session)
        dealt = {dealer: totals_of(packet) for dealer, packet in self._packets.items()}
        self._challenge = challenge(self._transcript, self._layout.bits)
        self._view = add_up(self._layout, dealt, roster.representatives(cohort), self._challenge)
        sealed = seal_view(need(self._secrets), self._view, self._session, self._silo, cohort, self._random)
        self._state = "sums"
        return [self._send(SubSums(self._session, self._silo, encoded(self._view.openings), sealed, b""))]

    def _learn(self, message: SubSumsRelay) -> list[Event]:
        """Step 2 → 3: combine sub-sums into the totals; the gate."""
        params, cohort, layout = self._params, self._params.cohort, self._layout
        views = open_views(need(self._secrets), message, self._silo, cohort, layout)
        views[self._silo] = need(self._view)
        threshold, totals_threshold = thresholds(params)
        if len(views) < threshold:
            raise ProtocolError("too few silos sent their sub-sums")
        self._sums = combine(layout, views, cohort, totals_threshold, self._challenge, self._random)
        counted = self._credentials.roster.representatives(cohort)
        self._totals = read_totals(params, self._sums, self._classes, len(counted))
        self._view, totals, session = None, self._totals, self._session
        self._packets = {dealer: packet.without_totals() for dealer, packet in self._packets.items()}
        events: list[Event] = [
            self._send(Opened(session, self._silo, totals.open, b"")),
            TotalsKnown(totals),
        ]
        if params.survey or not any(totals.open):
            self._finish()
            return [*events, SessionSurveyed(totals.open, cohort)]
        self._state = "submit"
        return events

    def submit(self, vector: npt.NDArray[np.float32], metrics: Mapping[str, float]) -> Iterable[Event]:
        """Upload the weighted delta, once; see ``api.SiloSession.submit``.

        Raises:
            InputError: NaN, infinity, wrong dtype, shape or names, or not the time to submit.
        """
        if self._done or self._state != "submit":
            raise InputError("nothing can be submitted now: before the totals, for the second time, or after the end")
        plane, totals, secrets = need(self._plane), need(self._totals), need(self._secrets)
        scalars = plane.check(vector, metrics, totals)
        keys = SiloKeys(self._session, self._silo, need(secrets.masks), self._shared)
        piece_key = need(secrets.piece_key)
        secrets.erase()  # what the upload needs dies with its generator
        self._state = "survivors"
        return self._upload(plane.pieces(vector, scalars, totals, keys), piece_key, self._session)

    def _upload(self, pieces: Iterator[memoryview], piece_key: PieceKey, session: bytes) -> Iterator[Event]:
        """Pieces as they are asked for; nothing more once the session has ended."""
        tags: list[bytes] = []
        try:
            for index, data in enumerate(pieces):
                if self._done:
                    return
                tags.append(piece_key.tag(index, data))
                yield Send(encode(Piece(session, self._silo, index, tags[-1], data)))
        except Exception as error:  # the caller changed the vector under our hands, say: no secret may stay behind
            reason = str(error) if isinstance(error, SecureError) else f"internal error ({type(error).__name__})"
            yield from self._end(reason, (), "this silo's upload failed")
            return
        if self._done:
            return
        self._digest = upload_digest(session, self._silo, tags)
        yield self._send(Uploaded(session, self._silo, self._digest, b""))

    def _consent_to(self, message: Survivors) -> list[Event]:
        """Step 4: check the survivors, bind them in the journal, sign."""
        params, totals = self._params, need(self._totals)
        roster = self._credentials.roster
        receipts = consistency.check_survivors(message, params, self._silo, totals, roster)
        if not self._digest or consistency.own_receipt(message, self._silo) != self._digest:
            raise ProtocolError("the receipt for this silo's own upload was altered")
        keyed = consistency.totals_digest(self._shared, self._session, totals_bytes(totals, self._sums))
        self._journal.bind(
            params.phase,
            params.start_digest,
            message.survivors,
            self._session,
            colluders=params.rules.colluders,
            cohort=params.cohort,
        )
        self._consent = self._sign(Consent(self._session, self._silo, message.survivors, receipts, keyed, b""))
        self._state = "request"
        return [Send(encode(self._consent))]

    def _reveal(self, message: UnmaskRequest) -> list[Event]:
        """Step 5: one share per peer, once; then nothing is left that could unmask anything."""
        consent, params = need(self._consent), self._params
        quorum = feasibility(len(params.cohort)).quorum
        consistency.check_request(message, consent, quorum, self._credentials.roster)
        self._journal.mark_released(params.phase, params.start_digest, self._session)
        dropped = set(consistency.dropped_silos(params.cohort, consent.survivors))
        shares = tuple(
            self._packets[silo].key_share if silo in dropped else self._packets[silo].seed_share
            for silo in params.cohort
        )
        self._packets = {}
        self._revealed = True
        self._state = "release"
        return [self._send(Reveal(self._session, self._silo, shares, b""))]

    def _read(self, message: Release) -> list[Event]:
        """Step 5: check and decode the sum."""
        if message.survivors != need(self._consent).survivors:
            raise ProtocolError("release names other survivors than were signed")
        aggregate = need(self._plane).read(message, need(self._totals), self._shared)
        self._finish()
        return [SessionReleased(aggregate)]

    def _last_words(self) -> list[Event]:
        if not self._session or self._revealed:
            return []
        return [self._send(Void(self._session, self._silo, self._params.cohort, b""))]
