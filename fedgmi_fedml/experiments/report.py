"""An experiment's report, from its JSON alone: ``report.md``, ``tables/*.tex``, ``figures/*.svg``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgmi_fedml import atomic
from fedgmi_fedml.errors import CheckpointError
from fedgmi_fedml.experiments.chart import standalone
from fedgmi_fedml.experiments.figures import figures
from fedgmi_fedml.experiments.groups import distinct, group
from fedgmi_fedml.experiments.store import Store
from fedgmi_fedml.experiments.tables import Table, comparisons, variant_tables
from fedgmi_fedml.experiments.targets import targets

__all__ = ["write_experiment_report"]


def write_experiment_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of the cells in ``folder/cells``. Equal cells give equal bytes.

    Args:
        out: where to; default ``folder``.

    Returns:
        The path of ``report.md``.

    Raises:
        CheckpointError: no cells, or a damaged one.
    """
    records = Store(folder).records()
    if not records:
        raise CheckpointError(f"{folder} holds no cells (cells/*.json): run the experiment first, or check the folder")
    out = out or folder
    groups = group(records)
    asked = targets(groups)
    tables = [*([asked] if asked else []), *comparisons(groups), *variant_tables(groups)]
    for table in tables:
        atomic.write_bytes(out / "tables" / f"{table.key}.tex", table.latex().encode())
    drawn = figures(groups)
    for name, (_, panel) in drawn.items():
        atomic.write_bytes(out / "figures" / f"{name}.svg", standalone(panel))
    captions = {name: caption for name, (caption, _) in drawn.items()}
    page = out / "report.md"
    atomic.write_bytes(page, _page(records, tables, captions).encode())
    return page


def _page(records: Sequence[dict[str, Any]], tables: Sequence[Table], captions: dict[str, str]) -> str:
    """The report as Markdown."""
    lines = [f"# Results: {', '.join(distinct(record['experiment'] for record in records))}", ""]
    lines += [*_facts(records), ""]
    for table in tables:
        lines += [table.markdown(), ""]
    lines += ["## Figures", ""]
    for name, caption in captions.items():
        lines += [f"![{caption}](figures/{name}.svg)", "", caption, ""]
    return "\n".join(lines).rstrip() + "\n"


def _facts(records: Sequence[dict[str, Any]]) -> list[str]:
    """How much was run, with what."""
    seconds = sum(record["wall_seconds"] for record in records)
    early = [record["id"] for record in records if record["status"] != "finished"]
    frozen = [record["id"] for record in records if record.get("frozen_rounds")]
    versions = distinct(
        ", ".join(f"{name} {record['versions'][name]}" for name in ("fedgmi-fedml", "torch", "python")
                  if name in record["versions"])
        for record in records
    )  # fmt: skip
    lines = [
        f"- {len(records)} cells, {seconds / 3600:.2f} hours of them one after the other; seeds "
        f"{', '.join(map(str, sorted({record['seed'] for record in records})))}.",
        f"- With {'; '.join(versions)}.",
        f"- Back-end: {', '.join(sorted({record['backend'] for record in records if record['method'] != 'local'}))}.",
    ]
    if frozen:
        lines.append(
            f"- In {len(frozen)} cells some component stayed closed in some round (fewer holders than the gate): "
            f"{_some(frozen)}."
        )
    if early:
        lines.append(f"- {len(early)} cells ended early: {_some(early)}.")
    return lines


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
