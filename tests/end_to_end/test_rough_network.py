"""Real processes over networks as they are: cut, slow, doubled and out of order; parties that come early and late."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_processes import CHANGES, ForkedProcesses
from rough_proxy import MISCHIEF, RoughProxy

from fedgmi_fedml.config import load_config
from fedgmi_fedml.simulate import run_simulation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

ROUGH = (
    "train_args.comm_round=20", "comm_args.heartbeat_seconds=0.3", "comm_args.silence_seconds=3",
    "comm_args.grace_seconds=30", "comm_args.backoff=[0.05, 0.2]",
)  # fmt: skip


def test_a_proxy_that_cuts_delays_duplicates_and_reorders_changes_no_bit(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """TLS breaks off where bytes are doubled or out of order; the link is dialled again, and nothing counts twice."""
    run_simulation(load_config("digits", [*CHANGES, *ROUGH]), tmp_path / "simulated")
    processes = ForkedProcesses(tmp_path, *ROUGH)
    request.addfinalizer(processes.close)
    processes.server()
    proxies = {i: RoughProxy(processes.port, seed=i, rounds=2) for i in range(1, processes.silos + 1)}
    for i, proxy in proxies.items():
        request.addfinalizer(proxy.close)
        processes.silo(i, "--server", f"127.0.0.1:{proxy.port}")
    processes.assert_all_fine()
    for proxy in proxies.values():
        assert proxy.done == dict.fromkeys(MISCHIEF, 2)
        assert proxy.connections > 8, "every mischief but a delay ends a connection"
    assert processes.digests() == json.loads((tmp_path / "simulated" / "summary.json").read_text())["model_digests"]
    assert len(processes.events("joined")) == processes.silos, "every link outlived its connections"
    assert not any(line["attempts"] > 1 or line["dropped"] for line in processes.rounds())
