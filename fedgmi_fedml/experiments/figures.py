"""Figures of a comparison, from groups of cells: proportions, experts, convergence, decoded samples."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence

import numpy as np

from fedgmi_fedml.experiments.chart import Axis, Panel, Points, panels, xy_chart
from fedgmi_fedml.experiments.groups import Group, Place, distinct
from fedgmi_fedml.experiments.trend import monotone
from fedgmi_fedml.report.markup import tag
from fedgmi_fedml.report.svg import drawing, heat_map
from fedgmi_fedml.report.words import COLOURS

__all__ = ["figures"]

_SHARE = {"low": 0.0, "high": 1.0}


def figures(groups: Sequence[Group]) -> dict[str, tuple[str, Panel]]:
    """File name (without its ending) → (caption, drawing). Default variants only; pictures of single runs show the
    lowest seed, means are over all seeds."""
    found: dict[str, tuple[str, Panel]] = {}
    for place in distinct(g.place for g in groups):
        here = [g for g in groups if g.place == place and g.variant == "default"]
        where = f"{place.data}, {place.mixture}, K = {place.k}"
        name = f"{place.data}-{place.mixture}-k{place.k}"
        for kind, caption, panel in (
            ("alpha", f"Estimated against true proportions, each silo a dot ({where})", _alpha(place, here)),
            ("experts", f"Accuracy of each expert on each component ({where})", _experts(place, here)),
            ("by-round", f"Validation accuracy by round ({where})", _convergence(place, here, by_bytes=False)),
            ("by-bytes", f"Validation accuracy by bytes uploaded ({where})", _convergence(place, here, by_bytes=True)),
            ("decoded", f"Samples decoded from each VAE ({where})", _decoded(place, here)),
        ):
            if panel is not None:
                found[f"{kind}-{name}"] = (caption, panel)
    return found


def _alpha(place: Place, groups: Sequence[Group]) -> Panel | None:
    """A panel a method: all components for M > 2, the first one for two (the second is its mirror image)."""
    shown = []
    for g in groups:
        record = g.first
        if not record.get("alpha"):
            continue
        estimated, true = np.array(record["alpha"]), np.array(record["true_alpha"])
        series = []
        for j in range(1 if true.shape[1] == 2 else true.shape[1]):
            points = [(float(x), float(y)) for x, y in zip(true[:, j], estimated[:, j], strict=True)]
            series.append(Points("", points, f"c{j % 8}", line=False))
            series.append(Points("", monotone(points), f"c{j % 8}", dots=False))
        text = f"{g.name}: mean absolute error {record['alpha_mae']}, seed {record['seed']}."
        axes = Axis("true proportion", **_SHARE), Axis("estimated", **_SHARE)
        shown.append(xy_chart(g.name, text, series, *axes, diagonal=True))
    return _side_by_side("Estimated against true proportions", place, shown)


def _experts(place: Place, groups: Sequence[Group]) -> Panel | None:
    """A heat map a method, experts in the order of the components they were matched to, mean over seeds."""
    shown = []
    for g in groups:
        tables = [_ordered(record["expert_accuracy"], record["true_of"]) for record in g.records
                  if record.get("expert_accuracy")]  # fmt: skip
        if not tables or len({table.shape for table in tables}) > 1:
            continue
        mean = np.mean(tables, axis=0)
        names = g.first.get("component_names") or [str(k) for k in range(mean.shape[1])]
        cells = [[None if np.isnan(v) else float(v) for v in row] for row in mean]
        texts = [["–" if v is None else f"{100 * v:.1f}" for v in row] for row in cells]
        rows = [f"expert {j}" for j in range(len(mean))]
        outlined = frozenset((j, j) for j in range(min(mean.shape)))
        text = "; ".join(f"{r}: {', '.join(t)} %" for r, t in zip(rows, texts, strict=True))
        picture = heat_map(g.name, text, cells, rows, names, texts, outlined=outlined)
        width, height = 12 + 7.2 * max(map(len, rows)) + 64 * len(names) + 24, 26 + 39 * len(rows) + 4
        inner = tag("svg", picture, x=0, y=22, width=f"{width - 20:g}", height=f"{height:g}")
        head = tag("text", g.name, x=12, y=16, class_="lab")
        shown.append(Panel(drawing(width, height + 26, g.name, text, head, inner), width, height + 26))
    return _side_by_side("Accuracy of experts on components, %", place, shown)


def _ordered(table: Sequence[Sequence[float | None]], true_of: Sequence[int]) -> np.ndarray:  # type: ignore[type-arg]
    """Rows by true component; experts without one come last."""
    order = sorted(range(len(table)), key=lambda j: (true_of[j] < 0, true_of[j], j))
    return np.array([[np.nan if v is None else v for v in table[j]] for j in order], dtype=np.float64)


def _convergence(place: Place, groups: Sequence[Group], *, by_bytes: bool) -> Panel | None:
    """Validation accuracy, mean over seeds, by round or by bytes uploaded (initial phases included)."""
    series = []
    for g in groups:
        curves = [curve for record in g.records if (curve := _curve(record, by_bytes))]
        if not curves:
            continue
        length = min(map(len, curves))
        mean = [tuple(float(np.mean([curve[i][axis] for curve in curves])) for axis in (0, 1)) for i in range(length)]
        points = [(first, second) for first, second in mean]
        series.append(Points(g.name, points, COLOURS.get(g.method, "c7")))
    if not series:
        return None
    title = f"{place.data}, {place.mixture}, K = {place.k}"
    x = Axis("uploaded by all silos, MB" if by_bytes else "sample-level rounds done", low=0.0)
    return xy_chart(title, f"{len(series)} methods.", series, x, Axis("validation accuracy", percent=True),
                    width=560, height=320)  # fmt: skip


def _curve(record: object, by_bytes: bool) -> list[tuple[float, float]]:
    """(rounds done or MB so far, accuracy of the models that the round began with)."""
    points, uploaded = [], 0.0
    for line in record["history"]:  # type: ignore[index]
        if line["phase"] in ("rounds", "evaluate") and "validation_accuracy" in line:
            done = line["round"] if line["phase"] == "rounds" else record["rounds"]  # type: ignore[index]
            points.append((uploaded if by_bytes else float(done), line["validation_accuracy"]))
        uploaded += line.get("bytes_up", 0) / 1e6
    return points


def _decoded(place: Place, groups: Sequence[Group]) -> Panel | None:
    """Sheets of decoded samples, one a component, of the first run that has any."""
    record = next((g.first for g in groups if g.first.get("decoded_png")), None)
    if record is None:
        return None
    parts, top, width = [], 8.0, 0.0
    names, true_of = record.get("component_names") or [], record.get("true_of") or []
    for j, sheet in enumerate(record["decoded_png"]):
        wide, tall = struct.unpack(">II", base64.b64decode(sheet)[16:24])
        true = true_of[j] if j < len(true_of) else -1
        parts.append(tag("text", f"VAE {j}: {names[true] if 0 <= true < len(names) else 'unmatched'}", x=0,
                         y=f"{top + 10:g}", class_="ax"))  # fmt: skip
        parts.append(tag("image", href=f"data:image/png;base64,{sheet}", x=0, y=f"{top + 16:g}", width=wide * 2,
                         height=tall * 2, style="image-rendering:pixelated"))  # fmt: skip
        top, width = top + tall * 2 + 30, max(width, wide * 2.0)
    title = f"Decoded samples, {place.data}, {place.mixture}, K = {place.k}"
    return Panel(drawing(width, top, title, f"{len(names)} true components.", *parts), width, top)


def _side_by_side(title: str, place: Place, shown: Sequence[Panel]) -> Panel | None:
    text = f"{place.data}, {place.mixture}, K = {place.k}."
    return panels(title, text, shown) if shown else None
