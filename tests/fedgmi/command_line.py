"""Runs command lines in this process, with the simulation and the report replaced."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgmi_fedml import cli
from fedgmi_fedml.config import Config

Run = Callable[..., "Outcome"]


class Outcome:
    """What a command line did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process."""

    def call(*args: str) -> Outcome:
        code = cli.run(args)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Replaces the simulation and the report by something that notes its arguments, or raises ``["raises"]``."""
    seen: dict[str, object] = {}

    def run_simulation(config: Config, out: Path, resume: bool, workers: int) -> Path:
        seen.update(config=config, out=out, resume=resume, workers=workers)
        if "raises" in seen:
            raise seen["raises"]  # type: ignore[misc]
        return out / "report.html"

    def fake(name: str, **members: object) -> None:
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)

    fake("fedgmi_fedml.simulate", run_simulation=run_simulation)
    fake("fedgmi_fedml.report", terminal_summary=lambda summary: f"table of {summary}", write_report=_write_report)
    fake("fedgmi_fedml.summary", load_summary=lambda folder: folder.name)
    return seen


def _write_report(folder: Path, audience: str | None) -> Path:
    return folder / f"report-{audience}.html"
