"""MLOps: what reaches the platform's topics and what never does; brokers that are dead or mute; nothing when off."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fedml_services import Broker, Listener, MutePort, mqtt_config
from loopback import free_port, until

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("fedml") is None, reason="FedML is not installed (Python 3.12)"),
]
needs_broker = pytest.mark.needs_program("mosquitto")

# A party's telemetry as the federation writes it, in a process of its own: FedML keeps state in modules and at home.
PARTY = """
import json, os, random, socket, sys, threading, time
given = json.loads(sys.argv[1])
if given["no_network"]:
    def refuse(self, address):
        print("OUTBOUND", address, flush=True)
        raise OSError("no network here")
    socket.socket.connect = socket.socket.connect_ex = refuse
    socket.getaddrinfo = lambda *a, **k: print("LOOKUP", a, flush=True) or refuse(None, a)
import numpy, torch
from types import SimpleNamespace
from pathlib import Path
import fedml.core.mlops
from fedml import mlops
from fedgmi_fedml.fedml_adapter.mlops import mlops_outlets
from fedgmi_fedml.telemetry import open_telemetry

args = SimpleNamespace(
    training_type="cross_silo", backend="FEDGMI_GRPC", random_seed=7, rank=given["rank"], run_id=1234, server_id=50,
    client_id=60, client_id_list="[60]", role="client" if given["rank"] else "server", using_mlops=given["on"],
)
if given["broker"]:
    fedml.core.mlops.MLOpsStore.mlops_log_agent_config = {"mqtt_config": given["broker"]}
random.seed(1); numpy.random.seed(1); torch.manual_seed(1)
before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
began = time.monotonic()
role = "silo" if given["rank"] else "server"
with open_telemetry(Path(given["out"]), role, further=mlops_outlets(args, {"candidates": 1, "rounds": 2})) as telemetry:
    telemetry.event("started", backend="masked")
    for name, total in (("candidates", 1), ("rounds", 2)):
        telemetry.event("phase", phase=name, total=total, done=0)
        for number in range(total):
            losses = {"vae_loss": [1.5, None], "expert_loss": [0.5, 0.25]}
            losses = {"candidate_loss": [3.5]} if name == "candidates" else losses
            own = {"component_weight": [0.123, 0.877], "margin": 0.321} if role == "silo" else {"dropped": [3]}
            telemetry.round({"phase": name, "round": number, "seconds": 0.5, **losses, **own})
    telemetry.event("warning", text="a warning in words")
    if given["broker"]:
        mlops.log({"own": 1.0})  # a user's own line, on the training thread
    telemetry.event(given["ending"])
    worked = time.monotonic() - began
took = time.monotonic() - began
after = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
threads = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
said = {"same": before == after, "worked": worked, "took": took, "children": children, "threads": threads}
print("SAID", json.dumps(said))
"""


def party(folder: Path, *, rank=0, on=True, broker=None, no_network=False, ending="finished", prefix=()):
    """Run a party to its end: what it said of itself, its standard output, and seconds from there to its exit."""
    given = {"rank": rank, "on": on, "broker": broker, "no_network": no_network, "ending": ending}
    env = {**os.environ, "HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    (folder / "home").mkdir(exist_ok=True)
    done = subprocess.run(
        [*prefix, sys.executable, "-c", PARTY, json.dumps({**given, "out": str(folder / "out")})],
        cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    return json.loads(line[5:]), done.stdout


@pytest.fixture
def broker(tmp_path):
    started = Broker(tmp_path)
    yield started
    started.close()


@pytest.fixture
def listener(broker):
    started = Listener(broker.port)
    yield started
    started.close()


@needs_broker
def test_the_server_reports_each_round_on_the_platforms_topics(tmp_path, broker, listener):
    said, _ = party(tmp_path, broker=broker.config)
    assert said["same"], "FedML must not seed the generators that training draws from"
    assert said["children"] == []
    assert said["threads"] == []
    status = "fl_server/flserver_agent_50/status"
    until(lambda: listener.on(status)[-1:] and listener.on(status)[-1]["status"] == "FINISHED")
    rounds = listener.on("fl_server/mlops/training_roundx")
    assert [(info["round_index"], info["total_rounds"], info["run_id"]) for info in rounds] == [
        (-1, 3, 1234), (0, 3, 1234), (1, 3, 1234), (2, 3, 1234),
    ]  # fmt: skip
    assert [value["status"] for value in listener.on(status)] == ["RUNNING"] * 4 + ["FINISHED"]
    events = {(value["event_name"], "started_time" in value) for value in listener.on("mlops/events")}
    assert events == {(f"fedgmi.{name}", begun) for name in ("candidates", "rounds") for begun in (True, False)}
    metrics = [value for value in listener.on("fedml_slave/fedml_master/metrics/1234") if "own" not in value]
    assert [value["step"] for value in metrics] == [0, 1, 2]
    assert metrics[0]["fedgmi-candidates-candidate_loss-0"] == 3.5
    assert metrics[2]["fedgmi-rounds-vae_loss-0"] == 1.5
    assert "fedgmi-rounds-vae_loss-1" not in metrics[2], "a component without a loss has none to send"
    known = {"fl_server", "mlops", "fedml_slave"}
    assert {topic.split("/")[0] for topic, _ in listener.heard} == known
    assert "dropped" not in json.dumps(listener.heard), "who dropped is not among the things that are sent"
    assert any("own" in value for value in listener.on("fedml_slave")), "a user's own mlops.log works as well"
    sent = (tmp_path / "out" / "events.jsonl").read_text()
    assert "a warning in words" in sent
    assert "a warning in words" not in json.dumps(listener.heard)


@needs_broker
def test_a_silo_sends_its_status_and_phase_and_no_figure_of_its_own(tmp_path, broker, listener):
    said, _ = party(tmp_path, rank=2, broker=broker.config, ending="failed")
    assert said["same"]
    status = "fl_client/flclient_agent_60/status"
    until(lambda: listener.on(status)[-1:] and listener.on(status)[-1]["status"] == "FAILED")
    assert [value["status"] for value in listener.on(status)] == ["TRAINING"] * 4 + ["FAILED"]
    assert listener.on("mlops/events")
    assert not [value for value in listener.on("fedml_slave") if "own" not in value]
    assert not listener.on("fl_server")
    figures = r"(?<![\d.])(0\.123|0\.877|0\.321|1\.5|0\.25)(?!\d)"  # whole numbers: a clock's digits are none of them
    assert not re.findall(figures, json.dumps(listener.heard))
    assert re.search(figures, '{"alpha": [0.123]}')
    own = (tmp_path / "out" / "rounds.jsonl").read_text()
    assert "0.123" in own, "the silo's own file has it"


@pytest.mark.parametrize("kind", ["dead", "mute"])
def test_a_broker_that_does_not_answer_costs_some_seconds_at_the_end(tmp_path, kind):
    mute = MutePort() if kind == "mute" else None
    port = mute.port if mute else free_port()
    began = time.monotonic()
    said, _ = party(tmp_path, broker=mqtt_config(port))
    total = time.monotonic() - began
    if mute:
        assert mute.accepted, "it was asked"
        mute.close()
    assert said["worked"] < 2, "the run itself never waits"
    assert said["took"] < 15
    assert said["same"]
    assert said["threads"] == []
    assert total < 60
    assert len((tmp_path / "out" / "rounds.jsonl").read_text().splitlines()) == 3


def test_a_platform_that_cannot_be_reached_stops_nothing(tmp_path):
    """MLOps is on and nobody is there to say where the broker is: every attempt fails, the run does not."""
    said, printed = party(tmp_path, no_network=True)
    assert printed.count("OUTBOUND") == 1, "it was asked, and then left alone for a while"
    assert said["worked"] < 5
    assert said["took"] < 15
    assert len((tmp_path / "out" / "rounds.jsonl").read_text().splitlines()) == 3


@needs_broker
def test_off_means_no_outbound_attempt_and_the_same_events(tmp_path, broker):
    folders = {name: tmp_path / name for name in ("on", "off")}
    for folder in folders.values():
        folder.mkdir()
    party(folders["on"], broker=broker.config)
    said, printed = party(folders["off"], on=False, no_network=True)
    assert "OUTBOUND" not in printed
    assert "LOOKUP" not in printed
    assert said["same"]
    assert _events(folders["off"]) == _events(folders["on"])


def test_off_works_where_there_is_no_network_at_all(tmp_path):
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        allowed = subprocess.run([*alone, "true"], capture_output=True, timeout=10, check=False).returncode == 0
    except OSError:
        allowed = False
    if not allowed:
        pytest.skip("this machine lets nobody make a network namespace")
    said, _ = party(tmp_path, on=False, prefix=alone)
    assert said["worked"] < 5
    assert len(_events(tmp_path)) == 5


def _events(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "out" / "events.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("time", "elapsed")} for line in lines]


def test_what_fedml_would_do_without_us(tmp_path):
    """FedML's own ``get_fedml_args`` seeds; this is what the tests above would see if we let it."""
    code = (
        "import random, sys; sys.argv = ['run', '--cf', sys.argv[1]]\n"
        "import fedml, fedml.core.mlops as core\n"
        "core.MLOpsConfigs.fetch_all_configs = staticmethod(lambda: ({}, {}, {'LOG_SERVER_URL': ''}, {}))\n"
        "random.seed(1); before = random.getstate(); core.get_fedml_args(); assert random.getstate() != before\n"
        "from fedgmi_fedml.fedml_adapter.mlops import keep_random_state\n"
        "keep_random_state(); before = random.getstate(); core.get_fedml_args(); assert random.getstate() == before\n"
    )
    (tmp_path / "home").mkdir()
    env = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "configs" / "digits.yaml")],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
