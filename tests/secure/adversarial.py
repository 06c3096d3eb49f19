"""The adversarial table as data, and tools by which a test plays a lying server or a lying silo.

``@row("models")`` ties a test to a row of ``ROWS`` or ``ATTEMPTS``; ``adversarial_table.py`` prints the table with the
outcomes seen.
"""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import replace
from types import FunctionType, ModuleType

from harness import SERVER, Drive, SessionAbortedEvent, SessionReleased

from secure.codec import decode, encode, peek_kind
from secure.messages import (
    Reveal,
)

ROWS = {
    "stories": (
        "different models, roster, cohort or survivor set told to two silos",
        "proposal or quorum fails, all abort, no share leaves",
    ),
    "repeat": (
        "a round unmasked, then repeated without one silo",
        "silos refuse to sign the second survivor set",
    ),
    "key-swap": ("a public key swapped in transit", "signature check fails at step 1"),
    "unmask-twice": (
        "one id active and dead; second unmask request; survivors changed after the reply",
        "refused, logged, state gone",
    ),
    "replay": (
        "last round's keys, shares or vector replayed; a silo restarted or rolled back",
        "session or counter mismatch; restarted means dropped",
    ),
    "resubmit": (
        "other data submitted under the same masks",
        "refused; only identical bytes are re-sent",
    ),
    "lowered": ("server lowers t, quorum, minimum, clip, ring; old roster", "policy refusal"),
    "early-sums": (
        "sub-sums released before all receipts; totals read in transit",
        "impossible by state; sealed",
    ),
    "bad-input": (
        "NaN/Inf, wrong shape, order or dtype",
        "silo raises before masking; server rejects by schema digest",
    ),
    "clip": (
        "values at and beyond the clip; sums at the bound",
        "clipped share reported; no wrap; sums beyond the bound discard the round",
    ),
    "drops": (
        "drop before and after each step, several at once, in the middle of an upload",
        "exact sum of the survivors, or a clean abort that reveals nothing; model kept",
    ),
    "quorum": (
        "fewer than the quorum, or than K − max_drops, survive",
        "abort, previous model kept",
    ),
    "gate": (
        "few holders of a component; one dominating; liars that claim to hold it; then drops",
        'gate or w_max holds; server learns "closed" only',
    ),
    "blame": (
        "a bad Shamir share, a wrong b, an equivocating dealer",
        "named; succeeds with any t good shares",
    ),
    "seeds": (
        "same seed, two runs or two rounds, or M models within one",
        "mask streams differ; known-answer vectors for the PRG",
    ),
    "planted": (
        "a planted weight pattern, counts, proportions, file names, labels sought in every byte sent to the server, "
        "its logs and its memory",
        "absent",
    ),
    "ciphertexts": (
        "secret key in the server's context; mixed keys; bit flip; ciphertexts swapped; constant added to the sum; sum "
        "doubled",
        "start-up refusal, signature failure, or tag failure",
    ),
    "backend": (
        "secure library missing on one silo; one silo configured with another back-end",
        "the run refuses to start and names the silo",
    ),
}
"""Key → (attempt, expected), word for word from secure-aggregation.md."""

ATTEMPTS = {
    "probe-counts": (
        "server proposes ever stricter min_samples to find the count at which a component closes",
        "refused: rules are the configuration's, not merely as strict",
    ),
    "probe-holders": (
        "server proposes ever more min_contributors (or colluders) to count the holders exactly",
        "refused: rules are the configuration's, not merely as strict",
    ),
    "probe-cohorts": (
        "server repeats one starting point with cohorts that differ by a silo, and watches components close",
        "silos refuse totals of a cohort that would isolate fewer than c + 2",
    ),
    "survey-difference": (
        "server and one silo subtract the totals and statistics of two surveys whose cohorts differ by one silo",
        "silos refuse totals of a cohort that would isolate fewer than c + 2",
    ),
    "dominating-sum": (
        "one silo holds nearly all samples of a component: is the released sum its update?",
        "no silo weighs more in the released sum than w_max allows",
    ),
    "negative-class": (
        "colluding silo deals a negative size class, so that honest silos above a threshold abort",
        "refused without telling who stands above it",
    ),
    "silenced": (
        "colluding silo deals a negative size class, so that all honest silos but the smallest weigh nothing",
        "no honest silo is left alone in a released sum",
    ),
    "undone-cap": (
        "colluding silo claims as much as the largest honest one, and subtracts its own part of the sum",
        "no honest silo outweighs the other honest ones",
    ),
    "other-phase-totals": (
        "totals of one starting point in two phases, or with and without upload, whose cohorts differ by one silo",
        "silos refuse totals of a cohort that would isolate fewer than c + 2",
    ),
    "coarse-sum": (
        "colluding silo claims a giant size class, so that all but the largest silo round to zero",
        "silos refuse shares at which rounding singles somebody out",
    ),
    "other-phase": (
        "the same starting models released in another phase, run or group, with a survivor set that differs by one",
        "silos refuse to sign",
    ),
    "shrunk-cohort": (
        "server leaves out all but a tiny cohort around its victim",
        "refused below the policy's min_cohort and the gate",
    ),
    "lengths": (
        "a silo that contributes nothing is sought by number, size and kind of its messages",
        "indistinguishable",
    ),
    "size-probe": (
        "sizes of messages compared over very different sample counts and statistics",
        "equal to the byte",
    ),
    "metric-blocks": (
        "metrics and clipped counts of one component of few holders read beside an open one",
        "zeros; metrics of closed components never leave the silos",
    ),
    "partial-uploads": (
        "server declares a silo dropped whose upload it holds, and rebuilds that silo's masking key",
        "the self-mask keeps it uniform",
    ),
    "mixed-consents": (
        "server joins consents for two survivor sets, or of one silo twice, to a quorum",
        "refused",
    ),
    "void-forgery": (
        "server and one silo void a session that was unmasked, to have it repeated",
        "too few void statements verify; the binding stands",
    ),
    "altered-release": (
        "server sends silos a sum of its own making",
        "refused where verified_sums is on, and beyond the bounds in any case",
    ),
    "abort-reasons": (
        "reasons of aborts searched for counts, paths and settings",
        "absent",
    ),
    "unclipped-silo": (
        "one silo's clipped counts read from the clipped share",
        "an order of magnitude, without a name",
    ),
    "collusion": (
        "server and c silos pool all messages, their own secrets and every share they hold",
        "the others' uploads stay uniform; fewer than t shares",
    ),
    "more-colluders": (
        "two silos side with the server where c = 1, or c is set beyond what K withstands",
        "c beyond the table is refused before anything is sent",
    ),
    "schedules": (
        "random drops, duplicates, reorderings, replays, delays and deadlines",
        "the exact sum or an abort; never a wrong sum, never a hang",
    ),
    "same-secret": (
        "two silos with the same broken generator, or one that repeats itself",
        "refused at step 1: keys and nonces must differ",
    ),
}
"""Key → (attempt, expected): what a fresh reader tried beyond the table."""


def row(*keys: str):
    """Tie a test to rows of the table."""
    for key in keys:
        if key not in ROWS and key not in ATTEMPTS:
            raise KeyError(key)

    def mark(test):
        test.adversarial = (*getattr(test, "adversarial", ()), *keys)
        return test

    return mark


def story_for(receivers, kind, change, sign=None):
    """Hook: the server tells some silos something else (``sign``: its identity, for messages it signs)."""

    def hook(sender, receiver, payload):
        if sender != SERVER or receiver not in receivers or peek_kind(payload) != kind.KIND:
            return [payload]
        message = change(decode(payload, kind))
        if sign is not None:
            message = replace(message, signature=sign.sign(message.label(), message.body()))
        return [encode(message)]

    return hook


def until(run: Drive, kind, senders=None):
    """Run until every (or the given) silo has sent a message of a kind, without any deadline."""
    run.from_server(run.server.start())
    wanted = set(senders or run.params.cohort)
    for _ in range(200_000):
        if wanted <= {s for s, _, p in run.sent if peek_kind(p) == kind.KIND}:
            return run
        if not run.step():
            raise AssertionError(f"{kind.__name__} never came")
    raise AssertionError("endless")


def from_silos(run: Drive, kind, silo=None):
    """Decoded messages of a kind that silos sent."""
    return [
        decode(payload, kind)
        for sender, _, payload in run.sent
        if sender != SERVER and peek_kind(payload) == kind.KIND and silo in (None, sender)
    ]


def to_silo(run: Drive, kind, silo):
    """Payloads of a kind that the server sent to a silo."""
    return [p for s, r, p in run.sent if s == SERVER and r == silo and peek_kind(p) == kind.KIND]


def profile(run: Drive, silo):
    """Kinds and sizes of everything that a silo sent, in order."""
    return [(peek_kind(payload), len(payload)) for sender, _, payload in run.sent if sender == silo]


def reachable(*roots):
    """Every object that can be reached from ``roots`` by references; code, modules and classes left out."""
    seen, queue = {}, deque(roots)
    while queue:
        item = queue.popleft()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen[id(item)] = item
        queue.extend(gc.get_referents(item))
    return list(seen.values())


def no_share_left(run):
    """Nobody got a sum, nobody gave a share, everybody has ended."""
    assert not run.bytes_of(Reveal)
    assert not isinstance(run.server_outcome, SessionReleased)
    assert all(isinstance(event, SessionAbortedEvent) for event in run.outcome.values())
    assert set(run.outcome) | run.dead == set(run.params.cohort)
