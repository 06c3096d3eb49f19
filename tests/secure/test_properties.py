"""Any silos, drops, layouts and values: a session releases the plaintext oracle's sum, bit for bit, or nothing."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from adversarial import row
from harness import (
    Drive,
    SessionAbortedEvent,
    SessionReleased,
    SessionSurveyed,
    World,
    chain,
    die_after,
    die_before,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secure.gate import feasibility, infeasible
from secure.messages import Advert, Consent, Opened, Piece, Receipt, Reveal, Shares, SubSums, Uploaded
from secure.types import Block, MetricSpec, Rules, StatisticSpec, VectorSpec

STEPS = (Advert, Shares, Receipt, SubSums, Opened, Piece, Uploaded, Consent, Reveal)
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@st.composite
def layouts(draw):
    components = draw(st.integers(1, 4))
    clips = st.sampled_from((8.0, 1.0, 0.25, 3.0, 0.1, 7.999))
    blocks = draw(
        st.lists(st.tuples(st.integers(0, 90), clips, st.integers(0, components - 1)), min_size=1, max_size=6)
    )
    metrics = draw(st.lists(st.sampled_from((None, *range(components))), max_size=3))
    return VectorSpec(
        components,
        tuple(Block(f"block {i}", *block) for i, block in enumerate(blocks)),
        tuple(MetricSpec(f"metric {i}", 1e4, 1e-3, component) for i, component in enumerate(metrics)),
        tuple(StatisticSpec(f"statistic {i}", 50.0, 1e-6) for i in range(draw(st.integers(0, 3)))),
    )


@st.composite
def rules_for(draw, silos):
    case = feasibility(silos)
    drops = draw(st.integers(0, max(0, min(3, silos - case.quorum))))
    colluders = draw(st.integers(0, min(2, case.max_colluders)))
    found = Rules(
        colluders=colluders,
        max_drops=drops,
        min_contributors=draw(st.integers(2, max(2, min(6, silos)))),
        min_samples=draw(st.sampled_from((1, 8, 20))),
        w_max=draw(st.sampled_from((0.5, 0.2, 0.9))),
        verified_sums=draw(st.booleans()),
    )
    return found if not infeasible(silos, found) else Rules(colluders=0, max_drops=0, min_contributors=2)


def values_of(spec, silos, seed, extreme):
    """Vectors, metrics and totals of all silos; ``extreme`` puts some at zero, the clip, and far beyond it."""
    draw = np.random.default_rng(seed)
    samples, statistics, vectors, metrics = {}, {}, {}, {}
    for silo in silos:
        counts = draw.choice([0.0, 7.9, 8.0, 9.8, 50.0, 300.0, 4000.0], spec.components)
        samples[silo] = tuple(float(n) for n in counts)
        statistics[silo] = tuple(float(x) for x in draw.normal(0, 30, len(spec.statistics)))
        vector = draw.normal(0, 0.05, spec.length).astype(np.float32)
        if extreme and spec.length:
            places = draw.integers(0, spec.length, 12)
            vector[places] = draw.choice(np.float32([0, -0.0, 8, -8, 1e-40, 3e38, -3e38, 0.25, 1.5e-8]), 12)
        vectors[silo] = vector
        metrics[silo] = {m.name: float(draw.normal(0, 5000)) for m in spec.metrics}
    return samples, statistics, vectors, metrics


def never_wrong(run):
    """Terminal everywhere; every release is the oracle's; returns whether there was one."""
    params = run.params
    for silo in params.cohort:
        assert silo in run.dead or silo in run.outcome, "a silo hangs"
    organisations = run.world.organisations
    _, weights, holders, sums, opened = oracle.totals(params, run.samples, run.statistics, organisations)
    for totals in run.totals.values():
        assert (totals.weights, totals.holders, totals.open) == (weights, holders, opened)
        assert totals.statistics == pytest.approx(sums, abs=1e-6)
    events = [run.server_outcome, *run.outcome.values()]
    released = [event.aggregate for event in events if isinstance(event, SessionReleased)]
    assert all(event.open == opened for event in events if isinstance(event, SessionSurveyed))
    assert len({aggregate.survivors for aggregate in released}) <= 1
    if released:
        _check_sum(run, released, opened)
    return bool(released)


def _check_sum(run, released, opened):
    params, survivors = run.params, released[0].survivors
    least = max(len(params.cohort) - params.rules.max_drops, feasibility(len(params.cohort)).quorum)
    assert len(survivors) >= least
    with np.errstate(over="ignore"):
        values, metrics, _, _ = oracle.release(
            params, run.samples, run.statistics, run.vectors, run.metrics, survivors, run.world.organisations
        )
    for aggregate in released:
        assert aggregate.values.tobytes() == values.astype("<i4").tobytes()
        assert aggregate.open == opened
        assert aggregate.metrics == pytest.approx(metrics, abs=1e-6)


def play(data, most_silos):
    """One drawn session."""
    silos = data.draw(st.integers(3, most_silos), "silos")
    spec = data.draw(layouts(), "layout")
    rules = data.draw(rules_for(silos), "rules")
    world = World(range(1, silos + 1), rules=rules)
    params = world.params(spec=spec, survey=data.draw(st.sampled_from((False, False, False, True)), "survey"))
    inputs = values_of(spec, world.silos, data.draw(st.integers(0, 10**6), "seed"), data.draw(st.booleans(), "extreme"))
    run = Drive(world, params, data=inputs)
    deaths = data.draw(
        st.lists(
            st.tuples(st.sampled_from(world.silos), st.sampled_from(STEPS), st.sampled_from((die_before, die_after))),
            max_size=rules.max_drops + 1,
            unique_by=lambda death: death[0],
        ),
        "deaths",
    )
    run.on_send = chain(*(when(run, kind, silo) for silo, kind, when in deaths))
    run.go()
    released = never_wrong(run)
    early = any(kind in STEPS[:3] for _, kind, _ in deaths)
    opened = oracle.totals(params, run.samples, run.statistics)[4]
    if not params.survey and any(opened) and not early and len(deaths) <= rules.max_drops:
        reveals_lost = sum(kind in (Consent, Reveal) for _, kind, _ in deaths)
        if silos - len(deaths) >= feasibility(silos).quorum + 0 * reveals_lost:
            assert released or isinstance(run.server_outcome, SessionAbortedEvent)
            assert released, "drops within the rules must not discard the round"


@row("drops", "schedules")
@settings(RELAXED, max_examples=12)
@given(st.data())
def test_small_federations(data):
    play(data, 8)


@row("drops", "schedules")
@pytest.mark.slow
@settings(RELAXED, max_examples=120)
@given(st.data())
def test_up_to_twenty_silos(data):
    play(data, 20)


@row("drops", "schedules")
@pytest.mark.slow
@settings(RELAXED, max_examples=20)
@given(st.data())
def test_up_to_forty_silos(data):
    play(data, 40)
