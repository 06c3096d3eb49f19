"""Charts as inline SVG: lines, stacked columns, dots, heat maps. Colours come from the page's style (light and dark).

Coordinates are pixels of a drawing ``width`` wide that the page scales down where there is less room. Every chart has
a title and a description for those who don't see it, and every mark a title that shows on hovering.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedgmi_fedml.report.markup import Markup, tag

__all__ = ["Band", "Series", "drawing", "heat_map", "line_chart", "ticks"]

Values = Sequence[float | None]

_NARROW = 24
"""Width of a band, pixels, that holds its numbers."""
_MANY = 60
"""Points from which on dots are small."""


@dataclass(frozen=True)
class Series:
    """One line: its label, its values by position on the x axis (``None`` leaves a gap), and its colour's class."""

    label: str
    values: Values
    colour: str


@dataclass(frozen=True)
class Band:
    """A stretch of the x axis with a name: positions ``start`` … ``stop`` − 1, numbered from ``first`` to ``last``.

    ``last`` is ``None`` where the positions follow each other without a gap.
    """

    label: str
    start: int
    stop: int
    first: int = 1
    last: int | None = None


def drawing(width: float, height: float, title: str, text: str, *children: object) -> Markup:
    """An ``<svg>`` with its title and description."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", text),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=f"{title}. {text}",
        style=f"max-width:{width:g}px",
    )


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) that span ``low`` … ``high``."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if raw <= factor * power * (1 + 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _label(value: float) -> str:
    return f"{value:g}" if abs(value) < 10_000 else f"{value:.3g}"


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart so that neighbours are at least ``gap`` apart, each as near to its place as that allows."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    out = [0.0] * len(places)
    previous = low - gap
    for index in order:
        previous = out[index] = max(places[index], previous + gap)
    overshoot = previous - high
    if order and overshoot > 0:
        following = high + gap
        for index in reversed(order):
            following = out[index] = min(out[index], following - gap)
    return out


class _Frame:
    """The plotting area of a line chart, with its scales."""

    def __init__(self, series: Sequence[Series], positions: int, width: float, height: float, scale: str) -> None:
        self.width, self.height, self.scale = width, height, scale
        longest = max((len(line.label) for line in series), default=0)
        self.left, self.right, self.top, self.bottom = 50.0, 20.0 + 7.4 * longest, 24.0, 26.0
        known = [value for line in series for value in line.values if value is not None]
        self.ticks = self._ticks([value for value in known if value > 0 or scale != "log"])
        self.low, self.high = self._map(self.ticks[0]), max(self._map(self.ticks[-1]), self._map(self.ticks[0]) + 1e-9)
        self.positions = positions

    def _ticks(self, known: Sequence[float]) -> list[float]:
        low, high = min(known, default=0.0), max(known, default=1.0)
        if self.scale == "log":
            first, last = math.floor(math.log10(low or 1.0)), math.ceil(math.log10(high))
            return [10.0**power for power in range(first, max(last, first + 1) + 1)]
        margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
        low = max(0.0, low - margin) if low >= 0 else low - margin
        high = min(1.0, high + margin) if self.scale == "percent" and high <= 1 else high + margin
        return ticks(low, high)

    def _map(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.scale == "log" else value

    def x(self, position: float) -> float:
        """Pixel of a position on the x axis."""
        room = self.width - self.left - self.right
        return self.left + room * (position + 0.5) / max(1, self.positions)

    def y(self, value: float) -> float:
        """Pixel of a value; values below the axis lie on it."""
        room = self.height - self.top - self.bottom
        share = (self._map(value) - self.low) / (self.high - self.low)
        return self.top + room * (1 - max(0.0, share))

    def text(self, value: float) -> str:
        """A value as the axis shows it."""
        return f"{100 * value:.4g} %" if self.scale == "percent" else _label(value)


def line_chart(
    title: str,
    text: str,
    series: Sequence[Series],
    bands: Sequence[Band],
    *,
    scale: str = "linear",
    mark: tuple[int, str] | None = None,
    width: float = 520,
    height: float = 220,
) -> Markup:
    """Lines over rounds, with the phases as bands and each line's name at its end.

    Args:
        series: at least one. bands: phases in order; their positions count through.
        scale: ``linear``, ``percent`` (values are fractions) or ``log``.
        mark: a position on the x axis to point out, and why.
    """
    frame = _Frame(series, max((band.stop for band in bands), default=1), width, height, scale)
    ends = [_last(line) for line in series]
    shown = [(line, end) for line, end in zip(series, ends, strict=True) if end is not None]
    heights = spread([frame.y(end[1]) for _, end in shown], 14, frame.top + 5, height - frame.bottom)
    labels = [
        tag("text", line.label, x=f"{frame.x(end[0]) + 8:.1f}", y=f"{at + 4:.1f}", class_=f"lab t-{line.colour}")
        for (line, end), at in zip(shown, heights, strict=True)
    ]
    children = [*_bands(frame, bands), *_grid(frame), *_mark(frame, mark), *(_line(frame, line) for line in series)]
    return drawing(width, height, title, text, *children, *labels)


def _last(line: Series) -> tuple[int, float] | None:
    for position in range(len(line.values) - 1, -1, -1):
        value = line.values[position]
        if value is not None:
            return position, value
    return None


def _bands(frame: _Frame, bands: Sequence[Band]) -> list[Markup]:
    out = []
    for index, band in enumerate(bands):
        left, right = frame.x(band.start - 0.5), frame.x(band.stop - 0.5)
        area = {"x": f"{left:.1f}", "y": frame.top, "width": f"{right - left:.1f}"}
        if index % 2 == 0 and len(bands) > 1:
            out.append(tag("rect", **area, height=frame.height - frame.top - frame.bottom, class_="band"))
        if right - left > 6.5 * len(band.label) or index == len(bands) - 1:  # else it would run into the next
            out.append(tag("text", band.label, x=f"{left + 4:.1f}", y=frame.top - 8, class_="ax"))
        end = band.stop - 1
        numbers = {band.start: band.first} | {end: band.first + end - band.start if band.last is None else band.last}
        for position, number in numbers.items() if right - left > _NARROW or index == len(bands) - 1 else ():
            place = {"x": f"{frame.x(position):.1f}", "y": frame.height - 8}
            out.append(tag("text", number, **place, class_="ax mid"))
    return out


def _grid(frame: _Frame) -> list[Markup]:
    out = []
    for value in frame.ticks:
        y = f"{frame.y(value):.1f}"
        out.append(tag("line", x1=frame.left, x2=frame.width - frame.right, y1=y, y2=y, class_="grid"))
        out.append(tag("text", frame.text(value), x=frame.left - 6, y=f"{frame.y(value) + 4:.1f}", class_="ax end"))
    return out


def _mark(frame: _Frame, mark: tuple[int, str] | None) -> list[Markup]:
    if mark is None:
        return []
    x = f"{frame.x(mark[0]):.1f}"
    line = tag("line", x1=x, x2=x, y1=frame.top, y2=frame.height - frame.bottom, class_="mark")
    return [
        line,
        tag("text", mark[1], x=f"{frame.x(mark[0]) - 5:.1f}", y=frame.height - frame.bottom - 5, class_="ax end"),
    ]


def _line(frame: _Frame, line: Series) -> Markup:
    """Runs of known values as paths, single points as dots; each point has its value as a title.

    What is measured in fewer than every second round is joined across the rounds between.
    """
    known = [(position, value) for position, value in enumerate(line.values) if value is not None]
    joined = len(known) > 1 and 2 * len(known) < known[-1][0] - known[0][0] + 1
    radius = 2.4 if len(known) < _MANY else 1.2
    parts: list[str] = []
    dots = []
    before = -2
    for position, value in known:
        x, y = f"{frame.x(position):.1f}", f"{frame.y(value):.1f}"
        parts.append(f"{'L' if parts and (joined or position == before + 1) else 'M'}{x} {y}")
        dots.append(tag("circle", tag("title", f"{line.label}: {frame.text(value)}"), cx=x, cy=y, r=radius))
        before = position
    return tag("g", tag("path", d=" ".join(parts), fill="none"), *dots, class_=f"series s-{line.colour}")


def heat_map(
    title: str,
    text: str,
    cells: Sequence[Values],
    rows: Sequence[str],
    columns: Sequence[str],
    shown: Sequence[Sequence[str]],
    *,
    outlined: frozenset[tuple[int, int]] = frozenset(),
    square: float = 64,
) -> Markup:
    """A matrix as coloured cells with their values in them.

    Args:
        cells: strength of each cell's colour, 0 … 1; ``None`` leaves it empty.
        shown: text of each cell. outlined: (row, column) of cells to point out.
    """
    left = 12 + 7.2 * max(map(len, rows), default=0)
    top, side = 26.0, square
    tall = min(side * 0.6, 52.0)
    out: list[Markup] = []
    for c, name in enumerate(columns):
        out.append(tag("text", name, x=f"{left + (c + 0.5) * side:.1f}", y=top - 9, class_="ax mid"))
    for r, name in enumerate(rows):
        out.append(tag("text", name, x=left - 8, y=f"{top + (r + 0.5) * tall + 4:.1f}", class_="ax end"))
        for c, strength in enumerate(cells[r]):
            x, y = left + c * side, top + r * tall
            place = {"x": f"{x + 1:.1f}", "y": f"{y + 1:.1f}", "width": f"{side - 2:.1f}", "height": f"{tall - 2:.1f}"}
            css = "cell" if strength is not None else "cell none"
            css += " out" if (r, c) in outlined else ""
            hover = tag("title", f"{name}, {columns[c]}: {shown[r][c]}")
            out.append(tag("rect", hover, **place, rx=3, class_=css, style=f"--v:{strength or 0:.3f}"))
            dark = " on" if (strength or 0) > 0.55 else ""
            out.append(
                tag("text", shown[r][c], x=f"{x + side / 2:.1f}", y=f"{y + tall / 2 + 4:.1f}", class_=f"val mid{dark}")
            )
    return drawing(left + side * len(columns) + 4, top + tall * len(rows) + 4, title, text, *out)
