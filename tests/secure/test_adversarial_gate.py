"""The adversarial table: drops, quorum, the gate, and silos that lie about what they deal, hold or reveal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from adversarial import from_silos, row
from harness import (
    Drive,
    SessionAbortedEvent,
    SessionReleased,
    World,
    chain,
    die_after,
    die_before,
    inputs,
    tamper,
)
from test_session_happy import check_against_oracle

import secure.protocol.dealing as dealing_module
import secure.protocol.silo as silo_module
from secure.messages import Consent, Opened, Piece, Reveal, SubSums, Uploaded
from secure.types import Rules

# --- drops ------------------------------------------------------------------------------------------------------------

LATE = (SubSums, Opened, Piece, Uploaded, Consent, Reveal)


@row("drops")
@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("when", [die_before, die_after])
def test_two_drop_at_the_same_step(kind, when):
    world = World(range(1, 9), rules=Rules(max_drops=2))
    run = Drive(world, world.params())
    run.on_send = chain(when(run, kind, 2), when(run, kind, 7))
    run.go()
    check_against_oracle(run)


@row("drops")
@pytest.mark.parametrize("pieces", [1, 3, 5])
def test_drops_in_the_middle_of_an_upload(pieces):
    """Half an upload is no upload: never survivors by piece."""
    world = World(range(1, 8))
    run = Drive(world, world.params())
    seen = []

    def hook(sender, receiver, payload):
        if sender == 4 and payload in run.bytes_of(Piece, 4):
            seen.append(payload)
            if len(seen) > pieces:
                run.kill(4)
                return []
        return [payload]

    run.on_send = hook
    run.go()
    assert run.aggregate.survivors == (1, 2, 3, 5, 6, 7)
    check_against_oracle(run)


@row("drops", "quorum")
@pytest.mark.parametrize("kind", [SubSums, Opened, Piece, Uploaded, Consent])
def test_too_many_drops_reveal_nothing(kind):
    """Fewer than K − max_drops, or than the quorum (6 of 8), are left."""
    world = World(range(1, 9), rules=Rules(max_drops=2))
    run = Drive(world, world.params())
    run.on_send = chain(*(die_before(run, kind, silo) for silo in (1, 4, 6)))
    run.go()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert not run.bytes_of(Reveal)
    assert all(isinstance(event, SessionAbortedEvent) for event in run.outcome.values())
    assert not any(isinstance(event, SessionReleased) for event in run.outcome.values())


@row("quorum")
def test_silos_themselves_refuse_too_few_survivors():
    """A server that goes on regardless."""
    from secure.messages import Survivors

    world = World(range(1, 9), rules=Rules(max_drops=1))
    run = Drive(world, world.params())
    run.on_send = tamper(Survivors, lambda m: replace(m, survivors=m.survivors[:6], receipts=m.receipts[:6]))
    run.go()
    assert not run.bytes_of(Consent)
    assert not run.bytes_of(Reveal)


# --- the gate ---------------------------------------------------------------------------------------------------------


@row("gate", "metric-blocks")
@pytest.mark.parametrize("holders", [0, 1, 2, 3, 4, 5])
def test_few_holders_close_a_component_in_every_coordinate_and_metric(holders):
    world = World(range(1, 8))
    params = world.params()
    samples, *rest = inputs(params)
    samples = {silo: (n[0], n[1] if silo <= holders else 7.0) for silo, n in samples.items()}
    run = Drive(world, params, data=(samples, *rest)).go()
    is_open = holders >= max(4, 1 + 1 + 2)
    assert run.aggregate.open == (True, is_open)
    assert bool(run.aggregate.values[700:].any()) == is_open
    assert (run.aggregate.metrics["hits.1"] != 0) == is_open
    check_against_oracle(run)
    assert {m.open for m in from_silos(run, Opened)} == {(True, is_open)}


@row("gate")
def test_liars_then_drops_leave_c_plus_two_holders():
    """c liars claim to hold a component, and max_drops honest holders vanish: two honest ones are still in the sum."""
    for colluders, drops in ((1, 1), (1, 3), (2, 2)):
        rules = Rules(colluders=colluders, max_drops=drops, min_contributors=2)
        assert rules.gate() - drops - colluders >= 2
    world = World(range(1, 11), rules=Rules(max_drops=3, min_contributors=2))
    params = world.params()
    samples, *rest = inputs(params)
    holders = (1, 2, 3, 4, 5, 6)  # six are needed; 1 only says so
    samples = {silo: (n[0], 100.0 if silo in holders else 0.0) for silo, n in samples.items()}
    run = Drive(world, params, data=(samples, *rest))
    run.on_send = chain(*(die_before(run, Uploaded, silo) for silo in (2, 3, 4)))
    run.go()
    assert {1, 5, 6} <= set(run.aggregate.survivors)
    check_against_oracle(run)


@row("gate")
def test_one_dominating_silo_is_capped():
    world = World(range(1, 7))
    params = world.params()
    samples = {silo: (1e6 if silo == 2 else 200.0, 50.0) for silo in world.silos}
    run = Drive(world, params, data=(samples, *inputs(params)[1:])).go()
    assert run.totals[2].share[0] <= params.rules.w_max
    check_against_oracle(run)


@row("gate")
def test_one_organisation_counts_once():
    world = World(range(1, 8), organisations={silo: "one" if silo < 4 else f"org {silo}" for silo in range(1, 8)})
    params = world.params()
    samples = {silo: (50.0, 50.0 if silo < 6 else 0.0) for silo in world.silos}
    run = Drive(world, params, data=(samples, *inputs(params)[1:])).go()
    assert run.aggregate.open == (True, False)  # five silos hold it, three organisations


# --- blame ------------------------------------------------------------------------------------------------------------


@row("blame")
def test_a_bad_share_names_its_holder_and_a_spare_one_serves():
    world = World(range(1, 8))
    run = Drive(world, world.params())
    bad = tamper(Reveal, lambda m: replace(m, shares=m.shares[::-1]), silo=2, sign=world.identities[2])
    run.on_send = chain(bad, die_before(run, Uploaded, 6))
    run.go()
    check_against_oracle(run)
    assert run.server.liars == {2}


@row("blame")
def test_a_wrong_b_is_discarded_and_its_dealer_named(monkeypatch):
    """Its commitment is to one seed, its shares are of another."""
    original = silo_module.seed_commitment
    monkeypatch.setattr(
        silo_module, "seed_commitment", lambda p, silo, seed: original(p, silo, b"?" * 32 if silo == 5 else seed)
    )
    world = World(range(1, 8))
    run = Drive(world, world.params()).go()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert run.server_outcome.culprits == (5,)


@row("blame")
def test_an_equivocating_dealer_is_named_before_any_sum_leaves(monkeypatch):
    """The share sealed to one holder is not the one that its signed hash covers."""
    original = dealing_module.Packet.encode

    def encode(packet):
        data = original(packet)
        return bytes([data[0] ^ 1]) + data[1:] if packet.salt == marked[0] else data

    marked = [None]
    deal = silo_module.deal_packets

    def deal_packets(secrets, session, own, cohort, *rest):
        draws = []
        hook = dealing_module.random_bytes

        def drawing(random, count):
            draws.append(hook(random, count))
            if own == 4 and len(draws) == 2:
                marked[0] = draws[1]
            return draws[-1]

        with monkeypatch.context() as patch:
            patch.setattr(dealing_module, "random_bytes", drawing)
            return deal(secrets, session, own, cohort, *rest)

    monkeypatch.setattr(dealing_module.Packet, "encode", encode)
    monkeypatch.setattr(silo_module, "deal_packets", deal_packets)
    world = World(range(1, 8))
    run = Drive(world, world.params()).go()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert run.server_outcome.culprits == (4,)
    assert not run.bytes_of(SubSums)
