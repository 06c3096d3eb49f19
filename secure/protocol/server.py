"""The server's side of the control plane: relays, collects, and never decides what silos check for themselves.

    adverts → shares → receipts → sums → uploads → consents → reveals
       1         2         2        2       3          4          5

Up to the receipts nobody may be missing: the session ends, naming who is, and its caller repeats with the others. From
then on it goes on without the missing ones as long as K − max_drops silos and the quorum are left.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from secure.codec import BULK_OVERHEAD, Signed, decode, encode, peek_kind
from secure.credentials import Credentials
from secure.errors import ProtocolError
from secure.events import Event, SessionReleased, SessionSurveyed
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
from secure.protocol.dealing import transcript_of
from secure.protocol.intake import Intake
from secure.protocol.ledger import Ledger
from secure.protocol.machine import ServerMachine, culprits_of, need
from secure.protocol.plane import ServerPlane
from secure.protocol.proposal import make_proposal, proposal_hash
from secure.protocol.recovery import Recovery
from secure.protocol.totals import Layout
from secure.types import SessionParams, SiloId

EARLY = ("adverts", "shares", "receipts")
"""States in which nobody may be missing."""


class ControlServer(ServerMachine):
    """The server's session, whatever the data plane; see ``api.open_server``.

    ``liars`` are silos convicted of wrong shares, although the session may have got on without them.
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
        draft = make_proposal(params, self._key.public, tuple(earlier), plane.arithmetic)
        signature = credentials.identity.sign(draft.label(), draft.body())
        self._proposal, self._payload = proposal_hash(draft), encode(replace(draft, signature=signature))
        self._layout, self._case = Layout.of(params.spec), feasibility(len(params.cohort))
        self._state, self._session = "adverts", b""
        self._got: dict[SiloId, Any] = {}
        self._adverts: dict[SiloId, Advert] = {}
        self._ledger: Ledger | None = None
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
            need(self._intake).take_piece(sender, decode(payload, Piece, limit=limit))
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

    def _take_one(self, message: Any) -> Iterable[Event]:
        """Keep a message until the step is closed."""
        return self._note(message.silo, message)

    def _note(self, silo: SiloId, kept: Any = None) -> Iterable[Event]:
        self._got[silo] = kept
        return self._advance()

    def _take_shares(self, message: Shares) -> Iterable[Event]:
        need(self._ledger).take_shares(message)
        return self._note(message.silo)

    def _take_receipt(self, message: Receipt) -> Iterable[Event]:
        if message.transcript != self._transcript:
            raise ProtocolError("receipt is for other packets than were relayed")
        return self._take_one(message)

    def _take_sums(self, message: SubSums) -> Iterable[Event]:
        need(self._ledger).take_sums(message)
        return self._note(message.silo)

    def _take_opened(self, message: Opened) -> Iterable[Event]:
        intake = need(self._intake)
        intake.take_opened(message)
        if not intake.agree:
            return self._stop("silos disagree about which components are open", ())
        return self._advance()

    def _take_uploaded(self, message: Uploaded) -> Iterable[Event]:
        need(self._intake).check_uploaded(message)
        return self._take_one(message)

    def _take_consent(self, message: Consent) -> Iterable[Event]:
        if message.survivors != self._survivors or message.receipts != self._receipts:
            raise ProtocolError("consent is for other survivors or receipts")
        return self._take_one(message)

    def _take_reveal(self, message: Reveal) -> Iterable[Event]:
        need(self._recovery).add(message)
        return self._note(message.silo)

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

    def _went(self, silo: SiloId) -> Iterable[Event]:
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
        return chain(late, self._advance())

    def _advance(self) -> Iterable[Event]:
        """Close the step once nobody is waited for; stop when too few are left to ever finish."""
        left = [silo for silo in self.params.cohort if silo in self._answered or silo not in self._gone]
        short = self.params.survey or (self._intake is not None and self._intake.ends_here)
        least = self._case.quorum if short else least_survivors(self.params)
        if self._state in ("consents", "reveals"):
            left, least = [silo for silo in left if silo in self._survivors], self._case.quorum
        if len(left) < least:
            return self._stop("fewer silos are left than the rules demand", self._accused or self._gone)
        return [] if self.waiting_for else self._close()

    def _close(self) -> Iterable[Event]:
        close: Callable[[], Iterable[Event]] = getattr(self, f"_close_{self._state}")
        return close()

    def _enter(self, state: str, events: Iterable[Event]) -> Iterable[Event]:
        """Go to the next step; silos that went in the last one may already be too many for it."""
        self._state, self._got = state, {}
        return chain(events, self._advance())

    def _close_adverts(self) -> Iterable[Event]:
        self._adverts = {silo: self._got[silo] for silo in self.params.cohort}
        encoded = tuple(encode(advert) for advert in self._adverts.values())
        self._session = session_of(self._proposal, encoded)
        self._ledger = Ledger(self._spool_dir, self.params.cohort, self._layout)
        return self._enter("shares", self._to_all(Adverts(encoded)))

    def _close_shares(self) -> Iterable[Event]:
        ledger, session = need(self._ledger), self._session
        leaves = ledger.leaves()
        self._transcript = transcript_of(session, leaves)
        return self._enter(
            "receipts", self._relay(lambda silo: ledger.packets(session, silo, leaves), self.params.cohort)
        )

    def _close_receipts(self) -> Iterable[Event]:
        signatures = tuple(self._got[silo].signature for silo in self.params.cohort)
        return self._enter("sums", self._to_all(Receipts(self._session, signatures)))

    def _close_sums(self) -> Iterable[Event]:
        ledger, session, holders = need(self._ledger), self._session, sorted(self._got)
        self._intake = Intake(session, self.params, self._adverts, need(self._key), self._plane, self._spool_dir)
        return self._enter("uploads", self._relay(lambda silo: ledger.sub_sums(session, silo, holders), self.alive))

    def _close_uploads(self) -> Iterable[Event]:
        if need(self._intake).ends_here:
            opened = need(self._intake).open
            self._finish()
            return [SessionSurveyed(opened, self.params.cohort)]
        self._survivors = tuple(sorted(self._got))
        receipts = tuple(self._got[silo].digest + self._got[silo].signature for silo in self._survivors)
        message = Survivors(self._session, self._survivors, receipts)
        self._receipts = receipts_digest(message)
        return self._enter("consents", self._to_all(message))

    def _close_consents(self) -> Iterable[Event]:
        groups: dict[bytes, list[SiloId]] = {}
        for silo in sorted(self._got):
            groups.setdefault(self._got[silo].totals, []).append(silo)
        agreeing = max(groups.values(), key=len, default=[])[: self._case.quorum]
        if len(agreeing) < self._case.quorum:
            return self._stop("silos disagree about the totals", ())
        signatures = tuple(self._got[silo].signature for silo in agreeing)
        ledger = need(self._ledger)
        self._recovery = Recovery(
            self._session, self._proposal, self._adverts, ledger, self._survivors, self._case.threshold
        )
        return self._enter("reveals", self._to_all(UnmaskRequest(self._session, tuple(agreeing), signatures)))

    def _close_reveals(self) -> Iterable[Event]:
        """Take the masks off and release, or discard the round and say whose fault it is."""
        recovery, intake = need(self._recovery), need(self._intake)
        try:
            left = recovery.masks()
            payload, aggregate = self._plane.release(self._session, intake.inbox, self._survivors, intake.open, left)
        except ProtocolError as error:
            return self._stop(str(error), {*culprits_of(error), *recovery.liars})
        self.liars = set(recovery.liars)
        events = self._to_all(payload)
        weakref.finalize(
            self, intake.close
        )  # its disk space is given back when the session goes, not before the result
        self._intake = None
        self._finish()
        return [*events, SessionReleased(aggregate)]

    def _erase(self) -> None:
        if self._intake is not None:
            self._intake.close()
        if self._ledger is not None:
            self._ledger.close()
        if self._key is not None:
            self._key.erase()
        self._got = {}
        self._recovery = self._ledger = self._key = None
