"""The status page beside a whole federation over queues: what it shows while the run goes on, and after a restart."""

from __future__ import annotations

import http.client
import json
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from federation_harness import Federation, Killed

from fedgmi_fedml.federation.server import seconds_before
from fedgmi_fedml.federation.status import StatusState
from fedgmi_fedml.federation.status_folder import read_folder
from fedgmi_fedml.federation.status_page import open_status_page
from fedgmi_fedml.rounds.watch import rounds_to_come
from fedgmi_fedml.rounds.wire import Plan, decode
from fedgmi_fedml.simulate import run_simulation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def ask(page, token, path="/status.json"):
    """One answer of the page."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert answer.status == 200, body
    return json.loads(body) if path.endswith(".json") else body


def new_state(federation):
    """As ``fedgmi server`` makes it."""
    return StatusState.for_run(
        federation.config, {i: f"clinic-{i}" for i in federation.ids}, run_id=federation.run_id, federation="test",
        roster=federation.kits.roster.digest(), plan=rounds_to_come(federation.config, 5),
        elapsed=seconds_before(federation.folder / "server"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A federation of five whose page is asked again and again while it works."""
    federation = Federation(tmp_path_factory.mktemp("status"))
    state = new_state(federation)
    seen, over = [], threading.Event()
    with open_status_page(state, "127.0.0.1", 0, federation.folder / "server" / "status.token") as page:
        token = (federation.folder / "server" / "status.token").read_text().strip()

        def look():
            while not over.wait(0.02):
                seen.append(ask(page, token))
                ask(page, token, "/")
                ask(page, token, "/metrics")

        watcher = threading.Thread(target=look)
        watcher.start()
        processes = {i: federation.silo(i) for i in federation.ids}
        federation.start("server", federation.server(status=state))
        for i, process in processes.items():
            federation.start(i, process)
        federation.join()
        over.set()
        watcher.join()
        seen.append(ask(page, token))
    federation.state = state
    return federation, seen


def test_the_run_is_not_disturbed(run):
    federation, _ = run
    assert {getattr(end, "status", end) for end in federation.ends.values()} == {"finished"}
    assert not list((federation.folder / "server").glob("status.*"))


def test_the_page_changes_no_bit(run):
    federation, _ = run
    run_simulation(federation.config, federation.folder / "simulated")
    assert federation.summary()["model_digests"] == federation.summary("simulated")["model_digests"]


def test_the_page_follows_the_run(run):
    _, seen = run
    states = [found["state"] for found in seen]
    assert states[0] == "waiting"
    assert "running" in states
    assert states[-1] == "finished"
    assert {found["phase"] for found in seen} >= {"candidates", "rounds", "evaluate"}
    assert max(found["silos_in"] for found in seen) == 5
    assert any(found["left_seconds"] for found in seen)
    assert {found["stage"] for found in seen} & {"silos are at work", "waiting for silos to join"}
    done = [phase["done"] for found in seen for phase in found["phases"] if phase["name"] == "rounds"]
    assert done == sorted(done)
    assert done[-1] == 3


def test_the_end_is_what_the_files_say(run):
    federation, seen = run
    last, lines = seen[-1], federation.rounds()
    phases = {phase["name"]: phase for phase in last["phases"]}
    for name, phase in phases.items():
        own = [line for line in lines if line["phase"] == name]
        assert phase["bytes_up"] == sum(line["bytes_up"] for line in own)
        assert phase["bytes_down"] == sum(line["bytes_down"] for line in own)
    tested = [line["validation_accuracy"] for line in lines if "validation_accuracy" in line]
    assert last["latest"]["validation_accuracy"]["value"] == tested[-1]
    assert last["protection"]["backend"] == "masked"
    assert last["protection"]["gate"] == federation.summary()["secure"]["gate"]
    assert last["protection"]["sessions"] == federation.summary()["secure"]["sessions"]
    assert len(last["separability"]) == 2
    assert last["separability"][0][1] > 0
    assert all(silo["seen_seconds_ago"] is not None for silo in last["silos"])


def test_the_folder_says_the_same_without_a_server(run):
    federation, seen = run
    found, last = read_folder(federation.folder / "server"), seen[-1]
    assert found["state"] == "finished"
    assert found["run_id"] == federation.run_id
    for name in ("latest", "best", "open", "separability", "rounds"):
        assert found[name] == last[name], name
    assert [silo["id"] for silo in found["silos"]] == list(federation.ids)


def test_a_new_process_takes_in_what_the_old_one_told(run):
    federation, seen = run
    again = StatusState.for_run(federation.config, dict.fromkeys(federation.ids, ""))
    again.restore(federation.folder / "server")
    again.write("events", {"event": "resumed", "backend": "masked"})
    snapshot = again.snapshot
    assert snapshot.state == "waiting"
    assert snapshot.present == 0
    assert {phase.name: phase.done for phase in snapshot.phases}["rounds"] == 3
    assert snapshot.protection.sessions == seen[-1]["protection"]["sessions"]


def test_nothing_but_sums_is_shown(run):
    federation, seen = run
    text = json.dumps(seen)
    for word in ("component_weight", "alpha", "counts", "margin", "offset", "samples_used", str(federation.folder)):
        assert word not in text


def test_a_server_that_was_killed_tells_the_whole_run(tmp_path):
    federation = Federation(tmp_path)

    def kill(silo, payload):
        message = decode(payload)
        if isinstance(message, Plan) and (message.phase, message.round) == ("rounds", 2):
            federation.net.server.dead = True
            raise Killed

    federation.net.server.on_send = kill
    first = new_state(federation)
    processes = {i: federation.silo(i) for i in federation.ids}
    federation.start("server", federation.server(status=first))
    for i, process in processes.items():
        federation.start(i, process)
    federation.join("server")
    assert isinstance(federation.ends["server"], Killed)
    assert first.snapshot.phase_status("rounds").done == 2
    assert read_folder(tmp_path / "server")["state"] == "running"  # nobody wrote an end
    federation.net.restart_server()
    second = new_state(federation)
    federation.start("server", federation.server(status=second))
    federation.join()
    snapshot = second.snapshot
    assert snapshot.state == "finished"
    assert snapshot.present == 5
    assert snapshot.phase_status("rounds").done == 3
    assert [point["round"] for point in snapshot.phase_status("rounds").points] == [0, 1, 2]
    assert snapshot.protection.sessions == federation.summary()["secure"]["sessions"]
    assert snapshot.ended - snapshot.began > seconds_before(tmp_path / "server")
    kinds = [event["event"] for event in snapshot.events]
    assert kinds.index("started") < kinds.index("resumed") < kinds.index("finished")
