"""The processes of a federation over queues: the simulation's bits, and each party's folder."""

from __future__ import annotations

import json
import logging
import time

import pytest
from federation_harness import Federation, Killed

from fedgmi_fedml.config import load_config
from fedgmi_fedml.deliver import export, predict
from fedgmi_fedml.errors import Refused, RunEndedEarly, RunError
from fedgmi_fedml.federation.state import open_state
from fedgmi_fedml.rounds.wire import Beacon, Finish, InSession, Plan, decode
from fedgmi_fedml.simulate import run_simulation

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Digests of the same run as a simulation."""
    folder = tmp_path_factory.mktemp("simulated")
    federation = Federation(folder)
    run_simulation(federation.config, folder / "run")
    return json.loads((folder / "run" / "summary.json").read_text())["model_digests"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One whole federation, looked at by several tests."""
    federation = Federation(tmp_path_factory.mktemp("done"))
    federation.start_all()
    federation.join()
    return federation


def test_the_same_bits_as_a_simulation(done, simulated):
    assert {getattr(end, "status", end) for end in done.ends.values()} == {"finished"}
    assert done.summary()["model_digests"] == simulated
    assert all(done.summary(f"silo-{i}")["model_digests"] == simulated for i in done.ids)


def test_the_server_keeps_what_it_may_know_and_no_more(done):
    summary, folder = done.summary(), done.folder / "server"
    assert summary["view"] == "server"
    assert summary["status"] == "finished"
    assert summary["secure"]["backend"] == "masked"
    assert summary["secure"]["upload_bytes_per_parameter"] > 4.0
    assert summary["phase_bytes"]["rounds"] > 0
    for hidden in ("alpha_mae", "partition_accuracy", "expert_accuracy", "samples_used", "oracle_accuracy"):
        assert summary[hidden] is None
    assert summary["personalised_accuracy"] == done.rounds()[-1]["test_accuracy"], "a secure sum"
    assert "Server report" in (folder / "report.html").read_text()
    assert not (folder / "silos").exists()
    lines = done.rounds()
    assert [(line["phase"], line["round"]) for line in lines][-2:] == [("rounds", 2), ("evaluate", 0)]
    assert all("component_weight" not in line and "alpha_drift" not in line for line in lines)
    events = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events[0] == "started"
    assert events.count("joined") == 5
    assert events[-1] == "finished"
    assert {path.name for path in (folder / "models").iterdir()} == {"best", "final"}


def test_a_silo_keeps_its_own_report(done):
    summary, folder = done.summary("silo-2"), done.folder / "silo-2"
    assert summary["view"] == "silo"
    assert summary["silo"] == "clinic-2"
    assert summary["samples_used"] == 60
    assert summary["personalised_accuracy"] > 0
    assert summary["alpha_mae"] is None
    assert "stays in the house" in (folder / "report.html").read_text()
    own = json.loads((folder / "silos" / "clinic-2.json").read_text())
    assert sum(own["best"]["alpha"]) == pytest.approx(1.0)
    lines = done.rounds("silo-2")
    assert {line["phase"] for line in lines} >= {"candidates", "warmup", "rounds"}
    assert any("component_weight" in line for line in lines)
    assert oct((folder / "lock").stat().st_mode & 0o777) == "0o600"


def test_predictions_and_exports_from_a_silos_folder(done, tmp_path):
    import numpy as np

    data = done.silo(2).data
    np.savez(tmp_path / "new.npz", x=(data.x_test.numpy()[:, 0] * 255).astype(np.uint8), y=data.y_test.numpy())
    changed = tmp_path / "run"
    made = predict(_as_npz(done, changed), tmp_path / "new.npz", silo="clinic-2")
    assert made.alpha_source == "silo clinic-2"
    assert made.probabilities.shape == (len(data.x_test), 10)
    assert any(path.name == "expert-0.safetensors" for path in export(changed, tmp_path / "out", silo="clinic-2"))


def _as_npz(done, folder):
    """The silo's folder with a configuration that reads npz files (digits come with scikit-learn)."""
    import shutil

    shutil.copytree(done.folder / "silo-2", folder)
    changes = ["data_args.dataset=npz", "data_args.data_options={classes: 10}", "data_args.announced_shape=[1, 8, 8]"]
    config = load_config(folder / "config.yaml", changes)
    (folder / "config.yaml").write_text(config.to_yaml())
    return folder


def test_both_say_that_they_have_finished(done):
    assert done.server().run().status == "stood"
    assert done.silo(1).run().status == "stood"


def test_another_configuration_in_the_folder_is_refused_by_key(done):
    other = load_config("digits", [*done.changes, "train_args.learning_rate=0.5"])
    done.config, before = other, done.config
    try:
        with pytest.raises(RunError, match=r"train_args.learning_rate is 0.5, it began with 0.003"):
            done.server()
    finally:
        done.config = before
    with pytest.raises(RunError, match="holds run 'digits/fedgmi', not 'another'"):
        open_state(done.folder / "server", done.config, "another")


# ---- things that go wrong --------------------------------------------------------------------------------------------


def killed_when(server, federation, test):
    """The server dies with the first message for which ``test`` is true."""

    def on_send(silo, payload):
        if not server.dead and test(silo, decode(payload)):
            server.dead = True
            raise Killed

    server.on_send = on_send


def is_plan(phase, number):
    return lambda silo, message: isinstance(message, Plan) and (message.phase, message.round) == (phase, number)


def is_session(phase, number, least=0):
    return lambda silo, message: (
        isinstance(message, InSession)
        and (message.phase, message.round) == (phase, number)
        and len(message.payload) >= least
    )


def is_first(kind):
    return lambda silo, message: isinstance(message, kind)


@pytest.mark.parametrize(
    "moment",
    [is_plan("candidates", 0), is_session("candidates", 0, 2000), is_plan("warmup", 1), is_plan("rounds", 1),
     is_session("rounds", 1), is_session("rounds", 2, 20_000), is_session("evaluate", 0), is_first(Beacon),
     is_first(Finish)],
    ids=["first plan", "candidate release", "warm-up", "a later plan", "a session", "a release",
         "evaluation", "the beacon", "the end"],
)  # fmt: skip
def test_a_killed_server_goes_on_in_the_same_bits(tmp_path, simulated, moment):
    federation = Federation(tmp_path)
    killed_when(federation.net.server, federation, moment)
    federation.start_all()
    federation.join("server")
    assert isinstance(federation.ends["server"], Killed)
    federation.net.restart_server()
    federation.start("server", federation.server())
    federation.join()
    assert {getattr(end, "status", end) for end in federation.ends.values()} == {"finished"}
    assert federation.summary()["model_digests"] == simulated
    lines = [(line["phase"], line["round"]) for line in federation.rounds()]
    assert len(lines) == len(set(lines)), "a round is told twice"
    assert lines[-1] == ("evaluate", 0)
    state = json.loads((tmp_path / "server" / "run.json").read_text())
    assert state["starts"] == 2


def test_a_silo_killed_in_a_round_comes_back(tmp_path, caplog):
    caplog.set_level(logging.INFO, "fedgmi_fedml")  # as the command line sets it
    federation = Federation(tmp_path, "train_args.comm_round=5")
    processes = federation.start_all(but=(3,))
    process = federation.silo(3)

    def on_send(payload):
        message = decode(payload)
        if isinstance(message, InSession) and (message.phase, message.round) == ("rounds", 1):
            process.transport.dead = True
            raise Killed

    process.transport.on_send = on_send
    federation.start(3, process)
    federation.join(3)
    assert isinstance(federation.ends[3], Killed)
    again = federation.start(3, federation.silo(3))
    federation.join()
    assert {getattr(end, "status", end) for end in federation.ends.values()} == {"finished"}
    lines = {(line["phase"], line["round"]): line for line in federation.rounds()}
    assert lines["rounds", 1]["attempts"] > 1 or 3 in lines["rounds", 1]["dropped"]
    assert lines["rounds", 4]["complete"], "it takes part again"
    assert "is restored" in (tmp_path / "silo-3" / "silo.log").read_text()
    assert again._work.memory.assignment is not None
    assert processes[1]._run_id == "digits/fedgmi"
    assert len({json.dumps(federation.summary(f"silo-{i}")["model_digests"]) for i in federation.ids}) == 1


def test_a_silo_that_raises_is_named_and_the_run_goes_on(tmp_path, monkeypatch):
    federation = Federation(tmp_path)
    processes = federation.start_all(but=(4,))
    process = federation.silo(4)
    begin = process._begin

    def begin_badly(*arguments):
        begin(*arguments)
        work = process._work.work

        def raising(plan, state):
            if plan.phase == "rounds" and plan.round == 1:
                raise MemoryError("secret detail 4711")
            return work(plan, state)

        process._work.work = raising

    process._begin = begin_badly
    federation.start(4, process)
    federation.join()
    assert {getattr(end, "status", end) for end in federation.ends.values()} == {"finished"}
    log = (tmp_path / "server" / "events.jsonl").read_text()
    assert '"error": "MemoryError"' in log
    assert "4711" not in log
    assert '"silo": 4' in next(line for line in log.splitlines() if "silo_failed" in line)
    assert "secret detail 4711" in (tmp_path / "silo-4" / "silo.log").read_text()
    lines = {(line["phase"], line["round"]): line for line in federation.rounds()}
    assert lines["rounds", 2]["complete"], "it takes part in the next round"
    assert processes


def test_stop_on_a_silos_error_ends_the_run_for_all(tmp_path):
    federation = Federation(tmp_path, "fedgmi_args.on_silo_error=stop")
    federation.start_all(but=(4,))
    process = federation.silo(4)
    begin = process._begin

    def begin_badly(*arguments):
        begin(*arguments)
        work = process._work.work
        process._work.work = lambda plan, state: 1 / (plan.phase != "rounds") and work(plan, state)

    process._begin = begin_badly
    federation.start(4, process)
    ends = federation.join()
    assert ends["server"].status == "failed"
    assert "silo 4 failed in rounds 0: ZeroDivisionError" in ends["server"].reason
    assert ends["server"].report.exists()
    assert federation.summary()["status"] == "failed"
    assert isinstance(ends[1], RunEndedEarly)
    assert ends[1].exit_code == 3
    assert "silo 4 failed" in str(ends[1])


def test_a_silo_of_another_configuration_is_refused_with_the_difference(tmp_path):
    federation = Federation(tmp_path, "fedgmi_args.secure.deadlines.join=20")
    other = load_config("digits", [*federation.changes, "train_args.learning_rate=0.5"])
    federation.start("server", federation.server())
    federation.start(2, federation.silo(2, other))
    federation.join(2)
    assert isinstance(federation.ends[2], Refused)
    assert federation.ends[2].exit_code == 4
    assert "configuration (train_args.learning_rate)" in str(federation.ends[2])
    processes = {i: federation.silo(i) for i in federation.ids}  # silo 2 corrected, among them
    for i, process in processes.items():
        federation.start(i, process)
    federation.join()
    assert federation.ends["server"].status == "finished"
    events = (tmp_path / "server" / "events.jsonl").read_text()
    assert "train_args.learning_rate" in events


def test_one_process_a_folder(tmp_path):
    from fedgmi_fedml.federation.folder import locked

    federation = Federation(tmp_path)
    with locked(tmp_path / "server"), pytest.raises(RunError, match="another fedgmi process"):
        federation.server().run()


def test_nothing_is_written_into_a_strangers_folder(tmp_path):
    federation = Federation(tmp_path)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match=r"thesis.tex.*choose another --out"):
        federation.server()


def test_a_server_without_silos_ends_with_a_remedy(tmp_path):
    federation = Federation(tmp_path, "fedgmi_args.secure.deadlines.join=0.5")
    began = time.monotonic()
    federation.start("server", federation.server())
    federation.join()
    assert isinstance(federation.ends["server"], RunError)
    assert "no silo joined in time" in str(federation.ends["server"])
    assert time.monotonic() - began < 20


def test_data_that_differ_are_refused_before_dialling(tmp_path):
    from dataclasses import replace

    from fedgmi_fedml.errors import DataError
    from fedgmi_fedml.shapes import DataShape

    federation = Federation(tmp_path)
    federation.announced = replace(federation.announced, shape=DataShape((1, 9, 9), 10))
    with pytest.raises(DataError, match="clinic-1.*1 × 8 × 8.*1 × 9 × 9"):
        federation.silo(1)
