"""Back-end ``none``: same interface, same classes, gate, shares and drop rules, in the clear."""

from __future__ import annotations

import numpy as np
import pytest

from secure.api import (
    Contribution,
    Send,
    SessionAbortedEvent,
    SessionReleased,
    SessionSurveyed,
    TotalsKnown,
    decode_aggregate,
    dequantise,
    encode_aggregate,
    open_server,
    open_silo,
)
from secure.errors import DecodeError, InputError
from secure.types import Block, MetricSpec, Rules, SessionParams, StatisticSpec, VectorSpec

SPEC = VectorSpec(
    components=2,
    blocks=(Block("vae.0", 300, 8.0, 0), Block("vae.1", 301, 4.0, 1)),
    metrics=(MetricSpec("loss", 1e6, 1e-3), MetricSpec("hits.1", 1e4, 1.0, 1)),
    statistics=(StatisticSpec("mean", 20.0, 1e-6),),
)
COHORT = (2, 3, 5, 7, 11)


def params(**changes):
    settings = {
        "run_id": "run",
        "phase": "rounds",
        "round": 0,
        "attempt": 0,
        "backend": "none",
        "cohort": COHORT,
        "spec": SPEC,
        "start_digest": b"s" * 32,
        "config_digest": b"c" * 32,
        "rules": Rules(min_contributors=4),
        "piece_bytes": 1024,
    }
    return SessionParams(**{**settings, **changes})


class Run:
    """Silos and server on one queue; ``silent`` silos send nothing from the moment they are named."""

    def __init__(self, session_params, samples, vectors, metrics=None):
        self.params = session_params
        self.server = open_server(session_params)
        self.silos = {
            silo: open_silo(silo, session_params, Contribution(samples[silo], (float(silo),)))
            for silo in session_params.cohort
        }
        self.vectors, self.metrics = vectors, metrics or {}
        self.silent, self.outcome, self.totals, self.server_outcome = set(), {}, {}, None

    def go(self):
        self.server_events(self.server.start())

    def server_events(self, events):
        for event in list(events):
            if isinstance(event, Send):
                self.silo_events(event.to, self.silos[event.to].handle(event.payload))
            else:
                self.server_outcome = event

    def silo_events(self, silo, events):
        for event in events:
            if silo in self.silent:
                return
            if isinstance(event, Send):
                self.server_events(self.server.handle(silo, event.payload))
            elif isinstance(event, TotalsKnown):
                self.totals[silo] = event.totals
                if any(event.totals.open) and not self.params.survey:
                    metrics = self.metrics.get(silo, {"loss": 1.5, "hits.1": 2.0})
                    self.silo_events(silo, self.silos[silo].submit(self.vectors[silo], metrics))
            else:
                self.outcome[silo] = event


def vectors(seed=0, scale=0.1):
    draw = np.random.default_rng(seed)
    return {silo: (draw.standard_normal(SPEC.length) * scale).astype(np.float32) for silo in COHORT}


SAMPLES = {2: (100, 0), 3: (50, 60), 5: (30, 70), 7: (4, 80), 11: (90, 3)}


def test_sum_totals_gate_and_metrics():
    run = Run(params(), SAMPLES, vectors())
    run.go()
    totals = run.totals[2]
    assert totals.holders == (4, 3)  # 4 and 3 samples are below min_samples
    assert totals.open == (True, False)
    assert totals.statistics == (sum(COHORT),)
    assert run.totals[5].share[1] == 0.0
    assert 0 < run.totals[5].share[0] <= 0.5
    assert sum(run.totals[silo].share[0] for silo in COHORT) <= 1 + 1e-12
    aggregate = run.server_outcome.aggregate
    assert isinstance(run.server_outcome, SessionReleased)
    assert all(isinstance(run.outcome[silo], SessionReleased) for silo in COHORT)
    expected = sum(vector[:300].astype(np.float64) for silo, vector in run.vectors.items() if silo != 7)
    limits = {silo: 8.0 * run.totals[silo].share[0] for silo in COHORT}
    assert all(np.abs(run.vectors[silo][:300]).max() <= limits[silo] for silo in COHORT if silo != 7)
    np.testing.assert_array_equal(dequantise(aggregate)[:300], expected.astype(np.float32))
    assert not dequantise(aggregate)[300:].any()
    assert aggregate.metrics == {"loss": 7.5, "hits.1": 0.0}
    assert aggregate.complete
    assert aggregate.clipped_share <= 0.5
    np.testing.assert_array_equal(aggregate.values, run.outcome[3].aggregate.values)


def test_clips_to_the_share_of_the_clip():
    run = Run(params(), dict.fromkeys(COHORT, (100, 100)), vectors(scale=1e3))
    run.go()
    aggregate = run.server_outcome.aggregate
    assert np.abs(aggregate.values[:300]).max() <= 8.0 * (1 + 1e-6)
    assert aggregate.clipped_share > 0.5


def test_one_drop_during_the_upload_goes_on_and_two_abort():
    for gone, kind in (((7,), SessionReleased), ((7, 11), SessionAbortedEvent)):
        run = Run(params(), dict.fromkeys(COHORT, (100, 100)), vectors())
        for silo in gone:
            run.silos[silo].submit = lambda *_: ()
        run.go()
        assert run.server_outcome is None
        assert run.server.waiting_for == gone
        run.server_events(run.server.deadline())
        assert isinstance(run.server_outcome, kind)
        if kind is SessionReleased:
            assert run.server_outcome.aggregate.survivors == (2, 3, 5, 11)
            assert not run.server_outcome.aggregate.complete
        assert run.server.done


def test_missing_before_the_totals_aborts_and_names():
    run = Run(params(), SAMPLES, vectors())
    run.silent = {5}
    run.go()
    assert run.server.waiting_for == (5,)
    run.server_events(run.server.deadline())
    assert run.server_outcome == SessionAbortedEvent(run.server_outcome.reason, (5,))
    assert all(isinstance(run.outcome[silo], SessionAbortedEvent) for silo in COHORT if silo != 5)


def test_survey_and_nothing_open_end_after_the_totals():
    for changes, samples in (({"survey": True}, SAMPLES), ({}, dict.fromkeys(COHORT, (1, 1)))):
        run = Run(params(**changes), samples, vectors())
        run.go()
        assert isinstance(run.server_outcome, SessionSurveyed)
        assert all(isinstance(run.outcome[silo], SessionSurveyed) for silo in COHORT)
        assert run.server_outcome.open == run.totals[2].open


def test_smaller_cohort_and_later_attempt_are_accepted_other_changes_refused():
    smaller = params(cohort=COHORT[:4], attempt=1)
    silo = open_silo(2, params(), Contribution((1, 1), (0.0,)))
    (proposal, *_) = open_server(smaller).start()
    (answer,) = silo.handle(proposal.payload)
    assert isinstance(answer, Send)
    for changes in (
        {"run_id": "other"},
        {"round": 1},
        {"group": 1},
        {"start_digest": b"t" * 32},
        {"config_digest": b"t" * 32},
        {"survey": True},
        {"rules": Rules(min_contributors=3)},
        {"rules": Rules(w_max=0.6)},
        {"cohort": (2, 3, 5, 13)},
        {"cohort": (3, 5, 7)},
        {"piece_bytes": 8},
    ):
        silo = open_silo(2, params(attempt=0), Contribution((1, 1), (0.0,)))
        (proposal, *_) = open_server(params(**changes)).start()
        *_, last = silo.handle(proposal.payload)
        assert isinstance(last, SessionAbortedEvent), changes


def test_submit_refuses_bad_input_and_a_second_call():
    run = Run(params(), dict.fromkeys(COHORT, (100, 100)), vectors())
    caught = []

    def submit(vector, metrics, silo=run.silos[3], original=run.silos[3].submit):
        bad = vector.copy()
        bad[310] = np.nan
        for wrong, names in (
            (bad, metrics),
            (vector[:-1], metrics),
            (vector.astype(np.float64), metrics),
            (vector, {"loss": 1.0}),
            (vector, {"loss": float("inf"), "hits.1": 0.0}),
        ):
            with pytest.raises(InputError) as error:
                original(wrong, names)
            caught.append(str(error.value))
        events = original(vector, metrics)
        with pytest.raises(InputError):
            original(vector, metrics)
        return events

    run.silos[3].submit = submit
    run.go()
    assert isinstance(run.server_outcome, SessionReleased)
    assert caught[0].startswith("vae.1")


def test_garbage_is_counted_by_the_server_and_ends_a_silo():
    run = Run(params(), SAMPLES, vectors())
    assert list(run.server.handle(2, b"\xc1garbage")) == []
    assert list(run.server.handle(99, b"")) == []
    assert run.server.ignored == 2
    *_, last = run.silos[2].handle(b"\xc1garbage")
    assert isinstance(last, SessionAbortedEvent)
    assert run.silos[2].done
    assert list(run.silos[2].handle(b"more")) == []


def test_aggregate_survives_encoding():
    run = Run(params(), SAMPLES, vectors())
    run.go()
    aggregate = run.server_outcome.aggregate
    data = encode_aggregate(aggregate)
    again = decode_aggregate(data, SPEC)
    np.testing.assert_array_equal(again.values, aggregate.values)
    assert (again.survivors, again.metrics, again.open) == (aggregate.survivors, aggregate.metrics, aggregate.open)
    with pytest.raises(DecodeError):
        decode_aggregate(data, VectorSpec(2, SPEC.blocks[:1]))
    with pytest.raises(DecodeError):
        decode_aggregate(data[:-1], SPEC)


def test_contribution_must_fit_the_layout():
    with pytest.raises(InputError):
        open_silo(2, params(), Contribution((1.0,), (0.0,)))
    with pytest.raises(InputError):
        open_silo(2, params(), Contribution((1.0, 1.0), ()))
