"""The adversarial table: a server that replays, lowers what was agreed, or asks for sub-sums too early."""

from __future__ import annotations

from dataclasses import replace

import pytest
from adversarial import from_silos, no_share_left, row, to_silo, until
from harness import NOW, SERVER, Drive, Replay, SessionAbortedEvent, SessionReleased, World, tamper

from secure.api import Contribution, Send, open_server, open_silo
from secure.codec import decode, peek_kind
from secure.errors import IdentityError, InputError, JournalError, PolicyRefusal
from secure.journal import Journal
from secure.messages import (
    Abort,
    Advert,
    Adverts,
    Consent,
    Packets,
    Piece,
    Proposal,
    Receipts,
    Release,
    Reveal,
    SubSums,
    SubSumsRelay,
    Survivors,
    UnmaskRequest,
    Uploaded,
)
from secure.policy import Policy
from secure.roster import Roster, RosterEntry
from secure.types import Block, Rules, VectorSpec

# --- replays ----------------------------------------------------------------------------------------------------------


@row("replay")
@pytest.mark.parametrize("kind", [Adverts, Packets, Receipts, SubSumsRelay, Survivors, UnmaskRequest, Release])
def test_last_rounds_messages_replayed_to_a_silo(kind):
    world = World(range(1, 7))
    old = Drive(world, world.params()).go()
    new = Drive(world, world.params(round=1, start_digest=b"u" * 32), seed=1)
    replayed = to_silo(old, kind, 2)[0]
    new.on_send = lambda s, r, p: [replayed] if s == SERVER and r == 2 and peek_kind(p) == kind.KIND else [p]
    new.go()
    assert isinstance(new.outcome[2], SessionAbortedEvent)
    assert kind is Release or not from_silos(new, Reveal, 2)


@row("replay")
def test_last_rounds_uploads_are_not_added():
    world = World(range(1, 7), rules=Rules(max_drops=1))
    old = Drive(world, world.params()).go()
    new = Drive(world, world.params(round=1, start_digest=b"u" * 32), seed=1)
    pieces = iter(old.bytes_of(Piece, 3))
    new.on_send = lambda s, r, p: [next(pieces)] if s == 3 and peek_kind(p) == Piece.KIND else [p]
    new.go()
    assert new.aggregate.survivors == (1, 2, 4, 5, 6)


@row("replay")
def test_an_old_proposal_starts_nothing_even_after_a_restart(tmp_path):
    """The counter is on the disk; a silo whose process died has dropped out of the round."""
    world = World(range(1, 7))
    world.journals = {silo: Journal(tmp_path / str(silo)) for silo in world.silos}
    params = world.params(round=4)
    run = Drive(world, params)
    until(run, Consent)
    proposal, survivors = to_silo(run, Proposal, 2)[0], to_silo(run, Survivors, 2)[0]
    for again in (params, replace(params, attempt=0)):
        restarted = open_silo(
            2,
            again,
            Contribution(run.samples[2], run.statistics[2]),
            credentials=world.credentials(2),
            journal=Journal(tmp_path / "2"),
            random=Replay("after the restart"),
        )
        for payload in (proposal, survivors):
            events = list(restarted.handle(payload))
            assert not any(isinstance(e, Send) and peek_kind(e.payload) in (Advert.KIND, Consent.KIND) for e in events)
        assert restarted.done
    assert Journal(tmp_path / "2").bound("rounds", params.start_digest) == params.cohort


@row("replay")
def test_a_journal_rolled_back_in_part_is_noticed(tmp_path):
    """Files deleted or put back one by one; a whole folder put back is out of the promise."""
    journal = Journal(tmp_path)
    journal.begin("run", 0, 0, 0)
    journal.bind("rounds", b"s" * 32, (1, 2, 3), b"x" * 32)
    journal.begin("run", 0, 1, 0)
    for path in (tmp_path / "bindings").iterdir():
        path.unlink()
    with pytest.raises(JournalError):
        Journal(tmp_path)


@row("replay")
def test_older_rounds_and_attempts_are_refused():
    world = World(range(1, 7))
    assert isinstance(Drive(world, world.params(round=3, attempt=2)).go().server_outcome, SessionReleased)
    for changes in ({"round": 3, "attempt": 2}, {"round": 3, "attempt": 1}, {"round": 2, "attempt": 9}):
        run = Drive(world, world.params(**changes, start_digest=b"v" * 32))
        run.go()
        no_share_left(run)
        assert not run.bytes_of(Advert)


# --- resubmission -----------------------------------------------------------------------------------------------------


@row("resubmit")
def test_other_data_under_the_same_masks():
    world = World(range(1, 7))
    run = Drive(world, world.params()).go()
    for silo, session in run.silos.items():
        with pytest.raises(InputError):
            session.submit(run.vectors[silo] * 2, run.metrics[silo])
    run = Drive(world, world.params(round=1, start_digest=b"w" * 32))
    until(run, Uploaded)
    with pytest.raises(InputError):
        run.silos[1].submit(run.vectors[2], run.metrics[2])
    run.settle()
    assert len(set(run.bytes_of(Piece, 1))) == len(run.bytes_of(Piece, 1))  # nothing was sent twice


# --- lowered rules ----------------------------------------------------------------------------------------------------

LOWERED = {
    "threshold": {"threshold": 2},
    "quorum": {"quorum": 3},
    "minimum": {"min_contributors": 2},
    "drops": {"max_drops": 3},
    "colluders": {"colluders": 0},
    "samples": {"min_samples": 1},
    "w_max": {"w_max": 1.0},
    "verified": {"verified_sums": False},
    "back-end": {"backend": "none"},
    "ring": {"quantiser": "nearest-even, 2^15 steps a clip"},
    "layout and clip": {"spec": b"z" * 32},
    "roster": {"roster": b"z" * 32},
    "configuration": {"config": b"z" * 32},
    "run": {"run_id": "elsewhere"},
    "phase": {"phase": "candidates"},
    "stranger": {"cohort": (1, 2, 3, 4, 5, 6, 7, 9)},
    "tiny cohort": {"cohort": (1, 2, 3, 4)},
    "twice": {"survey": True},
}


@row("lowered")
@pytest.mark.parametrize("what", LOWERED)
def test_a_proposal_that_asks_for_less(what):
    world = World(range(1, 8), rules=Rules(verified_sums=True), min_cohort=5)
    run = Drive(world, world.params())
    sign = world.server_identity
    run.on_send = tamper(Proposal, lambda m: replace(m, **LOWERED[what]), sign=sign)
    run.go()
    no_share_left(run)
    assert not run.bytes_of(Advert)
    assert all(world.journals[silo].last("run") is None for silo in world.silos)  # nothing was even begun


@row("lowered")
def test_a_clip_wider_than_the_policy_and_a_layout_beyond_the_ring():
    world = World(range(1, 7))
    wide = world.params(spec=VectorSpec(1, (Block("a", 10, 16.0, 0),)))
    run = Drive(world, wide).go()
    no_share_left(run)
    with pytest.raises(InputError):
        open_server(
            world.params(spec=VectorSpec(1, (Block("a", 10, 2.0**70, 0),))), credentials=world.credentials(SERVER)
        )


@row("lowered")
def test_an_old_roster():
    world = World(range(1, 7))
    entries = [RosterEntry(s, f"silo {s}", f"org {s}", world.identities[s].public_key) for s in world.silos]
    newer = Roster.issue(
        world.operator, version=2, issued=NOW - 10, expires=NOW + 10**8, silos=entries,
        server_key=world.server_identity.public_key,
    )  # fmt: skip
    policy = world.policy.accept(newer, NOW)
    with pytest.raises(IdentityError):
        policy.accept(world.roster, NOW)
    with pytest.raises(IdentityError):
        policy.check_roster(world.roster, NOW)
    journal = Journal()
    journal.note_roster(2, newer.digest())
    with pytest.raises(PolicyRefusal):
        journal.note_roster(1, world.roster.digest())
    world.policy = policy  # silos have consented to version 2; the server runs on version 1
    run = Drive(world, world.params()).go()
    no_share_left(run)
    with pytest.raises(IdentityError):
        Policy.for_roster(world.roster, NOW + 10**9)  # expired


@row("shrunk-cohort")
def test_a_cohort_shrunk_around_a_victim():
    world = World(range(1, 11), min_cohort=6)
    params = world.params()
    for size in (3, 4, 5):
        cohort = params.cohort[:size]
        run = Drive(world, replace(params, cohort=cohort, attempt=size, rules=Rules(max_drops=0, min_contributors=3)),
                    expected=dict.fromkeys(cohort, params))  # fmt: skip
        run.go()
        no_share_left(run)
        assert not run.bytes_of(Advert)


# --- sub-sums ---------------------------------------------------------------------------------------------------------


@row("early-sums")
@pytest.mark.parametrize("missing", ["one signature", "another's signature", "of other packets"])
def test_sub_sums_wait_for_all_receipts(missing):
    world = World(range(1, 7))
    run = Drive(world, world.params())

    def change(message):
        signatures = list(message.signatures)
        if missing == "one signature":
            signatures = signatures[:-1]
        elif missing == "another's signature":
            signatures[4] = signatures[3]
        else:
            signatures[4] = bytes(64)
        return replace(message, signatures=tuple(signatures))

    run.on_send = tamper(Receipts, change)
    run.go()
    no_share_left(run)
    assert {m.silo for m in from_silos(run, SubSums)} <= ({5} if missing != "one signature" else set())


@row("early-sums")
def test_sub_sums_asked_for_before_their_time():
    world = World(range(1, 7))
    good = Drive(world, world.params()).go()
    for kind in (Receipts, SubSumsRelay, Survivors):
        run = Drive(World(range(1, 7)), world.params())
        early = to_silo(good, kind, 1)[0]
        run.on_send = lambda s, r, p, early=early: [early] if r == 1 and peek_kind(p) == Packets.KIND else [p]
        run.go()
        no_share_left(run)
        assert not run.bytes_of(SubSums)


@row("early-sums")
def test_totals_in_transit_are_sealed():
    """Sub-sums that a peer may open are closed to the server, to others, and to the same peer in another session."""
    world = World(range(1, 7))
    run = Drive(world, world.params())
    until(run, SubSums)
    sealed = [packet for message in from_silos(run, SubSums) for packet in message.packets]
    assert len(set(sealed)) == len(sealed)
    relay = tamper(SubSumsRelay, lambda m: replace(m, packets=m.packets[1:] + m.packets[:1]))
    run = Drive(World(range(1, 7)), world.params())
    run.on_send = relay
    run.go()
    no_share_left(run)
    assert all(isinstance(decode(p, Abort), Abort) for p in run.bytes_of(Abort))
