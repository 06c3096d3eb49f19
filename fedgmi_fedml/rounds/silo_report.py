"""A silo's own report at the end of a run: its mixture, its accuracy, what its data contributed. It stays there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedgmi_fedml.data import SiloData, TableMoments, TableSchema
from fedgmi_fedml.local_training import expert_predictions
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.rounds.local import FedGMIWork


def final_report(work: FedGMIWork, final: MixtureState, best: MixtureState) -> dict[str, Any]:
    """``{"final": …, "best": …}``: the silo's figures under both models. Its memory goes with the final ones after."""
    memory = work.memory
    report = {"best": silo_report(work, best)} if best is not final else {}
    work.memory = memory
    report["final"] = silo_report(work, final)
    report.setdefault("best", report["final"])
    return report


def calibration(report: Mapping[str, Any], schema: TableSchema | None) -> dict[str, Any]:
    """What a prediction needs beside the models: temperature, offsets, the router's prior, a table's moments."""
    meta: dict[str, Any] = {key: report[key] for key in ("temperature", "offset", "shares") if report[key] is not None}
    if schema is not None:
        mean, spread = report["moments"]
        meta["moments"] = TableMoments(schema, tuple(mean), tuple(spread)).to_dict()
    return meta


def silo_report(work: FedGMIWork, state: MixtureState) -> dict[str, Any]:
    """Figures of one silo under ``state``; α is re-estimated under it first.

    Returns:
        JSON-able: ``name``, ``alpha`` (M), ``assigned`` (M counts), ``train_samples``; ``test`` with ``samples``,
        ``correct`` (mixture gating) and ``correct_map``; ``mean_margin``; with ground truth also ``confusion``
        (true component × assigned, training samples) and ``expert_correct`` (expert × true component) with
        ``component_samples``, on the test part.
    """
    work.repartition(state)
    memory, data = work.memory, work.data
    assignment = memory.assignment if memory.assignment is not None else torch.zeros(0, dtype=torch.int64)
    report: dict[str, Any] = {
        "name": data.name,
        "silo": work.silo,
        "alpha": memory.alpha.tolist(),
        "assigned": torch.bincount(assignment, minlength=work.components).tolist(),
        "train_samples": len(data.x_train),
        "unreadable_files": data.skipped,
        "temperature": work.temperature,
        "temperature_identified": memory.temperature is None or bool(memory.temperature[1]),
        "offset": None if memory.offset is None else memory.offset.tolist(),
        "shares": None if memory.shares is None else memory.shares.tolist(),
        "moments": None if memory.moments is None else memory.moments.tolist(),
        "misassignment": _doubt(work, data, state),
        "test": _accuracy(work, data, state),
    }
    if data.true_component_train is not None:
        report["confusion"] = _counts(data.true_component_train, assignment, work.components)
        report["true_alpha"] = _shares(data.true_component_train)
    if data.true_component_test is not None and len(data.x_test):
        report["expert_correct"], report["component_samples"] = _expert_matrix(work, data, state)
    return report


def _doubt(work: FedGMIWork, data: SiloData, state: MixtureState) -> float | None:
    """Mean of 1 − max_j r_j(x) over the training samples."""
    if not len(data.x_train):
        return None
    return float((1.0 - work.gate(data.x_train, state).max(1).values).mean())


def _accuracy(work: FedGMIWork, data: SiloData, state: MixtureState) -> dict[str, int]:
    """Right predictions on the test part, by mixture and by MAP gating."""
    if not len(data.x_test):
        return {"samples": 0, "correct": 0, "correct_map": 0}
    if work.partition == "truth" and data.true_component_test is not None:
        gate = torch.nn.functional.one_hot(data.true_component_test, work.components).double()
    else:
        gate = work.gate(data.x_test, state)
    hard = torch.nn.functional.one_hot(gate.argmax(1), gate.shape[1]).double()
    right = [int((work.predict(data.x_test, state, g).argmax(1) == data.y_test).sum()) for g in (gate, hard)]
    return {"samples": len(data.x_test), "correct": right[0], "correct_map": right[1]}


def _expert_matrix(work: FedGMIWork, data: SiloData, state: MixtureState) -> tuple[list[list[int]], list[int]]:
    """Right predictions of every expert on the test samples of every true component."""
    truth = data.true_component_test
    if truth is None:
        raise ValueError("no ground truth")
    components = int(truth.max()) + 1
    rows = []
    for expert in state.experts:
        right = expert_predictions(work.bench.expert, expert, data.x_test).argmax(1) == data.y_test
        rows.append([int(right[truth == c].sum()) for c in range(components)])
    return rows, [int((truth == c).sum()) for c in range(components)]


def _counts(truth: torch.Tensor, assignment: torch.Tensor, assigned: int) -> list[list[int]]:
    """Training samples by true component (rows) and assigned component (columns)."""
    if not len(truth):
        return []
    rows = int(truth.max()) + 1
    flat = torch.bincount(truth * assigned + assignment, minlength=rows * assigned)
    table: list[list[int]] = flat.view(rows, assigned).tolist()
    return table


def _shares(truth: torch.Tensor) -> list[float]:
    counts = torch.bincount(truth).double()
    shares: list[float] = (counts / max(float(counts.sum()), 1.0)).tolist()
    return shares
