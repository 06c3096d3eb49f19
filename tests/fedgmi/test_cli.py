"""The command line: instant help, one line for every error, the exit codes that ``--help`` promises."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from command_line import Run

from fedgmi_fedml import cli
from fedgmi_fedml.config import config_folder, config_names, load_config, parse_config
from fedgmi_fedml.errors import ConfigError, DataError, Interrupted, Refused, RunEndedEarly, RunError
from secure.errors import IdentityError


class TestHelp:
    def test_lists_every_command_and_the_exit_codes(self, run: Run) -> None:
        done = run("--help")
        assert done.code == 0
        for name in cli.COMMANDS:
            assert f"  {name} " in done.out
        for code in ("0 ", "1 ", "2 ", "130"):
            assert f"\n    {code}" in done.out

    def test_no_arguments_show_help(self, run: Run) -> None:
        done = run()
        assert "Usage: fedgmi" in done.out + done.err

    def test_version(self, run: Run) -> None:
        from fedgmi_fedml.version import __version__

        assert __version__ in run("--version").out

    @pytest.mark.parametrize("name", ["simulate", "report", "config", "completion"])
    def test_of_a_command(self, run: Run, name: str) -> None:
        done = run(name, "--help")
        assert done.code == 0
        assert f"Usage: fedgmi {name}" in done.out

    def test_simulate_names_its_options(self, run: Run) -> None:
        text = run("simulate", "--help").out
        for option in ("--set", "--out", "--resume", "--workers"):
            assert option in text


def test_importing_and_configuring_loads_no_torch() -> None:
    code = (
        "import sys; from fedgmi_fedml import cli; "
        "codes = [cli.run(line.split()) for line in ('--help', 'config check digits', 'config show mnist_rotation', "
        "'config schema', 'config names', 'completion bash', 'simulate --help', 'simulate nowhere')]; "
        "print(codes, [m for m in ('torch', 'fedml', 'sklearn', 'scipy', 'grpc', 'torchvision') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0, 0, 0, 2] []", done.stderr


def test_python_dash_m_is_the_same_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedgmi_fedml.cli", "config", "check", "digits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0
    assert "digits.yaml: valid" in done.stdout


class TestConfig:
    @pytest.mark.parametrize("name", config_names())
    def test_show_can_be_read_again(self, run: Run, name: str) -> None:
        done = run("config", "show", name)
        assert done.code == 0
        assert parse_config(done.out) == load_config(name)

    def test_show_with_overrides(self, run: Run) -> None:
        done = run("config", "show", "digits", "--set", "train_args.epochs=7", "--set", "train_args.batch_size=9")
        shown = parse_config(done.out)
        assert (shown.train_args.epochs, shown.train_args.batch_size) == (7, 9)

    def test_check_says_what_it_promises(self, run: Run) -> None:
        done = run("config", "check", "digits")
        assert done.code == 0
        assert "4 holders before a component's sum is released" in done.out
        assert load_config("digits").digest() in done.out

    def test_check_shouts_about_no_protection(self, run: Run) -> None:
        assert "NONE: updates" in run("config", "check", "digits", "--set", "fedgmi_args.secure.backend=none").out

    def test_check_of_a_file(self, run: Run, tmp_path: Path) -> None:
        shutil.copy(config_folder() / "digits.yaml", tmp_path / "mine.yaml")
        assert "mine.yaml: valid" in run("config", "check", str(tmp_path / "mine.yaml")).out

    def test_check_tells_every_problem_and_ends_with_2(self, run: Run) -> None:
        done = run("config", "check", "digits", "--set", "train_args.epochs=0", "--set", "train_args.epoch=1")
        assert done.code == 2
        assert done.err.startswith("error: ")
        assert "2 problems" in done.err
        assert "Traceback" not in done.err

    def test_names(self, run: Run) -> None:
        lines = run("config", "names").out.splitlines()
        assert [line.split()[0] for line in lines] == list(config_names())
        assert all(len(line.split()) > 4 for line in lines)

    def test_explain(self, run: Run) -> None:
        done = run("config", "explain", "secure.clip")
        assert done.out.startswith("fedgmi_args.secure.clip  [default: 8.0]\n    Largest weighted change")
        everything = run("config", "explain").out
        assert everything.count("\n    ") == everything.count("[default:") > 60

    def test_explain_of_nothing(self, run: Run) -> None:
        done = run("config", "explain", "train_args.epoch_s")
        assert done.code == 2
        assert 'did you mean "epochs"?' in done.err

    def test_schema(self, run: Run) -> None:
        assert json.loads(run("config", "schema").out)["title"] == "FedGMI training configuration"


class TestSimulate:
    def test_passes_everything_on(self, run: Run, simulation: dict[str, object], tmp_path: Path) -> None:
        out = tmp_path / "r"
        done = run("simulate", "digits", "--set", "train_args.epochs=7", "--out", str(out), "--workers", "3")
        assert done.code == 0, done.err
        assert simulation["config"] == load_config("digits", ["train_args.epochs=7"])
        assert (simulation["out"], simulation["resume"], simulation["workers"]) == (out, False, 3)
        assert done.out == f"table of r\nreport: {out / 'report.html'}\n"

    def test_workers_come_from_the_configuration(self, run: Run, simulation: dict[str, object], tmp_path: Path) -> None:
        run("simulate", "digits", "--set", "device_args.worker_num=2", "--out", str(tmp_path / "r"))
        assert simulation["workers"] == 2

    def test_folder_by_default(
        self, run: Run, simulation: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        run("simulate", "digits")
        assert simulation["out"] == Path("runs/digits")

    def test_resume_without_config(self, run: Run, simulation: dict[str, object], tmp_path: Path) -> None:
        written = load_config("digits", ["train_args.epochs=7"])
        (tmp_path / "config.yaml").write_text(written.to_yaml())
        done = run("simulate", "--resume", "--out", str(tmp_path))
        assert done.code == 0, done.err
        assert simulation["config"] == written
        assert simulation["resume"] is True

    def test_resume_of_nothing(self, run: Run, simulation: dict[str, object], tmp_path: Path) -> None:
        done = run("simulate", "--resume", "--out", str(tmp_path))
        assert done.code == 2
        assert "holds no config.yaml, so there is no run to resume" in done.err

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            ([], "CONFIG is missing"),
            (["--resume"], "--resume needs CONFIG or --out"),
            (["nowhere.yaml"], "nowhere.yaml: no such file"),
            (["digits", "--set", "train_args.epoch=3"], 'did you mean "epochs"?'),
            (["digits", "--workers", "0"], "0 is not in the range"),
            (["digits", "--wrokers", "1"], "No such option: --wrokers"),
            (["digits", "--set", "common_args.run_name=a/b"], "'a/b' cannot name a folder"),
        ],
    )
    def test_bad_input_ends_with_2(self, run: Run, simulation: dict[str, object], args: list[str], says: str) -> None:
        done = run("simulate", *args)
        assert done.code == 2
        assert says in done.err
        assert "Traceback" not in done.err
        assert not simulation

    def test_a_launch_job_is_recognised(self, run: Run, simulation: dict[str, object], tmp_path: Path) -> None:
        (tmp_path / "job.yaml").write_text("workspace: ws\njob: |\n  python3 x.py\njob_type: federate\n")
        done = run("simulate", str(tmp_path / "job.yaml"))
        assert done.code == 2
        assert "is a FedML launch job" in done.err


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "code", "says"),
        [
            (DataError("x.npz: no such file"), 2, "error: x.npz: no such file"),
            (ConfigError(["one", "two"]), 2, "error: one\ntwo"),
            (RunError("in use"), 2, "error: in use"),
            (RunEndedEarly("every component starved"), 3, "error: every component starved"),
            (Refused("wire version differs"), 4, "error: wire version differs"),
            (IdentityError("roster expired"), 2, "error: roster expired"),
            (PermissionError(13, "Permission denied", "/locked/x"), 2, "error: /locked/x: Permission denied"),
            (OSError(28, "No space left on device", "/full/x"), 2, "error: /full/x: No space left on device"),
            (Interrupted(None), 130, "interrupted; nothing was written yet: start again"),
            (KeyboardInterrupt(), 130, "interrupted"),
            (click.UsageError("wrong"), 2, "Error: wrong"),
        ],
    )
    def test_one_line_and_the_exit_code(
        self, run: Run, simulation: dict[str, object], tmp_path: Path, error: BaseException, code: int, says: str
    ) -> None:
        simulation["raises"] = error
        done = run("simulate", "digits", "--out", str(tmp_path))
        assert done.code == code
        assert says in done.err
        assert "Traceback" not in done.err

    def test_the_unexpected_has_a_traceback_and_ends_with_1(
        self, run: Run, simulation: dict[str, object], tmp_path: Path
    ) -> None:
        simulation["raises"] = ZeroDivisionError("oh")
        done = run("simulate", "digits", "--out", str(tmp_path))
        assert done.code == 1
        assert "Traceback" in done.err
        assert "ZeroDivisionError: oh" in done.err
        assert "please report it" in done.err

    def test_a_socket_error_is_not_taken_for_a_file(
        self, run: Run, simulation: dict[str, object], tmp_path: Path
    ) -> None:
        simulation["raises"] = OSError(22, "Invalid argument")
        assert run("simulate", "digits", "--out", str(tmp_path)).code == 1

    def test_interrupted_says_how_to_go_on(self, run: Run, simulation: dict[str, object], tmp_path: Path) -> None:
        (tmp_path / "checkpoints" / "round-3").mkdir(parents=True)
        simulation["raises"] = Interrupted(tmp_path, "after round 3 of 10")
        done = run("simulate", "digits", "--out", str(tmp_path))
        assert done.code == 130
        assert done.err.strip() == (
            f"interrupted after round 3 of 10; resumable: fedgmi simulate --resume --out {tmp_path}"
        )

    def test_interrupted_before_the_first_whole_round(
        self, run: Run, simulation: dict[str, object], tmp_path: Path
    ) -> None:
        simulation["raises"] = Interrupted(tmp_path)
        assert "no round was whole yet" in run("simulate", "digits", "--out", str(tmp_path)).err

    @pytest.mark.parametrize(("typed", "meant"), [("simulat", "simulate"), ("comfig", "config")])
    def test_misspelt_command(self, run: Run, typed: str, meant: str) -> None:
        done = run(typed)
        assert done.code == 2
        assert f'no command "{typed}": did you mean "{meant}"?' in done.err


def test_report_again(run: Run, simulation: dict[str, object], tmp_path: Path) -> None:
    done = run("report", str(tmp_path), "--audience", "server")
    assert done.code == 0
    assert done.out == f"table of {tmp_path.name}\nreport: {tmp_path / 'report-server.html'}\n"
    assert run("report", str(tmp_path / "nowhere")).code == 2


def test_verbose_shows_where_it_happened(run: Run, simulation: dict[str, object], tmp_path: Path) -> None:
    simulation["raises"] = DataError("x.npz: no such file")
    done = run("-v", "simulate", "digits", "--out", str(tmp_path))
    assert done.code == 2
    assert "in run_simulation" in done.err
    assert done.err.endswith("error: x.npz: no such file\n")


def test_every_command_that_help_lists_can_be_loaded() -> None:
    context = click.Context(cli.fedgmi)
    for name in cli.COMMANDS:
        command = cli.fedgmi.get_command(context, name)
        assert command is not None
        assert command.name == name
