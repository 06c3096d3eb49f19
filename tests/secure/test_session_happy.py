"""Masked sessions end to end without trouble: equal to the plaintext fixed-point oracle, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
from harness import SPEC, Drive, SessionReleased, SessionSurveyed, World, inputs

from secure.api import dequantise
from secure.messages import Opened, Release
from secure.types import Block, MetricSpec, Rules, VectorSpec


def check_against_oracle(run):
    """Totals on every silo and the released sum."""
    params, organisations = run.params, run.world.organisations
    classes, weights, holders, sums, opened = oracle.totals(params, run.samples, run.statistics, organisations)
    share = oracle.shares(params, classes, weights, opened)
    for silo, totals in run.totals.items():
        assert totals.weights == weights
        assert totals.holders == holders
        assert totals.open == opened
        assert totals.share == share[silo]
        assert totals.statistics == pytest.approx(sums, abs=1e-9)
        assert totals.contributors == len(params.cohort)
    aggregate = run.aggregate
    values, metrics, clipped, _ = oracle.release(
        params, run.samples, run.statistics, run.vectors, run.metrics, aggregate.survivors, organisations
    )
    assert aggregate.values.dtype == np.int32
    np.testing.assert_array_equal(aggregate.values, values)
    assert aggregate.metrics == pytest.approx(metrics)
    assert aggregate.clipped_share == min(1.0, clipped / (len(aggregate.survivors) * params.spec.length))
    assert aggregate.open == opened
    for silo, event in run.outcome.items():
        if isinstance(event, SessionReleased):
            np.testing.assert_array_equal(event.aggregate.values, values)
            assert event.aggregate.metrics == aggregate.metrics, silo


@pytest.mark.parametrize("silos", [3, 4, 5, 10, 17])
@pytest.mark.parametrize("verified", [False, True])
def test_equals_the_oracle(silos, verified):
    rules = Rules(max_drops=0 if silos == 3 else 1, min_contributors=3, verified_sums=verified)
    world = World(range(1, silos + 1), rules=rules)
    run = Drive(world, world.params()).go()
    assert run.deadlines == 0
    assert set(run.outcome) == set(world.silos)
    assert all(isinstance(event, SessionReleased) for event in run.outcome.values())
    assert run.aggregate.complete
    check_against_oracle(run)


def test_ids_need_not_be_consecutive():
    world = World((5, 11, 300, 9000, 65535))
    check_against_oracle(Drive(world, world.params()).go())


def test_every_silo_gets_the_same_bytes_object():
    world = World()
    run = Drive(world, world.params()).go()
    assert len({id(payload) for payload in run.bytes_of(Release)}) == 1


def test_clipped_values_and_odd_layouts():
    spec = VectorSpec(
        3,
        (
            Block("empty", 0, 8.0, 0),
            Block("a", 1, 8.0, 0),
            Block("b", 3, 5.0, 2),
            Block("c", 255, 0.25, 1),
            Block("d", 260, 0.25, 1),
        ),
    )
    world = World()
    params = world.params(spec=spec)
    run = Drive(world, params, data=inputs(params, scale=3.0)).go()
    check_against_oracle(run)
    assert 0 < run.aggregate.clipped_share <= 1
    assert np.abs(dequantise(run.aggregate)[4:]).max() <= 0.25 * (1 + 1e-6)


def test_longer_than_a_chunk_and_pieces_that_do_not_divide_it():
    spec = VectorSpec(1, (Block("a", 70_001, 8.0, 0), Block("b", 65_536, 8.0, 0)), SPEC.metrics[:1])
    world = World()
    params = world.params(spec=spec, piece_bytes=100_000)
    check_against_oracle(Drive(world, params).go())


def test_closed_component_is_zero_whatever_the_caller_submits():
    world = World()
    params = world.params()
    samples, *rest = inputs(params)
    samples = {silo: (n[0], n[1] if silo < 4 else 5.0) for silo, n in samples.items()}
    run = Drive(world, params, data=(samples, *rest)).go()
    assert run.aggregate.open == (True, False)
    assert not run.aggregate.values[700:].any()
    assert run.aggregate.values[:700].any()
    assert run.aggregate.metrics["hits.1"] == 0.0
    check_against_oracle(run)


def test_silo_that_holds_nothing_of_an_open_component_sends_as_much_as_others():
    world = World()
    params = world.params()
    samples, *rest = inputs(params)
    samples[2] = (0.0, 0.0)
    run = Drive(world, params, data=(samples, *rest)).go()
    check_against_oracle(run)
    shapes = {silo: [(p[0:3], len(p)) for s, _, p in run.sent if s == silo] for silo in params.cohort}
    assert len(set(map(str, shapes.values()))) == 1


def test_two_silos_of_one_organisation_count_once():
    organisations = {1: "A", 2: "a ", 3: "B", 4: "C", 5: "D", 6: "E"}
    world = World(organisations=organisations)
    world.organisations = {silo: name.strip().casefold() for silo, name in organisations.items()}
    params = world.params()
    samples, *rest = inputs(params)
    samples = {silo: (n[0], n[1] if silo in (1, 2, 3, 4) else 0.0) for silo, n in samples.items()}
    run = Drive(world, params, data=(samples, *rest)).go()
    assert run.totals[1].holders == (5, 3)
    assert run.aggregate.open == (True, False)
    check_against_oracle(run)


@pytest.mark.parametrize("survey", [True, False])
def test_survey_and_nothing_open(survey):
    world = World()
    params = world.params(survey=survey)
    samples, *rest = inputs(params)
    if not survey:
        samples = dict.fromkeys(samples, (3.0, 3.0))
    run = Drive(world, params, data=(samples, *rest)).go()
    assert run.server_outcome == SessionSurveyed((survey, survey), params.cohort)
    assert all(event == SessionSurveyed((survey, survey), params.cohort) for event in run.outcome.values())
    assert len(run.bytes_of(Opened)) == 6
    assert not run.bytes_of(Release)
    if survey:
        sums = oracle.totals(params, run.samples, run.statistics)[3]
        assert all(totals.statistics == pytest.approx(sums) for totals in run.totals.values())


def test_next_round_and_smaller_cohort():
    world = World(range(1, 8))
    for number in range(3):
        params = world.params(round=number, start_digest=bytes([number]) * 32, cohort=world.silos[number:])
        expected = dict.fromkeys(world.silos, replace(params, cohort=world.silos))
        run = Drive(world, params, expected=expected, seed=number).go()
        check_against_oracle(run)


def test_replayed_randomness_repeats_every_byte_and_other_randomness_none_of_the_masked_ones():
    runs = [Drive(World(), World().params(), data=inputs(World().params()), seed=seed).go() for seed in (1, 1, 2)]
    assert [p for *_, p in runs[0].sent] == [p for *_, p in runs[1].sent]
    assert runs[0].aggregate.values.tobytes() == runs[2].aggregate.values.tobytes()
    shared = {p for *_, p in runs[0].sent} & {p for *_, p in runs[2].sent}
    assert not shared


def test_upload_overhead():
    spec = VectorSpec(1, (Block("a", 300_000, 8.0, 0),), (MetricSpec("m", 1.0, 1e-3),))
    world = World()
    run = Drive(world, world.params(spec=spec, piece_bytes=1 << 18)).go()
    sent = sum(len(payload) for sender, _, payload in run.sent if sender == 1)
    assert sent / spec.length <= 4.04
