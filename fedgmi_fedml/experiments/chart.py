"""Points and lines over two axes of numbers, panels side by side, and a drawing as a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedgmi_fedml.report.markup import Markup, tag
from fedgmi_fedml.report.style import STYLE
from fedgmi_fedml.report.svg import drawing, spread, ticks

__all__ = ["Axis", "Panel", "Points", "panels", "standalone", "xy_chart"]


@dataclass(frozen=True)
class Points:
    """One series: its label (empty: none is drawn), its (x, y), its colour's class, and what is drawn."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    dots: bool = True
    line: bool = True


@dataclass(frozen=True)
class Axis:
    """An axis: its title, its fixed ends (``None``: from the data), and whether values are fractions to show as %."""

    title: str
    low: float | None = None
    high: float | None = None
    percent: bool = False

    def span(self, values: Sequence[float]) -> list[float]:
        """Ticks from one end to the other."""
        low = min(values, default=0.0) if self.low is None else self.low
        high = max(values, default=1.0) if self.high is None else self.high
        return ticks(low, high if high > low else low + (abs(low) or 1.0) * 0.1)

    def text(self, value: float) -> str:
        """A tick's label."""
        return f"{100 * value:.4g} %" if self.percent else f"{value:.4g}"


@dataclass(frozen=True)
class Panel:
    """A drawing with its size in pixels."""

    picture: Markup
    width: float
    height: float


def xy_chart(
    title: str, text: str, series: Sequence[Points], x: Axis, y: Axis, *, diagonal: bool = False, width: float = 300,
    height: float = 270,
) -> Panel:  # fmt: skip
    """Series over two axes; ``diagonal`` draws y = x, where a perfect estimate lies."""
    known = [point for one in series for point in one.points]
    xs, ys = x.span([p[0] for p in known]), y.span([p[1] for p in known])
    room = 14.0 + 6.6 * max((len(one.label) for one in series if one.points), default=0)
    left, right, top, bottom = 52.0, room, 30.0, 44.0

    def at(point: tuple[float, float]) -> tuple[float, float]:
        px = left + (width - left - right) * (point[0] - xs[0]) / (xs[-1] - xs[0])
        return px, top + (height - top - bottom) * (1 - (point[1] - ys[0]) / (ys[-1] - ys[0]))

    parts: list[Markup] = [tag("text", title, x=left, y=16, class_="lab")]
    for value in ys:
        (x1, py), (x2, _) = at((xs[0], value)), at((xs[-1], value))
        parts.append(tag("line", x1=_p(x1), x2=_p(x2), y1=_p(py), y2=_p(py), class_="grid"))
        parts.append(tag("text", y.text(value), x=_p(left - 6), y=_p(py + 4), class_="ax end"))
    for value in xs:
        px, py = at((value, ys[0]))
        parts.append(tag("text", x.text(value), x=_p(px), y=_p(py + 16), class_="ax mid"))
    parts.append(tag("text", x.title, x=_p((left + width - right) / 2), y=_p(height - 8), class_="ax mid"))
    parts.append(tag("text", y.title, x=_p(left), y=_p(top - 3), class_="ax"))
    if diagonal:
        low, high = max(xs[0], ys[0]), min(xs[-1], ys[-1])
        (x1, y1), (x2, y2) = at((low, low)), at((high, high))
        parts.append(tag("line", x1=_p(x1), y1=_p(y1), x2=_p(x2), y2=_p(y2), class_="mark"))
    parts += [_series(one, [at(point) for point in one.points]) for one in series if one.points]
    parts += _labels([(one, at(one.points[-1])) for one in series if one.points and one.label], top, height - bottom)
    return Panel(drawing(width, height, title, text, *parts), width, height)


def _series(one: Points, places: Sequence[tuple[float, float]]) -> Markup:
    path = "M" + " L".join(f"{_p(px)} {_p(py)}" for px, py in places)
    drawn = [tag("path", d=path, fill="none")] if one.line else []
    if one.dots:
        drawn += [
            tag("circle", tag("title", f"{px:.4g}, {py:.4g}"), cx=_p(at[0]), cy=_p(at[1]), r=2.2)
            for (px, py), at in zip(one.points, places, strict=True)
        ]
    return tag("g", *drawn, class_=f"series s-{one.colour}")


def _labels(ends: Sequence[tuple[Points, tuple[float, float]]], low: float, high: float) -> list[Markup]:
    heights = spread([place[1] for _, place in ends], 13, low, high)
    return [
        tag("text", one.label, x=_p(place[0] + 7), y=_p(at + 4), class_=f"lab t-{one.colour}")
        for (one, place), at in zip(ends, heights, strict=True)
    ]


def _p(value: float) -> str:
    return f"{value:.1f}"


def panels(title: str, text: str, shown: Sequence[Panel], columns: int = 4) -> Panel:
    """Panels in rows of ``columns``."""
    wide, tall = max(panel.width for panel in shown), max(panel.height for panel in shown)
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    placed = [
        tag("svg", panel.picture, x=_p(wide * (i % columns)), y=_p(tall * (i // columns)), width=_p(panel.width),
            height=_p(panel.height))
        for i, panel in enumerate(shown)
    ]  # fmt: skip
    return Panel(drawing(wide * columns, tall * rows, title, text, *placed), wide * columns, tall * rows)


def standalone(panel: Panel) -> bytes:
    """The drawing as an SVG file with its style inside."""
    size = f'width="{panel.width:g}" height="{panel.height:g}" '
    head, _, rest = str(panel.picture).partition(">")
    head = head.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size}', 1)
    return f"{head}><style>{STYLE}</style>{rest}\n".encode()
