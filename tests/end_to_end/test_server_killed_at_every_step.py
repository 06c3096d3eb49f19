"""The server's real process, killed with SIGKILL before and amid every step of the protocol, and started again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from protocol_steps import SERVER_STEPS
from real_processes import CHANGES, ForkedProcesses
from trapped_party import Trap

from fedgmi_fedml.config import load_config
from fedgmi_fedml.simulate import run_simulation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

SIX = (
    "train_args.client_num_in_total=6", "train_args.client_num_per_round=5", "train_args.comm_round=12",
    "fedgmi_args.initialisation.cohort_size=6", "comm_args.heartbeat_seconds=0.3", "comm_args.backoff=[0.05, 0.2]",
    "fedgmi_args.secure.deadlines.join=10",
)  # fmt: skip
"""Five of six work in a round, so that there is always one to be told of its outcome."""

TRAPS = [Trap(step, when) for step in SERVER_STEPS for when in ("before", "after")]
"""``after``: the first of the silos has the message, the others do not."""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of the same run as a simulation."""
    out = tmp_path_factory.mktemp("simulated") / "run"
    run_simulation(load_config("digits", [*CHANGES, *SIX]), out)
    return dict(json.loads((out / "summary.json").read_text())["model_digests"])


def test_a_server_killed_before_and_amid_every_step_goes_on_in_the_same_bits(
    tmp_path: Path, request: pytest.FixtureRequest, simulated: dict[str, str]
) -> None:
    processes = ForkedProcesses(tmp_path, *SIX, silos=6)
    request.addfinalizer(processes.close)
    for i in range(1, 7):
        processes.silo(i)
    for trap in TRAPS:
        process = processes.server(trap=trap)
        processes.until(lambda process=process: process.poll() is not None, seconds=60)
        assert process.poll() == -signal.SIGKILL, f"{trap}: {processes.said('server')[-1500:]}"
        dead = [name for name, other in processes.running.items() if name != "server" and other.poll() is not None]
        assert not dead, f"{trap}: {dead}"
    processes.server()
    processes.assert_all_fine()
    assert processes.digests() == simulated
    lines = [(line["phase"], line["round"]) for line in processes.rounds()]
    assert len(lines) == len(set(lines)), "a round is told twice"
    assert [number for phase, number in lines if phase == "rounds"] == list(range(12)), "a round is missing"
    assert not any(line["failed_sessions"] or line["dropped"] for line in processes.rounds())
