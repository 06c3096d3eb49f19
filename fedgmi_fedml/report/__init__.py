"""The report of a run: one self-contained page made from summary.json, rounds.jsonl and report_data.npz alone."""

from __future__ import annotations

from pathlib import Path

from fedgmi_fedml import atomic
from fedgmi_fedml.report.context import Context
from fedgmi_fedml.report.data import ReportData
from fedgmi_fedml.report.page import render
from fedgmi_fedml.report.terminal import terminal_summary
from fedgmi_fedml.summary import Audience, load_summary
from fedgmi_fedml.telemetry.sinks import read_json_lines
from fedgmi_fedml.telemetry.vocabulary import ROUND_FIELDS

__all__ = ["ReportData", "terminal_summary", "write_report"]


def write_report(run_dir: Path, audience: Audience | None = None) -> Path:
    """Make ``report.html`` of a finished run and return its path. Equal files give an equal page.

    Args:
        run_dir: folder with summary.json, and rounds.jsonl and report_data.npz where there are any.
        audience: for whom; default: whom the summary was written for. A narrower one than that is possible (a server's
            report of a simulation); a wider one shows no more than the files hold.

    Raises:
        CheckpointError: a file is missing or damaged; the message names it.
        DeliveryError: a silo's report was asked for where several silos' figures lie.
    """
    run_dir = Path(run_dir)
    summary = load_summary(run_dir)
    shown = audience or summary.view
    data = ReportData.load(run_dir).for_audience(shown)
    records = [
        {
            name: value
            for name, value in record.items()
            if name in ROUND_FIELDS and shown in ROUND_FIELDS[name].audiences
        }
        for record in read_json_lines(run_dir / "rounds.jsonl")
    ]
    path = run_dir / ("report.html" if shown == summary.view else f"report-{shown}.html")
    atomic.write_bytes(path, render(Context(summary.for_audience(shown), data, records)).encode())
    return path
