"""The server's side of the control plane: relays, collects, and never decides what silos check for themselves.

    adverts → shares → receipts → sums → uploads → consents → reveals
       1         2         2        2       3          4          5

Up to the receipts nobody may be missing: the session ends, naming who is, and its caller repeats with the others. From
then on it goes on without the missing ones as long as K − max_drops silos and the quorum are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from secure.codec import BULK_OVERHEAD, Signed, decode, encode, peek_kind
from secure.credentials import Credentials
from secure.errors import ProtocolError
from secure.events import Event, Send, SessionReleased, SessionSurveyed
from secure.gate import feasibility
from secure.keys import RandomBytes, SealingKey
from secure.messages import (
    Abort,
    Advert,
    Adverts,
    Consent,
    Opened,
    Piece,
    Receipt,
    Receipts,
    Reveal,
    Shares,
    SubSums,
    Survivors,
    UnmaskRequest,
    Uploaded,
    Void,
)
from secure.protocol.agreement import session_of, verified
from secure.protocol.consistency import least_survivors, receipts_digest
from secure.protocol.dealing import leaves_of, transcript_of
from secure.protocol.intake import Intake
from secure.protocol.machine import ServerMachine, culprits_of
from secure.protocol.plane import ServerPlane
from secure.protocol.proposal import make_proposal, proposal_hash
from secure.protocol.recovery import Recovery
from secure.protocol.relay import check_shares, check_sums, relay_packets, relay_sums
from secure.protocol.totals import Layout
from secure.types import SessionParams, SiloId

EARLY = ("adverts", "shares", "receipts")
"""States in which nobody may be missing."""


class ControlServer(ServerMachine):
    """The server's session, whatever the data plane.

    Args: as for ``api.open_server``; ``earlier`` are ``Void`` messages of an earlier session.

    Attributes:
        liars: silos convicted of wrong shares, although the session may have got on without them.
    """

    def __init__(
        self,
        params: SessionParams,
        credentials: Credentials,
        plane: ServerPlane,
        spool_dir: Path | None,
        random: RandomBytes,
        earlier: Iterable[bytes] = (),
    ) -> None:
        super().__init__(params)
        self._roster, self._plane, self._spool_dir = credentials.roster, plane, spool_dir
        self._key: SealingKey | None = SealingKey.generate(random)
        draft = make_proposal(params, self._key.public, tuple(earlier))
        signature = credentials.identity.sign(draft.label(), draft.body())
        self._proposal, self._payload = proposal_hash(draft), encode(replace(draft, signature=signature))
        self._layout, self._case = Layout.of(params.spec), feasibility(len(params.cohort))
        self._state, self._session = "adverts", b""
        self._got: dict[SiloId, Any] = {}
        self._adverts: dict[SiloId, Advert] = {}
        self._hashes: dict[SiloId, bytes] = {}
        self._transcript = b""
        self._intake: Intake | None = None
        self._survivors: tuple[SiloId, ...] = ()
        self._receipts = b""
        self._recovery: Recovery | None = None
        self._voids: dict[SiloId, bytes] = {}
        self._accused: set[SiloId] = set()
        self.liars: set[SiloId] = set()

    @property
    def state(self) -> str:
        """The step in progress, for logs."""
        return "done" if self._done else self._state

    @property
    def totals_out(self) -> bool:
        """Whether sub-sums may have left (``agreement.bind_totals``), also after an abort."""
        return self._state in ("sums", "uploads", "consents", "reveals")

    @property
    def voids(self) -> tuple[bytes, ...]:
        """Signed ``Void`` messages that aborting silos sent, for ``open_server`` of the repeat."""
        return tuple(data for _, data in sorted(self._voids.items()))

    @property
    def waiting_for(self) -> tuple[SiloId, ...]:
        """Silos whose message the present step still awaits."""
        if self._done:
            return ()
        wanted = self._survivors if self._state in ("consents", "reveals") else self.params.cohort
        return tuple(silo for silo in wanted if silo not in self._answered and silo not in self._gone)

    @property
    def _answered(self) -> dict[SiloId, Any]:
        """What came in the present step: in ``uploads`` the masks, where nothing will be uploaded."""
        if self._intake is not None and self._state == "uploads" and self._intake.ends_here:
            return dict(self._intake.masks)
        return self._got

    def start(self) -> Iterable[Event]:
        """The proposal, to every silo."""
        return self._to_all(self._payload)

    @property
    def _steps(self) -> dict[str, dict[int, tuple[type[Signed], Callable[[Any], Iterable[Event]]]]]:
        """The messages that each state names."""
        return {
            "adverts": {Advert.KIND: (Advert, self._take_one)},
            "shares": {Shares.KIND: (Shares, self._take_shares)},
            "receipts": {Receipt.KIND: (Receipt, self._take_receipt)},
            "sums": {SubSums.KIND: (SubSums, self._take_sums)},
            "uploads": {Opened.KIND: (Opened, self._take_opened), Uploaded.KIND: (Uploaded, self._take_uploaded)},
            "consents": {Consent.KIND: (Consent, self._take_consent)},
            "reveals": {Reveal.KIND: (Reveal, self._take_reveal)},
        }

    def _take(self, sender: SiloId, payload: bytes) -> Iterable[Event]:
        kind = peek_kind(payload)
        if kind == Abort.KIND:
            return self._silo_aborted(sender, decode(payload, Abort))
        if kind == Void.KIND:
            return self._take_void(sender, payload)
        if sender in self._gone:
            raise ProtocolError("silo was counted as missing already")
        if kind == Piece.KIND and self._state == "uploads":
            limit = self.params.piece_bytes + BULK_OVERHEAD
            self._uploads.take_piece(sender, decode(payload, Piece, limit=limit))
            return []
        named = self._steps[self._state].get(kind)
        if named is None:
            raise ProtocolError(f"message of kind {kind} is not expected now")
        message = decode(payload, named[0])
        self._check(sender, message)
        return named[1](message)

    def _check(self, sender: SiloId, message: Any) -> None:
        """Right session and sender, a valid signature, and no repeat."""
        fits = message.proposal == self._proposal if isinstance(message, Advert) else message.session == self._session
        if not fits or message.silo != sender:
            raise ProtocolError("message belongs to another session or another sender")
        is_opened = isinstance(message, Opened) and self._intake is not None
        waited = self._intake.unopened(self.alive) if self._intake and is_opened else self.waiting_for
        if sender not in waited:
            raise ProtocolError("message is a repeat, or of a silo that is not waited for")
        if not verified(self._roster, sender, message, message.signature):
            raise ProtocolError("signature does not verify")

    def _take_one(self, message: Any) -> list[Event]:
        self._got[message.silo] = message
        return self._advance()

    def _take_shares(self, message: Shares) -> list[Event]:
        check_shares(message, len(self.params.cohort), self._layout)
        return self._take_one(message)

    def _take_receipt(self, message: Receipt) -> list[Event]:
        if message.transcript != self._transcript:
            raise ProtocolError("receipt is for other packets than were relayed")
        return self._take_one(message)

    def _take_sums(self, message: SubSums) -> list[Event]:
        check_sums(message, len(self.params.cohort), self._layout)
        return self._take_one(message)

    def _take_opened(self, message: Opened) -> list[Event]:
        intake = self._uploads
        intake.take_opened(message)
        if not intake.agree:
            return self._stop("silos disagree about which components are open", ())
        return self._advance()

    @property
    def _uploads(self) -> Intake:
        if self._intake is None:
            raise ProtocolError("no upload is expected")
        return self._intake

    def _take_uploaded(self, message: Uploaded) -> list[Event]:
        self._uploads.check_uploaded(message)
        return self._take_one(message)

    def _take_consent(self, message: Consent) -> list[Event]:
        if message.survivors != self._survivors or message.receipts != self._receipts:
            raise ProtocolError("consent is for other survivors or receipts")
        return self._take_one(message)

    def _take_reveal(self, message: Reveal) -> list[Event]:
        if self._recovery is None:
            raise ProtocolError("no reveal is expected")
        self._recovery.add(message.silo, message.shares)
        return self._take_one(message)

    def _silo_aborted(self, sender: SiloId, message: Abort) -> Iterable[Event]:
        """A silo is gone, and may say whom it blames: its word, which the server cannot check."""
        self.complaints.append((sender, message.reason))
        if sender in self._gone:
            return []
        self._gone.add(sender)
        self._accused.update(message.culprits)
        if self._state in EARLY:
            return self._stop(f"silo {sender} ended the session: {message.reason}", message.culprits or (sender,))
        return self._advance()

    def _take_void(self, sender: SiloId, payload: bytes) -> list[Event]:
        void = decode(payload, Void)
        fits = void.silo == sender and void.session == self._session and void.cohort == self.params.cohort
        if not fits or not self._session or not verified(self._roster, sender, void, void.signature):
            raise ProtocolError("void statement does not verify")
        self._voids[sender] = payload
        return []

    def _afterwards(self, sender: SiloId, payload: bytes) -> list[Event]:
        """After the end only void statements are of interest."""
        try:
            return self._take_void(sender, payload)
        except ProtocolError:
            return self._refuse(sender, "the session has ended")

    def _went(self, silo: SiloId) -> list[Event]:
        if self._state in EARLY:
            return self._stop("a silo is missing before the totals: repeat without it", (silo,))
        return self._advance()

    def deadline(self) -> Iterable[Event]:
        """Go on with those that answered, where that is allowed; else abort."""
        if self._done:
            return ()
        missing = self.waiting_for
        if self._state in EARLY:
            return self._stop("silos are missing before the totals: repeat without them", missing)
        self._gone.update(missing)
        late = self._to_all(Abort("this silo's message came too late", ()), missing)
        return [*late, *self._advance()]

    def _advance(self) -> list[Event]:
        """Close the step once nobody is waited for; stop when too few are left to ever finish."""
        left = [silo for silo in self.params.cohort if silo in self._answered or silo not in self._gone]
        short = self.params.survey or (self._intake is not None and self._intake.ends_here)
        least = self._case.quorum if short else least_survivors(self.params)
        if self._state in ("consents", "reveals"):
            left, least = [silo for silo in left if silo in self._survivors], self._case.quorum
        if len(left) < least:
            return self._stop("fewer silos are left than the rules demand", self._accused or self._gone)
        return [] if self.waiting_for else self._close()

    def _close(self) -> list[Event]:
        close: Callable[[], list[Event]] = getattr(self, f"_close_{self._state}")
        return close()

    def _enter(self, state: str, events: Sequence[Event]) -> list[Event]:
        """Go to the next step; silos that went in the last one may already be too many for it."""
        self._state, self._got = state, {}
        return [*events, *self._advance()]

    def _close_adverts(self) -> list[Event]:
        self._adverts = {silo: self._got[silo] for silo in self.params.cohort}
        encoded = tuple(encode(advert) for advert in self._adverts.values())
        self._session = session_of(self._proposal, encoded)
        return self._enter("shares", self._to_all(Adverts(encoded)))

    def _close_shares(self) -> list[Event]:
        cohort = self.params.cohort
        self._hashes = {dealer: self._got[dealer].hashes for dealer in cohort}
        self._transcript = transcript_of(self._session, [leaves_of(self._hashes[dealer]) for dealer in cohort])
        relayed = relay_packets(self._session, self._got, cohort)
        return self._enter("receipts", [Send(encode(message), silo) for silo, message in relayed.items()])

    def _close_receipts(self) -> list[Event]:
        signatures = tuple(self._got[silo].signature for silo in self.params.cohort)
        return self._enter("sums", self._to_all(Receipts(self._session, signatures)))

    def _close_sums(self) -> list[Event]:
        if self._key is None:
            raise ProtocolError("this session's state was erased")
        relayed = relay_sums(self._session, self._got, self.params.cohort, self.alive)
        self._intake = Intake(
            self._session, self.params, self._adverts, self._key, self._plane.upload_bytes, self._spool_dir
        )
        return self._enter("uploads", [Send(encode(message), silo) for silo, message in relayed.items()])

    def _close_uploads(self) -> list[Event]:
        if self._uploads.ends_here:
            opened = self._uploads.open
            self._finish()
            return [SessionSurveyed(opened, self.params.cohort)]
        self._survivors = tuple(sorted(self._got))
        receipts = tuple(self._got[silo].digest + self._got[silo].signature for silo in self._survivors)
        message = Survivors(self._session, self._survivors, receipts)
        self._receipts = receipts_digest(message)
        return self._enter("consents", self._to_all(message))

    def _close_consents(self) -> list[Event]:
        groups: dict[bytes, list[SiloId]] = {}
        for silo in sorted(self._got):
            groups.setdefault(self._got[silo].totals, []).append(silo)
        agreeing = max(groups.values(), key=len, default=[])[: self._case.quorum]
        if len(agreeing) < self._case.quorum:
            return self._stop("silos disagree about the totals", ())
        signatures = tuple(self._got[silo].signature for silo in agreeing)
        self._recovery = Recovery(
            self._session, self._proposal, self._adverts, self._hashes, self._survivors, self._case.threshold
        )
        return self._enter("reveals", self._to_all(UnmaskRequest(self._session, tuple(agreeing), signatures)))

    def _close_reveals(self) -> list[Event]:
        """Take the masks off and release, or discard the round and say whose fault it is."""
        recovery, intake = self._recovery, self._uploads
        if recovery is None:
            raise ProtocolError("this session's state was erased")
        try:
            left = recovery.masks()
            message, aggregate = self._plane.release(self._session, intake.inbox, self._survivors, intake.open, left)
        except ProtocolError as error:
            return self._stop(str(error), {*culprits_of(error), *recovery.liars})
        self.liars = set(recovery.liars)
        events = self._to_all(message)
        self._finish()
        return [*events, SessionReleased(aggregate)]

    def _erase(self) -> None:
        if self._intake is not None:
            self._intake.close()
        if self._key is not None:
            self._key.erase()
        self._got, self._hashes = {}, {}
        self._recovery = self._key = None
