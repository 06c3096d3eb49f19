"""The federation as hospitals run it, for the tests: kits, and one process a party over real sockets and mutual TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from federation_harness import SMALL
from loopback import free_port, until
from trapped_party import Forked, Trap

from fedgmi_fedml.config import load_config
from fedgmi_fedml.provision.plan import provision
from fedgmi_fedml.provision.project import read_project

ROOT = Path(__file__).resolve().parents[2]
CHANGES = (
    *SMALL, "train_args.comm_round=6", "comm_args.heartbeat_seconds=1", "comm_args.silence_seconds=5",
    "comm_args.grace_seconds=3", "comm_args.dial_seconds=60", "comm_args.backoff=[0.2, 1.0]",
)  # fmt: skip


class Processes:
    """Kits, and the processes started with them; ``close`` ends what the test left.

    Attributes:
        silos: how many.
        running: a party's newest process by its name: ``server``, ``silo-001`` …
    """

    def __init__(self, folder: Path, *changes: str, silos: int = 5, address: str = "127.0.0.1") -> None:
        self.folder, self.silos, self.port = folder, silos, free_port()
        self.config = load_config("digits", [*CHANGES, *changes])
        (folder / "config.yaml").write_text(self.config.to_yaml())
        listed = "".join(f"  - {{name: {self.name(i)}, identity: make}}\n" for i in range(1, silos + 1))
        (folder / "project.yaml").write_text(
            "federation: test\noperator: tester\nconfig: config.yaml\n"
            f"server: {{address: '{address}:{self.port}', bind: '{address}:{self.port}'}}\nsilos:\n{listed}"
        )
        provision(read_project(folder / "project.yaml"), folder / "kits", now=time.time())
        self.running: dict[str, Any] = {}
        self.started: list[Any] = []

    @staticmethod
    def name(silo: int) -> str:
        return f"silo-{silo:03d}"

    def start(self, name: str, *arguments: object, before: tuple[str, ...] = ()) -> Any:
        """A process of ``fedgmi``; ``before`` stands in front of its command."""
        command = [*before, sys.executable, "-m", "fedgmi_fedml.cli", *map(str, arguments)]
        with open(self.folder / f"{name}.console", "ab") as console:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
        return self._keep(name, process)

    def _keep(self, name: str, process: Any) -> Any:
        self.running[name] = process
        self.started.append(process)
        return process

    def server(self, *more: str, **how: Any) -> Any:
        kit, out = self.folder / "kits" / "server", self.folder / "server"
        common = ("--repeatable", "--run-id", "digits/fedgmi")
        return self.start("server", "server", "--kit", kit, "--out", out, *common, *more, **how)

    def silo(self, i: int, *more: str, **how: Any) -> Any:
        name = self.name(i)
        kit, out = self.folder / "kits" / f"silo-{name}", self.folder / name
        common = ("--repeatable", "--simulated-part", i)
        return self.start(name, "silo", "--kit", kit, "--out", out, *common, *more, **how)

    def all(self) -> None:
        self.server()
        for i in range(1, self.silos + 1):
            self.silo(i)

    def wait(self, *names: str, seconds: float = 150) -> dict[str, int]:
        """Exit codes by name."""
        limit = time.monotonic() + seconds
        codes = {}
        for name in names or tuple(self.running):
            try:
                codes[name] = self.running[name].wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"{name} has not ended:\n{self.said(name)}")
        return codes

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.console").read_text()

    def until(self, what: Callable[[], object], seconds: float = 100) -> None:
        """Wait until ``what()`` is true."""
        until(what, seconds, lambda: "\n".join(f"{n}:\n{self.said(n)[-1500:]}" for n in self.running))

    def rounds(self) -> list[dict[str, Any]]:
        return self._lines("rounds")

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """What the server has noted so far."""
        return [line for line in self._lines("events") if line["event"] in kinds]

    def _lines(self, what: str) -> list[dict[str, Any]]:
        path = self.folder / "server" / f"{what}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def has_done(self, phase: str, number: int) -> Callable[[], bool]:
        return lambda: any(line["phase"] == phase and line["round"] >= number for line in self.rounds())

    def digests(self, who: str = "server") -> dict[str, str]:
        return dict(json.loads((self.folder / who / "summary.json").read_text())["model_digests"])

    def assert_all_fine(self) -> None:
        """Everybody ends, and well, with the same models."""
        codes = self.wait()
        assert set(codes.values()) == {0}, {name: self.said(name)[-1500:] for name, code in codes.items() if code}
        for i in range(1, self.silos + 1):
            assert self.digests(self.name(i)) == self.digests(), self.name(i)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()


class ForkedProcesses(Processes):
    """The same, with processes that start fast and can be told to die or to be slow (``trapped_party``)."""

    def start(  # type: ignore[override]
        self, name: str, *arguments: object, trap: Trap | None = None, hold: Path | None = None
    ) -> Any:
        console = self.folder / f"{name}.console"
        return self._keep(name, Forked([str(argument) for argument in arguments], console, trap, hold))
