"""CSV files with a header line: numeric and categorical columns, missing values, a label column."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from fedgmi_fedml.data.checks import class_labels
from fedgmi_fedml.data.options import CsvOptions
from fedgmi_fedml.data.records import Array, Pool, PoolPart, Rows
from fedgmi_fedml.data.table import CategoricalColumn, NumericColumn, TableSchema, declared_schema
from fedgmi_fedml.errors import DataError

_TRUE, _FALSE = ("1", "true", "yes", "t", "y"), ("0", "false", "no", "f", "n", "")
_MOST_CATEGORIES = 64


class CsvTable:
    """The text of a CSV file by column, with missing values as ``None``. Raises DataError naming file and line."""

    def __init__(self, path: Path, options: CsvOptions) -> None:
        self.path = path
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file, delimiter=options.delimiter, strict=True)
                self.header = tuple(name.strip() for name in next(reader, []))
                rows = [(reader.line_num, row) for row in reader if row]
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; put it there or correct data_args.data_path") from None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: is no readable CSV file in UTF-8 ({error})") from None
        if not self.header or len(set(self.header)) != len(self.header):
            raise DataError(f"{path}: needs a header line in which each column is named once")
        for line, row in rows:
            if len(row) != len(self.header):
                raise DataError(
                    f"{path}, line {line}: has {len(row)} fields, the header {len(self.header)}; check the line and "
                    f"data_args.data_options.delimiter ({options.delimiter!r})"
                )
        self.lines = [line for line, _ in rows]
        missing = set(options.missing)
        self._columns = {
            name: [None if row[at].strip() in missing else row[at].strip() for _, row in rows]
            for at, name in enumerate(self.header)
        }

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str, key: str) -> list[str | None]:
        """Values of one column. Raises DataError naming the configuration's ``key`` when there is none."""
        if name not in self._columns:
            close = get_close_matches(name, self.header, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise DataError(f"{self.path}: has no column {name!r} ({key}){hint} (it has {', '.join(self.header)})")
        return self._columns[name]

    def numbers(self, column: NumericColumn) -> Array:
        """A numeric column, float64 (n,), NaN where missing."""
        values = np.full(len(self), np.nan)
        for row, text in enumerate(self.column(column.name, "data_args.data_options.columns")):
            if text is None:
                self._may_miss(column.name, column.missing, row)
                continue
            try:
                values[row] = float(text)
            except ValueError:
                raise DataError(
                    f"{self._at(row, column.name)} is no number; correct it, or declare the column's values: [name, …] "
                    f"in data_args.data_options.columns"
                ) from None
            if not column.low <= values[row] <= column.high:
                raise DataError(
                    f"{self._at(row, column.name)} is outside the range [{column.low:g}, {column.high:g}] in "
                    f"data_args.data_options.columns; correct the file, or the range on every party"
                )
        return values

    def codes(self, column: CategoricalColumn) -> Array:
        """A categorical column as numbers of its values, float64 (n,), NaN where missing."""
        number = {value: code for code, value in enumerate(column.values)}
        codes = np.full(len(self), np.nan)
        for row, text in enumerate(self.column(column.name, "data_args.data_options.columns")):
            if text is None:
                self._may_miss(column.name, column.missing, row)
            elif text not in number:
                raise DataError(
                    f"{self._at(row, column.name)} is none of the values in data_args.data_options.columns "
                    f"({', '.join(column.values)}); correct the file, or add the value on every party"
                )
            else:
                codes[row] = number[text]
        return codes

    def _at(self, row: int, name: str) -> str:
        return f"{self.path}, line {self.lines[row]}, column {name!r}: {self._columns[name][row]!r}"

    def _may_miss(self, name: str, allowed: bool, row: int) -> None:
        if not allowed:
            raise DataError(
                f"{self.path}, line {self.lines[row]}, column {name!r}: has no value; write missing: true for the "
                f"column in data_args.data_options.columns on every party, or fill it in"
            )


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _from_file(table: CsvTable, names: Sequence[str], max_rows: int) -> TableSchema:
    """A schema from the file itself: for simulations, whose one file belongs to everybody."""
    numeric, categorical = [], []
    for name in names:
        held = table.column(name, "data_args.data_options.columns")
        present = [text for text in held if text is not None]
        gaps = len(present) < len(held)
        if all(_is_number(text) for text in present):
            values = [float(text) for text in present] or [0.0]
            numeric.append(NumericColumn(name, min(values), max(values), gaps))
            continue
        vocabulary = tuple(sorted(set(present)))
        if len(vocabulary) > _MOST_CATEGORIES:
            raise DataError(
                f"{table.path}: column {name!r} has {len(vocabulary)} different texts, too many for categories; leave "
                f"it out with data_args.data_options.ignore, or declare its values"
            )
        categorical.append(CategoricalColumn(name, vocabulary, gaps))
    return TableSchema(tuple(numeric), tuple(categorical), max_rows)


def _schema(table: CsvTable, options: CsvOptions, aside: set[str], agreed: bool) -> TableSchema:
    if options.columns is not None:
        return declared_schema(options.columns, options.max_rows)
    names = [name for name in table.header if name not in aside]
    if agreed:
        raise DataError(
            f"{table.path}: set data_args.data_options.columns to the range or the values of each column to learn from "
            f"(such as {', '.join(names[:5])}); silos must agree on them beforehand"
        )
    return _from_file(table, names, options.max_rows)


def encode(table: CsvTable, schema: TableSchema) -> Array:
    """Raw rows of a table, float64 (n, columns), as ``TableSchema`` describes."""
    columns = [table.numbers(column) for column in schema.numeric]
    columns += [table.codes(column) for column in schema.categorical]
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 0))


def _labels(table: CsvTable, options: CsvOptions, agreed: bool) -> tuple[Rows, tuple[str, ...]]:
    texts = table.column(options.label, "data_args.data_options.label")
    for row, text in enumerate(texts):
        if text is None:
            raise DataError(
                f"{table.path}, line {table.lines[row]}: has no label in column {options.label!r}; fill it in or "
                f"remove the line"
            )
    classes = options.classes
    if agreed and classes is None:
        raise DataError(
            f"{table.path}: set data_args.data_options.classes (the names of the labels), "
            f"so that all silos number them alike"
        )
    if isinstance(classes, int):
        classes = tuple(str(label) for label in range(classes))
    named = np.array(texts, dtype=str)
    if classes is None and all(name.isdecimal() for name in named):
        classes = tuple(sorted(set(named.tolist()), key=int))
    return class_labels(named, classes if isinstance(classes, tuple) else None, f"{table.path}, {options.label!r}")


def _test_rows(table: CsvTable, name: str) -> Array:
    mask = np.zeros(len(table), dtype=bool)
    for row, text in enumerate(table.column(name, "data_args.data_options.test_mask")):
        word = (text or "").lower()
        if word not in _TRUE + _FALSE:
            raise DataError(f"{table.path}, line {table.lines[row]}, column {name!r}: {text!r} is not true or false")
        mask[row] = word in _TRUE
    return mask


def load(
    path: Path,
    options: CsvOptions,
    columns: frozenset[str] = frozenset(),
    group: str | None = None,
    agreed: bool = False,
) -> Pool:
    """The pool of a CSV file; ``columns`` are further columns that are wanted by name, ``group`` is one of them.

    Label, group and test mask are never features unless ``data_options.columns`` says so. Raises DataError.
    """
    table = CsvTable(path, options)
    aside = {options.label, *options.ignore} | {name for name in (options.test_mask, group) if name}
    schema = _schema(table, options, aside, agreed)
    rows = encode(table, schema)
    labels, classes = _labels(table, options, agreed)
    extra = {name: _plain(table.column(name, "data_args.silo_mixture")) for name in sorted(columns)}
    test = _test_rows(table, options.test_mask) if options.test_mask else np.zeros(len(table), dtype=bool)
    parts = {}
    for part, chosen in (("train", ~test), ("test", test)):
        index = np.flatnonzero(chosen)
        if part == "train" or len(index):
            held = {name: values[index] for name, values in extra.items()}
            parts[part] = PoolPart(rows, index, labels[index], held)
    return Pool(str(path), parts, classes, 1.0, "table", "real", len(table), 0, schema)


def _plain(texts: Sequence[str | None]) -> Array:
    """Numbers where every value is one, else text; missing is NaN or an empty text."""
    if all(text is None or _is_number(text) for text in texts):
        return np.array([np.nan if text is None else float(text) for text in texts])
    return np.array([text or "" for text in texts], dtype=str)
