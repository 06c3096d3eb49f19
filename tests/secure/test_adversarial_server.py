"""The adversarial table, first half: a server that tells stories, repeats, replays, and lowers what was agreed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from adversarial import from_silos, row, story_for, to_silo, until
from harness import NOW, SERVER, Drive, Replay, SessionAbortedEvent, SessionReleased, World, chain, drop, inputs, tamper

from secure.api import Contribution, Send, open_server, open_silo
from secure.codec import decode, encode, peek_kind
from secure.errors import IdentityError, InputError, JournalError, PolicyRefusal, SecureError
from secure.gate import void_quorum
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
    Void,
)
from secure.policy import Policy
from secure.roster import Roster, RosterEntry
from secure.types import Block, Rules, VectorSpec


def no_share_left(run):
    """Nobody got a sum, nobody gave a share, everybody has ended."""
    assert not run.bytes_of(Reveal)
    assert not isinstance(run.server_outcome, SessionReleased)
    assert all(isinstance(event, SessionAbortedEvent) for event in run.outcome.values())
    assert set(run.outcome) | run.dead == set(run.params.cohort)


# --- different stories -------------------------------------------------------------------------------------------------


@row("stories")
@pytest.mark.parametrize("field", ["start", "roster", "cohort", "config", "server_key", "spec"])
def test_another_proposal_told_to_half_of_the_silos(field):
    """Silos that expect what they were told, and those that do not."""
    world = World(range(1, 8))
    params = world.params()
    value = params.cohort[:-1] if field == "cohort" else b"x" * 32
    run = Drive(world, params)
    run.on_send = story_for(
        (1, 2, 3), Proposal, lambda m: replace(m, **{field: value}), sign=world.server_identity
    )
    run.go()
    no_share_left(run)


@row("stories")
def test_two_silos_that_believe_in_different_models_never_meet():
    """Each is told exactly what it expects, and the server relays everything faithfully."""
    world = World(range(1, 8))
    params, other = world.params(), world.params(start_digest=b"t" * 32)
    run = Drive(world, params, expected={2: other, 5: other})
    run.on_send = story_for((2, 5), Proposal, lambda m: replace(m, start=b"t" * 32), sign=world.server_identity)
    until(run, Advert)
    adverts = Adverts(tuple(run.bytes_of(Advert, silo)[0] for silo in params.cohort))
    for silo in params.cohort:
        run.from_silo(silo, run.silos[silo].handle(encode(adverts)))
        assert isinstance(run.outcome[silo], SessionAbortedEvent)
        assert "another proposal" in run.outcome[silo].reason
    assert not run.bytes_of(Reveal)


@row("stories")
@pytest.mark.parametrize("told", [(2,), (2, 3, 4)])
def test_another_survivor_set_told_to_some(told):
    """q of K silos must sign the same set; those told otherwise see no quorum for theirs."""
    world = World(range(1, 9), rules=Rules(max_drops=2))
    run = Drive(world, world.params())

    def without_the_last(message):
        return replace(message, survivors=message.survivors[:-1], receipts=message.receipts[:-1])

    run.on_send = story_for(told, Survivors, without_the_last)
    run.go()
    for silo in told:
        assert isinstance(run.outcome[silo], SessionAbortedEvent)
        assert not from_silos(run, Reveal, silo)
    if len(told) > 2:  # fewer than q = 6 agree
        no_share_left(run)


@row("stories", "mixed-consents")
@pytest.mark.parametrize("signers", [(1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6), (1, 2, 3), (4, 5, 6, 7, 8)])
def test_consents_for_two_sets_make_no_quorum_together(signers):
    world = World(range(1, 9), rules=Rules(max_drops=2))
    run = Drive(world, world.params())
    run.on_send = chain(
        story_for((1, 2, 3), Survivors, lambda m: replace(m, survivors=m.survivors[:-1], receipts=m.receipts[:-1])),
        drop(Consent),
    )
    until(run, Consent)
    consents = {consent.silo: consent for consent in from_silos(run, Consent)}
    request = UnmaskRequest(consents[1].session, signers, tuple(consents[s].signature for s in signers))
    for silo in world.silos:
        events = list(run.silos[silo].handle(encode(request)))
        assert isinstance(events[-1], SessionAbortedEvent)
        assert all(peek_kind(e.payload) != Reveal.KIND for e in events if isinstance(e, Send))
    assert not run.bytes_of(Reveal)


# --- repeats -----------------------------------------------------------------------------------------------------------


@row("repeat")
@pytest.mark.parametrize("way", ["smaller cohort", "dropped silo", "other round", "other run"])
def test_a_released_round_is_not_released_again_without_one_silo(way):
    world = World(range(1, 8), rules=Rules(max_drops=1))
    params = world.params()
    assert isinstance(Drive(world, params).go().server_outcome, SessionReleased)
    again = {
        "smaller cohort": replace(params, attempt=1, cohort=params.cohort[:-1]),
        "dropped silo": replace(params, attempt=1),
        "other round": replace(params, round=5),
        "other run": replace(params, run_id="another"),
    }[way]
    run = Drive(world, again, data=inputs(params))
    if way != "smaller cohort":
        run.on_send = drop(Uploaded, silo=7)
    run.go()
    no_share_left(run)
    assert not run.bytes_of(Consent)


@row("repeat", "other-phase")
@pytest.mark.parametrize("changes", [{"phase": "evaluate"}, {"phase": "evaluate", "run_id": "x"}, {"round": 3, "group": 2}])
def test_nor_in_another_phase_run_or_group(changes):
    """Two sets that differ by one silo would show its update, whatever the second session is called."""
    world = World(range(1, 9), rules=Rules(max_drops=1))
    params = world.params()
    assert isinstance(Drive(world, params).go().server_outcome, SessionReleased)
    run = Drive(world, replace(params, **changes), data=inputs(params))
    run.on_send = drop(Uploaded, silo=8)
    run.go()
    no_share_left(run)
    assert not run.bytes_of(Consent)


@row("repeat", "void-forgery")
def test_server_and_a_colluder_cannot_void_what_was_unmasked():
    world = World(range(1, 11), rules=Rules(max_drops=1))
    params = world.params()
    run = Drive(world, params)
    run.on_send = drop(Release)  # silos are left waiting for the sum that the server has
    run.go()
    assert isinstance(run.server_outcome, SessionReleased)
    session = from_silos(run, Consent)[0].session
    assert not run.bytes_of(Void)
    forged = [Void(session, silo, params.cohort, b"\x00" * 64) for silo in params.cohort]
    own = Void(session, 1, params.cohort, b"")
    own = replace(own, signature=world.identities[1].sign(own.label(), own.body()))
    narrow = replace(own, cohort=(1, 2, 3))
    narrow = replace(narrow, signature=world.identities[1].sign(narrow.label(), narrow.body()))
    voids = [encode(v) for v in (*forged, own, own, narrow)]
    assert void_quorum(10, 1) == 5
    again = Drive(world, replace(params, attempt=1), data=inputs(params), voids=voids)
    again.on_send = drop(Uploaded, silo=10)
    again.go()
    no_share_left(again)


# --- keys, unmasking ---------------------------------------------------------------------------------------------------


@row("key-swap")
@pytest.mark.parametrize("field", ["masking_key", "sealing_key", "commitment", "nonce"])
@pytest.mark.parametrize("signer", ["nobody", "server", "another silo"])
def test_a_public_key_swapped_in_transit(field, signer):
    world = World(range(1, 7))
    run = Drive(world, world.params())
    mine = Replay("swapped")(32)
    sign = {"nobody": None, "server": world.server_identity, "another silo": world.identities[2]}[signer]

    def swap(message):
        adverts = [decode(data, Advert) for data in message.adverts]
        forged = replace(adverts[2], **{field: mine})
        if sign:
            forged = replace(forged, signature=sign.sign(forged.label(), forged.body()))
        adverts[2] = forged
        return Adverts(tuple(encode(advert) for advert in adverts))

    run.on_send = tamper(Adverts, swap)
    run.go()
    no_share_left(run)
    assert all("silo 3" in run.outcome[silo].reason for silo in (1, 2, 4, 5, 6))
    assert "own was altered" in run.outcome[3].reason


@row("key-swap")
def test_a_reflected_advert_or_a_known_key_is_refused():
    """The server cannot give one silo's keys to another, nor the point of order one."""
    world = World(range(1, 7))
    run = Drive(world, world.params())
    run.on_send = tamper(Adverts, lambda m: Adverts((m.adverts[1], m.adverts[1], *m.adverts[2:])))
    run.go()
    no_share_left(run)
    run = Drive(world, world.params(attempt=1))
    zero = tamper(Advert, lambda m: replace(m, sealing_key=bytes(32)), silo=4, sign=world.identities[4])
    run.on_send = zero
    run.go()
    no_share_left(run)


@row("same-secret")
def test_two_silos_with_one_generator_are_refused():
    world = World(range(1, 7))
    params = world.params()
    run = Drive(world, params)
    for silo in (2, 3):
        run.silos[silo] = open_silo(
            silo,
            params,
            Contribution(run.samples[silo], run.statistics[silo]),
            credentials=world.credentials(silo),
            journal=world.journals[silo],
            random=Replay("broken"),
        )
    run.go()
    no_share_left(run)
    assert "same key or nonce" in run.outcome[1].reason


@row("unmask-twice")
def test_one_id_active_and_dead_cannot_be_said():
    """The request names survivors only: silos derive the dropped ones, and give one share per peer."""
    world = World(range(1, 7))
    run = Drive(world, world.params()).go()
    for reveal in from_silos(run, Reveal):
        assert len(reveal.shares) == len(world.silos)
    assert [item for item in UnmaskRequest.__dataclass_fields__ if "drop" in item or "dead" in item] == []
    twice = Survivors(b"x" * 32, (1, 1, 2, 3, 4), (b"r" * 96,) * 5)
    request = UnmaskRequest(b"x" * 32, (5,) * 6, (b"s" * 64,) * 6)
    for message in (twice, request):
        with pytest.raises(SecureError):  # not even said: the codec holds ids ascending
            encode(message)


@row("unmask-twice")
@pytest.mark.parametrize("second", ["same", "other signers", "other survivors"])
def test_a_second_unmask_request(second):
    world = World(range(1, 9), rules=Rules(max_drops=2))
    run = Drive(world, world.params())
    run.on_send = drop(Reveal)
    until(run, Reveal)
    first = decode(to_silo(run, UnmaskRequest, 1)[0], UnmaskRequest)
    count = len(run.bytes_of(Reveal, 1))
    session = run.silos[1]
    assert session._packets == {}
    assert session._journal.bound("rounds", run.params.start_digest) == run.params.cohort
    consents = {consent.silo: consent for consent in from_silos(run, Consent)}
    if second == "same":
        events = list(session.handle(encode(first)))
        assert (events, session.ignored) == ([], 1)
    elif second == "other signers":
        signers = tuple(sorted(set(consents) - {first.silos[0]}))[:6]
        request = UnmaskRequest(first.session, signers, tuple(consents[s].signature for s in signers))
        events = list(session.handle(encode(request)))
        assert isinstance(events[-1], SessionAbortedEvent)
    else:
        told = decode(to_silo(run, Survivors, 1)[0], Survivors)
        events = list(session.handle(encode(replace(told, survivors=told.survivors[:-1], receipts=told.receipts[:-1]))))
        assert isinstance(events[-1], SessionAbortedEvent)
    assert not any(isinstance(e, Send) and peek_kind(e.payload) in (Reveal.KIND, Void.KIND) for e in events)
    assert len(run.bytes_of(Reveal, 1)) == count == 1


# --- replays -----------------------------------------------------------------------------------------------------------


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


# --- resubmission ------------------------------------------------------------------------------------------------------


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
    assert len({p for p in run.bytes_of(Piece, 1)}) == len(run.bytes_of(Piece, 1))  # nothing was sent twice


# --- lowered rules -----------------------------------------------------------------------------------------------------

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


# --- sub-sums ----------------------------------------------------------------------------------------------------------


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
