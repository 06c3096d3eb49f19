"""Silos that vanish, before and after each step, and deadlines: the exact sum of the survivors, or a clean abort."""

from __future__ import annotations

import itertools

import pytest
from harness import (
    Drive,
    SessionAbortedEvent,
    SessionReleased,
    SessionSurveyed,
    World,
    chain,
    die_after,
    die_before,
    drop,
    duplicate,
    inputs,
)
from test_session_happy import check_against_oracle

from secure.messages import (
    Abort,
    Advert,
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
    SubSums,
    SubSumsRelay,
    Survivors,
    UnmaskRequest,
    Uploaded,
    Void,
)
from secure.types import Rules

EARLY = (Advert, Shares, Receipt)
LATE = (SubSums, Opened, Piece, Uploaded, Consent, Reveal)
FROM_SERVER = (Proposal, Adverts, Packets, Receipts, SubSumsRelay, Survivors, UnmaskRequest, Release)


def world(drops=2, silos=10, **more):
    return World(range(1, silos + 1), rules=Rules(max_drops=drops, **more))


def drive(hooks=(), drops=2, silos=10, **more):
    """A session whose hooks are built with the run (``die_before`` needs it)."""
    place = world(drops, silos, **more)
    run = Drive(place, place.params())
    run.on_send = chain(*(make(run) for make in hooks))
    return run.go()


def nothing_was_revealed(run):
    """An abort reveals nothing: no share of a seed or key left."""
    assert not run.bytes_of(Reveal)
    assert not any(isinstance(event, SessionReleased) for event in run.outcome.values())


@pytest.mark.parametrize("kind", EARLY)
@pytest.mark.parametrize("when", [die_before, die_after])
def test_death_before_the_receipts_aborts_naming_the_silo(kind, when):
    run = drive([lambda run: when(run, kind, 3)])
    if when is die_after and kind is Receipt:  # its death shows at the sub-sums, which go on without it
        check_against_oracle(run)
        return
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert run.server_outcome.culprits == (3,)
    assert run.deadlines == 1
    assert all(isinstance(event, SessionAbortedEvent) for event in run.outcome.values())
    nothing_was_revealed(run)


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("when", [die_before, die_after])
def test_death_later_releases_the_exact_sum_of_the_survivors(kind, when):
    run = drive([lambda run: when(run, kind, 3)])
    check_against_oracle(run)
    left = {Uploaded: when is die_after, Consent: True, Reveal: True}.get(kind, False)
    assert run.aggregate.survivors == tuple(s for s in run.params.cohort if s != 3 or left)
    assert all(isinstance(event, SessionReleased) for silo, event in run.outcome.items() if silo != 3)


@pytest.mark.parametrize("kinds", list(itertools.combinations(LATE, 2)))
def test_two_deaths_at_different_steps(kinds):
    run = drive([lambda run: die_before(run, kinds[0], 3), lambda run: die_before(run, kinds[1], 8)])
    check_against_oracle(run)


@pytest.mark.parametrize("kind", LATE)
def test_more_deaths_than_the_rules_allow(kind):
    run = drive([lambda run, s=s: die_before(run, kind, s) for s in (2, 3, 8, 9)])
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert not any(isinstance(event, SessionReleased) for event in run.outcome.values())
    if kind is not Reveal:
        nothing_was_revealed(run)


def test_three_drops_during_the_upload_with_two_allowed_abort():
    run = drive([lambda run, s=s: die_before(run, Uploaded, s) for s in (2, 3, 8)])
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert run.server_outcome.culprits == (2, 3, 8)
    nothing_was_revealed(run)


def test_one_message_lost_to_each_silo_at_each_step():
    for kind in FROM_SERVER:
        run = drive([lambda run, kind=kind: drop(kind, silo=4)])
        if kind in (Proposal, Adverts, Packets):
            assert run.server_outcome.culprits == (4,)
            nothing_was_revealed(run)
        else:
            check_against_oracle(run)
            assert isinstance(run.outcome[4], SessionAbortedEvent)


def test_every_message_twice():
    for kind in (*FROM_SERVER, *EARLY, *LATE):
        run = drive([lambda run, kind=kind: duplicate(kind)])
        assert run.deadlines == 0
        check_against_oracle(run)
        again = run.server.ignored if kind in (*EARLY, *LATE) else run.silos[1].ignored
        assert again > 0, kind


def test_lost_means_missing_for_the_rest():
    place = world()
    run = Drive(place, place.params())
    gone = []

    def hook(sender, receiver, payload):
        if sender == 5 and payload in run.bytes_of(Opened, 5) and not gone:
            gone.append(True)
            run.kill(5)
            run.from_server(run.server.lost(5))
            return []
        return [payload]

    run.on_send = hook
    run.go()
    assert run.deadlines == 0
    assert run.aggregate.survivors == (1, 2, 3, 4, 6, 7, 8, 9, 10)
    check_against_oracle(run)


def test_lost_before_the_receipts_aborts_at_once():
    place = world()
    run = Drive(place, place.params())
    run.from_server(run.server.start())
    run.from_server(run.server.lost(7))
    assert run.server_outcome == SessionAbortedEvent(run.server_outcome.reason, (7,))
    run.settle()
    assert all(isinstance(run.outcome[silo], SessionAbortedEvent) for silo in range(1, 11) if silo != 7)


def test_relays_stop_when_the_session_has_ended_meanwhile():
    place = world()
    run = Drive(place, place.params())
    left = []

    def hook(sender, receiver, payload):
        if len(run.bytes_of(Shares)) == 10 and not left:
            left.append(run.server.handle(sender, payload))  # the relay of packets, not drained
            run.from_server(run.server.lost(4))
            return []
        return [payload]

    run.on_send = hook
    run.from_server(run.server.start())
    run.settle()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert list(left[0]) == []
    nothing_was_revealed(run)


def test_survivor_dies_after_its_upload_and_is_still_in_the_sum():
    run = drive([lambda run: die_after(run, Uploaded, 3), lambda run: die_after(run, Uploaded, 4)])
    assert run.aggregate.complete
    check_against_oracle(run)


def test_quorum_at_the_consents():
    run = drive([lambda run, s=s: die_before(run, Consent, s) for s in (2, 3, 8)])
    check_against_oracle(run)  # 7 of 10 is the quorum
    run = drive([lambda run, s=s: die_before(run, Consent, s) for s in (2, 3, 8, 9)])
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    nothing_was_revealed(run)


def test_late_silo_is_told_and_voids():
    run = drive([lambda run: drop(Uploaded, silo=6)])
    check_against_oracle(run)
    assert isinstance(run.outcome[6], SessionAbortedEvent)
    assert run.bytes_of(Void, 6)
    assert run.server.voids == tuple(run.bytes_of(Void, 6))


def test_deadline_on_a_silo_aborts_and_says_void():
    place = world()
    run = Drive(place, place.params())
    run.on_send = drop(Receipts)
    run.from_server(run.server.start())
    run.settle()
    for silo in place.silos:
        run.from_silo(silo, run.silos[silo].deadline())
    run.settle()
    assert all(isinstance(event, SessionAbortedEvent) for event in run.outcome.values())
    assert len(run.server.voids) == 10
    assert list(run.silos[1].deadline()) == []
    assert isinstance(run.server_outcome, SessionAbortedEvent) or run.server.waiting_for == ()


def test_silo_aborts_after_reveal_without_a_void():
    run = drive([lambda run: drop(Release, silo=4)])
    assert isinstance(run.outcome[4], SessionAbortedEvent)
    assert not run.bytes_of(Void, 4)


def test_survey_goes_on_with_a_quorum():
    place = world()
    params = place.params(survey=True)
    run = Drive(place, params)
    run.on_send = chain(*(die_before(run, SubSums, s) for s in (1, 2, 3)))
    run.go()
    assert isinstance(run.server_outcome, SessionSurveyed)
    run = Drive(place, place.params(survey=True, round=1))
    run.on_send = chain(*(die_before(run, SubSums, s) for s in (1, 2, 3, 4)))
    run.go()
    assert isinstance(run.server_outcome, SessionAbortedEvent)


def test_three_silos_without_drops():
    place = World(range(1, 4), rules=Rules(max_drops=0, min_contributors=3))
    run = Drive(place, place.params())
    run.on_send = die_before(run, Uploaded, 2)
    run.go()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    nothing_was_revealed(run)


def test_verified_sums_with_drops():
    run = drive([lambda run: die_before(run, Uploaded, 3)], verified_sums=True)
    check_against_oracle(run)


def test_spooled_uploads_leave_no_file(tmp_path):
    place = world()
    run = Drive(place, place.params(), spool_dir=tmp_path)
    run.go()
    check_against_oracle(run)
    assert list(tmp_path.iterdir()) == []


def test_abort_reaches_everybody_in_the_middle_of_an_upload():
    place = world()
    run = Drive(place, place.params(), data=inputs(place.params()))
    run.from_server(run.server.start())
    while not run.bytes_of(Piece):
        run.step()
    for silo in place.silos:
        run.from_silo(silo, run.silos[silo].deadline())
    run.settle()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert len(run.bytes_of(Piece)) < 70  # uploads stop
    assert not run.bytes_of(Uploaded)
    assert run.bytes_of(Abort)
