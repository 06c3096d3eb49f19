"""The federation as hospitals run it: one process a party, real sockets, mutual TLS; killed, restarted, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from federation_harness import SMALL
from real_processes import CHANGES, ROOT, Processes

from fedgmi_fedml.config import load_config
from fedgmi_fedml.simulate import run_simulation

SILOS = 5
LONG = ("train_args.comm_round=40", "train_args.epochs=10")  # still at work when a silo has started again
pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture
def federation(tmp_path):
    made = []

    def make(*changes: str) -> Processes:
        made.append(Processes(tmp_path, *changes))
        return made[-1]

    yield make
    for processes in made:
        processes.close()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Digests of the same run as a simulation."""
    out = tmp_path_factory.mktemp("simulated") / "run"
    run_simulation(load_config("digits", CHANGES), out)
    return json.loads((out / "summary.json").read_text())["model_digests"]


def test_the_bits_of_the_simulation(federation, simulated):
    processes = federation()
    processes.all()
    processes.assert_all_fine()
    assert processes.digests() == simulated
    assert {json.dumps(processes.digests(f"silo-{i:03d}")) for i in range(1, SILOS + 1)} == {json.dumps(simulated)}
    assert "Protection: masked secure aggregation" in processes.said("server")
    assert (processes.folder / "silo-001" / "report.html").exists()
    again = processes.server()
    assert again.wait(60) == 0
    assert "has finished already" in processes.said("server")


@pytest.mark.parametrize("phase", [("candidates", 0), ("rounds", 2)])
def test_a_server_killed_and_restarted_ends_in_the_same_bits(federation, simulated, phase):
    processes = federation()
    processes.all()
    processes.until(processes.has_done(*phase))
    processes.running["server"].kill()
    processes.running["server"].wait()
    processes.server()
    processes.assert_all_fine()
    assert processes.digests() == simulated
    lines = [(line["phase"], line["round"]) for line in processes.rounds()]
    assert len(lines) == len(set(lines))


def test_a_server_told_to_stop_can_be_started_again(federation, simulated):
    processes = federation()
    processes.all()
    processes.until(processes.has_done("rounds", 0))
    processes.running["server"].send_signal(signal.SIGTERM)
    assert processes.running["server"].wait(30) == 130
    assert "start the server again with the same command to go on" in processes.said("server")
    assert all(processes.running[f"silo-{i:03d}"].poll() is None for i in range(1, SILOS + 1)), "silos wait for it"
    processes.server()
    processes.assert_all_fine()
    assert processes.digests() == simulated


def test_a_silo_killed_in_training_and_restarted(federation):
    processes = federation(*LONG)
    processes.all()
    log = processes.folder / "silo-003" / "silo.log"
    processes.until(lambda: log.exists() and "rounds 1: working" in log.read_text())
    processes.running["silo-003"].kill()
    processes.running["silo-003"].wait()
    processes.silo(3)
    processes.assert_all_fine()
    lines = {(line["phase"], line["round"]): line for line in processes.rounds()}
    assert lines["rounds", 39]["complete"]
    assert not any(line["failed_sessions"] for line in lines.values())
    assert "is restored" in log.read_text()
    assert processes.digests("silo-003") == processes.digests()


def test_a_silo_told_to_stop_leaves_in_good_order_and_may_return(federation):
    processes = federation(*LONG)
    processes.all()
    processes.until(processes.has_done("rounds", 0))
    processes.running["silo-002"].send_signal(signal.SIGTERM)
    assert processes.running["silo-002"].wait(30) == 130
    assert "start the silo again with the same command" in processes.said("silo-002")
    processes.silo(2)
    processes.assert_all_fine()


def test_another_configuration_is_refused_with_exit_code_4(federation):
    processes = federation()
    processes.server()
    processes.silo(1, "--set", "train_args.learning_rate=0.5")
    assert processes.wait("silo-001") == {"silo-001": 4}
    assert "configuration (train_args.learning_rate) differs from the server's" in processes.said("silo-001")
    processes.until(lambda: "silo 1 (silo-001) refused" in processes.said("server"))
    for i in range(1, SILOS + 1):
        processes.silo(i)
    processes.assert_all_fine()


def test_a_silo_that_starts_long_before_its_server(federation):
    processes = federation()
    for i in range(1, SILOS + 1):
        processes.silo(i)
    time.sleep(8)
    processes.server()
    processes.assert_all_fine()


def test_no_server_at_all_is_one_line(federation):
    processes = federation("comm_args.dial_seconds=3")
    processes.silo(1)
    assert processes.wait("silo-001", seconds=60) == {"silo-001": 2}
    last = processes.said("silo-001").strip().splitlines()[-1]
    assert f"127.0.0.1:{processes.port}" in last


def test_a_second_server_on_the_port_is_refused_at_once(federation, tmp_path):
    processes = federation()
    processes.server()
    processes.until(lambda: "waiting for 5 silos" in processes.said("server"))
    other = processes.start(
        "second", "server", "--kit", processes.folder / "kits" / "server", "--out", tmp_path / "second",
        "--repeatable",
    )  # fmt: skip
    assert other.wait(60) == 2
    assert str(processes.port) in processes.said("second")


def test_the_script_makes_the_same_digests_and_leaves_nobody_behind(tmp_path):
    """digits with four silos, as a user starts it."""
    few = (
        "train_args.client_num_in_total=4",
        "train_args.client_num_per_round=4",
        "fedgmi_args.initialisation.cohort_size=4",
    )
    changes = [*SMALL, *few]
    run_simulation(load_config("digits", changes), tmp_path / "simulated")
    sets = [word for change in changes if "client_num" not in change for word in ("--set", change)]
    marker = f"FEDGMI_TEST_{os.getpid()}"
    done = subprocess.run(
        ["bash", "deploy/local_federation.sh", "digits", "4", "--out", str(tmp_path / "out"), *sets],
        cwd=ROOT, env={**os.environ, "ENV_PYTHON": sys.executable, "FEDGMI_DEADLINE": "200", marker: "1"},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    digests = [json.loads((tmp_path / where / "summary.json").read_text())["model_digests"]
               for where in ("simulated", "out/server", "out/silo-001", "out/silo-004")]  # fmt: skip
    assert all(found == digests[0] for found in digests)
    assert "report.html" in done.stdout
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and marker in _environment(pid)]


def _environment(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""
