"""Steps 0 and 1 on a silo: may this proposal be signed, and who are the members of the session?"""

from __future__ import annotations

from collections.abc import Sequence

from secure.codec import Signed, decode
from secure.credentials import Credentials
from secure.errors import DecodeError, InputError, PolicyRefusal, ProtocolError
from secure.fixedpoint import check_capacity
from secure.gate import check_feasible, feasibility, infeasible, void_quorum
from secure.identity import is_valid
from secure.journal import Journal
from secure.messages import Advert, Adverts, Proposal, Void
from secure.policy import Policy
from secure.protocol.proposal import agreed, digest, objections
from secure.protocol.totals import check_totals_capacity
from secure.roster import Roster
from secure.types import Rules, SessionParams, SiloId
from secure.verified import check_tag_capacity

TOTALS_MARGIN = 16
"""T of the totals in large cohorts: work grows with K · T, and 15 silos are far more than the colluders allowed for."""


def thresholds(params: SessionParams) -> tuple[int, int]:
    """t of seeds and masking keys, and T ≤ t − c of the totals, T > c (see ``totals``)."""
    threshold, colluders = feasibility(len(params.cohort)).threshold, params.rules.colluders
    return threshold, min(threshold - colluders, max(TOTALS_MARGIN, 2 * colluders + 1))


def too_many_colluders(silos: int, rules: Rules) -> list[str]:
    """Totals must stay hidden from c holders (T > c) although c of t sub-sums serve as a check: t > 2c."""
    threshold = feasibility(silos).threshold
    if threshold > 2 * rules.colluders:
        return []
    return [f"{silos} silos withstand at most {(threshold - 1) // 2} colluders (t > 2c, t = {threshold})"]


def check_session(params: SessionParams) -> None:
    """Prove that a session can work before anything is sent.

    Raises:
        InputError: infeasible rules or impossible settings, every reason at once.
        CapacityError: the layout does not fit.
    """
    check_feasible(len(params.cohort), params.rules)
    problems = too_many_colluders(len(params.cohort), params.rules)
    if list(params.cohort) != sorted(set(params.cohort)):
        problems.append("cohort must be ascending and distinct")
    if problems:
        raise InputError("; ".join(problems))
    check_capacity(params.spec, len(params.cohort))
    check_totals_capacity(params.spec, len(params.cohort))
    if params.rules.verified_sums or params.backend == "homomorphic":
        check_tag_capacity(params.spec, len(params.cohort))


def verified(roster: Roster, sender: SiloId, message: Signed, signature: bytes) -> bool:
    """Whether ``signature`` is the sender's over this message."""
    return is_valid(roster.public_key(sender), message.label(), message.body(), signature)


def accept_proposal(
    proposal: Proposal,
    expected: SessionParams,
    silo: SiloId,
    credentials: Credentials,
    journal: Journal,
    arithmetic: str = "",
) -> SessionParams:
    """Check a proposal against what the silo expects, its policy and its journal; the session counts as started.

    Args:
        arithmetic: ``ServerPlane.arithmetic`` as this silo has it.

    Raises:
        ProtocolError: the server's signature does not verify.
        PolicyRefusal: every reason at once.
        JournalError: damaged or not writable.
    """
    roster, policy = credentials.roster, credentials.policy
    if policy is None:
        raise PolicyRefusal("a silo needs a local policy")
    if proposal.backend != expected.backend:  # before the signature, which only some back-ends have: a common mistake
        raise PolicyRefusal(f"the server runs back-end {proposal.backend!r}, this silo {expected.backend!r}")
    if not is_valid(roster.server_key, proposal.label(), proposal.body(), proposal.signature):
        raise ProtocolError("the server's signature on the proposal does not verify")
    problems = objections(proposal, expected, silo, arithmetic)
    params = agreed(proposal, expected)
    problems += policy.check(params)
    problems += infeasible(len(params.cohort), params.rules) + too_many_colluders(len(params.cohort), params.rules)
    if roster.digest() != params.roster_digest:
        problems.append("roster differs from the one this silo uses")
    known = {entry.silo_id for entry in roster.silos}
    if not known.issuperset(params.cohort):
        problems.append("cohort holds silos that are not in the roster")
    if problems:
        raise PolicyRefusal("; ".join(dict.fromkeys(problems)))
    _begin(proposal, params, policy, roster, journal)
    return params


def _begin(proposal: Proposal, params: SessionParams, policy: Policy, roster: Roster, journal: Journal) -> None:
    journal.note_roster(roster.version, roster.digest())
    clear_voids(proposal.voids, journal, roster, params.rules.colluders)
    index = policy.phase_index(params.phase)
    journal.begin(params.run_id, index, params.round, params.attempt, params.group)


def clear_voids(voids: Sequence[bytes], journal: Journal, roster: Roster, colluders: int) -> None:
    """Forget the survivors that were signed in sessions of which enough silos say that no share has left.

    K − t + c + 1 signatures (``gate.void_quorum``): the others, and c liars among the signers, hold fewer than t
    shares, so nothing of that session was or will be unmasked. Each statement names the session's cohort, and so K; a
    certificate holds at least c + 1 statements, one of them honest.

    Raises:
        PolicyRefusal: this silo's own shares of such a session have left.
    """
    signers: dict[tuple[bytes, tuple[SiloId, ...]], set[SiloId]] = {}
    for data in voids:
        try:
            void = decode(data, Void)
        except DecodeError:
            continue
        if void.silo in void.cohort and verified(roster, void.silo, void, void.signature):
            signers.setdefault((void.session, void.cohort), set()).add(void.silo)
    for (session, cohort), silos in signers.items():
        if feasibility(len(cohort)).ok and len(silos) >= void_quorum(len(cohort), colluders):
            journal.void(session)


def bind_totals(journal: Journal, params: SessionParams, session: bytes) -> None:
    """Note a cohort before its totals can be known, and refuse one that would single silos out.

    Totals of two cohorts that differ by one silo show that silo's numbers to any silo, and by which components close,
    what it holds to the server alone; and a silo's counts are the same in every phase. So, for one set of starting
    models, whatever the phase, the cohorts whose totals this silo takes part in cut the silos only into cells of c + 2
    or more. Voids do not free these: totals are known.

    Raises:
        PolicyRefusal: fewer than c + 2 silos would be isolated.
        JournalError: damaged or not writable.
    """
    place = digest("totals of one start", params.start_digest)
    name = digest("cohort", repr(params.cohort).encode()).hex()
    key = digest("totals of a session", session)
    try:
        journal.bind(name, place, params.cohort, key, colluders=params.rules.colluders)
    except PolicyRefusal:
        raise PolicyRefusal(
            "totals were exchanged from these starting models in a cohort that differs by too few silos; repeat with "
            "the same cohort, or leave out at least colluders + 2 silos"
        ) from None


def session_of(proposal: bytes, adverts: Sequence[bytes]) -> bytes:
    """Hash over the proposal and all encoded adverts, ascending by silo."""
    return digest("session", proposal, *adverts)


def read_adverts(
    message: Adverts, proposal: bytes, cohort: Sequence[SiloId], roster: Roster, own: bytes
) -> tuple[bytes, dict[SiloId, Advert]]:
    """Check everybody's adverts: all of the cohort, in order, signed, for this proposal, ours unaltered, keys distinct.

    Returns:
        The session, bound to the proposal and every advert, and the adverts by silo, ascending.

    Raises:
        ProtocolError: says which check failed.
    """
    if len(message.adverts) != len(cohort) or own not in message.adverts:
        raise ProtocolError("adverts of the cohort are incomplete, or this silo's own was altered")
    adverts: dict[SiloId, Advert] = {}
    for silo, data in zip(cohort, message.adverts, strict=True):
        advert = decode(data, Advert)
        if advert.silo != silo or advert.proposal != proposal:
            raise ProtocolError(f"advert of silo {silo} belongs to another silo or another proposal")
        if data != own and not verified(roster, silo, advert, advert.signature):
            raise ProtocolError(f"signature on the advert of silo {silo} does not verify")
        adverts[silo] = advert
    fresh = [value for item in adverts.values() for value in (item.sealing_key, item.masking_key, item.nonce)]
    if len(set(fresh)) != len(fresh):
        raise ProtocolError("two silos advertised the same key or nonce")
    return session_of(proposal, message.adverts), adverts
