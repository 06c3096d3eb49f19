"""The processes of a federation over queues: the simulation's bits, and each party's folder."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from federation_harness import Federation, Killed

from fedgmi_fedml.config import load_config
from fedgmi_fedml.deliver import export, predict
from fedgmi_fedml.errors import Refused, RunEndedEarly, RunError
from fedgmi_fedml.rounds.wire import InSession, Plan, decode
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
