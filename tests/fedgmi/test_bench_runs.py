"""``fedgmi bench overhead`` and ``quality``: settings, pairing and judgement; whole runs only in the slow half."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fedgmi_fedml import bench_overhead as overhead_module
from fedgmi_fedml.bench_overhead import bench_overhead
from fedgmi_fedml.bench_quality import SETTINGS, bench_quality, configuration, summarise
from fedgmi_fedml.cli_bench import bench
from fedgmi_fedml.errors import RunError

BY_NAME = {setting.name: setting for setting in SETTINGS}
SHORT = (
    "train_args.client_num_in_total=4", "train_args.client_num_per_round=4", "train_args.comm_round=1",
    "data_args.silo_mixture.samples_per_silo=40", "fedgmi_args.initialisation.candidates=2",
    "fedgmi_args.initialisation.candidate_rounds=1", "fedgmi_args.initialisation.warmup_rounds=1",
)  # fmt: skip


def test_overhead_pairs_runs_that_differ_in_backend_and_epochs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(config):
        seen.append(config)
        factor = 1.5 if config.fedgmi_args.secure.backend == "masked" else 1.0
        return {"wall": factor * 2, "cpu": factor, "rounds": 1.0}

    monkeypatch.setattr(overhead_module, "_run", run)
    figures = bench_overhead("digits", (1, 5), 2)
    assert [c.fedgmi_args.secure.backend for c in seen[:4]] == ["none", "masked", "masked", "none"]
    assert [c.train_args.epochs for c in seen] == [1] * 4 + [5] * 4
    assert {c.fedgmi_args.initialisation.warmup_epochs for c in seen[4:]} == {5}
    assert not any(c.validation_args.evaluate_oracle or c.validation_args.evaluate_baselines for c in seen)
    assert figures["epochs_1"]["wall_ratio"] == 1.5
    assert ("epochs_5.wall_ratio", 1.5, 1.06) in figures["targets"]


def test_overhead_of_other_epochs_has_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead_module, "_run", lambda config: {"wall": 1.0, "cpu": 1.0, "rounds": 1.0})
    assert bench_overhead("digits", (2,), 1)["targets"] == []


def test_overhead_wants_numbers() -> None:
    done = CliRunner().invoke(bench, ["overhead", "digits", "--epochs", "few"])
    assert done.exit_code == 2
    assert "no list of numbers" in done.output


@pytest.mark.slow
def test_overhead_runs() -> None:
    changes = [part for change in SHORT for part in ("--set", change)]
    options = ["overhead", "digits", "--epochs", "1", "--pairs", "1", *changes, "--json"]
    done = CliRunner().invoke(bench, options, catch_exceptions=False)
    figures = json.loads(done.output.splitlines()[-1])
    assert figures["epochs_1"]["cpu_ratio"] > 0
    assert len(figures["targets"]) == 2


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_quality_setting_is_a_valid_secure_configuration(setting) -> None:
    config = configuration(setting, 3)
    assert config.data_args.dataset == "mnist"
    assert config.common_args.random_seed == 3
    assert config.fedgmi_args.secure.backend == "masked"
    assert config.fedgmi_args.secure.rules.min_contributors >= 4
    assert config.validation_args.evaluate_oracle
    assert config.fedgmi_args.components == len(config.data_args.silo_mixture.components)


@pytest.mark.parametrize(
    ("name", "silos", "kind"),
    [
        ("linear180", 20, "linear"), ("two_level180", 20, "two_level"), ("linear90", 8, "linear"),
        ("dominant4", 24, "dominant"), ("dirichlet4", 24, "dirichlet"), ("fedsoft_linear", 100, "linear"),
        ("fedsoft_two_level", 100, "two_level"),
    ],
)  # fmt: skip
def test_quality_settings_are_those_of_the_table(name: str, silos: int, kind: str) -> None:
    config = configuration(BY_NAME[name], 0)
    assert config.train_args.client_num_in_total == silos
    assert config.data_args.silo_mixture.kind == kind


def _summary(alpha, partition, personalised=0.95, oracle=0.955):
    return SimpleNamespace(
        alpha_mae=alpha, partition_accuracy=partition, personalised_accuracy=personalised, oracle_accuracy=oracle,
        wall_seconds=1.0,
    )  # fmt: skip


def test_quality_judges_the_mean_and_shows_the_worst_seed() -> None:
    row = summarise(BY_NAME["linear180"], [_summary(0.010, 0.98), _summary(0.020, 0.90)])
    assert row["alpha_mae"] == pytest.approx(0.015)
    assert row["worst_partition_accuracy"] == 0.90
    assert [(name, bound) for name, _, bound, _ in row["targets"]] == [
        ("alpha_mae", 0.016), ("partition_accuracy", 0.955), ("oracle_accuracy − personalised_accuracy", 0.01),
    ]  # fmt: skip


def test_quality_of_a_run_without_truth_is_unknown() -> None:
    row = summarise(BY_NAME["linear90"], [_summary(None, None)])
    assert row["alpha_mae"] is None
    assert row["worst_partition_accuracy"] is None


def test_quality_names_its_settings() -> None:
    with pytest.raises(RunError, match="no setting digits; there are linear180"):
        next(bench_quality(["digits"]))


@pytest.mark.slow
def test_quality_runs() -> None:
    changes = [part for change in (*SHORT, "data_args.dataset=digits") for part in ("--set", change)]
    options = ["quality", "--setting", "linear180", *changes, "--json"]
    done = CliRunner().invoke(bench, options, catch_exceptions=False)
    row = json.loads(done.output.splitlines()[-1])
    assert row["setting"] == "linear180"
    assert "data_args.dataset=digits" in row["changed"]
    assert 0 <= row["partition_accuracy"] <= 1
    assert {one["figure"] for one in row["stretch"]} == {"alpha_mae", "partition_accuracy"}
