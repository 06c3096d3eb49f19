"""How a party's process ends, and what the server leaves behind: no more than it may know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedgmi_fedml.report import write_report
from fedgmi_fedml.report.data import ReportData
from fedgmi_fedml.rounds.outcome import RunEnd, decoded_samples
from fedgmi_fedml.summary import RunSummary

Status = Literal["finished", "failed", "stood"]


@dataclass(frozen=True)
class Outcome:
    """A process's end.

    Attributes:
        status: ``finished``; ``failed``: ended early, with the last whole models kept; ``stood``: the folder held a
            finished run already.
        folder: the party's folder.
        report: its ``report.html``, or ``None`` where the run ended before there were models.
        reason: why it ended, in words.
    """

    status: Status
    folder: Path
    report: Path | None = None
    reason: str = ""


def write_server_outcome(
    end: RunEnd, out: Path, class_names: tuple[str, ...], seconds: float, failed: bool, reason: str
) -> Path | None:
    """Models, figures and page of the server; returns the page, ``None`` where there are no models yet.

    Args:
        seconds: wall time of all processes of the run.
        reason: why a failed run ended.
    """
    summary = end.summary(seconds, personalised_accuracy=end.watch.test_accuracy)
    summary.view, summary.status = "server", "failed" if failed else "finished"
    if failed:
        summary.warnings = [f"the run ended early: {reason}"]
    if end.final.components:
        # what only silos learn from their totals (a fitted temperature, offsets, moments) is not the server's to keep
        end.save_models(out, class_names, {})
        summary.warnings = [*summary.warnings, *end.model_warnings()]
    summary.warnings = [*summary.warnings, *end.protocol_warnings()]
    _report_data(end, class_names).save(out, "server")
    return _published(summary, out, bool(end.final.components))


def _published(summary: RunSummary, out: Path, whole: bool) -> Path | None:
    """The summary is written last but for the page made from it: with it, the run counts as ended."""
    summary.save(out)
    return write_report(out) if whole else None


def _report_data(end: RunEnd, class_names: tuple[str, ...]) -> ReportData:
    progress, schema = end.progress, end.phases.schema
    return ReportData(
        separability=np.array(progress.separability) if progress.separability else None,
        class_names=np.array(class_names),
        samples=decoded_samples(end.config, end.phases.shape, end.best),
        feature_names=None if schema is None else np.array(schema.features),
    )
