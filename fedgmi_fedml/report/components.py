"""The components themselves: what their VAEs draw, how far apart they are, and which expert is good at which."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.report.context import Context, numbers
from fedgmi_fedml.report.markup import Markup, figure, table, tag
from fedgmi_fedml.report.png import contact_sheet, data_uri, encode_png
from fedgmi_fedml.report.svg import heat_map
from fedgmi_fedml.report.words import decimal, percent

__all__ = ["candidate_figure", "expert_figure", "sample_figure", "separability_figure"]

Floats = npt.NDArray[np.float64]

_MOST_SAMPLES, _ACROSS, _MOST_FEATURES = 32, 16, 24


def _side(cells: int) -> float:
    """Width of a cell in pixels, so that small matrices are not tiny and large ones fit."""
    return min(92.0, max(16.0, 430.0 / max(1, cells)))


def sample_figure(context: Context) -> Markup | None:
    """Decoded samples of every component: pictures, or mean and spread of the features of a table."""
    samples = context.data.samples
    if samples is None or samples.shape[0] == 0 or samples.shape[1] == 0:
        return None
    if samples.ndim != 5:
        return _profile(context, np.asarray(samples, dtype=np.float64))
    rows = []
    for j in range(samples.shape[0]):
        pictures = np.asarray(samples[j, :_MOST_SAMPLES])
        across = -(-len(pictures) // -(-len(pictures) // _ACROSS))  # rows of equal length
        sheet = contact_sheet(pictures, columns=across)
        room = f"max-width:{54 * across}px"
        alt = f"{len(pictures)} pictures drawn by the VAE of {context.component(j, long=True)}"
        rows += [
            tag("div", context.chip(j)),
            tag(
                "img", src=data_uri(encode_png(sheet)), alt=alt, width=sheet.shape[1], height=sheet.shape[0], style=room
            ),
        ]
    note = "Pictures that each VAE makes up from random latents: what it takes its component to look like."
    return figure("What each component looks like", tag("div", *rows, class_="sheet"), note, wide=True)


def _profile(context: Context, samples: Floats) -> Markup:
    """Tables: the features in which components differ most, as mean of the decoded samples."""
    means = np.nan_to_num(samples.reshape(samples.shape[0], samples.shape[1], -1).mean(axis=1))
    order = np.argsort(-np.ptp(means, axis=0), kind="stable")[:_MOST_FEATURES]
    names = context.data.feature_names
    labels = [str(names[i]) if names is not None and i < len(names) else f"feature {i}" for i in order]
    top = float(np.abs(means).max()) or 1.0
    cells = [[abs(float(means[j, i])) / top for j in range(len(means))] for i in order]
    shown = [[decimal(float(means[j, i]), 2) for j in range(len(means))] for i in order]
    columns = [f"comp. {j}" for j in range(len(means))]
    title = "What each component looks like"
    picture = heat_map(title, "Mean of decoded samples by feature and component.", cells, labels, columns, shown)
    note = "Mean of samples that each VAE makes up, for the features in which the components differ most."
    return figure(
        title, picture, note, table(["Feature", *columns], [[a, *b] for a, b in zip(labels, shown, strict=True)])
    )


def _divergences(matrix: Floats) -> tuple[list[list[float | None]], list[list[str]]]:
    """Strength of colour (logarithmic) and text of every pair; the diagonal stays empty."""
    known = [[None if r == c else value for c, value in enumerate(numbers(row))] for r, row in enumerate(matrix)]
    top = max((value for row in known for value in row if value is not None), default=1.0)
    scale = math.log1p(max(top, 1e-9))
    cells = [[None if v is None else math.log1p(max(v, 0.0)) / scale for v in row] for row in known]
    return cells, [["" if v is None else decimal(v, 1) for v in row] for row in known]


def separability_figure(context: Context) -> Markup | None:
    """Pairwise symmetric KL divergence of the components' VAEs."""
    if context.data.separability is None or len(context.data.separability) < 2:
        return None
    cells, shown = _divergences(np.asarray(context.data.separability))
    names = [f"comp. {j}" for j in range(len(cells))]
    title = "How far apart the components are"
    picture = heat_map(
        title,
        "Symmetric KL divergence of every two VAEs, in nats.",
        cells,
        names,
        names,
        shown,
        square=_side(len(names)),
    )
    note = "Symmetric KL divergence in nats. Near zero, two components cannot be told apart."
    rows = [[name, *row] for name, row in zip(names, shown, strict=True)]
    return figure(title, picture, note, table(["", *names], rows))


def candidate_figure(context: Context) -> Markup | None:
    """The candidates' divergences, with those that were selected pointed out."""
    if context.data.candidate_separability is None or len(context.data.candidate_separability) < 2:
        return None
    matrix = np.asarray(context.data.candidate_separability)
    chosen = [] if context.data.chosen is None else [int(index) for index in context.data.chosen]
    cells, shown = _divergences(matrix)
    if len(matrix) > 8:
        shown = [["" for _ in row] for row in shown]
    names = [f"{c}{' ●' if c in chosen else ''}" for c in range(len(matrix))]
    outlined = frozenset((r, c) for r in chosen for c in chosen if r != c)
    title = "Candidates and their selection"
    text = f"Symmetric KL divergence of {len(matrix)} candidates; selected: {', '.join(map(str, sorted(chosen)))}."
    picture = heat_map(title, text, cells, names, names, shown, outlined=outlined, square=_side(len(matrix)))
    note = "Darker is farther apart. Dots and outlines mark the candidates taken to start the components."
    rows = [[name, *(decimal(v, 1) for v in numbers(row))] for name, row in zip(names, matrix, strict=True)]
    return figure(title, picture, note, table(["", *names], rows))


def _true_column(context: Context, index: int) -> str:
    """Name of a column of the expert matrix: a true component in a simulation, else one of the silo's own parts."""
    if not context.simulated:
        return f"comp. {index}"
    named = context.true_name(index) if context.data.true_of is not None else None
    return named or f"true comp. {index}"


def expert_figure(context: Context) -> Markup | None:
    """Accuracy of every expert on every component, its own outlined."""
    matrix = context.summary.expert_accuracy
    if not matrix or not matrix[0]:
        return None
    known = [value for row in matrix for value in row if value is not None]
    low = min(known, default=0.0)
    span = (max(known, default=1.0) - low) or 1.0
    cells = [[None if v is None else 0.08 + 0.92 * (v - low) / span for v in row] for row in matrix]
    shown = [[percent(v) for v in row] for row in matrix]
    experts = [f"expert {j}" for j in range(len(matrix))]
    columns = [_true_column(context, k) for k in range(len(matrix[0]))]
    own = frozenset((j, partner) for j in range(len(matrix)) if (partner := context.data.partner(j)) is not None)
    if context.data.true_of is None and context.simulated:
        own = frozenset()  # columns are true components, rows learned ones: which belong together is not known
    square = max(_side(len(columns)), 8.0 * max(map(len, columns)))
    title = "Which expert is good at what"
    text = f"Test accuracy. Specialisation gap {percent(context.summary.specialisation_gap)}."
    picture = heat_map(title, text, cells, experts, columns, shown, outlined=own, square=square)
    note = "Test accuracy of every expert (rows) on every component's samples (columns)"
    note += "; outlined: on its own." if own else "."
    rows = [[expert, *row] for expert, row in zip(experts, shown, strict=True)]
    return figure(title, picture, note, table(["", *columns], rows))
