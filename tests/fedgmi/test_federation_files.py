"""What a party of a federation keeps on its disk: whole or not at all, and damaged files are named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from fedgmi_fedml import atomic
from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import CheckpointError, RunError
from fedgmi_fedml.federation.folder import check_unused, finished_summary, locked
from fedgmi_fedml.federation.memory import FILE, load_memory, save_memory
from fedgmi_fedml.federation.state import RunState, load_state, open_state
from fedgmi_fedml.rounds.agreement import Agreement
from fedgmi_fedml.rounds.update import Memory
from fedgmi_fedml.summary import RunSummary

AGREEMENT = Agreement(b"b" * 32, dict.fromkeys((1, 2, 5), b"n" * 32), {1: b"s" * 64}, {b"d" * 32: ((1, 2), (2, 5))})


@pytest.fixture(scope="module")
def config():
    return load_config("digits")


def test_a_run_is_read_back_as_it_was(tmp_path, config):
    state = RunState("digits/1").begun(config, (1, 2, 5)).with_agreement(AGREEMENT)
    state.save(tmp_path)
    found = load_state(tmp_path)
    assert found == state
    assert found.agreed == AGREEMENT
    assert found.first_attempt == 0
    assert found.begun(config, (1, 2, 5)).first_attempt == 16
    assert open_state(tmp_path, config, None) == state


def test_two_runs_of_one_name_have_two_ids(tmp_path, config):
    first, second = (open_state(tmp_path, config, None).run_id for _ in range(2))
    assert first != second
    assert first.startswith("digits/")
    assert open_state(tmp_path, config, "mine").run_id == "mine"
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', '{"format": "fedgmi-run/1", "silos": 3}'])
def test_a_damaged_run_file_is_named(tmp_path, config, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json is damaged"):
        open_state(tmp_path, config, None)


def test_a_damaged_agreement_is_an_error(tmp_path, config):
    RunState("r", 1, (1,), {}, "AAAA").save(tmp_path)
    with pytest.raises(CheckpointError, match="agreement is damaged"):
        _ = load_state(tmp_path).agreed


def test_what_may_differ_on_a_restart(tmp_path, config):
    RunState("r").begun(config, (1,)).save(tmp_path)
    fine = load_config("digits", ["fedgmi_args.secure.deadlines.step=99", "tracking_args.output_dir=elsewhere"])
    assert open_state(tmp_path, fine, None).run_id == "r"
    with pytest.raises(RunError, match="client_num_per_round is 11, it began with 12"):
        open_state(tmp_path, load_config("digits", ["train_args.client_num_per_round=11"]), None)


def test_a_memory_is_read_back_with_its_run(tmp_path):
    memory = Memory(torch.tensor([0.25, 0.75], dtype=torch.float64), torch.tensor([0, 1, 1]), offset=torch.zeros(2))
    save_memory(tmp_path, "run/1", memory)
    run_id, found = load_memory(tmp_path)
    assert run_id == "run/1"
    assert torch.equal(found.alpha, memory.alpha)
    assert torch.equal(found.assignment, memory.assignment)
    assert found.leaning is None
    assert load_memory(tmp_path / "nowhere") is None


@pytest.mark.parametrize("cut", [0, 4, 40, -1])
def test_a_damaged_memory_is_named(tmp_path, cut):
    save_memory(tmp_path, "r", Memory(torch.ones(2, dtype=torch.float64)))
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data[:cut])
    with pytest.raises(CheckpointError, match=r"memory\.safetensors is damaged: restore it, or remove it"):
        load_memory(tmp_path)


def test_a_crash_while_saving_leaves_the_old_memory(tmp_path, monkeypatch):
    save_memory(tmp_path, "r", Memory(torch.zeros(2, dtype=torch.float64)))
    for moment in ("create", "half-written", "flush", "rename"):

        def stop(name, moment=moment):
            if name == moment:
                raise KeyboardInterrupt

        monkeypatch.setattr(atomic, "_step", stop)
        with pytest.raises(KeyboardInterrupt):
            save_memory(tmp_path, "r", Memory(torch.ones(2, dtype=torch.float64)))
        monkeypatch.setattr(atomic, "_step", lambda name: None)
        assert load_memory(tmp_path)[1].alpha.tolist() == [0.0, 0.0]


def test_a_folder_is_one_process_alone_until_it_ends(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from fedgmi_fedml.federation.folder import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('in', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(RunError, match="another fedgmi process works with this folder"), locked(tmp_path / "run"):
            pass
    finally:
        other.kill()
        other.wait()
    with locked(tmp_path / "run"):
        assert oct((tmp_path / "run").stat().st_mode & 0o777) == "0o700"


def test_what_a_killed_process_left_before_its_run_had_a_name_is_no_obstacle(tmp_path):
    for name in ("lock", "config.yaml", ".run.json.123.tmp", "server.log"):
        (tmp_path / name).write_text("")
    check_unused(tmp_path)
    (tmp_path / "report.html").write_text("")
    with pytest.raises(RunError, match=r"holds report.html"):
        check_unused(tmp_path)


def test_only_a_run_that_ended_well_has_finished(tmp_path):
    assert finished_summary(tmp_path) is None
    RunSummary(view="server", status="failed").save(tmp_path)
    assert finished_summary(tmp_path) is None
    RunSummary(view="server", status="finished").save(tmp_path)
    assert finished_summary(tmp_path).status == "finished"
    (tmp_path / "summary.json").write_text(json.dumps({"status": "what"}))
    with pytest.raises(CheckpointError):
        finished_summary(tmp_path)
