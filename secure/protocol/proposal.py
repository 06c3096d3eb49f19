"""Step 0: from ``SessionParams`` to the proposal on the wire and back, and what a silo refuses in it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace

from secure.fixedpoint import fraction_bits
from secure.gate import feasibility
from secure.keys import frame
from secure.messages import Proposal
from secure.types import Rules, SessionParams, SiloId

PIECE_RANGE = (1 << 10, 1 << 26)
"""Smallest and largest size of an upload piece, in bytes."""


def digest(label: str, *fields: bytes) -> bytes:
    """32-byte SHA-256 over a label and length-prefixed fields: every public hash of the protocol."""
    return hashlib.sha256(frame(("fedgmi/1/" + label).encode(), *fields)).digest()


def id_bytes(silo: SiloId) -> bytes:
    """A roster id as two bytes."""
    return silo.to_bytes(2, "big")


def quantiser(params: SessionParams, arithmetic: str) -> str:
    """How numbers are rounded, and with what they are added beyond that (``ServerPlane.arithmetic``)."""
    rounding = f"nearest-even, 2^{fraction_bits(params.spec.profile)} steps a clip"
    return f"{rounding}; {arithmetic}" if arithmetic else rounding


def make_proposal(
    params: SessionParams, server_key: bytes = bytes(32), voids: Sequence[bytes] = (), arithmetic: str = ""
) -> Proposal:
    """The unsigned proposal of these parameters.

    Args:
        server_key: the server's one-time X25519 public key (zeros with back-end ``none``).
        voids: encoded ``Void`` messages of an earlier session from the same starting point.
        arithmetic: ``ServerPlane.arithmetic``.
    """
    rules, case = params.rules, feasibility(len(params.cohort))
    return Proposal(
        run_id=params.run_id,
        phase=params.phase,
        round=params.round,
        attempt=params.attempt,
        group=params.group,
        backend=params.backend,
        cohort=params.cohort,
        spec=params.spec.digest(),
        start=params.start_digest,
        config=params.config_digest,
        roster=params.roster_digest,
        colluders=rules.colluders,
        max_drops=rules.max_drops,
        min_contributors=rules.min_contributors,
        min_samples=rules.min_samples,
        w_max=float(rules.w_max),
        verified_sums=rules.verified_sums,
        threshold=case.threshold,
        quorum=case.quorum,
        quantiser=quantiser(params, arithmetic),
        survey=params.survey,
        piece_bytes=params.piece_bytes,
        server_key=server_key,
        voids=tuple(voids),
        signature=b"",
    )


def proposal_hash(proposal: Proposal) -> bytes:
    """What every advert signs: all fields of the proposal, the signature left out."""
    return digest("proposal", proposal.body())


def rules_of(proposal: Proposal) -> Rules:
    """The proposal's rules."""
    return Rules(
        colluders=proposal.colluders,
        max_drops=proposal.max_drops,
        min_contributors=proposal.min_contributors,
        min_samples=proposal.min_samples,
        w_max=proposal.w_max,
        verified_sums=proposal.verified_sums,
    )


def agreed(proposal: Proposal, expected: SessionParams) -> SessionParams:
    """What the session runs on: the silo's own expectation with the proposal's cohort and attempt."""
    return replace(
        expected,
        cohort=proposal.cohort,
        attempt=proposal.attempt,
        rules=rules_of(proposal),
        piece_bytes=proposal.piece_bytes,
    )


def objections(proposal: Proposal, expected: SessionParams, silo: int, arithmetic: str = "") -> list[str]:
    """Every field in which the proposal differs from, or falls short of, what this silo expects; empty when none.

    Names of fields only: what a silo expected is not the server's business.
    """
    case = feasibility(len(proposal.cohort))
    pairs = (
        ("run", proposal.run_id, expected.run_id),
        ("phase", proposal.phase, expected.phase),
        ("round", proposal.round, expected.round),
        ("group", proposal.group, expected.group),
        ("back-end", proposal.backend, expected.backend),
        ("layout of the upload", proposal.spec, expected.spec.digest()),
        ("starting models", proposal.start, expected.start_digest),
        ("configuration", proposal.config, expected.config_digest),
        ("roster", proposal.roster, expected.roster_digest),
        ("survey", proposal.survey, expected.survey),
        ("quantiser" + _encryption(arithmetic), proposal.quantiser, quantiser(expected, arithmetic)),
        ("threshold", proposal.threshold, case.threshold),
        ("quorum", proposal.quorum, case.quorum),
    )
    found = [f"{name} differs from what this silo expects" for name, got, want in pairs if got != want]
    if proposal.attempt < expected.attempt:
        found.append("attempt is older than what this silo expects")
    if not set(proposal.cohort) <= set(expected.cohort):
        found.append("cohort holds silos that were not drawn")
    if silo not in proposal.cohort:
        found.append("cohort leaves this silo out")
    if not PIECE_RANGE[0] <= proposal.piece_bytes <= PIECE_RANGE[1] or proposal.piece_bytes % 16:
        found.append("size of upload pieces is out of range or no multiple of 16 bytes")
    # Equal, not merely as strict: by varying min_samples or the gate from attempt to attempt, and watching components
    # close, a server could search for counts and numbers of holders.
    proposed, wanted = asdict(rules_of(proposal)), asdict(expected.rules)
    return found + [f"{name} differs from what this silo expects" for name in wanted if proposed[name] != wanted[name]]


def _encryption(arithmetic: str) -> str:
    """What may differ beside the quantiser. Versions of a library are nobody's secret, and say what to install."""
    return f" or encryption (here: {arithmetic}; all parties need the same TenSEAL)" if arithmetic else ""
