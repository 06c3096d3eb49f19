"""New samples to predict: an npz file, a CSV file, an image or a folder of images, with or without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedgmi_fedml.data.checks import class_labels, image_axes, image_scale
from fedgmi_fedml.data.image_folder import Decoder, check_unreadable, image_files
from fedgmi_fedml.data.npz_file import NpzArrays
from fedgmi_fedml.data.options import CsvOptions, ImageFolderOptions, NpzOptions, read_options
from fedgmi_fedml.data.records import Array, Pool, PoolPart
from fedgmi_fedml.data.sources import expand
from fedgmi_fedml.data.table_file import CsvTable, encode
from fedgmi_fedml.data.table_moments import TableMoments
from fedgmi_fedml.errors import DataError
from fedgmi_fedml.shapes import DataShape

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

_ARRAYS = (("x", "y"), ("x_test", "y_test"), ("test_images", "test_labels"), ("x_train", "y_train"))
_DIGITS_WHITE = 16.0


@dataclass(frozen=True, repr=False)
class Samples:
    """Samples as the models see them: ``x`` float32 (n, …), ``y`` int64 (n,) where labels are known.

    ``names`` are files, lines or row numbers; ``skipped`` are the names of files that could not be read.
    """

    x: torch.Tensor
    y: torch.Tensor | None
    names: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Samples({len(self.names)}, values hidden)"


def load_samples(
    config: Config,
    path: str | Path,
    shape: DataShape,
    class_names: Sequence[str],
    moments: TableMoments | None = None,
) -> Samples:
    """Samples of a file or folder in the form that a run's models expect; ``moments`` are the run's, for tables.

    Labels are taken where the file has them and they are classes of the run. Raises DataError naming file and remedy.
    """
    where = expand(str(path))
    if not where.exists():
        raise DataError(f"{where}: no such file or folder")
    options = read_options(config.data_args.dataset, config.data_args.data_options)
    if where.suffix == ".csv":
        samples = _from_csv(where, options, class_names, _needed(moments, where))
    elif where.suffix == ".npz":
        white = _DIGITS_WHITE if config.data_args.dataset == "digits" else None
        samples = _from_npz(where, options, class_names, moments, white)
    else:
        samples = _from_images(where, options, class_names, shape)
    if tuple(samples.x.shape[1:]) != shape.input_shape:
        raise DataError(
            f"{where}: samples have shape {tuple(samples.x.shape[1:])}, the run's models expect {shape.input_shape}"
        )
    return samples


def _needed(moments: TableMoments | None, where: Path) -> TableMoments:
    if moments is None:
        raise DataError(f"{where}: is a table, and this run has no moments of a table to standardise it with")
    return moments


def _from_csv(path: Path, options: Any, class_names: Sequence[str], moments: TableMoments) -> Samples:
    settings = options if isinstance(options, CsvOptions) else CsvOptions(label="label")
    table = CsvTable(path, settings)
    x = moments.features(encode(table, moments.schema))
    names = tuple(f"line {line}" for line in table.lines)
    if settings.label not in table.header:
        return Samples(x, None, names)
    texts = table.column(settings.label, "data_args.data_options.label")
    return Samples(x, _known_labels(np.array([text or "" for text in texts], dtype=str), None, class_names), names)


def _known_labels(y: Array, own: Sequence[str] | None, class_names: Sequence[str]) -> torch.Tensor | None:
    """Labels as classes of the run, or None where some label is none of them; cases of letters count as one letter."""
    try:
        labels, names = class_labels(y, own if own is not None or y.dtype.kind in "US" else class_names, "labels")
        if y.dtype.kind not in "US" and own is None:
            return torch.from_numpy(labels)
        number = {name: at for at, name in enumerate(class_names)}
        wanted = [number.get(name, number.get(name.upper(), -1)) for name in names]
    except DataError:
        return None
    mapped = np.asarray(wanted, dtype=np.int64)[labels]
    return torch.from_numpy(mapped) if (mapped >= 0).all() else None


def _from_npz(
    path: Path, options: Any, class_names: Sequence[str], moments: TableMoments | None, white: float | None
) -> Samples:
    arrays = NpzArrays(path)
    settings = options if isinstance(options, NpzOptions) else NpzOptions(pixel_max=white)
    x_name, y_name = _array_pair(arrays, settings)
    x, y = arrays[x_name], None
    if y_name in arrays.names and len(arrays[y_name]) == len(x):
        own = [str(name) for name in arrays["classes"].tolist()] if "classes" in arrays.names else None
        y = _known_labels(arrays[y_name], own, class_names)
    names = tuple(f"row {row}" for row in range(len(x)))
    if x.ndim == 2:
        return Samples(_table_rows(x, path, _needed(moments, path)), y, names)
    layout = image_axes(x.shape, settings.axes, f"{path}: array {x_name!r}")
    scale, value_range = image_scale({x_name: x}, settings.pixel_max, settings.value_range, str(path))
    every = np.arange(len(x), dtype=np.int64)
    pool = Pool(str(path), {"train": PoolPart(x, every, every)}, tuple(class_names), scale, layout, value_range)
    return Samples(torch.from_numpy(pool.images("train", every)), y, names)


def _array_pair(arrays: NpzArrays, settings: NpzOptions) -> tuple[str, str]:
    """Names of the samples' and labels' arrays: those of the configuration first, test before training."""
    given = ((settings.x_test, settings.y_test), (settings.x_train, settings.y_train))
    for x_name, y_name in (*given, *_ARRAYS):
        if x_name is not None and x_name in arrays.names:
            return x_name, y_name or ""
    raise DataError(f"{arrays.path}: holds none of x, x_test, test_images, x_train (it has {', '.join(arrays.names)})")


def _table_rows(x: Array, path: Path, moments: TableMoments) -> torch.Tensor:
    rows = x.astype(np.float64)
    if rows.shape[1] != len(moments.schema.columns):
        raise DataError(f"{path}: has {rows.shape[1]} columns, the run's table {len(moments.schema.columns)}")
    moments.schema.check_rows(rows, str(path))
    return moments.features(rows)


def _from_images(path: Path, options: Any, class_names: Sequence[str], shape: DataShape) -> Samples:
    settings = options if isinstance(options, ImageFolderOptions) else ImageFolderOptions()
    files = image_files(path) if path.is_dir() else [path]
    if not shape.is_image:
        raise DataError(f"{path}: holds images, the run's models expect a table with {shape.size} features")
    channels, height, width = shape.input_shape
    decoder = Decoder("grey" if channels == 1 else "rgb", (height, width), settings.image_size is not None)
    read = [(file, decoder.read(file)) for file in files]
    check_unreadable(decoder, settings.max_unreadable_share, path)
    kept = [(file, pixels) for file, pixels in read if pixels is not None]
    if not kept:
        raise DataError(f"{path}: holds no readable image")
    x = np.stack([pixels for _, pixels in kept]).astype(np.float32) / np.float32(255)
    x = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    folders = [file.parent.name for file, _ in kept]
    y = _known_labels(np.array(folders, dtype=str), None, class_names) if path.is_dir() else None
    names = tuple(str(file.relative_to(path)) if path.is_dir() else file.name for file, _ in kept)
    return Samples(torch.from_numpy(x), y, names, tuple(str(file) for file in decoder.skipped))
