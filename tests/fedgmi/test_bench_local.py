"""The bench runs and says what it found; its figures are for people, never for a timed test."""

from __future__ import annotations

import pytest

from fedgmi_fedml.bench_local import Timings, bench_local


def test_ratios_pair_the_runs_of_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two actions, one turn to warm up and three that count; each clock reading is one second (×10 in turn three) apart.
    readings = iter([0, 9, 9, 18, 0, 2, 2, 3, 0, 20, 20, 30, 0, 2, 2, 3])
    monkeypatch.setattr("time.process_time", lambda: next(readings))
    timings = Timings({"slow": lambda: None, "quick": lambda: None}, repeats=3)
    assert timings.ratio("slow", "quick") == 2.0
    assert timings.best("slow") == 2.0


@pytest.mark.slow
def test_quick_bench_has_every_figure() -> None:
    figures = bench_local(quick=True)
    for name in ("round_ratio", "round_ratio_fused", "scaling_spread", "scoring_rate", "train_us_per_sample_m8"):
        assert figures[name] > 0
    assert {name for name in figures if name.endswith("_ok")} == {"round_ok", "scaling_ok", "scoring_ok"}
