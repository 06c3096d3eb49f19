"""What a silo leaves behind for its own eyes: its mixture, its accuracy, and the models, as ``fedgmi predict`` and
``export`` read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedgmi_fedml import atomic
from fedgmi_fedml.data.announced import Announced
from fedgmi_fedml.diagnostics import effective_components, unreliable_proportions
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.report import write_report
from fedgmi_fedml.report.data import ReportData
from fedgmi_fedml.rounds.local import FedGMIWork
from fedgmi_fedml.rounds.outcome import decoded_samples, protection_in_force, save_run_models
from fedgmi_fedml.rounds.silo_report import calibration, final_report
from fedgmi_fedml.summary import RunSummary, current_versions
from secure.roster import Roster


def write_own_outcome(
    work: FedGMIWork, final: MixtureState, best: MixtureState, out: Path, announced: Announced, *, silos: int | None,
    roster: Roster | None, seconds: float, failed: bool, reason: str,
) -> Path:  # fmt: skip
    """Models, figures and page of one silo; returns the page.

    Args:
        final, best: the shared models at the run's end, and the best ones by validation accuracy.
        silos: how many take part, where known.
        seconds: wall time of this process.
        failed, reason: whether the run ended early, and why.
    """
    config = work.phases.config
    report = final_report(work, final, best)
    fitted = calibration(report["final"], announced.schema)
    for which, state in (("best", best), ("final", final)):
        save_run_models(out, which, state, config, announced.shape, announced.class_names, fitted, None)
    atomic.write_json(out / "silos" / f"{work.data.name}.json", report)
    _report_data(work, report["best"], best, announced).save(out, "silo")
    summary = RunSummary(
        view="silo",
        silo=work.data.name,
        run_name=config.common_args.run_name,
        dataset=config.data_args.dataset,
        status="failed" if failed else "finished",
        components=config.fedgmi_args.components,
        silos=silos,
        **_figures(report["best"]),
        wall_seconds=seconds,
        seed=config.common_args.random_seed,
        versions=current_versions(),
        config_digest=config.digest(),
        model_digests={"final": final.digest.hex(), "best": best.digest.hex()},
        secure=protection_in_force(work.phases, roster),
    )
    summary.warnings = [f"the run ended early: {reason}"] * failed + _warnings(report["best"], summary)
    summary.save(out)
    return write_report(out)


def _figures(report: dict[str, Any]) -> dict[str, Any]:
    """The silo's figures in the summary's names."""
    test = report["test"]
    return {
        "personalised_accuracy": test["correct"] / test["samples"] if test["samples"] else None,
        "effective_components": effective_components(report["assigned"]) if sum(report["assigned"]) else None,
        "misassignment_rate": report["misassignment"],
        "samples_used": report["train_samples"],
        "samples_skipped": report["unreadable_files"],
    }


def _warnings(report: dict[str, Any], summary: RunSummary) -> list[str]:
    findings = unreliable_proportions(
        summary.misassignment_rate or 0.0, temperature_identified=report["temperature_identified"]
    )
    texts = [finding.text for finding in findings]
    if summary.samples_skipped:
        texts.append(f"{summary.samples_skipped} files or rows could not be read and were left out")
    if not report["train_samples"]:
        texts.append("this silo holds no training samples: it took part with no weight")
    if summary.secure.backend == "none":
        texts.append("secure aggregation was off (backend: none): the server saw this silo's updates")
    return texts


def _report_data(work: FedGMIWork, report: dict[str, Any], state: MixtureState, announced: Announced) -> ReportData:
    test = report["test"]
    return ReportData(
        samples=decoded_samples(work.phases.config, announced.shape, state),
        class_names=np.array(announced.class_names),
        feature_names=None if announced.schema is None else np.array(announced.schema.features),
        silo_names=np.array([work.data.name]),
        alpha=np.array([report["alpha"]]),
        silo_accuracy=np.array([test["correct"] / test["samples"] if test["samples"] else float("nan")]),
        silo_samples=np.array([report["train_samples"]]),
    )
