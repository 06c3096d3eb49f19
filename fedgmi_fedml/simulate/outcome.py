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
from fedgmi_fedml.checkpoint import save_models
from fedgmi_fedml.config import Config
from fedgmi_fedml.data import Federation, TableMoments
from fedgmi_fedml.diagnostics import (
    collapsed_posteriors,
    effective_components,
    idle_components,
    indistinguishable_components,
    posterior_kl,
    surplus_components,
    unreliable_proportions,
)
from fedgmi_fedml.evaluate import Matching, match_components, mean_defined, specialisation_gap
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.models import VaeBank, build_vae
from fedgmi_fedml.report.data import ReportData
from fedgmi_fedml.rounds.fedgmi import Progress
from fedgmi_fedml.rounds.phases import derive_seed
from fedgmi_fedml.rounds.server import Traffic
from fedgmi_fedml.simulate.parties import Parties
from fedgmi_fedml.simulate.watch import Watch
from fedgmi_fedml.summary import RulesSummary, RunSummary, SecureSummary, current_versions
from secure.gate import feasibility
from secure.identity import fingerprint
from secure.types import Rules

FloatArray = npt.NDArray[np.float64]
_DECODED = 24


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
    config: Config, out: Path, federation: Federation, results: Mapping[str, MethodResult], parties: Parties,
    seconds: float,
) -> RunSummary:  # fmt: skip
    """Write everything but the report itself; returns the summary."""
    result = results["fedgmi"]
    if result.progress is None:
        raise ValueError("FedGMI ran without a server")
    best, final = result.progress.best or result.progress.state, result.progress.state
    reports = {i: report["best"] for i, report in sorted(result.reports.items())}
    matching = _matching(reports, federation)
    summary = _summary(config, federation, results, reports, matching, seconds)
    summary.secure = _secure(config, result, federation, parties)
    _save_models(config, out, federation, best, final, result)
    for i, report in result.reports.items():
        atomic.write_json(out / "silos" / f"{parties.names[i]}.json", report)
    _report_data(config, federation, results, matching).save(out, "simulation")
    summary.save(out)
    return summary


def _matching(reports: Mapping[int, dict[str, Any]], federation: Federation) -> Matching | None:
    """Learned components named after the true ones, by proportions; ``None`` without ground truth."""
    if federation.true_alpha is None:
        return None
    held = [i for i, report in reports.items() if report["train_samples"]]
    estimated = np.array([reports[i]["alpha"] for i in held])
    return match_components(estimated, federation.true_alpha[[i - 1 for i in held]])


def _summary(
    config: Config, federation: Federation, results: Mapping[str, MethodResult], reports: Mapping[int, dict[str, Any]],
    matching: Matching | None, seconds: float,
) -> RunSummary:  # fmt: skip
    result = results["fedgmi"]
    progress, watch = result.progress, result.watch
    if progress is None or watch is None:
        raise ValueError("FedGMI ran without a server")
    separability = torch.tensor(progress.separability) if progress.separability else None
    best = progress.best or progress.state
    summary = RunSummary(
        run_name=config.common_args.run_name,
        dataset=config.data_args.dataset,
        components=config.fedgmi_args.components,
        silos=len(federation.silos),
        **_quality(results, reports, matching, separability),
        samples_used=sum(report["train_samples"] for report in reports.values()),
        samples_skipped=federation.skipped,
        rounds=progress.round,
        best_round=progress.best_round,
        wall_seconds=seconds,
        phase_seconds=dict(watch.phase_seconds),
        phase_bytes={phase: float(traffic.up + traffic.down) for phase, traffic in result.traffic.items()},
        seed=config.common_args.random_seed,
        versions=current_versions(),
        config_digest=config.digest(),
        model_digests={"final": progress.state.digest.hex(), "best": best.digest.hex()},
    )
    summary.warnings = _warnings(config, federation, result, summary, separability)
    return summary


def _quality(
    results: Mapping[str, MethodResult], reports: Mapping[int, dict[str, Any]], matching: Matching | None,
    separability: torch.Tensor | None,
) -> dict[str, Any]:  # fmt: skip
    """How good mixtures, partition, experts and predictions are."""
    weights = np.sum([report["assigned"] for report in reports.values()], axis=0)
    table = _expert_table(reports)
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
        quality |= {"alpha_mae": matching.alpha_mae, "partition_accuracy": _partition_accuracy(reports, matching)}
        if table is not None:
            quality["specialisation_gap"] = specialisation_gap(table, matching)
    return quality


def _partition_accuracy(reports: Mapping[int, dict[str, Any]], matching: Matching) -> float:
    """Share of training samples in their true component, from the silos' confusion tables."""
    right = total = 0
    for report in reports.values():
        for component, row in enumerate(report.get("confusion", [])):
            total += sum(row)
            right += sum(count for j, count in enumerate(row) if matching.true_of[j] == component)
    return right / total if total else float("nan")


def _expert_table(reports: Mapping[int, dict[str, Any]]) -> FloatArray | None:
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


def _secure(config: Config, result: MethodResult, federation: Federation, parties: Parties) -> SecureSummary:
    """The protection that was in force."""
    secure, watch, progress = config.fedgmi_args.secure, result.watch, result.progress
    if watch is None or progress is None or watch.server is None:
        raise ValueError("FedGMI ran without a server")
    k = min(config.train_args.client_num_per_round, len(federation.silos))
    masked = secure.backend != "none"
    limits = feasibility(k) if masked else None
    layout = watch.server.phases.layout("rounds")
    rules = Rules(**secure.rules.model_dump())
    history = watch.history[-1] if watch.history else []
    return SecureSummary(
        backend=secure.backend,
        upload_bytes_per_parameter=_bytes_per_parameter(result, layout.length),
        parameters=layout.length,
        frozen_components=[j for j, is_open in enumerate(history) if not is_open],
        rules=RulesSummary(**secure.rules.model_dump()),
        gate=rules.gate(),
        threshold=limits.threshold if limits else None,
        quorum=limits.quorum if limits else None,
        cohort_size=k,
        clip=secure.clip,
        clipped_share=watch.clipped_share,
        roster=fingerprint(parties.roster.digest()) if parties.roster else None,
        sessions=watch.sessions,
        aborted_sessions=watch.aborted,
        dropped_silos=len(watch.dropped),
        partial_rounds=watch.partial,
    )


def _bytes_per_parameter(result: MethodResult, parameters: int) -> float | None:
    """Bytes that silos uploaded in the sample-level rounds, by parameter and uploading silo."""
    traffic, watch = result.traffic.get("rounds"), result.watch
    if traffic is None or watch is None or not watch.uploads or not parameters:
        return None
    return traffic.up / (watch.uploads * parameters)


def _warnings(
    config: Config, federation: Federation, result: MethodResult, summary: RunSummary,
    separability: torch.Tensor | None,
) -> list[str]:  # fmt: skip
    """What a user should know, in words a user can act on."""
    progress, watch = result.progress, result.watch
    if progress is None or watch is None:
        raise ValueError("FedGMI ran without a server")
    findings = list(idle_components(watch.history))
    if separability is not None:
        findings += indistinguishable_components(separability)
    if progress.state.vaes:
        module = build_vae(config, federation.shape, config.common_args.random_seed)
        generator = torch.Generator().manual_seed(derive_seed(config.common_args.random_seed, "posterior"))
        findings += collapsed_posteriors(posterior_kl(VaeBank(module, progress.state.vaes), generator=generator))
    identified = all(report["best"]["temperature_identified"] for report in result.reports.values())
    findings += unreliable_proportions(summary.misassignment_rate or 0.0, temperature_identified=identified)
    findings += surplus_components(summary.effective_components or 0.0, config.fedgmi_args.components)
    texts = [finding.text for finding in findings]
    if summary.samples_skipped:
        texts.append(f"{summary.samples_skipped} files or rows could not be read and were left out")
    chance = 1.0 / config.fedgmi_args.components
    if summary.partition_accuracy is not None and summary.partition_accuracy < chance + 0.25 * (1.0 - chance):
        texts.append(
            f"the partition is close to chance ({summary.partition_accuracy:.0%} of the samples are in their true "
            "component): more warm-up rounds, more sample-level rounds, or larger silos"
        )
    if watch.clipped_share > 0.01:
        texts.append(f"up to {watch.clipped_share:.0%} of the coordinates were clipped: raise fedgmi_args.secure.clip")
    if watch.partial:
        texts.append(f"{watch.partial} rounds were partial: silos dropped out of them")
    if config.fedgmi_args.secure.backend == "none":
        texts.append("secure aggregation was off (backend: none): the server saw every silo's update")
    return texts


def _save_models(
    config: Config, out: Path, federation: Federation, best: MixtureState, final: MixtureState, result: MethodResult
) -> None:
    """``models/best`` and ``models/final``: safetensors with a manifest that says how to build the modules."""
    progress = result.progress
    meta = _calibration(result, federation) | {
        "config_digest": config.digest(),
        "class_names": list(federation.class_names),
        "input_shape": list(federation.shape.input_shape),
        "value_range": federation.shape.value_range,
        "components": config.fedgmi_args.components,
    }
    for which, state in (("best", best), ("final", final)):
        models = {f"{part}-{j}": model for part, found in state.parts().items() for j, model in enumerate(found)}
        number = None if progress is None else progress.best_round if which == "best" else progress.round - 1
        save_models(out / "models" / which, models, {**meta, "round": number, "digest": state.digest.hex()})


def _calibration(result: MethodResult, federation: Federation) -> dict[str, Any]:
    """What a prediction needs beside the models: temperature, offsets, the router's prior, a table's moments."""
    report = result.reports[min(result.reports)]["final"]
    meta: dict[str, Any] = {key: report[key] for key in ("temperature", "offset", "shares") if report[key] is not None}
    if federation.schema is not None:
        mean, spread = report["moments"]
        meta["moments"] = TableMoments(federation.schema, tuple(mean), tuple(spread)).to_dict()
    return meta


def _report_data(
    config: Config, federation: Federation, results: Mapping[str, MethodResult], matching: Matching | None,
) -> ReportData:  # fmt: skip
    """Arrays for the report's pictures."""
    result = results["fedgmi"]
    reports = [report["best"] for _, report in sorted(result.reports.items())]
    progress = result.progress
    if progress is None:
        raise ValueError("FedGMI ran without a server")
    data: dict[str, Any] = {
        "separability": np.array(progress.separability) if progress.separability else None,
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
        "samples": _decoded(config, federation, progress.best or progress.state),
    }
    if matching is not None and federation.true_alpha is not None:
        data["true_alpha"], data["true_of"] = federation.true_alpha, np.array(matching.true_of)
        data["true_names"] = np.array(federation.component_names)
    if federation.schema is not None:
        data["feature_names"] = np.array(federation.schema.features)
    return ReportData(**data)


def _decoded(config: Config, federation: Federation, state: MixtureState) -> npt.NDArray[Any] | None:
    """Decoded samples of every component, (M, S, …)."""
    if not state.vaes:
        return None
    module = build_vae(config, federation.shape, config.common_args.random_seed)
    generator = torch.Generator().manual_seed(derive_seed(config.common_args.random_seed, "decoded"))
    return np.stack([vae.sample(_DECODED, generator).numpy() for vae in VaeBank(module, state.vaes)])


def _rate(test: Mapping[str, int]) -> float:
    """Accuracy of one silo's test part; NaN for none."""
    return test["correct"] / test["samples"] if test["samples"] else float("nan")
