"""``fedgmi bench federation``: masked rounds over real processes and mutual TLS, beside FedML's stock plaintext ones.

One server and K silos on loopback, training left out on both sides (``bench_federation_party``,
``fedml_adapter.stock_peer``). Wall seconds of a round, medians over rounds after the first; our federations and stock's
run in turns, and ratios are medians of the ratios of one turn.

    masked_seconds         one of our rounds: sessions, masks, checkpoint on disk, digests
    stock_seconds          FedML's FedAvg over its GRPC as shipped; repaired_seconds: with its busy loop mended
    start_seconds          from the start of all processes to round 1; torch_seconds: as many processes that only
                           import torch, at once
    server_bytes           the server's largest size, by number of silos
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import RunError

__all__ = ["bench_federation"]

STOCK_TARGET, START_TARGET, MEMORY_TARGET = 1.0, 1.5, 0.10
PATIENCE = 300.0
"""Longest life of one measured federation, seconds."""

_FEATURES, _CLASSES = 64, 10


def _overrides(parameters: int, silos: int, rounds: int) -> list[str]:
    """A run of nothing but rounds of one expert with that many parameters."""
    hidden = max(1, (parameters - _CLASSES) // (_FEATURES + 1 + _CLASSES))
    return [
        f"train_args.client_num_in_total={silos}", f"train_args.client_num_per_round={silos}",
        f"train_args.comm_round={rounds}", "validation_args.evaluate_baselines=[]", "model_args.model=mlp",
        f"model_args.model_options={{hidden: [{hidden}]}}", "fedgmi_args.components=1", "common_args.run_name=bench",
        "fedgmi_args.initialisation.cohort_size=3", "fedgmi_args.secure.rules.max_drops=0",
        "fedgmi_args.secure.rules.min_contributors=3", "fedgmi_args.secure.rules.w_max=1.0",
        "data_args.dataset=npz", "data_args.data_path=none", f"data_args.data_options={{classes: {_CLASSES}}}",
        "data_args.announced_shape=[1, 8, 8]",
    ]  # fmt: skip


@dataclass(frozen=True)
class _Ours:
    start: float
    rounds: list[float]
    peak_bytes: int


def _ours(parameters: int, silos: int, rounds: int, folder: Path) -> _Ours:
    """One federation of ours, provisioned and run."""
    (folder / "bench.yaml").write_text(load_config("digits", _overrides(parameters, silos, rounds)).to_yaml())
    project = {
        "federation": "bench", "operator": "bench", "config": "bench.yaml",
        "server": {"address": f"127.0.0.1:{_free_ports(1)[0]}"},
        "silos": [{"name": f"silo-{i}", "identity": "make"} for i in range(1, silos + 1)],
    }  # fmt: skip
    (folder / "project.yaml").write_text(json.dumps(project))  # JSON is YAML
    images, labels = np.zeros((2 * _CLASSES, 8, 8), np.uint8), np.tile(np.arange(_CLASSES), 2)
    np.savez(folder / "samples.npz", x_train=images, y_train=labels)
    _finish([_start("fedgmi_fedml.cli", "provision", str(folder / "project.yaml"), "--yes")])
    kits, began = folder / "kits", time.monotonic()
    party = "fedgmi_fedml.bench_federation_party"
    server = _start(party, "server", str(kits / "server"), str(folder / "out-server"))
    others = [
        _start(party, "silo", str(kits / f"silo-silo-{i}"), str(folder / f"out-{i}"), str(folder / "samples.npz"))
        for i in range(1, silos + 1)
    ]
    told = json.loads(_finish([server, *others]))
    return _Ours(told["first_round"] - began, told["seconds"][1:], told["peak_bytes"])


def _stock(parameters: int, silos: int, rounds: int, repaired: bool, folder: Path) -> list[float]:
    """One federation of FedML's own."""
    addresses = folder / "addresses.csv"
    ports = _free_ports(silos + 1)
    lines = [f"{rank},{rank},127.0.0.1,{port}" for rank, port in enumerate(ports)]
    addresses.write_text("eid,rank,grpc_server_ip,grpc_server_port\n" + "\n".join(lines) + "\n")
    given = {
        "silos": silos, "parameters": parameters, "rounds": rounds, "addresses": str(addresses), "repaired": repaired,
    }  # fmt: skip
    module, processes = "fedgmi_fedml.fedml_adapter.stock_peer", []
    for rank, port in enumerate(ports):
        processes.append(_start(module, json.dumps(given | {"rank": rank}), home=folder))
        if rank == 0:
            _await_port(port, processes[0])  # a client of stock's that comes before the server is never heard
    found: list[float] = json.loads(_finish(processes))["seconds"]
    return found[1:]


def bench_federation(
    parameters: Sequence[int] = (1 << 20,), silos: int = 3, rounds: int = 8, turns: int = 3, compare_silos: int = 0,
    stock: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """All figures by name, and ``targets``: (figure, value, limit).

    Args:
        parameters: sizes of the model.
        silos: K; rounds: of each federation; turns: federations of each kind.
        compare_silos: also the server's size with so many silos, at the largest model; 0 leaves that out.
        stock: compare with FedML where it is installed.

    Raises:
        RunError: a process failed or took too long; its last lines are in the message.
    """
    with_stock = stock and find_spec("fedml") is not None
    figures: dict[str, Any] = {"silos": silos, "rounds": rounds, "turns": turns}
    targets: list[tuple[str, float, float]] = []
    for size in parameters:
        row = _row(size, silos, rounds, turns, with_stock)
        figures[f"parameters_{size}"] = row
        if with_stock:
            name = f"masked round / stock plaintext round, {size} parameters"
            targets.append((name, row["masked_per_stock"], STOCK_TARGET))
        targets.append((f"start / import of torch, {size} parameters", row["start_per_torch"], START_TARGET))
    if compare_silos:
        with _folder() as folder:
            more = _ours(max(parameters), compare_silos, 3, folder).peak_bytes
        few = figures[f"parameters_{max(parameters)}"]["server_bytes"]
        figures |= {"compare_silos": compare_silos, "compare_server_bytes": more, "memory_growth": more / few - 1.0}
        targets.append((f"server's growth, {silos} to {compare_silos} silos", more / few - 1.0, MEMORY_TARGET))
    return figures | {"targets": targets}


def _row(size: int, silos: int, rounds: int, turns: int, with_stock: bool) -> dict[str, Any]:
    ours, torch_seconds, stocks, repairs = [], [], [], []
    for _ in range(turns):
        with _folder() as folder:
            ours.append(_ours(size, silos, rounds, folder))
            torch_seconds.append(_torch(silos + 1))
            if with_stock:
                stocks.append(median(_stock(size, silos, rounds, False, folder)))
                repairs.append(median(_stock(size, silos, rounds, True, folder)))
    masked = [median(one.rounds) for one in ours]
    row = {
        "masked_seconds": median(masked), "start_seconds": median(one.start for one in ours),
        "torch_seconds": median(torch_seconds), "server_bytes": max(one.peak_bytes for one in ours),
        "start_per_torch": median(one.start / alone for one, alone in zip(ours, torch_seconds, strict=True)),
    }  # fmt: skip
    if with_stock:
        row |= {
            "stock_seconds": median(stocks), "repaired_seconds": median(repairs),
            "masked_per_stock": median(a / b for a, b in zip(masked, stocks, strict=True)),
            "masked_per_repaired": median(a / b for a, b in zip(masked, repairs, strict=True)),
        }  # fmt: skip
    return row


# ---- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fedgmi-bench-") as folder:
        yield Path(folder)


def _start(module: str, *arguments: str, home: Path | None = None) -> subprocess.Popen[str]:
    """One Python process with one thread for numerics; the peer gets a home of its own to write to."""
    environment = dict(os.environ, OMP_NUM_THREADS="1") | ({"HOME": str(home)} if home else {})
    return subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, "-m", module, *arguments], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def _finish(processes: list[subprocess.Popen[str]]) -> str:
    """Wait for all; returns the last line that the first one printed.

    Raises:
        RunError: one of them failed, or did not end in time.
    """
    deadline = time.monotonic() + PATIENCE
    said = ""
    try:
        for number, process in enumerate(processes):
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            if process.returncode:
                raise RunError(f"process {number} of a measured federation failed: {err.strip()[-800:]}")
            said = said or (out.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired:
        raise RunError(f"a measured federation did not end within {PATIENCE:.0f} seconds") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return said


def _torch(count: int) -> float:
    """Seconds until as many processes as a federation has have imported torch, all at once."""
    began = time.monotonic()
    processes = [subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(count)]
    for process in processes:
        process.wait(timeout=PATIENCE)
    return time.monotonic() - began


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()


def _await_port(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RunError("FedML's stock server did not open its port")
