"""``fedgmi bench secure`` and ``peers`` at tiny sizes: every figure is there and means what it says; never timed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from fedgmi_fedml import bench_secure as module
from fedgmi_fedml.bench_memory import MemoryMeter
from fedgmi_fedml.bench_peers import flower_figures
from fedgmi_fedml.bench_peers import vector_of as peers_vector
from fedgmi_fedml.bench_secure import Floor, SecureBench, bench_secure, plaintext_mean
from fedgmi_fedml.bench_session import Federation, Session, Stopwatch, layout, vector_of
from fedgmi_fedml.cli_bench import bench, judged, print_figures
from fedgmi_fedml.errors import RunError

FIELDS = {
    "silo_seconds", "server_seconds", "plaintext_server_seconds", "control_seconds", "floor_seconds", "copy_seconds",
    "upload_bytes", "bytes_per_parameter", "max_abs_error", "peak_memory_bytes", "targets",
}  # fmt: skip


def tiny(**changes):
    settings = {"silos": 5, "parameters": 1000, "drops": 0, "repeats": 1, "compare_silos": 0}
    return bench_secure(**{**settings, **changes})


def test_command_prints_every_figure_as_json() -> None:
    options = ["--silos", "5", "--parameters", "1000", "--drops", "1", "--repeats", "1", "--compare-silos", "0"]
    done = CliRunner().invoke(bench, ["secure", *options, "--json"], catch_exceptions=False)
    figures = json.loads(done.output)
    assert set(figures) >= FIELDS
    assert {"figure", "value", "target", "met"} == set(figures["targets"][0])
    assert figures["drops"] == 1


def test_bytes_are_what_was_sent_and_the_error_is_the_quantisers() -> None:
    figures = tiny()
    assert 4 * 1000 < figures["upload_bytes"] < 4 * 1000 + 500
    assert figures["sent_bytes"] > figures["upload_bytes"]
    assert figures["bytes_per_parameter"] == figures["upload_bytes"] / 1000
    # Five silos, half a step of 2^-26 each, and float32 rounding of numbers far below one.
    assert 0 < figures["max_abs_error"] < 5 * 2**-27 + 1e-7


def test_the_error_is_taken_against_float64() -> None:
    federation = Federation(5, 1, "masked")
    session = Session(
        federation, federation.params(layout(300)), lambda i: vector_of(i, 300, 1.0), Stopwatch(), drops=(2,)
    )
    session.up_to_uploads().uploads().to_release()
    assert session.survivors == (1, 3, 4, 5)
    truth = np.zeros(300)
    for silo in session.survivors:
        low, high = (share * vector_of(silo, 300, 1.0).astype(np.float64) for share in session.share(silo))
        truth += np.concatenate([low[:150], high[150:]])
    assert np.abs(truth - session.result).max() < 3e-7
    assert module._error(session) == pytest.approx(np.abs(truth - session.result).max(), rel=1e-6)


def test_drops_beyond_the_rules_are_refused() -> None:
    with pytest.raises(RunError, match="5 silos with 4 drops"):
        Federation(5, 4, "masked")


def test_none_has_no_targets_of_masking() -> None:
    figures = tiny(backend="none")
    assert figures["targets"] == []
    assert figures["silo_seconds"] == figures["submit_seconds"]


def test_larger_cohort_is_compared() -> None:
    figures = tiny(compare_silos=6)
    names = [row[0] for row in figures["targets"]]
    assert "control_seconds, 5 silos" in names
    assert "compare_control_seconds, 6 silos" in names
    assert any(name.startswith("server memory, 5 against 6") for name in names)


def test_floor_expands_every_stream_over_every_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    # Zero keys make the sum checkable: K times one known keystream.
    monkeypatch.setattr(module, "os", SimpleNamespace(urandom=bytes))
    floor = Floor(3, 100_000)
    floor.run(lambda: module.modes.CTR(bytes(16)))
    key = module.Cipher(module.algorithms.AES(bytes(32)), module.modes.CTR(bytes(16))).encryptor()
    stream = np.frombuffer(key.update(bytes(400_000)), dtype=np.uint32)
    assert np.array_equal(floor._sum, 3 * stream)


def test_floor_is_the_faster_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    floor, answers = Floor(2, 10), iter([3.0, 2.0])
    monkeypatch.setattr(floor, "run", lambda mode: next(answers))
    assert floor.seconds() == (2.0, 3.0)


def test_plaintext_server_averages() -> None:
    uploads = [np.full(4, value, dtype=np.float32) for value in (1, 2, 6)]
    assert plaintext_mean(uploads).tolist() == [3.0] * 4
    assert uploads[0].tolist() == [1.0] * 4


def test_memory_meter_sees_what_is_kept_and_what_is_dropped() -> None:
    meter, kept = MemoryMeter(1), []
    module.tracemalloc.start()
    try:
        meter.around(1, lambda: kept.append(bytearray(1 << 20)), lambda _: "")
        meter.around(1, lambda: len(bytearray(2 << 20)), lambda _: "")
        meter.around(2, lambda: len(bytearray(9 << 20)), lambda _: "")
    finally:
        module.tracemalloc.stop()
    assert 3 << 20 <= meter.peak < (3 << 20) + 100_000


def test_server_memory_holds_sum_and_release_and_no_upload_more() -> None:
    whole, late = SecureBench("masked", 5, 200_000, 0, 1, 0.01).server_memory()
    assert 2 * 800_000 <= late <= whole < 5 * 800_000


def test_targets_are_judged() -> None:
    assert judged("x", 1.0, 1.0)["met"]
    assert not judged("x", 1.1, 1.0)["met"]
    assert judged("x", 1.1, 1.0, at_most=False)["met"]
    assert not judged("x", None, 1.0)["met"]


def test_table_shows_nested_figures_and_misses(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures({"memory": {"silo": 3}, "targets": [("memory", 3.0, 2.0)]}, as_json=False)
    out = capsys.readouterr().out
    assert "memory.silo" in out
    assert "≤ 2: MISSED" in out


# ── peers ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_peers_without_flower_say_why() -> None:
    figures = flower_figures(sys.executable, 5, 100, 0, 1)
    if "skipped" not in figures:
        pytest.skip("this environment has Flower")
    assert "flwr" in figures["skipped"]


def test_peers_without_python_say_why(tmp_path: Path) -> None:
    assert "cannot be run" in flower_figures(str(tmp_path / "python"), 5, 100, 0, 1)["skipped"]


def test_peers_get_the_same_vectors() -> None:
    assert np.array_equal(peers_vector(3, 50, 0.01), vector_of(3, 50, 0.01))
