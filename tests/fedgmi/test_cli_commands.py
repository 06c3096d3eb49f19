"""Single commands: the run's folder, completion, benchmarks, predictions and exports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from command_line import Run

from fedgmi_fedml.cli_run import choose_folder
from fedgmi_fedml.errors import ConfigError, RunError


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
