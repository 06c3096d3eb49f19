"""Tables: which columns there are, what they may hold, and how a row becomes a vector of features.

A row is kept raw as float64 (columns,): numeric columns first, in their own unit, then categorical ones as the number
of their value in the vocabulary; NaN where missing. Ranges and vocabularies are agreed beforehand (in the
configuration; a simulation may take them from its one file), never learnt from what one silo would send out.

A vector of features holds the numeric columns, standardised, missing values at the mean; then one indicator for each
numeric column that may be missing; then one feature per value of each categorical column ("missing" last, where the
column may be missing). All are centred and divided by their standard deviation over all silos.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.errors import ConfigError, DataError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NumericColumn:
    """A numeric column with the smallest and largest value possible, in the column's own unit."""

    name: str
    low: float
    high: float
    missing: bool = False

    @property
    def centre(self) -> float:
        """Middle of the range."""
        return (self.low + self.high) / 2

    @property
    def reach(self) -> float:
        """Half the range, never zero."""
        return (self.high - self.low) / 2 or 1.0


@dataclass(frozen=True)
class CategoricalColumn:
    """A categorical column with its vocabulary in agreed order."""

    name: str
    values: tuple[str, ...]
    missing: bool = False

    @property
    def width(self) -> int:
        """Number of features it becomes."""
        return len(self.values) + int(self.missing)


@dataclass(frozen=True)
class TableSchema:
    """The agreed columns of a table, and the largest number of training rows of any silo."""

    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...] = ()
    max_rows: int = 1 << 20

    def __post_init__(self) -> None:
        names = self.columns
        if not names or len(set(names)) != len(names):
            raise ConfigError("data_args.data_options.columns: needs at least one column, each named once")
        for column in self.numeric:
            if not column.low <= column.high:
                raise ConfigError(
                    f"data_args.data_options.columns.{column.name}: [{column.low:g}, {column.high:g}] is no range; "
                    f"write [low, high]"
                )
        for vocabulary in self.categorical:
            if not vocabulary.values or len(set(vocabulary.values)) != len(vocabulary.values):
                raise ConfigError(
                    f"data_args.data_options.columns.{vocabulary.name}: values must be different names, at least one"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in the order of a raw row."""
        return tuple(c.name for c in self.numeric) + tuple(c.name for c in self.categorical)

    @property
    def indicators(self) -> tuple[int, ...]:
        """Numeric columns (by position) that have an indicator of missing values."""
        return tuple(i for i, column in enumerate(self.numeric) if column.missing)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.numeric) + len(self.indicators) + sum(column.width for column in self.categorical)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        names = [column.name for column in self.numeric]
        names += [f"{self.numeric[i].name} missing" for i in self.indicators]
        for column in self.categorical:
            names += [f"{column.name}={value}" for value in column.values]
            names += [f"{column.name} missing"] * column.missing
        return tuple(names)

    def widened(self, low: Floats, high: Floats) -> TableSchema:
        """The same schema with ranges that also hold ``low`` and ``high``, each (numeric,); NaN holds nothing."""
        numeric = tuple(
            replace(column, low=float(np.fmin(column.low, a)), high=float(np.fmax(column.high, b)))
            for column, a, b in zip(self.numeric, low, high, strict=True)
        )
        return replace(self, numeric=numeric)

    def check_rows(self, raw: Floats, where: str) -> None:
        """Raise DataError when a value of raw rows (n, columns) is outside its range, or missing and may not be."""
        for at, column in enumerate(self.numeric):
            values = raw[:, at]
            if np.isnan(values).any() and not column.missing:
                raise DataError(
                    f"{where}: column {column.name!r} holds NaN; declare missing: true for it in "
                    f"data_args.data_options.columns on every party, or fill it in"
                )
            outside = values[(values < column.low) | (values > column.high)]
            if len(outside):
                raise DataError(
                    f"{where}: column {column.name!r} holds {outside[0]:g}, outside the range "
                    f"[{column.low:g}, {column.high:g}] in data_args.data_options.columns; correct either"
                )

    def one_hot(self, raw: Floats) -> Floats:
        """Indicators and categories of raw rows as zeros and ones, float64 (n, width − numeric)."""
        blocks = [np.isnan(raw[:, list(self.indicators)]).astype(np.float64)]
        for at, column in enumerate(self.categorical, start=len(self.numeric)):
            codes = np.where(np.isnan(raw[:, at]), len(column.values), raw[:, at])
            blocks.append((codes[:, None] == np.arange(column.width)).astype(np.float64))
        return np.concatenate(blocks, axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for files."""
        return {
            "numeric": [[c.name, c.low, c.high, c.missing] for c in self.numeric],
            "categorical": [[c.name, list(c.values), c.missing] for c in self.categorical],
            "max_rows": self.max_rows,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TableSchema:
        """The schema that ``to_dict`` described."""
        return cls(
            tuple(NumericColumn(name, low, high, missing) for name, low, high, missing in plain["numeric"]),
            tuple(CategoricalColumn(name, tuple(values), missing) for name, values, missing in plain["categorical"]),
            plain["max_rows"],
        )


def declared_schema(columns: Mapping[str, Any], max_rows: int) -> TableSchema:
    """The schema that ``data_options.columns`` declares. Raises ConfigError for a column that is neither kind."""
    numeric, categorical = [], []
    for name, column in columns.items():
        bounds, values, missing = _parts(column)
        if (bounds is None) == (values is None):
            raise ConfigError(
                f"data_args.data_options.columns.{name}: needs either range: [low, high] or values: [name, …]"
            )
        if bounds is not None:
            numeric.append(NumericColumn(name, float(bounds[0]), float(bounds[1]), missing))
        else:
            categorical.append(CategoricalColumn(name, tuple(values or ()), missing))
    return TableSchema(tuple(numeric), tuple(categorical), max_rows)


def _parts(column: Any) -> tuple[Sequence[float] | None, Sequence[str] | None, bool]:
    if not isinstance(column, tuple):
        return column.range, column.values, column.missing
    if isinstance(column[0], str):
        return None, column, False
    return column, None, False


def numeric_schema(rows: Floats, names: Sequence[str], max_rows: int) -> TableSchema:
    """A schema of numeric columns with the ranges of pooled rows (n, columns): for simulations on public data only."""
    filled = rows if len(rows) else np.zeros((1, len(names)))
    low, high = np.nanmin(filled, axis=0), np.nanmax(filled, axis=0)
    gaps = np.isnan(rows).any(axis=0)
    return TableSchema(
        tuple(
            NumericColumn(name, float(a), float(b), bool(gap))
            for name, a, b, gap in zip(names, low, high, gaps, strict=True)
        ),
        (),
        max_rows,
    )
