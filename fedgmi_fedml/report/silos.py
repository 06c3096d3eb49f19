"""Silo by silo: estimated mixtures against the truth, and how good each silo's prediction is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.report.context import Context, numbers
from fedgmi_fedml.report.markup import Markup, figure, join, table, tag
from fedgmi_fedml.report.svg import drawing, ticks
from fedgmi_fedml.report.words import COLOURS, count, decimal, method, percent

__all__ = ["accuracy_figure", "mixture_figure", "silo_table"]

Floats = npt.NDArray[np.float64]

_WIDTH, _LEFT, _TOP = 1040.0, 46.0, 10.0


def _pitch(silos: int) -> float:
    return min(90.0, (_WIDTH - _LEFT) / max(1, silos))


def _slanted(context: Context, silos: int) -> bool:
    """Whether the silos' names are too long to stand side by side."""
    return _pitch(silos) < 7.0 * max((len(context.silo_name(i)) for i in range(silos)), default=1)


def _bottom(context: Context, silos: int) -> float:
    return 62.0 if _slanted(context, silos) else 28.0


def _frame(context: Context, silos: int, height: float, low: float, high: float) -> list[Markup]:
    """Horizontal grid in per cent and the silos' names below."""
    out = []
    room = height - _TOP - _bottom(context, silos)
    right = _LEFT + _pitch(silos) * silos
    for value in ticks(low, high):
        at = _TOP + room * (high - value) / (high - low)
        out.append(tag("line", x1=_LEFT, x2=f"{right:.1f}", y1=f"{at:.1f}", y2=f"{at:.1f}", class_="grid"))
        out.append(tag("text", f"{100 * value:.4g} %", x=_LEFT - 6, y=f"{at + 4:.1f}", class_="ax end"))
    every = -(-silos // int((_WIDTH - _LEFT) / 17))
    slanted = _slanted(context, silos)
    for i in range(0, silos, max(1, every)):
        x, y = _LEFT + _pitch(silos) * (i + 0.5), height - _bottom(context, silos) + 16
        turn = f"rotate(-50 {x:.1f} {y:.1f})" if slanted else None
        css = "ax end" if slanted else "ax mid"
        name = context.silo_name(i)
        text = name if len(name) <= 12 else name[:11] + "…"
        out.append(tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", transform=turn, class_=css))
    return out


def mixture_figure(context: Context) -> Markup | None:
    """Stacked columns of the estimated proportions, with lines where the truth would put the boundaries."""
    if context.data.alpha is None:
        return None
    alpha = np.asarray(context.data.alpha, dtype=np.float64)
    truth = context.data.matched_truth()
    silos, components = alpha.shape
    height = 300.0
    marks = [mark for i in range(silos) for mark in _column(context, i, alpha[i], height)]
    if truth is not None:
        marks += [mark for i in range(silos) for mark in _notches(context, i, truth[i], silos, height)]
    gaps = [] if truth is None else [gap for gap in numbers(np.abs(alpha - truth)) if gap is not None]
    title = "Mixture of every silo" if silos > 1 else "This silo's mixture"
    text = f"Estimated proportions of {components} components in {silos} silo{'s' if silos > 1 else ''}."
    if gaps:
        text += f" Mean absolute error against the truth {decimal(sum(gaps) / len(gaps))}."
    legend = [context.chip(j) for j in range(components)]
    if truth is not None:
        legend.append(tag("span", tag("i", class_="rule"), "where the truth puts the boundary"))
    picture = drawing(_WIDTH, height, title, text, *_frame(context, silos, height, 0.0, 1.0), *marks)
    note = "Columns are estimates; a line that meets the change of colour is a mixture found exactly."
    content = join(tag("div", *legend, class_="legend"), tag("div", picture, class_="scroll"))
    return figure(title, content, note if truth is not None else "", silo_table(context), wide=True)


def _column(context: Context, silo: int, shares: Floats, height: float) -> list[Markup]:
    silos = len(np.asarray(context.data.alpha))
    pitch, room = _pitch(silos), height - _TOP - _bottom(context, silos)
    out, below = [], 0.0
    for j, share in enumerate(shares):
        known = float(share) if np.isfinite(share) else 0.0
        hover = tag("title", f"{context.silo_name(silo)}, {context.component(j, long=True)}: {percent(known)}")
        y = _TOP + room * (1 - below - known)
        gap = min(6.0, pitch * 0.12)
        place = {"x": f"{_LEFT + pitch * silo + gap:.1f}", "width": f"{pitch - 2 * gap:.1f}"}
        out.append(tag("rect", hover, **place, y=f"{y:.1f}", height=f"{room * known:.1f}", class_=f"seg f-c{j % 8}"))
        below += known
    return out


def _notches(context: Context, silo: int, shares: Floats, silos: int, height: float) -> list[Markup]:
    pitch, room = _pitch(silos), height - _TOP - _bottom(context, silos)
    out = []
    for j, edge in enumerate(np.cumsum(shares)[:-1]):
        hover = tag("title", f"{context.silo_name(silo)}: true {context.component(j)} {percent(float(shares[j]))}")
        y = f"{_TOP + room * (1 - float(edge)):.1f}"
        place = {"x1": f"{_LEFT + pitch * silo + pitch * 0.04:.1f}", "x2": f"{_LEFT + pitch * (silo + 0.96):.1f}"}
        out.append(tag("line", hover, **place, y1=y, y2=y, class_="truth"))
        out.append(tag("line", **place, y1=y, y2=y, class_="truth inner"))
    return out


def _methods(context: Context) -> list[tuple[str, str, list[float | None]]]:
    """(name, colour, accuracy by silo) of this method and the others, this one last so that it lies on top."""
    own = context.data.silo_accuracy
    found = [
        (name, colour, numbers(context.data.other_accuracy[name]))
        for name, colour in COLOURS.items()
        if name in context.data.other_accuracy
    ]
    return found if own is None else [*found, ("fedgmi", COLOURS["fedgmi"], numbers(own))]


def accuracy_figure(context: Context) -> Markup | None:
    """Test accuracy of every silo under each method, aligned with the mixtures above."""
    methods = _methods(context)
    known = [value for _, _, values in methods for value in values if value is not None]
    silos = len(methods[0][2]) if methods else 0
    if not known or silos < 2:
        return None
    height = 260.0
    grid = ticks(max(0.0, min(known) - 0.02), min(1.0, max(known) + 0.02))
    low, high = max(0.0, grid[0]), min(1.0, grid[-1])
    room = height - _TOP - _bottom(context, silos)
    dots = []
    for name, colour, values in methods:
        for i, value in enumerate(values):
            if value is not None:
                place = {"cx": f"{_LEFT + _pitch(silos) * (i + 0.5):.1f}",
                         "cy": f"{_TOP + room * (high - value) / (high - low):.1f}"}  # fmt: skip
                hover = tag("title", f"{context.silo_name(i)}, {method(name)}: {percent(value)}")
                css = f"s-{colour}" + ("" if name == "fedgmi" else " open")
                dots.append(tag("circle", hover, **place, r=5 if name == "fedgmi" else 4, class_=css))
    legend = [
        tag("span", tag("i", class_=f"b-{colour}"), method(name) + ("" if name == "fedgmi" else ", hollow"))
        for name, colour, _ in reversed(methods)
    ]
    title = "Test accuracy in every silo"
    picture = drawing(
        _WIDTH, height, title, f"{silos} silos; {len(methods)} methods.",
        *_frame(context, silos, height, low, high), *dots,
    )  # fmt: skip
    note = "A silo has few test samples, so single dots are noisy: the comparison above pools them."
    return figure(
        title, join(tag("div", *legend, class_="legend"), tag("div", picture, class_="scroll")), note, wide=True
    )


def silo_table(context: Context) -> Markup | None:
    """All figures of all silos."""
    if context.data.alpha is None:
        return None
    alpha = np.asarray(context.data.alpha)
    truth = context.data.matched_truth()
    head = ["Silo", *(context.component(j) for j in range(alpha.shape[1]))]
    columns: list[Sequence[str]] = [[percent(v) for v in numbers(alpha[:, j])] for j in range(alpha.shape[1])]
    if truth is not None:
        head += [f"true {j}" for j in range(truth.shape[1])]
        columns += [[percent(v) for v in numbers(truth[:, j])] for j in range(truth.shape[1])]
    if context.data.silo_samples is not None:
        head.append("samples")
        columns.append([count(v) for v in numbers(context.data.silo_samples)])
    for name, _, values in reversed(_methods(context)):
        head.append(method(name).split(" (")[0])
        columns.append([percent(v) for v in values])
    rows = [[context.silo_name(i), *(column[i] for column in columns)] for i in range(len(alpha))]
    return table(head, rows)
