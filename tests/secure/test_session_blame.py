"""Liars: silos that cheat in what they deal, hold, upload or reveal, and a server that tells different stories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import (
    SERVER,
    SPEC,
    Drive,
    Replay,
    SessionAbortedEvent,
    SessionReleased,
    World,
    chain,
    die_before,
    inputs,
    tamper,
)
from test_session_happy import check_against_oracle

import secure.protocol.dealing as dealing
import secure.protocol.silo as silo_module
from secure.codec import decode, encode, peek_kind
from secure.gate import void_quorum
from secure.keys import MaskingKey
from secure.messages import (
    Abort,
    Adverts,
    Consent,
    Opened,
    Packets,
    Piece,
    Proposal,
    Receipt,
    Receipts,
    Release,
    Reveal,
    Shares,
    SubSumsRelay,
    Survivors,
    UnmaskRequest,
    Uploaded,
    Void,
)
from secure.protocol.field import PRIME
from secure.protocol.totals import HolderView
from secure.types import Rules

LIAR = 3


def make(silos=7, drops=1, seed=0, data=None, **rules):
    world = World(range(1, silos + 1), rules=Rules(max_drops=drops, **rules))
    params = world.params()
    return Drive(world, params, seed=seed, data=data)


def aborted(run, culprits=None):
    """No sum, no share, everybody at the end."""
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert not any(isinstance(event, SessionReleased) for event in run.outcome.values())
    if culprits is not None:
        assert run.server_outcome.culprits == culprits
    return run.server_outcome.reason


def only_the_liar(monkeypatch, module, name, change):
    """Replace a function that is called as ``name(…)`` inside one silo's session by ``change(original)(…)``.

    The silo is recognised by the frame: sessions call these functions from their own methods.
    """
    import inspect

    original = getattr(module, name)
    changed = change(original)

    def switch(*args, **kwargs):
        frame = inspect.currentframe().f_back
        while frame is not None:
            session = frame.f_locals.get("self")
            if isinstance(session, silo_module.ControlSilo):
                chosen = changed if session._silo == LIAR else original
                return chosen(*args, **kwargs)
            frame = frame.f_back
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, switch)


# --- shares -----------------------------------------------------------------------------------------------------------


def test_wrong_share_in_a_reveal_names_the_holder_and_does_no_harm():
    for dropped in (None, 5):
        run = make()
        wrong = tamper(
            Reveal,
            lambda m: replace(m, shares=(m.shares[0], *([bytes(66)] * 6))),
            silo=LIAR,
            sign=run.world.identities[LIAR],
        )
        run.on_send = chain(wrong, die_before(run, Uploaded, dropped)) if dropped else wrong
        run.go()
        check_against_oracle(run)
        assert run.server.liars == {LIAR}


def test_too_few_good_shares_discard_the_round_and_name_the_liars():
    run = make(silos=4, drops=0)
    zero = lambda m: replace(m, shares=tuple(bytes(66) for _ in m.shares))  # noqa: E731
    run.on_send = chain(*(tamper(Reveal, zero, silo=s, sign=run.world.identities[s]) for s in (2, 3)))
    run.go()
    aborted(run, (2, 3))


def test_reveal_of_the_wrong_length_is_ignored():
    run = make()
    short = tamper(Reveal, lambda m: replace(m, shares=m.shares[:-1]), silo=LIAR, sign=run.world.identities[LIAR])
    run.on_send = short
    run.go()
    check_against_oracle(run)
    assert any(sender == LIAR for sender, _ in run.server.complaints)


def test_dealer_whose_hash_does_not_match_its_share_is_named(monkeypatch):
    def change(original):
        def deal_packets(*args):
            hashes = dealing.Packet.hashes

            def lying(packet, session, dealer, holder):
                honest = hashes(packet, session, dealer, holder)
                return bytes(32) + honest[32:] if holder == 5 else honest

            with monkeypatch.context() as patch:
                patch.setattr(dealing.Packet, "hashes", lying)
                return original(*args)

        return deal_packets

    only_the_liar(monkeypatch, silo_module, "deal_packets", change)
    run = make().go()
    reason = aborted(run, (LIAR,))
    assert "silo 5" in reason
    assert not run.bytes_of(Reveal)
    assert len(run.server.voids) == 7


@pytest.mark.parametrize("bad", [(2,), (1, 2), (1, 2, 4, 5, 6, 7)])
@pytest.mark.parametrize("dropped", [False, True])
def test_dealer_with_inconsistent_shares(monkeypatch, bad, dropped):
    """One wrong share that its dealer signed is worked around; more discard the round. The dealer is named."""

    def change(original):
        def split(secret, threshold, holders, random):
            shares = original(secret, threshold, holders, random)
            return {holder: share ^ (1 << 300 if holder in bad else 0) for holder, share in shares.items()}

        return split

    only_the_liar(monkeypatch, dealing, "split", change)
    run = make()
    if dropped:
        run.on_send = die_before(run, Uploaded, LIAR)
    run.go()
    if len(bad) == 1:
        check_against_oracle(run)
        assert run.server.liars == {LIAR}
    else:
        aborted(run, (LIAR,))


def test_a_signed_share_that_is_no_field_element_is_worked_around(monkeypatch):
    def change(original):
        calls = []

        def encode_share(share):
            calls.append(share)
            return b"\xff" * 66 if len(calls) == 3 else original(share)  # the seed's share for silo 2

        return encode_share

    only_the_liar(monkeypatch, dealing, "encode_share", change)
    run = make().go()
    check_against_oracle(run)
    assert run.server.liars == {LIAR}


def test_commitment_to_another_seed_is_named(monkeypatch):
    only_the_liar(monkeypatch, silo_module, "seed_commitment", lambda original: lambda p, s, seed: bytes(32))
    run = make().go()
    aborted(run, (LIAR,))


def test_shares_of_another_masking_key_are_named(monkeypatch):
    def change(original):
        def deal_packets(*args):
            with monkeypatch.context() as patch:
                patch.setattr(MaskingKey, "private_bytes", lambda self: b"\x11" * 32)
                return original(*args)

        return deal_packets

    only_the_liar(monkeypatch, silo_module, "deal_packets", change)
    run = make()
    run.on_send = die_before(run, Uploaded, LIAR)
    run.go()
    aborted(run, (LIAR,))


# --- totals -----------------------------------------------------------------------------------------------------------


def few_holders(run):
    """Component 1 is held by silos 1 and 2 only, and by the liar if it says so."""
    samples, *rest = inputs(run.params)
    return {s: (n[0], n[1] if s < LIAR else 0.0) for s, n in samples.items()}, *rest


@pytest.mark.parametrize("claim", [2, 3, 100, PRIME - 1])
def test_claiming_to_be_several_holders_is_caught_and_named(monkeypatch, claim):
    def change(original):
        def deal(spec, classes, statistics, random):
            numbers = original(spec, classes, statistics, random)
            numbers[1] = claim
            return numbers

        return deal

    run = make(data=few_holders(make()))
    only_the_liar(monkeypatch, silo_module, "deal", change)
    run.go()
    aborted(run, (LIAR,))
    assert not run.bytes_of(Opened, 1)


@pytest.mark.parametrize(("place", "value"), [(1, 3), (2, 2), (21, PRIME - 1), (41, 1 << 40)])
def test_false_bits_with_the_best_quotient_are_caught(monkeypatch, place, value):
    """Several holders in one, classes below zero and beyond 2^20: no g of degree L exists, whatever is sent."""
    import secure.protocol.totals as totals

    def change(original):
        def deal(spec, classes, statistics, random):
            numbers = original(spec, classes, statistics, random)
            bits = totals.Layout.of(spec).bits
            numbers[place] = value
            numbers[bits + 1 : 2 * bits + 2] = totals._quotient(numbers[:bits], numbers[bits])
            return numbers

        return deal

    run = make(data=few_holders(make()))
    only_the_liar(monkeypatch, silo_module, "deal", change)
    run.go()
    aborted(run, (LIAR,))


def test_a_false_claim_counts_once_and_the_gate_holds(monkeypatch):
    def change(original):
        return lambda spec, classes, statistics, random: original(spec, (classes[0], 600), statistics, random)

    run = make(data=few_holders(make()))
    only_the_liar(monkeypatch, silo_module, "deal", change)
    run.go()
    assert run.totals[1].holders[1] == 3
    assert run.aggregate.open == (True, False)
    assert not run.aggregate.values[700:].any()


@pytest.mark.parametrize("place", ["sums", "openings"])
def test_lying_about_what_one_holds_is_caught(monkeypatch, place):
    def change(original):
        def add_up(*args):
            view = original(*args)
            sums, openings = list(view.sums), list(view.openings)
            (sums if place == "sums" else openings)[1] += 1
            return HolderView(tuple(value % PRIME for value in sums), tuple(value % PRIME for value in openings))

        return add_up

    only_the_liar(monkeypatch, silo_module, "add_up", change)
    run = make().go()
    assert not any(run.bytes_of(Opened, silo) for silo in run.params.cohort if silo != LIAR)
    aborted(run)
    assert not run.bytes_of(Piece)


def test_statistic_out_of_range_ends_the_session(monkeypatch):
    def change(original):
        def deal(spec, classes, statistics, random):
            numbers = original(spec, classes, statistics, random)
            numbers[-1] = PRIME - 10**12
            return numbers

        return deal

    only_the_liar(monkeypatch, silo_module, "deal", change)
    run = make().go()
    assert "out of range" in run.outcome[1].reason
    aborted(run)


def test_disagreeing_masks_end_the_session():
    run = make()
    run.on_send = tamper(Opened, lambda m: replace(m, open=(True, False)), silo=LIAR, sign=run.world.identities[LIAR])
    run.go()
    aborted(run)
    assert not run.bytes_of(Reveal)


def test_one_dominating_silo_is_capped():
    samples, *rest = inputs(make().params)
    samples[LIAR] = (1e6, 1e6)
    run = make(data=(samples, *rest)).go()
    others = [sum(run.totals[s].share[j] for s in run.params.cohort if s != LIAR) for j in (0, 1)]
    assert run.totals[LIAR].share == pytest.approx(others)
    check_against_oracle(run)


# --- uploads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0, 701, 1400])
def test_sum_beyond_the_clip_is_discarded(monkeypatch, where):
    import secure.masking as masking

    def change(original):
        def quantise(chunk, start, parts, out, norm):
            result = original(chunk, start, parts, out, norm)
            if start <= where < start + len(out):
                out[where - start] = 3 << 29
            return result

        return quantise

    only_the_liar(monkeypatch, masking, "_quantise", change)
    run = make().go()
    assert "beyond clip" in aborted(run)


def test_a_closed_component_that_is_not_zero_is_discarded(monkeypatch):
    import secure.masking as masking

    def change(original):
        def quantise(chunk, start, parts, out, norm):
            result = original(chunk, start, parts, out, norm)
            if start <= 1000 < start + len(out):
                out[1000 - start] = 1
            return result

        return quantise

    run = make(data=few_holders(make()))
    only_the_liar(monkeypatch, masking, "_quantise", change)
    run.go()
    assert "beyond clip" in aborted(run)


def test_altered_piece_never_counts():
    run = make()
    run.on_send = tamper(Piece, lambda m: replace(m, data=bytes(len(m.data))), silo=LIAR)
    run.go()
    assert run.aggregate.survivors == (1, 2, 4, 5, 6, 7)
    check_against_oracle(run)


# --- a lying server ---------------------------------------------------------------------------------------------------


def towards(silo, hook):
    """A hook for what the server tells one silo."""
    return lambda s, r, payload: hook(s, r, payload) if (s, r) == (SERVER, silo) else [payload]


def test_other_models_told_to_one_silo_abort_before_any_share():
    run = make()
    run.on_send = towards(2, tamper(Proposal, lambda m: replace(m, start=b"t" * 32), sign=run.world.server_identity))
    run.go()
    aborted(run)
    assert "starting models" in run.outcome[2].reason
    assert not run.bytes_of(Shares)


def test_two_proposals_that_both_are_acceptable_abort_before_any_share():
    run = make()
    run.on_send = towards(
        2, tamper(Proposal, lambda m: replace(m, server_key=b"k" * 32), sign=run.world.server_identity)
    )
    run.go()
    aborted(run)
    assert not run.bytes_of(Shares)


def test_proposal_that_the_server_did_not_sign():
    run = make()
    run.on_send = towards(2, tamper(Proposal, lambda m: replace(m, server_key=b"k" * 32)))
    run.go()
    assert "signature" in run.outcome[2].reason


def test_swapped_key_fails_at_step_one():
    run = make()

    def swap(message):
        adverts = list(message.adverts)
        advert = decode(adverts[4], silo_module.Advert)
        adverts[4] = encode(replace(advert, sealing_key=b"e" * 32))
        return replace(message, adverts=tuple(adverts))

    run.on_send = towards(2, tamper(Adverts, swap))
    run.go()
    assert "silo 5" in run.outcome[2].reason
    aborted(run)
    assert not run.bytes_of(Shares, 2)


def test_mirrored_key_is_refused():
    """A silo that repeats another's key under its own signature gains nothing: the session ends."""
    run = make()
    from secure.messages import Advert

    def mirror(message):
        other = decode(run.bytes_of(Advert, 1)[0], Advert)
        return replace(message, masking_key=other.masking_key)

    run.on_send = tamper(Advert, mirror, silo=LIAR, sign=run.world.identities[LIAR])
    run.go()
    aborted(run)
    assert not run.bytes_of(Shares)


@pytest.mark.parametrize("who", ["server", "sealing_key", "masking_key"])
def test_keys_of_small_order_end_the_session_before_any_share(monkeypatch, who):
    if who == "server":
        import secure.protocol.server as server_module

        original = server_module.make_proposal
        monkeypatch.setattr(
            server_module, "make_proposal", lambda params, key, *rest: original(params, bytes(32), *rest)
        )
    run = make()
    if who != "server":
        run.on_send = tamper(
            silo_module.Advert, lambda m: replace(m, **{who: bytes(32)}), silo=LIAR, sign=run.world.identities[LIAR]
        )
    run.go()
    aborted(run)
    assert not [s for s in run.params.cohort if s != LIAR and run.bytes_of(Shares, s)]
    assert "small order" in run.outcome[1].reason


@pytest.mark.parametrize("what", ["packets", "leaves", "short"])
def test_altered_packets_are_refused(what):
    run = make()

    def change(message):
        if what == "packets":
            flipped = bytes([message.packets[0][0] ^ 1]) + message.packets[0][1:]
            return replace(message, packets=(flipped, *message.packets[1:]))
        if what == "leaves":
            return replace(message, leaves=(bytes(len(message.leaves[0])), *message.leaves[1:]))
        return replace(message, packets=message.packets[1:])

    run.on_send = towards(2, tamper(Packets, change))
    run.go()
    aborted(run)
    assert not run.bytes_of(Opened)


def test_swapped_packets_are_refused():
    run = make()
    run.on_send = towards(
        2, tamper(Packets, lambda m: replace(m, packets=(m.packets[1], m.packets[0], *m.packets[2:])))
    )
    run.go()
    assert "cannot be opened" in run.outcome[2].reason


def test_sub_sums_before_all_receipts_are_impossible():
    run = make()
    forged = lambda m: replace(m, signatures=(*m.signatures[:-1], bytes(64)))  # noqa: E731
    run.on_send = towards(2, tamper(Receipts, forged))
    run.go()
    assert "silo 7 has not signed" in run.outcome[2].reason
    missing = make()
    missing.on_send = towards(2, tamper(Receipts, lambda m: replace(m, signatures=m.signatures[:-1])))
    missing.go()
    assert "incomplete" in missing.outcome[2].reason


def test_too_few_or_altered_sub_sums_are_refused():
    def fewer(message):
        return replace(message, holders=message.holders[:3], openings=message.openings[:3], packets=message.packets[:3])

    def altered(message):
        return replace(message, openings=(bytes(len(message.openings[0])), *message.openings[1:]))

    for change, word in ((fewer, "too few"), (altered, "altered")):
        run = make()
        run.on_send = towards(2, tamper(SubSumsRelay, change))
        run.go()
        assert word in run.outcome[2].reason


def test_fewer_sub_sums_give_the_same_totals():
    run = make()

    def fewer(message):
        return replace(message, holders=message.holders[:4], openings=message.openings[:4], packets=message.packets[:4])

    run.on_send = towards(2, tamper(SubSumsRelay, fewer))
    run.go()
    check_against_oracle(run)


def test_two_survivor_sets_told_to_two_silos_reveal_nothing():
    run = make()

    def shrink(message):
        keep = [i for i, silo in enumerate(message.survivors) if silo != 7]
        return replace(
            message,
            survivors=tuple(message.survivors[i] for i in keep),
            receipts=tuple(message.receipts[i] for i in keep),
        )

    run.on_send = chain(*(towards(s, tamper(Survivors, shrink)) for s in (1, 2, 3)))
    run.go()
    aborted(run)
    assert not run.bytes_of(Reveal)


def test_survivors_below_the_rules_without_us_or_with_forged_receipts():
    def cut(*gone):
        def change(message):
            keep = [i for i, silo in enumerate(message.survivors) if silo not in gone]
            return replace(
                message,
                survivors=tuple(message.survivors[i] for i in keep),
                receipts=tuple(message.receipts[i] for i in keep),
            )

        return change

    def forged(message):
        return replace(message, receipts=(*message.receipts[:-1], bytes(96)))

    def ours(message):
        return replace(message, receipts=(message.receipts[0], bytes(96), *message.receipts[2:]))

    cases = (
        (cut(6, 7), "fewer silos survived"),
        (cut(2), "not among the survivors"),
        (forged, "silo 7 does not verify"),
        (ours, "own upload"),
    )
    for change, word in cases:
        run = make()
        run.on_send = towards(2, tamper(Survivors, change))
        run.go()
        assert word in run.outcome[2].reason
        assert not run.bytes_of(Consent, 2)


def test_unmasking_needs_a_quorum_of_exactly_what_was_signed():
    def fewer(message):
        return replace(message, silos=message.silos[:-1], signatures=message.signatures[:-1])

    def forged(message):
        return replace(message, signatures=(*message.signatures[:-1], bytes(64)))

    def twice(message):
        return replace(message, signatures=(message.signatures[0],) * len(message.signatures))

    for change in (fewer, forged, twice):
        run = make()
        run.on_send = towards(2, tamper(UnmaskRequest, change))
        run.go()
        assert isinstance(run.outcome[2], SessionAbortedEvent)
        assert not run.bytes_of(Reveal, 2)
        assert run.bytes_of(Void, 2)


def test_second_unmask_request_gets_nothing():
    run = make().go()
    fresh = make()
    silo = fresh.silos[1]
    for sender, receiver, payload in run.sent:
        if (sender, receiver) == (SERVER, 1) and peek_kind(payload) != Release.KIND:
            if peek_kind(payload) == Survivors.KIND:
                list(silo.submit(fresh.vectors[1], fresh.metrics[1]))
            list(silo.handle(payload))
    request = next(p for s, r, p in run.sent if r == 1 and peek_kind(p) == UnmaskRequest.KIND)
    assert list(silo.handle(request)) == []
    message = decode(request, UnmaskRequest)
    other = replace(message, silos=message.silos[:-1], signatures=message.signatures[:-1])
    events = list(silo.handle(encode(other)))
    assert isinstance(events[-1], SessionAbortedEvent)
    assert [peek_kind(event.payload) for event in events[:-1]] == [Abort.KIND]


@pytest.mark.parametrize("change", ["one", "double", "scalar", "tags", "closed"])
def test_verified_sums_catch_an_altered_release(change):
    def alter(message):
        values = np.frombuffer(message.values, "<i4").copy()
        scalars, tags = bytearray(message.scalars), bytearray(message.tags)
        if change == "one":
            values[17] += 1
        elif change == "double":
            values *= 2
            scalars = bytearray((2 * np.frombuffer(scalars, "<i8")).tobytes())
            tags = bytearray(
                b"".join(
                    (2 * int.from_bytes(tags[i : i + 8], "little") % ((1 << 61) - 1)).to_bytes(8, "little")
                    for i in (0, 8)
                )
            )
        elif change == "scalar":
            scalars[0] ^= 1
        elif change == "tags":
            tags[3] ^= 1
        else:
            values[0] = 0
        return replace(message, values=values.tobytes(), scalars=bytes(scalars), tags=bytes(tags))

    run = make(verified_sums=True)
    run.on_send = towards(2, tamper(Release, alter))
    run.go()
    assert "tags" in run.outcome[2].reason
    assert all(isinstance(run.outcome[s], SessionReleased) for s in run.params.cohort if s != 2)


def test_release_that_does_not_fit_is_refused():
    def values(count):
        return lambda m: replace(m, values=bytes(4 * count))

    cases = (
        lambda m: replace(m, survivors=m.survivors[:-1]),
        lambda m: replace(m, open=(True, False)),
        lambda m: replace(m, metrics=(1.0, 1.0)),
        lambda m: replace(m, scalars=m.scalars[:-8]),
        lambda m: replace(m, values=(b"\xff\xff\xff\x7f" * SPEC.length)),
        lambda m: replace(m, session=b"x" * 32),
        values(SPEC.length - 1),
    )
    for change in cases:
        run = make()
        run.on_send = towards(2, tamper(Release, change))
        run.go()
        assert isinstance(run.outcome[2], SessionAbortedEvent)


# --- what outlives a session ------------------------------------------------------------------------------------------


def repeat(run, cohort, voids=(), attempt=1, data=None):
    """The same round again, with another cohort."""
    world = run.world
    params = world.params(cohort=tuple(cohort), attempt=attempt)
    expected = dict.fromkeys(cohort, replace(params, cohort=world.silos, attempt=0))
    keep = tuple({s: part[s] for s in cohort} for part in (run.samples, run.statistics, run.vectors, run.metrics))
    return Drive(world, params, expected=expected, data=data or keep, seed=attempt, voids=voids).go()


def test_a_released_round_is_never_repeated_without_some_silos():
    """One silo less: not even totals. Three less (c + 2): totals, but no second survivor set."""
    for least, word in ((10, "differs by too few"), (8, "other survivors")):
        run = make(silos=10).go()
        again = repeat(run, range(1, least))
        aborted(again)
        assert all(word in again.outcome[s].reason for s in range(1, least))
        assert not again.bytes_of(Consent)
        assert not again.bytes_of(Reveal)


def test_a_released_round_may_be_repeated_as_it_was():
    run = make().go()
    again = repeat(run, range(1, 8))
    np.testing.assert_array_equal(again.aggregate.values, run.aggregate.values)


def test_same_survivors_of_another_cohort_are_refused_too():
    """Else the two sums' ratio would show the dropped silos' weight."""
    run = make(silos=16, drops=3)
    run.on_send = chain(*(die_before(run, Uploaded, s) for s in (14, 15, 16)))
    run.go()
    assert run.aggregate.survivors == tuple(range(1, 14))
    again = repeat(run, range(1, 14))
    aborted(again)
    assert "another cohort" in again.outcome[1].reason
    assert not again.bytes_of(Reveal)


def not_unmasked(silos=10):
    """A session in which everybody consented and nobody was asked to reveal."""
    run = make(silos=silos)
    run.on_send = lambda s, r, payload: [] if peek_kind(payload) == UnmaskRequest.KIND else [payload]
    run.go()
    aborted(run)
    return run


def test_a_void_certificate_frees_the_survivors():
    run = not_unmasked()
    needed = void_quorum(10, 1)
    assert len(run.server.voids) == 10
    assert needed == 5
    blocked = repeat(run, range(1, 8))
    aborted(blocked)
    assert not blocked.bytes_of(Consent)
    few = repeat(run, range(1, 8), voids=run.server.voids[: needed - 1], attempt=2)
    aborted(few)
    freed = repeat(run, range(1, 8), voids=run.server.voids[:needed], attempt=3)
    assert isinstance(freed.server_outcome, SessionReleased)
    check_against_oracle(freed)


def test_a_void_certificate_does_not_free_the_totals():
    run = not_unmasked()
    again = repeat(run, range(1, 10), voids=run.server.voids)
    aborted(again)
    assert "differs by too few" in again.outcome[1].reason


def test_forged_or_repeated_voids_free_nothing():
    run = not_unmasked()
    one = run.server.voids[0]
    forged = [encode(replace(decode(one, Void), silo=silo)) for silo in range(1, 11)]
    for attempt, voids in enumerate(([one] * 10, forged, [b"garbage"] * 10), start=1):
        again = repeat(run, range(1, 8), voids=voids, attempt=attempt)
        aborted(again)
        assert not again.bytes_of(Consent)


def test_a_silo_that_revealed_never_forgets():
    """Two of ten revealed, eight say void: that certificate does not free the two."""
    run = make(silos=10, drops=2)
    reached = []

    def hook(sender, receiver, payload):
        if peek_kind(payload) == UnmaskRequest.KIND and receiver not in (1, 2):
            return []
        reached.append(receiver)
        return [payload]

    run.on_send = hook
    run.go()
    aborted(run)
    assert len(run.server.voids) == 8
    again = repeat(run, range(1, 8), voids=run.server.voids)
    assert isinstance(again.outcome[1], SessionAbortedEvent)
    assert not again.bytes_of(Reveal)


def test_round_aborted_before_the_consents_repeats_with_fresh_keys():
    run = make(silos=10)
    run.on_send = lambda s, r, payload: [] if peek_kind(payload) == Survivors.KIND else [payload]
    run.go()
    aborted(run)
    for attempt, least in ((1, 11), (2, 8)):
        again = repeat(run, range(1, least), attempt=attempt)
        if attempt == 1:
            check_against_oracle(again)
        assert not set(run.bytes_of(Piece, 1)) & set(again.bytes_of(Piece, 1))


def test_round_aborted_before_the_totals_repeats_without_anybody():
    run = make()
    run.on_send = die_before(run, Receipt, 7)
    run.go()
    aborted(run, (7,))
    check_against_oracle(repeat(run, range(1, 7)))


def test_restarted_silo_has_dropped_out():
    run = make()
    run.from_server(run.server.start())
    run.step()
    session = Drive(run.world, run.params).silos[1]
    (proposal,) = [p for s, r, p in run.sent if r == 1 and peek_kind(p) == Proposal.KIND]
    events = list(session.handle(proposal))
    assert isinstance(events[-1], SessionAbortedEvent)
    assert "restarted" in events[-1].reason


def test_old_attempts_and_rounds_are_refused():
    run = make().go()
    for changes in ({}, {"round": 0, "attempt": 0}):
        again = Drive(run.world, run.world.params(**changes), seed=9).go()
        aborted(again)


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 3},
        {"quorum": 3},
        {"min_contributors": 2},
        {"max_drops": 2},
        {"colluders": 0},
        {"w_max": 0.9},
        {"min_samples": 1},
        {"roster": b"r" * 32},
        {"config": b"r" * 32},
        {"spec": b"r" * 32},
        {"start": b"r" * 32},
        {"backend": "none"},
        {"quantiser": "float"},
        {"survey": True},
        {"cohort": (1, 2, 3)},
        {"cohort": (2, 3, 4, 5, 6, 7)},
        {"cohort": (1, 2, 3, 4, 5, 6, 9)},
        {"piece_bytes": 17},
        {"phase": "warmup"},
        {"round": 1},
        {"run_id": "other"},
        {"group": 1},
    ],
)
def test_server_that_lowers_or_changes_the_terms_is_refused(changes):
    run = make()
    run.on_send = tamper(Proposal, lambda m: replace(m, **changes), sign=run.world.server_identity)
    run.go()
    aborted(run)
    assert isinstance(run.outcome[1], SessionAbortedEvent)
    assert not run.bytes_of(silo_module.Advert, 1)


@pytest.mark.parametrize(
    "changes", [{"min_samples": 9}, {"min_contributors": 5}, {"colluders": 2}, {"max_drops": 0}, {"w_max": 0.4}]
)
def test_stricter_terms_are_refused_too(changes):
    """A server that varies them and watches components close would search for counts and holders."""
    run = make(silos=10)
    strict = replace(run.params, rules=replace(run.params.rules, **changes))
    again = Drive(run.world, strict, expected=dict.fromkeys(run.world.silos, run.params)).go()
    aborted(again)
    assert next(iter(changes)) in again.outcome[1].reason


def test_reasons_that_leave_a_silo_hold_nothing_of_its_own():
    run = make()
    run.on_send = towards(2, tamper(Proposal, lambda m: replace(m, start=b"t" * 32), sign=run.world.server_identity))
    run.go()
    for payload in run.bytes_of(Abort, 2):
        reason = decode(payload, Abort).reason
        assert not any(char.isdigit() for char in reason)
        assert "/" not in reason


def test_randomness_of_two_sessions_is_never_shared():
    draws = {Replay(seed)(32) for seed in range(50)}
    assert len(draws) == 50
