"""What a simulation leaves behind: models, silos' own figures, ``summary.json`` and what the report is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedgmi_fedml import atomic
from fedgmi_fedml.data import Federation
from fedgmi_fedml.diagnostics import effective_components, surplus_components, unreliable_proportions
from fedgmi_fedml.evaluate import Matching, match_components, mean_defined, specialisation_gap
from fedgmi_fedml.report.data import ReportData
from fedgmi_fedml.rounds.fedgmi import Progress
from fedgmi_fedml.rounds.outcome import RunEnd, decoded_samples
from fedgmi_fedml.rounds.server import Traffic
from fedgmi_fedml.rounds.silo_report import calibration
from fedgmi_fedml.rounds.watch import Watch
from fedgmi_fedml.simulate.parties import Parties
from fedgmi_fedml.summary import RunSummary

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MethodResult:
    """One method's end.

    Attributes:
        progress: the server's, with final and best models; ``None`` for methods without a server.
        reports: every silo's own report (``rounds.silo_report``), under final and best models.
        watch: what was seen on the way.
        traffic: bytes and messages by phase.
    """

    progress: Progress | None
    reports: dict[int, dict[str, Any]]
    watch: Watch | None = None
    traffic: dict[str, Traffic] = field(default_factory=dict)

    @classmethod
    def local(cls, right: Mapping[int, tuple[int, int]]) -> MethodResult:
        """The result of training alone: right predictions and test samples by silo."""
        reports = {i: {"best": {"test": {"correct": r, "samples": n}}} for i, (r, n) in right.items()}
        return cls(None, reports)

    def pooled_accuracy(self) -> float:
        """Share of right predictions over all silos' test samples together, under the best models."""
        tests = [report["best"]["test"] for report in self.reports.values()]
        samples = sum(test["samples"] for test in tests)
        return sum(test["correct"] for test in tests) / samples if samples else float("nan")

    def mean_accuracy(self) -> float:
        """Mean over silos of each silo's own test accuracy; silos without a test part are left out."""
        tests = [report["best"]["test"] for report in self.reports.values()]
        return mean_defined([_rate(test) for test in tests])


def write_outcome(
    out: Path, federation: Federation, results: Mapping[str, MethodResult], parties: Parties, seconds: float
) -> RunSummary:
    """Write everything but the report itself; returns the summary."""
    result = results["fedgmi"]
    end = _run_end(result, federation, parties)
    reports = {i: report["best"] for i, report in sorted(result.reports.items())}
    matching = true_names(reports, federation)
    summary = end.summary(
        seconds,
        **_quality(results, reports, matching, end.separability),
        samples_used=sum(report["train_samples"] for report in reports.values()),
        samples_skipped=federation.skipped,
    )
    summary.warnings = _warnings(end, result, summary)
    fitted = calibration(result.reports[min(result.reports)]["final"], federation.schema)
    end.save_models(out, federation.class_names, fitted)
    for i, report in result.reports.items():
        atomic.write_json(out / "silos" / f"{parties.names[i]}.json", report)
    _report_data(end, federation, results, matching).save(out, "simulation")
    summary.save(out)
    return summary


def _run_end(result: MethodResult, federation: Federation, parties: Parties) -> RunEnd:
    """What the server knows."""
    if result.progress is None or result.watch is None or result.watch.server is None:
        raise ValueError("FedGMI ran without a server")
    phases = result.watch.server.phases
    return RunEnd(phases, len(federation.silos), result.progress, result.watch, result.traffic, parties.roster)


def true_names(reports: Mapping[int, dict[str, Any]], federation: Federation) -> Matching | None:
    """Learned components named after the true ones, by proportions; ``None`` without ground truth."""
    if federation.true_alpha is None:
        return None
    held = [i for i, report in reports.items() if report["train_samples"]]
    estimated = np.array([reports[i]["alpha"] for i in held])
    return match_components(estimated, federation.true_alpha[[i - 1 for i in held]])


def _quality(
    results: Mapping[str, MethodResult], reports: Mapping[int, dict[str, Any]], matching: Matching | None,
    separability: torch.Tensor | None,
) -> dict[str, Any]:  # fmt: skip
    """How good mixtures, partition, experts and predictions are."""
    weights = np.sum([report["assigned"] for report in reports.values()], axis=0)
    table = expert_table(reports)
    oracle = results.get("oracle")
    doubts = [r["misassignment"] for r in reports.values() if r["misassignment"] is not None]
    quality: dict[str, Any] = {
        "expert_accuracy": table,
        "personalised_accuracy": results["fedgmi"].mean_accuracy(),
        "pooled_accuracy": {name: method.pooled_accuracy() for name, method in results.items()},
        "oracle_accuracy": None if oracle is None else oracle.mean_accuracy(),
        "effective_components": effective_components(weights.tolist(), separability),
        "misassignment_rate": mean_defined(doubts),
    }
    if matching is not None:
        quality |= {"alpha_mae": matching.alpha_mae, "partition_accuracy": partition_accuracy(reports, matching)}
        if table is not None:
            quality["specialisation_gap"] = specialisation_gap(table, matching)
    return quality


def partition_accuracy(reports: Mapping[int, dict[str, Any]], matching: Matching) -> float:
    """Share of training samples in their true component, from the silos' confusion tables."""
    right = total = 0
    for report in reports.values():
        for component, row in enumerate(report.get("confusion", [])):
            total += sum(row)
            right += sum(count for j, count in enumerate(row) if matching.true_of[j] == component)
    return right / total if total else float("nan")


def expert_table(reports: Mapping[int, dict[str, Any]]) -> FloatArray | None:
    """Accuracy of every expert (rows) on the test samples of every true component (columns)."""
    tables = [
        (report["expert_correct"], report["component_samples"])
        for report in reports.values()
        if "expert_correct" in report
    ]
    if not tables:
        return None
    columns = max(len(samples) for _, samples in tables)
    right = sum(np.pad(np.array(t, float), ((0, 0), (0, columns - len(s)))) for t, s in tables)
    count = sum(np.pad(np.array(s, float), (0, columns - len(s))) for _, s in tables)
    with np.errstate(invalid="ignore"):
        table: FloatArray = np.asarray(right) / np.asarray(count)
    return table


def _warnings(end: RunEnd, result: MethodResult, summary: RunSummary) -> list[str]:
    """What a user should know, in words a user can act on."""
    components = end.config.fedgmi_args.components
    identified = all(report["best"]["temperature_identified"] for report in result.reports.values())
    findings = unreliable_proportions(summary.misassignment_rate or 0.0, temperature_identified=identified)
    findings += surplus_components(summary.effective_components or 0.0, components)
    texts = end.model_warnings() + [finding.text for finding in findings]
    if summary.samples_skipped:
        texts.append(f"{summary.samples_skipped} files or rows could not be read and were left out")
    chance = 1.0 / components
    if summary.partition_accuracy is not None and summary.partition_accuracy < chance + 0.25 * (1.0 - chance):
        texts.append(
            f"the partition is close to chance ({summary.partition_accuracy:.0%} of the samples are in their true "
            "component): more warm-up rounds, more sample-level rounds, or larger silos"
        )
    return texts + end.protocol_warnings()


def _report_data(
    end: RunEnd, federation: Federation, results: Mapping[str, MethodResult], matching: Matching | None
) -> ReportData:
    """Arrays for the report's pictures."""
    reports = [report["best"] for _, report in sorted(results["fedgmi"].reports.items())]
    data: dict[str, Any] = {
        "separability": np.array(end.progress.separability) if end.progress.separability else None,
        "class_names": np.array(federation.class_names),
        "silo_names": np.array([report["name"] for report in reports]),
        "alpha": np.array([report["alpha"] for report in reports]),
        "silo_accuracy": np.array([_rate(report["test"]) for report in reports]),
        "silo_samples": np.array([report["train_samples"] for report in reports]),
        "other_accuracy": {
            name: np.array([_rate(report["best"]["test"]) for _, report in sorted(other.reports.items())])
            for name, other in results.items()
            if name != "fedgmi"
        },
        "samples": decoded_samples(end.config, federation.shape, end.best),
    }
    if matching is not None and federation.true_alpha is not None:
        data["true_alpha"], data["true_of"] = federation.true_alpha, np.array(matching.true_of)
        data["true_names"] = np.array(federation.component_names)
    if federation.schema is not None:
        data["feature_names"] = np.array(federation.schema.features)
    return ReportData(**data)


def _rate(test: Mapping[str, int]) -> float:
    """Accuracy of one silo's test part; NaN for none."""
    return test["correct"] / test["samples"] if test["samples"] else float("nan")
