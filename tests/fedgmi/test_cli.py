"""The command line: instant help, one line for every error, the exit codes that ``--help`` promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from fedgmi_fedml import cli
from fedgmi_fedml.cli_run import choose_folder
from fedgmi_fedml.config import Config, config_folder, config_names, load_config, parse_config
from fedgmi_fedml.errors import ConfigError, DataError, Interrupted, Refused, RunEndedEarly, RunError
from secure.errors import IdentityError

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


class TestFolder:
    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text("{}")

    def test_free(self, tmp_path: Path) -> None:
        assert choose_folder(tmp_path / "runs", "a", False) == tmp_path / "runs" / "a"

    def test_empty_is_free(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        assert choose_folder(tmp_path, "a", False) == tmp_path / "a"

    def test_taken(self, tmp_path: Path) -> None:
        self.make(tmp_path / "a")
        self.make(tmp_path / "a-2")
        assert choose_folder(tmp_path, "a", False) == tmp_path / "a-3"

    def test_resume_takes_the_last(self, tmp_path: Path) -> None:
        self.make(tmp_path / "a")
        assert choose_folder(tmp_path, "a", True) == tmp_path / "a"
        self.make(tmp_path / "a-2")
        assert choose_folder(tmp_path, "a", True) == tmp_path / "a-2"

    def test_resume_of_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="nothing to resume there"):
            choose_folder(tmp_path, "a", True)

    @pytest.mark.parametrize("name", ["../a", "a/b", "..", "."])
    def test_names_that_leave_the_folder(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ConfigError, match="cannot name a folder"):
            choose_folder(tmp_path, name, False)


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_scripts(self, run: Run, shell: str) -> None:
        done = run("completion", shell)
        assert done.code == 0
        assert "_FEDGMI_COMPLETE" in done.out

    def test_other_shell(self, run: Run) -> None:
        assert run("completion", "csh").code == 2

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("fedgmi sim", "simulate"),
            ("fedgmi simulate mnist_rotation4", "mnist_rotation4"),
            ("fedgmi simulate digits --set fedgmi_args.secure.b", "fedgmi_args.secure.backend="),
            ("fedgmi config sch", "schema"),
        ],
    )
    def test_of_words(self, words: str, expected: str) -> None:
        environment = {
            **os.environ,
            "_FEDGMI_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-m", "fedgmi_fedml.cli"],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert f"plain,{expected}" in done.stdout.splitlines()


class TestBench:
    def fake(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        seen: list[bool] = []
        module = types.ModuleType("fedgmi_fedml.bench_local")

        def bench_local(quick: bool) -> dict[str, float | bool]:
            seen.append(quick)
            return {"round_ratio": 1.0625, "round_ok": True, "scoring_ok": False}

        vars(module)["bench_local"] = bench_local
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return seen

    def test_table(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = self.fake(monkeypatch)
        done = run("bench", "local", "--quick")
        assert done.code == 0
        assert done.out == "round_ratio  1.062\nround_ok     met\nscoring_ok   MISSED\n"
        assert seen == [True]

    def test_json(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake(monkeypatch)
        assert json.loads(run("bench", "local", "--json").out)["round_ratio"] == 1.0625

    def test_other_bench(self, run: Run) -> None:
        done = run("bench", "locla")
        assert done.code == 2
        assert 'did you mean "local"?' in done.err


def test_every_command_that_help_lists_can_be_loaded() -> None:
    context = click.Context(cli.fedgmi)
    for name in cli.COMMANDS:
        command = cli.fedgmi.get_command(context, name)
        assert command is not None
        assert command.name == name


class TestDeliver:
    """``predict`` and ``export`` pass everything on; what they do is tested with ``deliver``."""

    class Made:
        """Three predictions."""

        names = ("a", "b", "c")
        alpha = (0.25, 0.75)
        alpha_source = "silo clinic"
        accuracy: float | None = 0.5
        skipped: tuple[str, ...] = ()

        def save(self, file: Path) -> None:
            file.write_text("sample,class\na,1\n")

    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
        seen: dict[str, object] = {}
        module = types.ModuleType("fedgmi_fedml.deliver")

        def predict(*args: object, **kwargs: object) -> object:
            seen.update(kwargs, args=args)
            return self.Made()

        def export(*args: object, **kwargs: object) -> list[Path]:
            seen.update(kwargs, args=args)
            return [Path("a.onnx"), Path("b.onnx")]

        vars(module).update(predict=predict, export=export)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return seen

    def test_predict_prints_a_table_and_says_with_what(self, run: Run, seen: dict[str, object], tmp_path: Path) -> None:
        (tmp_path / "new.npz").touch()
        done = run("predict", str(tmp_path), str(tmp_path / "new.npz"), "--silo", "clinic", "--gating", "map")
        assert done.code == 0
        assert done.out == "sample,class\na,1\n"
        assert "3 samples; mixture proportions 0.250, 0.750 (silo clinic)" in done.err
        assert "accuracy 0.5000" in done.err
        assert seen == {
            "args": (tmp_path, tmp_path / "new.npz"),
            "silo": "clinic",
            "proportions_from": None,
            "gating": "map",
            "which": "best",
            "output": None,
            "passes": 20,
        }

    def test_predict_into_a_file(self, run: Run, seen: dict[str, object], tmp_path: Path) -> None:
        out = tmp_path / "out.csv"
        done = run("predict", str(tmp_path), str(tmp_path), "--out", str(out), "--which", "final", "--passes", "5")
        assert done.out == ""
        assert f"written to {out}" in done.err
        assert (seen["output"], seen["which"], seen["passes"]) == (out, "final", 5)

    def test_export_names_its_files(self, run: Run, seen: dict[str, object], tmp_path: Path) -> None:
        done = run("export", str(tmp_path), str(tmp_path / "new"), "--format", "onnx", "--silo", "clinic")
        assert done.out == "a.onnx\nb.onnx\n"
        assert seen == {
            "args": (tmp_path, tmp_path / "new"),
            "format": "onnx",
            "silo": "clinic",
            "gating": "mixture",
            "which": "best",
        }

    @pytest.mark.parametrize(
        "args",
        [["predict", "nowhere", "x"], ["predict", ".", "nowhere.npz"], ["export", ".", "x", "--format", "pickle"]],
    )
    def test_bad_input(self, run: Run, seen: dict[str, object], args: list[str]) -> None:
        assert run(*args).code == 2
        assert not seen
