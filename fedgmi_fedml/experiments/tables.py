"""Comparisons as tables, from groups of cells: mean ± standard deviation over seeds, the best in bold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedgmi_fedml.experiments.groups import Group, Place, Value, distinct, label

__all__ = ["COLUMNS", "Column", "Entry", "Table", "comparisons", "variant_tables"]


@dataclass(frozen=True)
class Column:
    """A figure as tables show it.

    Attributes:
        figure: its name in a cell's JSON.
        title: for people.
        scale, digits: shown is value × scale with so many decimals.
        better: ``high``, ``low``, or empty where nothing is best.
    """

    figure: str
    title: str
    scale: float = 1.0
    digits: int = 3
    better: str = "high"


COLUMNS = (
    Column("personalised_accuracy", "Personalised accuracy, %", 100.0, 1),
    Column("worst_silo_accuracy", "Accuracy of the worst silo, %", 100.0, 1),
    Column("alpha_mae", "Mean absolute error of the proportions", 1.0, 3, "low"),
    Column("alpha_spearman", "Spearman correlation of the proportions", 1.0, 3),
    Column("partition_accuracy", "Samples in their true component, %", 100.0, 1),
    Column("specialisation_gap", "Specialisation gap, points", 100.0, 1),
    Column("upload_bytes", "Uploaded, MB", 1e-6, 1, "low"),
    Column("wall_seconds", "Seconds", 1.0, 0, ""),
)
"""What is compared, in the order of reading."""

_NO_RIVAL = ("oracle",)
"""Methods that know what no one could know, and so are never the best."""


@dataclass(frozen=True)
class Entry:
    """One cell of a table: its text, and whether it is the best of its row or column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table: ``key`` names its file; ``notes`` go below."""

    key: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As Markdown."""
        lines = ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        lines += ["| " + " | ".join(f"**{e.text}**" if e.best else e.text for e in row) + " |" for row in self.rows]
        return "\n".join([f"**{self.title}**", "", *lines, *(f"\n{note}" for note in self.notes)]) + "\n"

    def latex(self) -> str:
        """As a LaTeX tabular that needs no package."""
        lines = [f"% {self.title}", f"\\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}", "\\hline"]
        lines += [" & ".join(map(_tex, self.head)) + r" \\", "\\hline"]
        for row in self.rows:
            shown = [rf"\textbf{{{_tex(e.text)}}}" if e.best else _tex(e.text) for e in row]
            lines.append(" & ".join(shown) + r" \\")
        return "\n".join([*lines, "\\hline", "\\end{tabular}", *(f"% {note}" for note in self.notes)]) + "\n"


def comparisons(groups: Sequence[Group]) -> list[Table]:
    """For every data and figure: places as rows, methods as columns."""
    tables = []
    for data in distinct(g.place.data for g in groups):
        chosen = [g for g in groups if g.place.data == data and (g.variant == "default" or not _ablated(groups, g))]
        if len({g.method for g in chosen}) > 1:
            tables += [t for column in COLUMNS if (t := _comparison(data, column, chosen)) is not None]
    return tables


def variant_tables(groups: Sequence[Group]) -> list[Table]:
    """For every data and method with an ablation: variants as rows, figures as columns."""
    tables = []
    for data, method in distinct((g.place.data, g.method) for g in groups if _ablated(groups, g)):
        tables.append(_variants(data, method, [g for g in groups if (g.place.data, g.method) == (data, method)]))
    return tables


def _ablated(groups: Iterable[Group], one: Group) -> bool:
    """Whether a method's variants on these data are many enough for a table of their own."""
    same = {g.variant for g in groups if (g.place.data, g.method) == (one.place.data, one.method)}
    return len(same) > 2


def _comparison(data: str, column: Column, groups: Sequence[Group]) -> Table | None:
    methods = distinct((g.method, g.variant) for g in groups)
    by_key = {(g.place, g.method, g.variant): g for g in groups}
    values = {key: g.value(column.figure) for key, g in by_key.items()}
    methods = [m for m in methods if any(v is not None and key[1:] == m for key, v in values.items())]
    if not methods:
        return None
    rows = []
    for place in distinct(g.place for g in groups):
        row = [values.get((place, *m)) for m in methods]
        rivals = [None if m[0] in _NO_RIVAL else value for m, value in zip(methods, row, strict=True)]
        marks = _best(rivals, column)
        rows.append((Entry(_row_name(place)), *_entries(row, marks, column)))
    head = (f"{data}: mixture, K", *(label(*m) for m in methods))
    return Table(f"{data}-{column.figure}", f"{column.title} ({data})", head, tuple(rows), _notes(groups))


def _variants(data: str, method: str, groups: Sequence[Group]) -> Table:
    columns = [c for c in COLUMNS if any(g.value(c.figure) is not None for g in groups)]
    shown = []
    for column in columns:
        values = [g.value(column.figure) for g in groups]
        shown.append(_entries(values, _best(values, column), column))
    rows = [
        (Entry(f"{g.variant} ({_row_name(g.place)})"), *(entries[i] for entries in shown)) for i, g in enumerate(groups)
    ]
    title = f"{label(method)} on {data}, variant by variant"
    head = ("Variant", *(c.title for c in columns))
    return Table(f"{data}-{method}-variants", title, head, tuple(rows), _notes(groups))


def _row_name(place: Place) -> str:
    return f"{place.mixture}, {place.k}"


def _best(values: Sequence[Value | None], column: Column) -> list[bool]:
    """Which values are best, as they are shown: ties are all best; a single value has no rival."""
    known = {i: round(v.mean * column.scale, column.digits) for i, v in enumerate(values) if v is not None}
    if len(known) < 2 or not column.better:
        return [False] * len(values)
    best = max(known.values()) if column.better == "high" else min(known.values())
    return [known.get(i) == best for i in range(len(values))]


def _entries(values: Sequence[Value | None], marks: Sequence[bool], column: Column) -> list[Entry]:
    return [Entry(_text(value, column), mark) for value, mark in zip(values, marks, strict=True)]


def _text(value: Value | None, column: Column) -> str:
    if value is None:
        return "–"
    mean = f"{value.mean * column.scale:.{column.digits}f}"
    return mean if value.spread is None else f"{mean} ± {value.spread * column.scale:.{column.digits}f}"


def _notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Seeds, and what ended early."""
    seeds = {len(g.records) for g in groups}
    text = f"{min(seeds)} seeds" if len(seeds) == 1 else f"{min(seeds)}–{max(seeds)} seeds"
    notes = ["One seed, so no spread." if seeds == {1} else f"Mean ± standard deviation over {text}."]
    early = [f"{g.name} at {_row_name(g.place)}: {g.ended_early}" for g in groups if g.ended_early]
    if early:
        notes.append(f"Runs that ended early, and are not in the means: {'; '.join(early)}.")
    return tuple(notes)


def _tex(text: str) -> str:
    for plain, escaped in (("\\", r"\textbackslash "), ("_", r"\_"), ("%", r"\%"), ("&", r"\&"), ("#", r"\#")):
        text = text.replace(plain, escaped)
    for plain, escaped in (("±", r"$\pm$"), ("–", "--"), ("−", "$-$"), ("α", r"$\alpha$"), ("×", r"$\times$")):
        text = text.replace(plain, escaped)
    return text
