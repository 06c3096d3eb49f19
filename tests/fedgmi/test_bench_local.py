"""The bench runs and says what it found; its figures are for people, never for a timed test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedgmi_fedml import bench_local as bench_local_module
from fedgmi_fedml.bench_local import Timings, bench_local


def test_ratios_pair_the_runs_of_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # Starts of the warm-up turn, then three turns of two actions; the second turn is ten times slower.
    readings = iter([0, 9, 0, 2, 2, 3, 0, 20, 20, 30, 0, 3, 3, 4])
    monkeypatch.setattr(bench_local_module, "time", SimpleNamespace(process_time=lambda: next(readings)))
    timings = Timings({"slow": lambda: None, "quick": lambda: None}, repeats=3)
    assert timings.ratio("slow", "quick") == 2.0
    assert timings.best("slow") == 2.0


@pytest.mark.slow
def test_quick_bench_has_every_figure() -> None:
    figures = bench_local(quick=True)
    for name in ("round_ratio", "round_ratio_fused", "scaling_spread", "scoring_rate", "train_us_per_sample_m8"):
        assert figures[name] > 0
    assert {name for name in figures if name.endswith("_ok")} == {"round_ok", "scaling_ok", "scoring_ok"}
