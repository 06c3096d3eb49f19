"""Sources in npz files: images or tables, with the usual names of arrays or those that the configuration gives.

Tried in turn where the configuration names none: ``x_train`` / ``y_train`` (with ``x_val``, ``x_test``), MedMNIST's
``train_images`` / ``train_labels``, and ``x`` / ``y`` with, where present, a boolean ``test_mask``. Nothing is ever
unpickled.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fedgmi_fedml.data.checks import class_labels, image_axes, image_scale
from fedgmi_fedml.data.options import NpzOptions
from fedgmi_fedml.data.records import PARTS, Array, Pool, PoolPart, Rows
from fedgmi_fedml.data.table import TableSchema, declared_schema, numeric_schema
from fedgmi_fedml.errors import DataError

_USUAL = {
    part: ((f"x_{part}", f"y_{part}"), (f"{part}_images", f"{part}_labels"), *([("x", "y")] if part == "train" else []))
    for part in PARTS
}


class NpzArrays(Mapping[str, Array]):
    """The arrays of an npz file, each read when asked for. Raises DataError for what is not a plain npz file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = np.load(path, allow_pickle=False)
            self.names = tuple(self._file.files)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; put it there or correct data_args.data_path") from None
        except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: is no readable npz file ({error})") from None

    def __getitem__(self, name: str) -> Array:
        if name not in self.names:
            close = get_close_matches(name, self.names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise DataError(f"{self.path}: holds no array {name!r}{hint} (it has {', '.join(self.names)})")
        try:
            return np.asarray(self._file[name])
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{self.path}: array {name!r} cannot be read ({error}); save it as a plain array, without objects"
            ) from None

    def __iter__(self) -> Any:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def array_names(arrays: NpzArrays, options: NpzOptions) -> dict[str, tuple[str, str]]:
    """Names of the samples' and labels' arrays per part. Raises DataError when there is no training part."""
    found = {}
    for part in PARTS:
        x_name, y_name = getattr(options, f"x_{part}"), getattr(options, f"y_{part}")
        for x_usual, y_usual in _USUAL[part]:
            pair = (x_name or x_usual, y_name or y_usual)
            if x_name or pair[0] in arrays.names:
                found[part] = pair
                break
    if "train" not in found:
        raise DataError(
            f"{arrays.path}: holds none of x_train, train_images, x (it has {', '.join(arrays.names)}); "
            f"name its arrays in data_args.data_options (x_train, y_train, …)"
        )
    return found


def _read(arrays: NpzArrays, x_name: str, y_name: str) -> tuple[Array, Array]:
    x, y = arrays[x_name], arrays[y_name]
    if x.dtype.kind not in "uifb" or x.ndim < 2:
        raise DataError(f"{arrays.path}: array {x_name!r} has type {x.dtype} and shape {x.shape}; samples are numbers")
    if len(x) != len(y):
        raise DataError(f"{arrays.path}: {x_name!r} has {len(x)} samples but {y_name!r} {len(y)} labels")
    return x, y


def _class_names(
    arrays: NpzArrays, options: NpzOptions, agreed: bool, usual: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    given = options.classes
    if isinstance(given, int):
        return tuple(str(label) for label in range(given))
    if isinstance(given, tuple):
        return given
    if given is not None or "classes" in arrays.names:
        return tuple(str(name) for name in arrays[given or "classes"].reshape(-1).tolist())
    if usual is not None:
        return usual
    if agreed:
        raise DataError(
            f"{arrays.path}: has no array 'classes'; set data_args.data_options.classes (their names or number), "
            f"so that all silos number them alike"
        )
    return None


def _column(arrays: NpzArrays, name: str, part: str, length: int) -> Array:
    for candidate in (f"{name}_{part}", f"{part}_{name}", name):
        if candidate in arrays.names and len(arrays[candidate]) == length:
            return arrays[candidate].reshape(length, -1)[:, 0]
    raise DataError(
        f"{arrays.path}: has no array {name!r} with one entry for each of the {length} samples of its {part} part"
    )


def _parts(
    arrays: NpzArrays, options: NpzOptions, columns: frozenset[str], classes: tuple[str, ...] | None
) -> tuple[dict[str, PoolPart], tuple[str, ...]]:
    read = {part: _read(arrays, *names) for part, names in array_names(arrays, options).items()}
    if classes is None:
        together = np.concatenate([np.asarray(y).reshape(len(y), -1)[:, 0] for _, y in read.values()])
        classes = class_labels(together, None, str(arrays.path))[1]
    parts = {}
    for part, (x, y) in read.items():
        labels, _ = class_labels(y, classes, f"{arrays.path}: labels of the {part} part")
        held = {name: _column(arrays, name, part, len(x)) for name in sorted(columns)}
        parts[part] = PoolPart(x, np.arange(len(x), dtype=np.int64), labels, held)
    mask = options.test_mask or ("test_mask" if "test_mask" in arrays.names else None)
    if mask and "test" not in parts:
        parts |= _masked(parts["train"], arrays[mask], f"{arrays.path}: array {mask!r}")
    return parts, classes


def _masked(part: PoolPart, mask: Array, where: str) -> dict[str, PoolPart]:
    if mask.shape != (len(part),) or mask.dtype.kind not in "buif":
        raise DataError(f"{where} has shape {mask.shape}; one true or false is needed for each of {len(part)} samples")

    def only(rows: Rows) -> PoolPart:
        return PoolPart(part.x, rows, part.y[rows], {name: column[rows] for name, column in part.columns.items()})

    test = mask.astype(bool)
    return {"train": only(np.flatnonzero(~test)), "test": only(np.flatnonzero(test))}


def _schema(parts: Mapping[str, PoolPart], options: NpzOptions, agreed: bool, where: str) -> TableSchema:
    """Columns of a two-dimensional array; they are called "0", "1", …"""
    width = parts["train"].x.shape[1]
    names = [str(at) for at in range(width)]
    if options.columns is not None:
        schema = declared_schema(options.columns, options.max_rows)
        if list(schema.columns) != names or schema.categorical:
            raise DataError(f"{where}: data_args.data_options.columns must declare ranges for columns 0 … {width - 1}")
        return schema
    if agreed:
        raise DataError(
            f"{where}: set data_args.data_options.columns to the possible range of each column, 0 … {width - 1}: "
            f"silos must agree on it beforehand"
        )
    rows = np.concatenate([part.x[part.rows] for part in parts.values()]).astype(np.float64)
    return numeric_schema(rows, names, options.max_rows)


def _group_names(arrays: NpzArrays, options: NpzOptions, columns: frozenset[str]) -> tuple[str, ...] | None:
    """Names that stand behind the numbers of a group column: the array given, or ``<column>_codes``."""
    usual = [f"{column}_codes" for column in sorted(columns) if f"{column}_codes" in arrays.names]
    for name in [options.group_names] if options.group_names else usual:
        return tuple(str(item) for item in arrays[name].tolist())
    return None


def load(
    path: Path,
    options: NpzOptions,
    columns: frozenset[str] = frozenset(),
    agreed: bool = False,
    usual_classes: tuple[str, ...] | None = None,
) -> Pool:
    """The pool of an npz file; ``columns`` are further per-sample arrays that are wanted.

    ``usual_classes`` are the names where neither settings nor file give any. Raises DataError.
    """
    arrays = NpzArrays(path)
    parts, classes = _parts(arrays, options, columns, _class_names(arrays, options, agreed, usual_classes))
    used = sum(len(part) for part in parts.values())
    groups = _group_names(arrays, options, columns)
    train = parts["train"]
    if train.x.ndim == 2:
        schema = _schema(parts, options, agreed, str(path))
        parts = {name: _float_rows(part, schema, str(path)) for name, part in parts.items()}
        return Pool(str(path), parts, classes, 1.0, "table", "real", used, 0, schema, groups)
    layout = image_axes(train.x.shape, options.axes, f"{path}: array of the training samples")
    images = {name: part.x for name, part in parts.items()}
    scale, value_range = image_scale(images, options.pixel_max, options.value_range, str(path))
    return Pool(str(path), parts, classes, scale, layout, value_range, used, 0, None, groups)


def _float_rows(part: PoolPart, schema: TableSchema, where: str) -> PoolPart:
    x = part.x.astype(np.float64)
    schema.check_rows(x[part.rows], where)
    return PoolPart(x, part.rows, part.y, part.columns)
