"""The page: verdict first, then results, silos, training, cost, protection and provenance."""

from __future__ import annotations

from fedgmi_fedml.report.components import candidate_figure, expert_figure, sample_figure, separability_figure
from fedgmi_fedml.report.context import Context
from fedgmi_fedml.report.cost import cost
from fedgmi_fedml.report.curves import curves
from fedgmi_fedml.report.markup import Markup, join, table, tag
from fedgmi_fedml.report.protection import headline, protection
from fedgmi_fedml.report.results import comparison, tiles, verdict
from fedgmi_fedml.report.silos import accuracy_figure, mixture_figure
from fedgmi_fedml.report.style import STYLE
from fedgmi_fedml.report.words import enumerated

__all__ = ["render"]

_NOTHING_FROM_OUTSIDE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_KINDS = {
    "simulation": "Simulation report: shows everything, also what no party of a deployment would see",
    "server": "Server report: only what the server may know",
    "silo": "Silo report: holds this silo's own figures; it stays in the house",
}
_STATUS = {
    "stopped_early": ("The run stopped early: the validation accuracy had ceased to rise.", ""),
    "interrupted": ("The run was interrupted. It goes on from its last whole round with --resume.", " warn"),
    "failed": ("The run failed before its last round.", " bad"),
}


def _grid(*figures: Markup | None, kind: str = "grid2") -> Markup | None:
    known = [item for item in figures if item is not None]
    return tag("div", *known, class_=kind) if known else None


def _sections(context: Context) -> list[tuple[str, str, str, Markup | None]]:
    """(anchor, heading, lead, content) in reading order; without content a section is left out."""
    small = 0 < context.components <= 3  # their matrices fit three abreast
    first = [comparison(context, narrow=small), expert_figure(context)]
    apart, looks, candidates = separability_figure(context), sample_figure(context), candidate_figure(context)
    order = [*first, apart, looks] if small else [*first, looks, apart, candidates]
    found = _grid(*order, kind="grid2 grid3" if small else "grid2")
    return [
        ("results", "What it found", "", found),
        ("silos", "Silo by silo", "", _grid(mixture_figure(context), accuracy_figure(context))),
        ("training", "How training went", "", _grid(*curves(context), candidates if small else None)),
        ("cost", "What it cost", "", cost(context)),
        ("protection", "What protected the silos", "", protection(context)),
        ("provenance", "Where this comes from", "", _provenance(context)),
    ]


def _provenance(context: Context) -> Markup:
    summary = context.summary
    rows: list[list[object]] = [
        ["Run", summary.run_name or "–"],
        ["Data set", summary.dataset or "–"],
        ["Seed", "–" if summary.seed is None else str(summary.seed)],
        ["Configuration digest", tag("code", summary.config_digest or "–")],
    ]
    rows += [[f"Digest of the {name} models", tag("code", digest)] for name, digest in summary.model_digests.items()]
    if summary.versions:
        rows.append(["Versions", ", ".join(f"{name} {number}" for name, number in summary.versions.items())])
    text = (
        "The effective configuration is config.yaml beside this page; the figures are summary.json, rounds.jsonl and "
        "report_data.npz, from which “fedgmi report” makes the page again."
    )
    return join(table(["", ""], rows, kind="full"), tag("p", text, class_="small"))


def _notes(context: Context) -> list[Markup]:
    """What a reader must not miss: how the run ended, missing protection, warnings."""
    summary = context.summary
    notes = []
    if summary.status in _STATUS:
        text, kind = _STATUS[summary.status]
        notes.append(tag("div", tag("p", text), class_=f"note{kind}"))
    sentence, kind = headline(summary.secure, context.simulated)
    if kind == "bad":
        notes.append(tag("div", tag("p", tag("strong", sentence)), class_="note bad"))
    if summary.warnings:
        items = [tag("li", text[:1].upper() + text[1:]) for text in summary.warnings]
        word = "warning" if len(items) == 1 else "warnings"
        notes.append(tag("div", tag("strong", f"{len(items)} {word}"), tag("ul", *items), class_="note warn"))
    return notes


def render(context: Context) -> str:
    """The whole document as text. Depends on its input alone."""
    summary = context.summary
    name = summary.run_name or summary.dataset or "FedGMI run"
    title = f"{name}, silo {summary.silo}" if summary.view == "silo" and summary.silo else name
    parts = [part for part in _sections(context) if part[3] is not None]
    about = enumerated([text for text in (summary.dataset, _size(context)) if text])
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_NOTHING_FROM_OUTSIDE),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · FedGMI report"),
        tag("style", Markup(STYLE)),
    )
    header = tag(
        "header",
        tag("p", _KINDS[summary.view], class_="kind"),
        tag("h1", title),
        tag("p", verdict(context), class_="verdict"),
        *_notes(context),
        tiles(context),
    )
    nav = tag("nav", *(tag("a", heading, href=f"#{key}") for key, heading, _, _ in parts), aria_label="Sections")
    sections = [
        tag("section", tag("h2", heading), tag("p", lead, class_="lead") if lead else None, content, id=key)
        for key, heading, lead, content in parts
    ]
    footer = tag("footer", f"FedGMI report. {about}" if about else "FedGMI report.")
    body = tag("body", header, nav, tag("main", *sections), footer)
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _size(context: Context) -> str:
    silos = context.summary.silos
    return f"{silos} silos, {context.components} components" if silos and context.components else ""
