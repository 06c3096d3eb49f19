"""The scripts in deploy/, as far as they go without installing anything."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
with_a_usable_python = pytest.mark.skipif(sys.version_info[:2] > (3, 11), reason="the scripts want Python 3.10 or 3.11")


def run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in the project's folder with a few variables changed; no input, so a prompt would fail."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("script", ["demo.sh", "test.sh", "local_federation.sh"])
def test_help_says_what_it_does_and_installs_nothing(script: str, tmp_path: Path) -> None:
    done = run("bash", f"deploy/{script}", "--help", env={"FEDGMI_VENV": str(tmp_path / "env")})
    assert done.returncode == 0
    assert f"bash deploy/{script}" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_python_that_will_not_do_is_refused_by_name(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    done = run("bash", "deploy/demo.sh", env={"PYTHON": str(fake), "FEDGMI_VENV": str(tmp_path / "env")})
    assert done.returncode == 2
    assert f"PYTHON={fake} is not a Python 3.10 or 3.11" in done.stderr


def test_no_python_at_all_is_one_clear_error(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname", "cat", "df", "du", "awk", "mkdir"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    done = run("bash", "deploy/demo.sh", env={"PATH": str(tools), "PYTHON": "", "FEDGMI_VENV": str(tmp_path / "env")})
    assert done.returncode == 2
    assert "no Python 3.10 or 3.11" in done.stderr
    assert "python3.11-venv" in done.stderr


@with_a_usable_python
def test_too_little_disk_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    env = {"PYTHON": sys.executable, "FEDGMI_VENV": str(tmp_path / "env"), "FEDGMI_MIN_GB": "1000000"}
    done = run("bash", "deploy/demo.sh", env=env)
    assert done.returncode == 2
    assert "GB free" in done.stderr
    assert "FEDGMI_VENV=" in done.stderr
    assert not (tmp_path / "env").exists()


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "thesis.txt").write_text("years of work")
    done = run("bash", "deploy/demo.sh", env={"FEDGMI_VENV": str(tmp_path / "env")})
    assert done.returncode == 2
    assert "is not a virtual environment" in done.stderr
    assert (tmp_path / "env" / "thesis.txt").exists()


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """An environment that counts as installed: this interpreter, and the stamp that an install would leave."""
    venv = tmp_path / "with space" / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    digest = hashlib.sha256((sys.version + str(ROOT)).encode())
    for name in ("pyproject.toml", "deploy/constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    (venv / ".fedgmi-installed").write_text(digest.hexdigest() + "\n")
    return venv


@with_a_usable_python
def test_a_second_start_installs_nothing(prepared: Path) -> None:
    done = run("bash", "-c", '. deploy/_environment.sh && prepare_environment && echo "$ENV_PYTHON"',
               env={"FEDGMI_VENV": str(prepared), "PYTHON": ""})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(prepared / "bin" / "python")
    assert done.stderr == ""


@with_a_usable_python
def test_a_changed_pin_installs_again(prepared: Path) -> None:
    (prepared / ".fedgmi-installed").write_text("of another day\n")
    # Without pip in the environment the install fails at once, which shows that it was tried, and says so.
    done = run("bash", "deploy/demo.sh", env={"FEDGMI_VENV": str(prepared), "PYTHON": "", "FEDGMI_MIN_GB": "0"})
    assert done.returncode == 2
    assert "Installing into" in done.stderr
    assert "the install failed" in done.stderr
    assert not (prepared / ".fedgmi-installed").exists()


@pytest.mark.parametrize(
    "script",
    ["deploy/demo.sh", "deploy/local_federation.sh", "deploy/test.sh", "deploy/_environment.sh", ".ci/run"],
)
def test_scripts_parse(script: str) -> None:
    assert run("bash", "-n", script).returncode == 0
