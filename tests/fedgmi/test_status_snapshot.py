"""The status: each record makes the next snapshot, memory stays bounded, nothing private passes, nothing is raised."""

from __future__ import annotations

import json
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from status_example import Clock, blank, feed

from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import CheckpointError, RunError
from fedgmi_fedml.federation.status import StatusState, protection_in_force
from fedgmi_fedml.federation.status_document import document
from fedgmi_fedml.federation.status_folder import newest_run, read_folder
from fedgmi_fedml.federation.status_snapshot import MOST_EVENTS, MOST_POINTS
from fedgmi_fedml.federation.status_words import SILO_STATES, event_text, round_name, stage_text
from fedgmi_fedml.telemetry import EVENTS, Telemetry


def event(state, kind, **fields):
    """One event, as telemetry hands it on."""
    state.write("events", {"time": "2026-01-02T03:04:05.678+00:00", "elapsed": 1.0, "event": kind, **fields})


def silo(state, number):
    """One silo as it is now."""
    return next(silo for silo in state.snapshot.silos if silo.id == number)


# ---- silos -----------------------------------------------------------------------------------------------------------


def test_a_silos_life() -> None:
    state = blank()
    assert silo(state, 3).state == "expected"
    state.silo(3, "connected")
    assert silo(state, 3).state == "connected"
    assert silo(state, 3).seen == 1000.0
    event(state, "joined", silo=3)
    assert silo(state, 3).state == "in"
    state.notify("ready", {"silo": 3})
    assert silo(state, 3).ready
    state.write("rounds", {"phase": "rounds", "round": 0, "dropped": [], "attempts": 1})
    assert not silo(state, 3).ready
    state.silo(3, "lost", "no sign of life for 45 s")
    event(state, "left", silo=3)
    assert (silo(state, 3).state, silo(state, 3).reason) == ("lost", "no sign of life for 45 s")
    state.silo(3, "connected")
    event(state, "left", silo=3)  # the driver tells of the old process after the link of the new one
    assert (silo(state, 3).state, silo(state, 3).reason) == ("connected", "")
    event(state, "joined", silo=3)
    assert state.snapshot.present == 1


@pytest.mark.parametrize("how", ["stage", "evaluation"])
def test_who_leaves_after_the_last_round_is_not_lost(how: str) -> None:
    state = blank()
    for number in (1, 2):
        state.silo(number, "connected")
        event(state, "joined", silo=number)
    state.silo(2, "lost", "no sign of life for 45 s")
    if how == "stage":
        state.stage("finish")
    else:
        state.write("rounds", {"phase": "evaluate", "round": 0})
    state.silo(1, "lost", "closed")
    event(state, "left", silo=1)
    assert (silo(state, 1).state, silo(state, 1).reason) == ("done", "")
    assert event_text(state.snapshot.events[-1], {}) == "Silo 1 took its leave"
    assert silo(state, 2).state == "lost"
    assert state.snapshot.present == 1


def test_left_without_a_word_from_the_transport() -> None:
    state = blank()
    event(state, "joined", silo=3)
    event(state, "left", silo=3)
    assert silo(state, 3).state == "lost"


def test_a_failure_names_round_and_class_until_the_silo_is_ready_again() -> None:
    state = blank()
    event(state, "joined", silo=2)
    event(state, "phase", phase="warmup", total=8, done=0)
    event(state, "silo_failed", silo=2, round=4, error="OutOfMemoryError")
    found = silo(state, 2)
    assert (found.state, found.failures, found.failed_in, found.error) == (
        "failed",
        1,
        ("warmup", 4),
        "OutOfMemoryError",
    )
    assert state.snapshot.present == 1
    state.notify("ready", {"silo": 2})
    assert (silo(state, 2).state, silo(state, 2).failures) == ("in", 1)


def test_drops_are_counted_by_silo() -> None:
    state = blank()
    for number, dropped in enumerate(([4], [], [4, 5])):
        state.write("rounds", {"phase": "rounds", "round": number, "dropped": dropped, "complete": not dropped})
    assert (silo(state, 4).dropped, silo(state, 4).dropped_in) == (2, ("rounds", 2))
    assert (silo(state, 5).dropped, silo(state, 5).dropped_in) == (1, ("rounds", 2))
    assert silo(state, 1).dropped == 0
    assert state.snapshot.partial == 2
    assert state.snapshot.protection.dropped_silos == 2


def test_a_refused_message_does_not_turn_a_silo_out_and_a_refused_join_does() -> None:
    state = blank()
    event(state, "joined", silo=1)
    event(state, "refused", silo=1, reason="Plan is not for the server")
    assert silo(state, 1).state == "in"
    state.silo(2, "connected")
    event(state, "refused", silo=2, reason="list of classes differs from the server's")
    assert (silo(state, 2).state, silo(state, 2).reason) == ("refused", "list of classes differs from the server's")
    event(state, "absent", silos=[3, 4])
    assert [silo(state, 3).state, silo(state, 4).state] == ["absent", "absent"]


def test_strangers_are_ignored() -> None:
    state = blank()
    before = state.snapshot.silos
    event(state, "joined", silo=99)
    state.silo(99, "connected")
    state.silo(1, "in")  # only the driver says that
    state.seen(99)
    state.notify("ready", {"silo": 99})
    assert state.snapshot.silos == before


# ---- the run ---------------------------------------------------------------------------------------------------------


def test_the_example_adds_up() -> None:
    clock = Clock()
    state = blank(clock=clock)
    feed(state, clock)
    found = document(state.snapshot, clock())
    assert (found["state"], found["phase"], found["silos_in"]) == ("running", "rounds", 6)
    assert [(phase["name"], phase["done"], phase["total"]) for phase in found["phases"]] == [
        ("candidates", 4, 4),
        ("warmup", 8, 8),
        ("rounds", 6, 10),
    ]
    assert found["protection"]["sessions"] == 18
    assert found["latest"]["validation_accuracy"]["round"] == 5
    assert found["best"] == {"validation_accuracy": pytest.approx(0.8659, abs=1e-4), "phase": "rounds", "round": 5}
    assert found["open"] == [True, True]
    assert found["left_seconds"] == pytest.approx(4 * 4.9 - 1.7, abs=0.1)
    assert found["elapsed_seconds"] == pytest.approx(62.7, abs=0.1)
    json.dumps(found, allow_nan=False)


def test_time_left_never_runs_below_the_rounds_to_come() -> None:
    clock = Clock()
    state = blank(clock=clock)
    feed(state, clock)
    clock.now += 10_000  # a silo hangs: this round is not over
    assert state.snapshot.seconds_left(clock()) == pytest.approx(3 * 4.9)


def test_phases_to_come_count_at_the_mean_pace() -> None:
    clock = Clock()
    state = blank(clock=clock)
    state.write("rounds", {"phase": "candidates", "round": 0, "seconds": 2.0})
    assert state.snapshot.seconds_left(clock()) == pytest.approx(2.0 * (3 + 8 + 10))


@pytest.mark.parametrize("kind", ["finished", "failed", "interrupted"])
def test_the_end(kind: str) -> None:
    clock = Clock()
    state = blank(clock=clock)
    feed(state, clock)
    event(state, kind, reason="three rounds in a row reached no result")
    ended = clock.now
    clock.now += 500
    found = document(state.snapshot, clock())
    assert (found["state"], found["reason"]) == (kind, "three rounds in a row reached no result")
    assert found["left_seconds"] is None
    assert found["elapsed_seconds"] == pytest.approx(ended - state.snapshot.began)


def test_a_closed_component_has_no_loss() -> None:
    state = blank(components=2)
    record = {"phase": "warmup", "round": 0, "vae_loss": [30.0, 0.0], "open": [True, False]}
    state.write("rounds", record)
    assert state.snapshot.latest["vae_loss"][0] == [30.0, None]
    assert state.snapshot.phase_status("warmup").points[0]["vae_loss"] == [30.0, None]
    assert record["vae_loss"] == [30.0, 0.0]
    assert state.snapshot.protection.frozen_components == [1]


def test_a_restart_counts_on_and_knows_nobody() -> None:
    clock = Clock()
    state = blank(clock=clock)
    feed(state, clock)
    event(state, "interrupted")
    event(state, "resumed", backend="masked")
    snapshot = state.snapshot
    assert (snapshot.state, snapshot.present, snapshot.ended) == ("waiting", 0, None)
    assert snapshot.phase_status("rounds").done == 6


def test_other_methods_of_a_comparison_are_left_out() -> None:
    state = blank()
    state.write("rounds", {"method": "fedavg", "phase": "rounds", "round": 7, "attempts": 1})
    assert state.snapshot.phase_status("rounds").done == 0
    assert state.snapshot.sessions == 0


def test_equal_events_in_a_row_are_counted() -> None:
    state = blank()
    for _ in range(500):
        event(state, "refused", silo=1, reason="garbage")
    assert len(state.snapshot.events) == 1
    assert event_text(state.snapshot.events[0], {1: "Bergen"}) == "Silo 1 (Bergen): refused: garbage (500 times)"


# ---- bounds, threads, errors -----------------------------------------------------------------------------------------


def long_run(rounds: int) -> StatusState:
    state = blank(components=4)
    event(state, "phase", phase="rounds", total=rounds, done=0)
    for number in range(rounds):
        losses = [float(number + j) for j in range(4)]
        record = {"phase": "rounds", "round": number, "vae_loss": losses, "expert_loss": losses, "attempts": 1}
        state.write("rounds", {**record, "bytes_up": 10, "seconds": 1.0, "validation_accuracy": number / rounds})
        event(state, "refused", silo=1 + number % 8, reason=f"message {number}")
    return state


@pytest.mark.slow
def test_a_long_run_stays_small_and_exact() -> None:
    tracemalloc.start()
    state = long_run(10_000)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    phase = state.snapshot.phase_status("rounds")
    assert size < 2_000_000
    assert len(phase.points) <= MOST_POINTS + 1
    assert len(state.snapshot.events) == MOST_EVENTS
    assert phase.bytes_up == 100_000
    assert phase.points[0]["round"] == 0
    assert phase.points[-1]["round"] == 9999
    steps = {b["round"] - a["round"] for a, b in zip(phase.points, phase.points[1:-1], strict=False)}
    assert steps == {phase.stride}


def test_readers_never_wait_and_see_whole_snapshots() -> None:
    state, over, wrong = blank(), threading.Event(), []

    def read() -> None:
        while not over.is_set():
            snapshot = state.snapshot
            if snapshot.sessions != snapshot.protection.sessions and snapshot.version:
                wrong.append(snapshot.version)
            document(snapshot, 1000.0)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    with state._lock:  # a writer that hangs holds nobody up who reads
        assert state.snapshot.state == "waiting"
    for number in range(300):
        state.write("rounds", {"phase": "rounds", "round": number, "attempts": 1})
        state.seen(1 + number % 8)
    over.set()
    for reader in readers:
        reader.join(10)
        assert not reader.is_alive()
    assert wrong == []
    assert state.snapshot.sessions == 300


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("write", ("rounds", {"phase": "rounds"})),
        ("write", ("rounds", {"phase": "rounds", "round": "three"})),
        ("write", ("events", {"event": "joined", "silo": "three"})),
        ("write", ("events", {"event": "phase"})),
        ("write", ("events", {"event": "no such event"})),
        ("write", ("rounds", 3)),
        ("notify", ("ready", {})),
        ("silo", (1, "lost", 5)),
        ("stage", (None,)),
        ("restore", (Path("/nonexistent"),)),
    ],
)
def test_nothing_raises(method: str, arguments: tuple[object, ...], caplog: pytest.LogCaptureFixture) -> None:
    state = blank()
    for _ in range(3):
        getattr(state, method)(*arguments)
    assert state.snapshot.silos
    assert sum("status page missed" in record.message for record in caplog.records) <= 1


def test_nothing_private_passes() -> None:
    state = blank()
    hidden = {
        "component_weight": [0.123, 0.877], "margin": 0.345, "alpha_drift": 0.456, "offset": [1.0], "alpha_mae": 0.567,
        "counts": [170017, 290029], "alpha": [0.678], "step_seconds": {"train": 1.0}, "labels": ["melanoma"],
    }  # fmt: skip
    state.write("rounds", {"phase": "rounds", "round": 0, "attempts": 1, **hidden})
    event(state, "warning", text="see /data/ward-7/patients.csv")
    event(state, "refused", silo=1, reason="no file ~/scans", counts=[170017])
    state.silo(1, "lost", "could not read /srv/scans/0001.png")
    text = json.dumps(document(state.snapshot, 1000.0))
    for word in (
        "0.123",
        "0.345",
        "0.456",
        "0.567",
        "0.678",
        "170017",
        "290029",
        "melanoma",
        "ward-7",
        "scans",
        "counts",
    ):
        assert word not in text


def test_it_is_fed_by_telemetry_as_a_servers_sink() -> None:
    state = blank()
    with Telemetry([(state, "server")], strict=False) as telemetry:
        telemetry.round({"phase": "rounds", "round": 0, "validation_accuracy": float("nan"), "margin": 0.5})
        telemetry.event("joined", silo=1)
    assert "validation_accuracy" not in state.snapshot.latest
    assert silo(state, 1).state == "in"


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("join", "waiting for silos to join"),
        ("finish", "handing over the models"),
        ("waiting for silos", "too few silos are there for a secure sum: waiting for more"),
        ("rounds 3: training 0", "silos are at work"),
        ("rounds 3: session 1: waiting for 2", "secure sum, waiting for 2 silos"),
        ("rounds 3: session 0: waiting for 1", "secure sum, waiting for 1 silo"),
        (
            "candidates 0: training 0; session 0: waiting for 3; session 0: waiting for 1",
            "silos are at work; 2 secure sums, waiting for 4 silos",
        ),
        ("", ""),
    ],
)
def test_stages_in_words(stage: str, words: str) -> None:
    assert stage_text(stage) == words


def test_rounds_count_from_one_for_people() -> None:
    assert [round_name(place) for place in (("rounds", 0), ("warmup", 2), ("evaluate", 0), None)] == [
        "round 1",
        "warm-up round 3",
        "evaluation",
        "",
    ]


@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_every_event_has_words_even_without_fields(kind: str) -> None:
    assert event_text({"event": kind}, {})


def test_every_state_has_words() -> None:
    states = {"expected", "connected", "in", "absent", "lost", "failed", "done", "refused"}
    assert set(SILO_STATES) == states


def test_protection_is_what_the_configuration_says() -> None:
    found = protection_in_force(load_config("digits"), 12, bytes(32))
    assert (found.backend, found.gate, found.threshold, found.quorum, found.cohort_size) == ("masked", 4, 9, 9, 12)
    assert found.roster
    config = load_config("digits", ["fedgmi_args.secure.backend=none"])
    assert protection_in_force(config, 12).threshold is None


# ---- folders ---------------------------------------------------------------------------------------------------------


def write_run(folder: Path, *events: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    with open(folder / "events.jsonl", "w", encoding="utf-8") as file:
        for record in events:
            file.write(json.dumps(record) + "\n")


def test_a_folder_tells_how_far_the_run_came(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(
        folder,
        {"elapsed": 0.1, "event": "started", "backend": "masked"},
        {"elapsed": 1.0, "event": "phase", "phase": "rounds", "total": 5, "done": 0},
    )
    record = {"phase": "rounds", "round": 0, "validation_accuracy": 0.5, "elapsed": 3.0, "seconds": 2.0, "margin": 0.7}
    (folder / "rounds.jsonl").write_text(json.dumps(record) + "\n" + '{"phase": "rou')  # the last line is torn
    now = (folder / "rounds.jsonl").stat().st_mtime
    found = read_folder(folder, now + 5)
    assert (found["state"], found["phases"][0]["done"], found["phases"][0]["total"]) == ("running", 1, 5)
    assert found["elapsed_seconds"] == pytest.approx(8.0, abs=0.1)
    assert "margin" not in json.dumps(found)
    stale = read_folder(folder, now + 500)
    assert stale["state"] == "stale"
    assert stale["stale_since"] == stale["updated"]
    assert stale["left_seconds"] is None


def test_a_slow_round_is_not_stale(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(folder, {"elapsed": 1.0, "event": "phase", "phase": "rounds", "total": 5, "done": 0})
    (folder / "rounds.jsonl").write_text(json.dumps({"phase": "rounds", "round": 0, "elapsed": 601, "seconds": 600}))
    now = (folder / "rounds.jsonl").stat().st_mtime
    assert read_folder(folder, now + 5000)["state"] == "running"
    assert read_folder(folder, now + 7000)["state"] == "stale"


@pytest.mark.parametrize("kind", ["failed", "interrupted", "finished"])
def test_a_folder_whose_run_has_ended(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    write_run(folder, {"elapsed": 1.0, "event": kind})
    assert read_folder(folder, 4e9)["state"] == kind


def test_a_silos_own_folder_knows_of_no_other_silo(tmp_path: Path) -> None:
    folder = tmp_path / "silo"
    write_run(folder, {"elapsed": 0.0, "event": "started", "silo": 3, "backend": "masked"})
    (folder / "config.yaml").write_text(load_config("digits").to_yaml())
    found = read_folder(folder)
    assert found["silos"] == []
    assert found["run_name"] == "digits"
    assert event_text(found["events"][0], {}) == "Silo 3 started, back-end masked"
    (folder / "run.json").write_text('{"run_id": "digits/1", "silos": [1, 2, 5]}')
    assert [silo["id"] for silo in read_folder(folder)["silos"]] == [1, 2, 5]


def test_no_run_and_damaged_runs_are_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="check --run"):
        read_folder(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"event": "started"\n{"event": "joined"}\n')
    with pytest.raises(CheckpointError, match="line 1"):
        read_folder(tmp_path)


def test_the_newest_run_is_found_and_a_server_before_its_silos(tmp_path: Path) -> None:
    assert newest_run(tmp_path / "nowhere") is None
    write_run(tmp_path / "old", {"event": "started"})
    write_run(tmp_path / "new" / "server", {"event": "started"})
    write_run(tmp_path / "new" / "clinic", {"event": "started"})
    import os

    for age, name in ((300, "old"), (200, "new/server"), (100, "new/clinic")):
        path = tmp_path / name / "events.jsonl"
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    assert newest_run(tmp_path) == tmp_path / "new" / "server"
