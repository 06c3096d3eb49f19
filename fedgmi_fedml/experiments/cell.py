"""One cell: one method on one configuration, through the simulation's drivers, to one JSON-able record.

The record holds all that tables and figures need; nothing else of a cell's run is kept. In a simulation the truth is
known, so it may hold every silo's mixture.
"""

from __future__ import annotations

import base64
import json
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgmi_fedml.baselines import METHODS
from fedgmi_fedml.config import Config
from fedgmi_fedml.data import Federation, load_federation
from fedgmi_fedml.errors import RunEndedEarly
from fedgmi_fedml.evaluate import Matching, specialisation_gap
from fedgmi_fedml.experiments.definition import Cell
from fedgmi_fedml.experiments.trend import spearman
from fedgmi_fedml.progress import open_progress
from fedgmi_fedml.report.png import contact_sheet, encode_png
from fedgmi_fedml.rounds.outcome import decoded_samples
from fedgmi_fedml.simulate.outcome import MethodResult, expert_table, partition_accuracy, true_names
from fedgmi_fedml.simulate.parties import Parties
from fedgmi_fedml.simulate.run import Simulation
from fedgmi_fedml.summary import current_versions
from fedgmi_fedml.telemetry import open_telemetry

__all__ = ["FIGURES", "FORMAT", "run_cell"]

FORMAT = "fedgmi-cell/1"

FIGURES = (
    "alpha_mae", "alpha_spearman", "partition_accuracy", "specialisation_gap", "personalised_accuracy",
    "pooled_accuracy", "worst_silo_accuracy", "upload_bytes", "download_bytes", "wall_seconds",
)  # fmt: skip
"""The numbers of a cell that tables compare; ``None`` where a method has none."""

_HISTORY = (
    "phase", "round", "bytes_up", "bytes_down", "seconds", "open", "validation_accuracy", "test_accuracy", "alpha_mae",
    "partition_accuracy",
)  # fmt: skip
_PICTURES = 8


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run a cell to its end and return its record. A run that ends early is a result too: ``status`` says so.

    Raises:
        FedgmiError: data or models that are not there, or do not fit.
    """
    began = time.monotonic()
    torch.set_num_threads(1)
    config = cell.config
    federation = load_federation(config)
    record: dict[str, Any] = _head(cell, config, federation)
    with tempfile.TemporaryDirectory(prefix="fedgmi-cell-") as scratch:
        folder = Path(scratch)
        try:
            result, end = _run(cell.method, config, federation, folder)
            record |= _figures(cell.method, result, federation) | end
        except RunEndedEarly as error:
            record |= dict.fromkeys(FIGURES) | {"status": "ended early", "reason": str(error)}
        record |= _bytes_and_history(folder / "rounds.jsonl")
    record["wall_seconds"] = round(time.monotonic() - began, 2)
    record["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return record


def _head(cell: Cell, config: Config, federation: Federation) -> dict[str, Any]:
    """What was run."""
    learns = METHODS[cell.method].configure(config, len(federation.component_names) or 1) if _served(cell) else config
    return {
        "format": FORMAT,
        "status": "finished",
        "method": cell.method,
        "data": cell.data,
        "mixture": cell.mixture,
        "variant": cell.variant,
        "components": learns.fedgmi_args.components if _served(cell) else 1,
        "true_components": len(federation.component_names) or None,
        "component_names": list(federation.component_names),
        "k": cell.k,
        "silos": len(federation.silos),
        "seed": cell.seed,
        "rounds": config.train_args.comm_round,
        "backend": config.fedgmi_args.secure.backend if _served(cell) else "none",
        "base": cell.base,
        "settings": dict(cell.settings),
        "config_digest": config.run_digest(),
        "versions": current_versions(),
    }


def _served(cell: Cell) -> bool:
    return cell.method != "local"


def _run(method: str, config: Config, federation: Federation, folder: Path) -> tuple[MethodResult, dict[str, Any]]:
    """The method's result, and pictures of what its VAEs have learnt."""
    parties = Parties(config, federation, workers=1, scratch=folder / "scratch")
    try:
        if method == "local":
            return MethodResult.local(parties.gather("train_local_only")), {}
        with (
            open_progress(quiet=True) as progress,
            open_telemetry(folder, "simulation") as telemetry,
        ):
            simulation = Simulation(config, folder, parties, federation, None, telemetry, progress)
            result = simulation.method(method)
    finally:
        parties.close()
    best = None if result.progress is None else result.progress.best
    if best is None or not best.vaes or len(federation.shape.input_shape) != 3:
        return result, {}
    samples = decoded_samples(config, federation.shape, best)
    sheets = [] if samples is None else [contact_sheet(images[:_PICTURES], _PICTURES) for images in samples]
    return result, {"decoded_png": [base64.b64encode(encode_png(sheet)).decode() for sheet in sheets]}


def _figures(method: str, result: MethodResult, federation: Federation) -> dict[str, Any]:
    """Every figure of ``FIGURES`` that needs the silos' reports, with what the figures are drawn from."""
    reports = {i: report["best"] for i, report in sorted(result.reports.items())}
    tests = [report["test"] for report in reports.values()]
    accuracies = [test["correct"] / test["samples"] for test in tests if test["samples"]]
    found: dict[str, Any] = dict.fromkeys(FIGURES) | {
        "personalised_accuracy": _number(result.mean_accuracy()),
        "pooled_accuracy": _number(result.pooled_accuracy()),
        "worst_silo_accuracy": _number(min(accuracies)) if accuracies else None,
        "silo_accuracy": [round(value, 5) for value in accuracies],
    }
    if method in METHODS and (METHODS[method].mixes or method == "oracle"):
        matching = true_names(reports, federation)
        found |= _experts(reports, matching)
        if matching is not None and METHODS[method].mixes:
            found |= _mixture(reports, matching, federation)
    return found


def _experts(reports: Mapping[int, dict[str, Any]], matching: Matching | None) -> dict[str, Any]:
    """Accuracy of every expert on every true component, and the specialisation gap."""
    table = expert_table(reports)
    if table is None or matching is None:
        return {"expert_accuracy": None}
    return {
        "expert_accuracy": [[_number(value) for value in row] for row in table.tolist()],
        "true_of": list(matching.true_of),
        "specialisation_gap": _number(specialisation_gap(table, matching)),
    }


def _mixture(reports: Mapping[int, dict[str, Any]], matching: Matching, federation: Federation) -> dict[str, Any]:
    """Estimated against true proportions; columns in the order of the true components."""
    held = [i for i, report in reports.items() if report["train_samples"]]
    true = np.asarray(federation.true_alpha, dtype=np.float64)[[i - 1 for i in held]]
    estimated = np.zeros_like(true)
    for j, component in enumerate(matching.true_of):
        if component >= 0:
            estimated[:, component] = [reports[i]["alpha"][j] for i in held]
    return {
        "alpha_mae": _number(matching.alpha_mae),
        "alpha_spearman": _number(spearman(estimated, true)),
        "partition_accuracy": _number(partition_accuracy(reports, matching)),
        "alpha": np.round(estimated, 5).tolist(),
        "true_alpha": np.round(true, 5).tolist(),
    }


def _bytes_and_history(rounds: Path) -> dict[str, Any]:
    """Bytes of all silos together, and the rounds as lines of a few figures."""
    lines = [json.loads(line) for line in rounds.read_text(encoding="utf-8").splitlines()] if rounds.exists() else []
    return {
        "upload_bytes": sum(line.get("bytes_up") or 0 for line in lines),
        "download_bytes": sum(line.get("bytes_down") or 0 for line in lines),
        "frozen_rounds": sum(line["phase"] == "rounds" and not all(line.get("open", [False])) for line in lines),
        "history": [{key: _rounded(line[key]) for key in _HISTORY if line.get(key) is not None} for line in lines],
    }


def _rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def _number(value: float) -> float | None:
    """A finite number, or ``None``."""
    return round(float(value), 6) if np.isfinite(value) else None
