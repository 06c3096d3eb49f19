"""The adversarial table: a server that tells stories, repeats rounds, swaps keys and asks twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from adversarial import from_silos, no_share_left, row, story_for, to_silo, until
from harness import Drive, Replay, SessionAbortedEvent, SessionReleased, World, chain, drop, inputs, tamper

from secure.api import Contribution, Send, open_silo
from secure.codec import decode, encode, peek_kind
from secure.errors import SecureError
from secure.gate import void_quorum
from secure.messages import (
    Advert,
    Adverts,
    Consent,
    Proposal,
    Release,
    Reveal,
    Survivors,
    UnmaskRequest,
    Uploaded,
    Void,
)
from secure.types import Rules

# --- different stories ------------------------------------------------------------------------------------------------


@row("stories")
@pytest.mark.parametrize("field", ["start", "roster", "cohort", "config", "server_key", "spec"])
def test_another_proposal_told_to_half_of_the_silos(field):
    """Silos that expect what they were told, and those that do not."""
    world = World(range(1, 8))
    params = world.params()
    value = params.cohort[:-1] if field == "cohort" else b"x" * 32
    run = Drive(world, params)
    run.on_send = story_for((1, 2, 3), Proposal, lambda m: replace(m, **{field: value}), sign=world.server_identity)
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


# --- repeats ----------------------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize(
    "changes", [{"phase": "evaluate"}, {"phase": "evaluate", "run_id": "x"}, {"round": 3, "group": 2}]
)
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


# --- keys, unmasking --------------------------------------------------------------------------------------------------


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
