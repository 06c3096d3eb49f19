"""Steps 4 and 5 on a silo: may this survivor set be signed, and do enough silos say the same?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from secure.errors import ProtocolError
from secure.gate import feasibility
from secure.keys import derive
from secure.messages import HASH, Consent, Survivors, UnmaskRequest, Uploaded
from secure.protocol.agreement import verified
from secure.protocol.proposal import digest
from secure.roster import Roster
from secure.types import SessionParams, SiloId, Totals


def least_survivors(params: SessionParams) -> int:
    """Fewest survivors of which a sum may be released: K − max_drops, and the quorum."""
    silos = len(params.cohort)
    return max(silos - params.rules.max_drops, feasibility(silos).quorum)


def check_survivors(message: Survivors, params: SessionParams, silo: SiloId, totals: Totals, roster: Roster) -> bytes:
    """Check an announced survivor set; returns the digest of its upload receipts.

    Raises:
        ProtocolError: too few, strangers, this silo left out, a receipt that its owner did not sign, or a component
            whose remaining holders could be too few.
    """
    survivors = message.survivors
    if silo not in survivors:
        raise ProtocolError("this silo is not among the survivors: its upload did not arrive in time")
    if not set(survivors) <= set(params.cohort) or len(survivors) < least_survivors(params):
        raise ProtocolError("fewer silos survived than the rules demand")
    drops, rules = len(params.cohort) - len(survivors), params.rules
    for count, is_open in zip(totals.holders, totals.open, strict=True):
        if is_open and count - drops < rules.colluders + 2:
            raise ProtocolError("too few holders of a component may be left among the survivors")
    if len(message.receipts) != len(survivors):
        raise ProtocolError("upload receipts are incomplete")
    for owner, receipt in zip(survivors, message.receipts, strict=True):
        if len(receipt) != HASH + 64:
            raise ProtocolError("an upload receipt is malformed")
        uploaded = Uploaded(message.session, owner, receipt[:HASH], b"")
        if owner != silo and not verified(roster, owner, uploaded, receipt[HASH:]):
            raise ProtocolError(f"upload receipt of silo {owner} does not verify")
    return receipts_digest(message)


def own_receipt(message: Survivors, silo: SiloId) -> bytes:
    """The digest that the server says this silo signed."""
    return message.receipts[message.survivors.index(silo)][:HASH]


def receipts_digest(message: Survivors) -> bytes:
    """Hash over survivors' upload digests (signatures left out)."""
    return digest("upload receipts", message.session, *(receipt[:HASH] for receipt in message.receipts))


def totals_digest(shared: bytes, session: bytes, totals: bytes) -> bytes:
    """Keyed with what only silos share: equal for equal totals, and nothing that the server could try out."""
    return derive(shared, "totals digest", session, totals)


def check_request(message: UnmaskRequest, signed: Consent, quorum: int, roster: Roster) -> None:
    """At least q distinct survivors signed exactly what this silo signed.

    Raises:
        ProtocolError: fewer, strangers, or a signature that does not verify.
    """
    if len(message.silos) != len(message.signatures) or not set(message.silos) <= set(signed.survivors):
        raise ProtocolError("consents are incomplete, or of silos that did not survive")
    if len(message.silos) < quorum:
        raise ProtocolError("fewer silos consented than the quorum")
    for silo, signature in zip(message.silos, message.signatures, strict=True):
        if not verified(roster, silo, replace(signed, silo=silo), signature):
            raise ProtocolError(f"consent of silo {silo} does not verify for these survivors, receipts and totals")


def dropped_silos(cohort: Sequence[SiloId], survivors: Sequence[SiloId]) -> tuple[SiloId, ...]:
    """Derived by every silo itself, never taken from the server."""
    return tuple(silo for silo in cohort if silo not in set(survivors))
