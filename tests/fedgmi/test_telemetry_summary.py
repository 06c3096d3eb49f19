"""summary.json: unknown is null, numbers are finite, and each audience gets its own figures only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedgmi_fedml.errors import CheckpointError
from fedgmi_fedml.summary import RulesSummary, RunSummary, SecureSummary, current_versions, load_summary

REQUIRED = {
    "alpha_mae",
    "effective_components",
    "rounds",
    "seed",
    "wall_seconds",
    "personalised_accuracy",
    "oracle_accuracy",
    "secure",
    "specialisation_gap",
    "warnings",
    "expert_accuracy",
    "phase_seconds",
    "pooled_accuracy",
    "versions",
    "partition_accuracy",
    "config_digest",
}


def full() -> RunSummary:
    return RunSummary(
        alpha_mae=0.01,
        partition_accuracy=0.97,
        expert_accuracy=np.eye(2),
        specialisation_gap=1.0,
        personalised_accuracy=0.9,
        pooled_accuracy={"fedgmi": 0.9, "oracle": 0.92},
        oracle_accuracy=0.92,
        effective_components=1.99,
        rounds=10,
        secure=SecureSummary(
            backend="masked",
            rules=RulesSummary(colluders=1, max_drops=1, min_contributors=4, min_samples=8, w_max=0.5),
        ),
    )


def test_unknown_is_null_and_the_promised_keys_are_there(tmp_path: Path) -> None:
    RunSummary().save(tmp_path)
    content = json.loads((tmp_path / "summary.json").read_text())
    assert set(content) >= REQUIRED
    assert content["alpha_mae"] is None
    assert {"backend", "upload_bytes_per_parameter", "frozen_components"} <= set(content["secure"])


def test_round_trip(tmp_path: Path) -> None:
    full().save(tmp_path)
    assert load_summary(tmp_path) == full()


def test_arrays_become_numbers_and_nothing_infinite_is_written(tmp_path: Path) -> None:
    summary = RunSummary(
        alpha_mae=float("nan"),
        expert_accuracy=torch.tensor([[1.0, float("inf")]]),
        rounds=np.int64(3),
        phase_seconds={"rounds": np.float32(1.5), "warmup": float("inf")},
    )
    summary.personalised_accuracy = np.float64("nan")
    summary.save(tmp_path)
    content = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert content["alpha_mae"] is None
    assert content["personalised_accuracy"] is None
    assert content["expert_accuracy"] == [[1.0, None]]
    assert content["phase_seconds"] == {"rounds": 1.5, "warmup": None}
    assert content["rounds"] == 3


@pytest.mark.parametrize("audience", ["server", "silo"])
def test_a_party_of_a_deployment_never_holds_what_needs_the_truth(tmp_path: Path, audience: str) -> None:
    summary = full()
    summary.view = audience
    summary.save(tmp_path)
    content = json.loads((tmp_path / "summary.json").read_text())
    for name in ("alpha_mae", "partition_accuracy", "oracle_accuracy"):
        assert content[name] is None
    for name in ("expert_accuracy", "specialisation_gap", "effective_components"):
        assert (content[name] is None) == (audience == "server")
    assert content["pooled_accuracy"] == {"fedgmi": 0.9}
    assert content["personalised_accuracy"] == 0.9


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(ValidationError):
        RunSummary(alpha_mea=0.1)
    with pytest.raises(ValidationError):
        RunSummary(secure={"backend": "plaintext"})


def test_a_missing_or_broken_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has not ended yet"):
        load_summary(tmp_path)
    for content in ("{", '{"rounds": "many"}', '{"unheard": 1}'):
        (tmp_path / "summary.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"summary\.json cannot be read"):
            load_summary(tmp_path)


def test_versions_name_what_computes() -> None:
    assert {"python", "torch", "numpy"} <= set(current_versions())
