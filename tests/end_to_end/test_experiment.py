"""``fedgmi experiment``: a grid runs, is gone on with where it stopped, and is drawn up from its JSON alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedgmi_fedml.cli_experiment import experiment as command
from fedgmi_fedml.errors import ConfigError, RunError
from fedgmi_fedml.experiments.definition import load_experiment, parse_experiment
from fedgmi_fedml.experiments.run import run_experiment

SMALL = """
title: Two methods
set: {train_args.comm_round: 2, train_args.epochs: 1, fedgmi_args.initialisation.candidate_rounds: 1,
      fedgmi_args.initialisation.candidate_epochs: 1, fedgmi_args.initialisation.warmup_rounds: 1}
grids:
  - data: digits
    base: digits
    mixtures: {linear: {data_args.silo_mixture.kind: linear}}
    methods: [fedgmi, ifca]
    k: [12]
    seeds: [0]
"""
FIELDS = {
    "method", "data", "mixture", "components", "k", "seed", "alpha_mae", "alpha_spearman", "partition_accuracy",
    "expert_accuracy", "specialisation_gap", "personalised_accuracy", "upload_bytes", "wall_seconds", "versions",
    "config_digest",
}  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("experiment")
    run_experiment(parse_experiment(SMALL, "small", "small.yaml"), folder)
    return folder


@pytest.mark.slow
def test_each_cell_leaves_one_json_with_all_that_was_measured(done):
    cells = {path.stem: json.loads(path.read_text()) for path in (done / "cells").glob("*.json")}
    assert set(cells) == {"digits.linear.default.fedgmi.k12.s0", "digits.linear.default.ifca.k12.s0"}
    for cell in cells.values():
        assert set(cell) >= FIELDS
        assert 0 < cell["personalised_accuracy"] <= 1
        assert cell["upload_bytes"] > 0


@pytest.mark.slow
def test_a_finished_cell_is_not_run_again_and_a_missing_one_is(done, tmp_path):
    experiment = parse_experiment(SMALL, "small", "small.yaml")
    with pytest.raises(RunError, match="--resume"):
        run_experiment(experiment, done)
    folder = shutil.copytree(done, tmp_path / "again")
    kept, lost = sorted((folder / "cells").glob("*.json"))
    before, figures = kept.stat().st_mtime_ns, json.loads(lost.read_text())
    lost.unlink()
    said = []
    run_experiment(experiment, folder, resume=True, tell=said.append)
    assert kept.stat().st_mtime_ns == before
    assert said[0] == "1 of 2 cells are there already"
    again = json.loads(lost.read_text())
    assert again["personalised_accuracy"] == figures["personalised_accuracy"], "cells are repeatable"


@pytest.mark.slow
def test_the_report_needs_nothing_but_the_cells(done, tmp_path):
    result = CliRunner().invoke(command, ["report", str(done), "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "report.md").read_text()
    assert "fedgmi" in text.lower()
    assert "ifca" in text.lower()
    assert list((tmp_path / "tables").glob("*.tex"))
    figures = list((tmp_path / "figures").glob("*.svg"))
    assert figures
    assert all(figure.read_text().startswith("<svg") for figure in figures)


def test_the_shipped_experiment_is_valid():
    experiment = load_experiment("digits_smoke")
    experiment.check()
    assert {cell.method for cell in experiment.cells} == {
        "fedgmi", "fedavg", "ifca", "fedsoft", "fedem", "oracle", "local"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("methods: [fedgmi, ifca]", "methods: [fedgmi, ifka]", "ifca"),
        ("seeds: [0]", "seeds: []", "seeds"),
        ("seeds: [0]", "seeds: [0, 0]", "twice"),
        ("title: Two methods", "titel: x", "titel"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(old, new, named):
    with pytest.raises(ConfigError, match=named):
        parse_experiment(SMALL.replace(old, new), "small", "small.yaml")


def test_a_wrong_setting_names_its_cell_before_anything_is_run(tmp_path):
    experiment = parse_experiment(SMALL.replace("comm_round: 2", "comm_round: -2"), "small", "small.yaml")
    with pytest.raises(ConfigError, match=r"cell digits\.linear\.default\.fedgmi\.k12\.s0: .*comm_round"):
        run_experiment(experiment, tmp_path / "out")
    assert not (tmp_path / "out" / "cells").exists()
