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
    [
        "deploy/demo.sh",
        "deploy/local_federation.sh",
        "deploy/test.sh",
        "deploy/_environment.sh",
        ".ci/run",
        ".ci/programs.sh",
    ],
)
def test_scripts_parse(script: str) -> None:
    assert run("bash", "-n", script).returncode == 0


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """A PATH of a few tools, and an apt-get that "installs" into it what is not named in ``refused``."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "cat", "chmod", "env", "mktemp", "rm", "tail", "timeout"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    for name, line in (
        ("id", "echo 0"),
        ("apt-get", f"""
for word; do last="$word"; done
[ "$last" = update ] && exit 0
case " $(cat {tmp_path}/refused) " in *" $last "*) echo "E: Unable to locate package $last" >&2; exit 100 ;; esac
printf '#!/bin/sh\n' >{tools}/$last && chmod +x {tools}/$last"""),
    ):  # fmt: skip
        (tools / name).write_text(f"#!{tools}/bash\n{line}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "refused").write_text("")
    return tools


def install_programs(tools: Path) -> subprocess.CompletedProcess[str]:
    """What .ci/run does about programs; debian's places are out of its sight."""
    code = '. .ci/programs.sh; has_program() { command -v "$1" >/dev/null; }; install_programs; '
    return run(str(tools / "bash"), "-c", code + 'echo "required: $FEDGMI_REQUIRED_PROGRAMS"', env={"PATH": str(tools)})


def test_what_ci_could_install_must_be_there_for_the_tests(apt: Path) -> None:
    done = install_programs(apt)
    assert done.stdout.splitlines() == [
        "installed: chromium", "installed: mosquitto", "required: chromium mosquitto",
    ], done.stderr  # fmt: skip
    assert install_programs(apt).stdout.splitlines() == ["required: chromium mosquitto"]


def test_what_ci_could_not_install_is_said(apt: Path) -> None:
    (apt.parent / "refused").write_text("chromium")
    said = install_programs(apt).stdout
    assert "apt-get install chromium FAILED:\nE: Unable to locate package chromium" in said
    assert "without chromium: the tests that need it are skipped" in said
    assert said.endswith("required: mosquitto\n")
    (apt / "apt-get").unlink()
    assert "no apt-get here: not installed: chromium\n" in install_programs(apt).stdout


@pytest.mark.parametrize(
    ("required", "outcome"), [("", "1 skipped"), ("no-such-browser", "1 error"), ("mosquitto", "1 skipped")]
)
def test_a_required_program_that_is_missing_is_no_silent_skip(tmp_path: Path, required: str, outcome: str) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.needs_program('no-such-browser', 'nor-such')\ndef test_it(): pass\n"
    )
    done = run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path),
        env={"FEDGMI_REQUIRED_PROGRAMS": required},
    )  # fmt: skip
    assert outcome in done.stdout, done.stdout
    assert bool(done.returncode) == ("error" in outcome)
