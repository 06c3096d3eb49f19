"""Telemetry: what may go out goes out finite and whole, everything else never leaves; sinks cannot hurt the run."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgmi_fedml.errors import CheckpointError
from fedgmi_fedml.telemetry import (
    ROUND_FIELDS,
    BackgroundSink,
    JsonLinesSink,
    MemorySink,
    Telemetry,
    TelemetryError,
    open_telemetry,
    read_json_lines,
    rewind,
    setup_logging,
)

ROUND = {"phase": "rounds", "round": 0}


def to(*audiences: str, strict: bool | None = True) -> tuple[Telemetry, list[MemorySink]]:
    sinks = [MemorySink() for _ in audiences]
    return Telemetry(list(zip(sinks, audiences, strict=True)), strict=strict), sinks


@pytest.mark.parametrize("audience", ["server", "silo", "simulation"])
@pytest.mark.parametrize("name", ["alpha", "counts", "path", "labels", "vae_los", "samples", "n", "x_train"])
def test_a_name_outside_the_list_is_an_error_for_every_audience(audience: str, name: str) -> None:
    telemetry, sinks = to(audience)
    with pytest.raises(TelemetryError, match=name):
        telemetry.round({**ROUND, name: 0.5})
    assert sinks[0].rounds == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vae_loss", 1.0),
        ("vae_loss", [[1.0]]),
        ("vae_loss", {"silo 3": 1.0}),
        ("validation_accuracy", [0.5, 0.6]),
        ("validation_accuracy", "0.5"),
        ("dropped", ["clinic-7"]),
        ("dropped", [0.25, 0.75]),
        ("complete", 1),
        ("phase", "clinic 7"),
        ("step_seconds", {"/data/patients": 1.0}),
        ("round", True),
    ],
)
def test_a_shape_outside_the_list_is_an_error(name: str, value: object) -> None:
    telemetry, sinks = to("server")
    with pytest.raises(TelemetryError, match=name):
        telemetry.round({**ROUND, name: value})
    assert sinks[0].rounds == []


def test_no_error_and_no_note_repeats_a_value(caplog: pytest.LogCaptureFixture) -> None:
    for strict in (True, False):
        telemetry, _ = to("server", strict=strict)
        try:
            telemetry.round({**ROUND, "alpha": [0.123456, 0.876544], "/data/ward": 1, "vae_loss": "secret7"})
        except TelemetryError as error:
            caplog.records.append(logging.makeLogRecord({"msg": str(error)}))
    text = " ".join(record.getMessage() for record in caplog.records)
    assert "alpha is not in the allow-list" in text
    for forbidden in ("0.123456", "/data/ward", "secret7"):
        assert forbidden not in text


def test_in_a_deployment_a_forbidden_entry_is_dropped_with_one_note(caplog: pytest.LogCaptureFixture) -> None:
    telemetry, sinks = to("server", strict=None)
    for number in range(3):
        telemetry.round({"phase": "rounds", "round": number, "alpha": [0.5, 0.5], "validation_accuracy": 0.5})
    assert [set(record) for record in sinks[0].rounds] == [{"phase", "round", "validation_accuracy", "elapsed"}] * 3
    assert len([r for r in caplog.records if "alpha" in r.getMessage()]) == 1


def test_strict_by_default_only_where_everything_is_a_simulation() -> None:
    assert to("simulation", strict=None)[0].strict
    assert not to("server", strict=None)[0].strict
    assert not to("simulation", "server", strict=None)[0].strict


def test_each_outlet_gets_what_its_audience_may_see() -> None:
    telemetry, (silo, server) = to("silo", "server")
    telemetry.round({**ROUND, "alpha_drift": 0.1, "validation_accuracy": 0.9})
    assert silo.rounds[0]["alpha_drift"] == 0.1
    assert "alpha_drift" not in server.rounds[0]
    assert server.rounds[0]["validation_accuracy"] == 0.9


@pytest.mark.parametrize("name", ["alpha_drift", "component_weight", "effective_components", "margin", "offset"])
def test_a_silos_own_figures_are_an_error_where_only_the_server_listens(name: str) -> None:
    value = [0.5, 0.5] if ROUND_FIELDS[name].kind == "vector" else 0.5
    telemetry, sinks = to("server")
    with pytest.raises(TelemetryError, match=f"{name} may go to no outlet"):
        telemetry.round({**ROUND, name: value})
    assert sinks[0].rounds == []


@pytest.mark.parametrize("audience", ["server", "silo"])
def test_what_needs_the_truth_exists_in_simulations_only(audience: str) -> None:
    telemetry, _ = to(audience)
    with pytest.raises(TelemetryError, match="alpha_mae"):
        telemetry.round({**ROUND, "alpha_mae": 0.01})
    simulation, sinks = to("simulation")
    simulation.round({**ROUND, "alpha_mae": 0.01})
    assert sinks[0].rounds[0]["alpha_mae"] == 0.01


def test_phase_and_round_are_required() -> None:
    telemetry, _ = to("simulation")
    with pytest.raises(TelemetryError, match="round is missing"):
        telemetry.round({"phase": "rounds"})


def test_numbers_are_finite_and_plain(tmp_path: Path) -> None:
    telemetry = open_telemetry(tmp_path, "simulation")
    telemetry.round(
        {
            "phase": "warmup",
            "round": np.int64(3),
            "vae_loss": torch.tensor([1.5, float("nan")]),
            "separability": np.array([[0.0, np.inf], [1.0, 0.0]]),
            "open": np.array([True, False]),
            "confidence": np.float32(0.5),
            "beta": float("-inf"),
            "step_seconds": {"train": 1.0, "score": float("nan")},
        }
    )
    telemetry.close()
    line = (tmp_path / "rounds.jsonl").read_text()
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    record = json.loads(line, parse_constant=pytest.fail)
    assert record["vae_loss"] == [1.5, None]
    assert record["separability"] == [[0.0, None], [1.0, 0.0]]
    assert record["open"] == [True, False]
    assert record["round"] == 3
    assert record["step_seconds"] == {"train": 1.0, "score": None}
    assert record["not_finite"] == ["vae_loss", "separability", "beta", "step_seconds"]


def test_events_have_kinds_times_and_words_without_paths() -> None:
    telemetry, (sink,) = to("server")
    telemetry.event("dropped", silo=3, phase="rounds", round=2, reason="no answer within 30 s, 3/10 of the rounds done")
    event = sink.events[0]
    assert event["event"] == "dropped"
    assert event["silo"] == 3
    assert event["elapsed"] >= 0
    assert event["time"].endswith("+00:00")
    for reason in ("cannot read /data/ward/7.png", r"cannot read C:\data", "see ../x", "file '/a' is gone", "x" * 501):
        with pytest.raises(TelemetryError, match="without a path"):
            telemetry.event("failed", reason=reason)
    with pytest.raises(TelemetryError, match="kind of event"):
        telemetry.event("printed")


def test_elapsed_is_monotonic_whatever_the_wall_clock_does_and_goes_on_after_a_resume() -> None:
    now = iter([100.0, 101.5])
    sink = MemorySink()
    Telemetry([(sink, "server")], clock=lambda: next(now), elapsed=60.0).round(ROUND)
    assert sink.rounds[0]["elapsed"] == 61.5


class Broken:
    """A sink whose receiver is gone."""

    def __init__(self) -> None:
        self.calls = 0

    def write(self, stream: str, record: object) -> None:
        self.calls += 1
        raise ConnectionError("http://user:password@host is unreachable")

    def close(self) -> None:
        raise ConnectionError


def test_a_failing_sink_is_noted_then_left_out_and_never_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    broken, memory = Broken(), MemorySink()
    telemetry = Telemetry([(broken, "server"), (memory, "server")])
    for number in range(10):
        telemetry.round({"phase": "rounds", "round": number})
    telemetry.close()
    assert broken.calls == 3
    assert len(memory.rounds) == 10
    assert "left out" in caplog.text
    assert "password" not in caplog.text


class Hanging:
    """A sink that never returns: a service that swallows packets."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def write(self, stream: str, record: object) -> None:
        self.released.wait(30)

    def close(self) -> None:
        pass


def test_a_black_hole_holds_up_nothing_and_the_loss_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    hanging = Hanging()
    background = BackgroundSink(hanging, capacity=5, patience=0.1)
    telemetry = Telemetry([(background, "server")])
    start = time.monotonic()
    for number in range(50):
        telemetry.round({"phase": "rounds", "round": number})
    telemetry.close()
    assert time.monotonic() - start < 2.0
    assert background.dropped >= 44
    assert "records were dropped" in caplog.text
    hanging.released.set()


def test_a_background_sink_delivers_in_order_before_it_closes() -> None:
    memory = MemorySink()
    with Telemetry([(BackgroundSink(memory), "server")]) as telemetry:
        for number in range(20):
            telemetry.round({"phase": "rounds", "round": number})
    assert [record["round"] for record in memory.rounds] == list(range(20))


def test_a_line_cut_short_by_a_crash_is_removed_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 0}\n{"round": 1, "va')
    assert read_json_lines(path) == [{"round": 0}]
    sink = JsonLinesSink(tmp_path)
    sink.write("rounds", {"round": 1})
    sink.close()
    assert read_json_lines(path) == [{"round": 0}, {"round": 1}]
    path.write_text('{"round": 0}\n{"rou\n{"round": 2}\n')
    with pytest.raises(CheckpointError, match="line 2"):
        read_json_lines(path)


def test_rewind_drops_the_rounds_that_will_be_done_again(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    with open_telemetry(tmp_path, "server") as telemetry:
        for number in range(5):
            telemetry.round({"phase": "rounds", "round": number})
    assert rewind(path, lambda record: record["round"] < 3) == 2
    assert [record["round"] for record in read_json_lines(path)] == [0, 1, 2]
    assert rewind(path, lambda record: True) == 0
    assert rewind(tmp_path / "none.jsonl", lambda record: False) == 0


@pytest.mark.slow
def test_tensorboard_files_hold_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_telemetry(tmp_path, "simulation", tensorboard=True) as telemetry:
        for number in range(2):
            telemetry.round(
                {"phase": "rounds", "round": number, "vae_loss": [1.0, float("nan")], "validation_accuracy": number / 2}
            )
            telemetry.round({"method": "fedavg", "phase": "rounds", "round": number, "expert_loss": [2.0]})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = events.Tags()["scalars"]
    assert [(e.step, e.value) for e in events.Scalars("rounds/validation_accuracy")] == [(0, 0.0), (1, 0.5)]
    assert "rounds/vae_loss/0" in tags
    assert "rounds/vae_loss/1" not in tags
    assert "fedavg/rounds/expert_loss/0" in tags


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log() -> logging.Logger:
    """A logger of ours, its handlers taken away again afterwards."""
    logger = logging.getLogger("fedgmi_fedml.test")
    yield logger
    for name in ("fedgmi_fedml", "secure"):
        owner = logging.getLogger(name)
        owner.handlers.clear()
        owner.propagate = True
        owner.setLevel(logging.NOTSET)


def test_log_lines_show_sizes_never_payloads(log: logging.Logger) -> None:
    out = io.StringIO()
    setup_logging("INFO", out)
    log.info("sent %s and %s", b"\x01secret", np.arange(3.0))
    log.info("took %s %s %s", torch.ones(2, 2), {"alpha": 0.1234}, [b"secret", 5])
    log.info("%s", {"alpha": 0.1234})
    log.info("%(size)d of %(what)s", {"size": 5, "what": b"secret"})
    log.info("%s", "z" * 9000)
    log.debug("not shown")
    text = out.getvalue()
    assert "<7 bytes>" in text
    assert "<ndarray (3,) float64>" in text
    assert "<Tensor (2, 2) torch.float32>" in text
    assert text.count("<dict of 1>") == 2
    assert "5 of <6 bytes>" in text
    assert "secret" not in text
    assert "0.1234" not in text
    assert len(max(text.splitlines(), key=len)) < 2200
    assert "not shown" not in text


def test_colours_only_on_a_terminal_and_never_against_no_color(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        setup_logging("INFO", stream)
        log.warning("mind the gap")
    assert "\x1b[" not in plain.getvalue()
    assert "\x1b[33m" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    quiet = Terminal()
    setup_logging("INFO", quiet)
    log.warning("mind the gap")
    assert "\x1b[" not in quiet.getvalue()


def test_set_up_twice_writes_once_and_tracebacks_are_for_debugging(log: logging.Logger) -> None:
    for level, shown in (("INFO", False), ("DEBUG", True)):
        out = io.StringIO()
        setup_logging("INFO", io.StringIO())
        setup_logging(level, out)
        try:
            raise KeyError("hidden detail")
        except KeyError:
            log.exception("could not go on")
        assert out.getvalue().count("could not go on (KeyError)") == 1
        assert ("Traceback" in out.getvalue()) == shown
        assert ("hidden detail" in out.getvalue()) == shown
    with pytest.raises(ValueError, match="unknown log level"):
        setup_logging("LOUD")
