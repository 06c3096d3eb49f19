"""What data must fulfil before anything is computed: labels, values, shapes that silos share, range and likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgmi_fedml.data.records import Array, Pool, Rows
from fedgmi_fedml.errors import DataError, RangeError
from fedgmi_fedml.shapes import DataShape

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

_CHUNK = 4096


def value_bounds(x: Array) -> tuple[float, float]:
    """Smallest and largest value of an array, (0, 0) if it is empty, (nan, nan) if a value is not finite.

    Goes through the array in chunks, so that a file that is mapped into memory need not be loaded.
    """
    low, high = np.inf, -np.inf
    for start in range(0, len(x), _CHUNK):
        chunk = x[start : start + _CHUNK]
        if not chunk.size:
            continue
        if chunk.dtype.kind == "f" and not np.isfinite(chunk).all():
            return float("nan"), float("nan")
        low, high = min(low, float(chunk.min())), max(high, float(chunk.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def class_labels(y: Array, classes: Sequence[str] | None, where: str) -> tuple[Rows, tuple[str, ...]]:
    """Labels as int64 (n,) in 0 … classes − 1, and the names of the classes (from the labels when not given).

    Accepts whole numbers or class names, shape (n,) or (n, 1). Raises DataError naming ``where``.
    """
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(
            f"{where}: labels have shape {y.shape}; one class per sample is needed (classification with single labels)"
        )
    if y.dtype.kind in "US":
        return _named_labels(y.astype(str), classes, where)
    if y.dtype.kind == "f" and not (np.isfinite(y).all() and (y == np.round(y)).all()):
        raise DataError(f"{where}: labels must be whole numbers; found values such as {y[y != np.round(y)][:1]}")
    if y.dtype.kind not in "iubf":
        raise DataError(f"{where}: labels have type {y.dtype}; whole numbers or class names are needed")
    labels = y.astype(np.int64)
    count = len(classes) if classes is not None else int(labels.max(initial=0)) + 1
    outside = labels[(labels < 0) | (labels >= count)]
    if len(outside):
        raise DataError(
            f"{where}: label {int(outside[0])} is outside the {count} classes (0 … {count - 1}); "
            f"correct the labels or data_args.data_options.classes"
        )
    return labels, tuple(classes) if classes is not None else tuple(str(i) for i in range(count))


def _named_labels(y: Array, classes: Sequence[str] | None, where: str) -> tuple[Rows, tuple[str, ...]]:
    names = tuple(classes) if classes is not None else tuple(sorted(set(y.tolist())))
    number = {name: label for label, name in enumerate(names)}
    unknown = [name for name in y.tolist() if name not in number]
    if unknown:
        raise DataError(
            f"{where}: label {unknown[0]!r} is no class ({', '.join(names[:70])}); "
            f"correct the labels or data_args.data_options.classes"
        )
    return np.array([number[name] for name in y.tolist()], dtype=np.int64), names


def image_scale(arrays: Mapping[str, Array], pixel_max: float | None, declared: str | None, where: str) -> Any:
    """What stored images are divided by, and the value range that results.

    ``arrays`` maps the names of arrays to images. Raises DataError for NaN or infinity, RangeError where the range
    found leaves open what the values mean; the message names the range and what to declare.
    """
    bounds = {name: value_bounds(x) for name, x in arrays.items() if x.size}
    for name, bound in bounds.items():
        if np.isnan(bound[0]):
            raise DataError(f"{where}: array {name} holds NaN or infinite values; remove or repair those samples")
    low = min((bound[0] for bound in bounds.values()), default=0.0)
    high = max((bound[1] for bound in bounds.values()), default=0.0)
    kinds = {x.dtype.kind + str(x.dtype.itemsize) for x in arrays.values()}
    found = f"{where}: pixel values from {low:g} to {high:g}"
    if declared == "real":
        return pixel_max or 1.0, "real"
    if pixel_max is not None:
        if low < 0 or high > pixel_max:
            raise RangeError(f"{found} are not within 0 … data_args.data_options.pixel_max ({pixel_max:g})")
        return pixel_max, "unit"
    if kinds <= {"u1"}:
        if 0 < high <= 16:
            raise RangeError(
                f"{found}, stored in bytes: set data_args.data_options.pixel_max to {high:g}, or to 255 if the images "
                f"really are that dark"
            )
        return 255.0, "unit"
    if low >= 0 and high <= 1:
        return 1.0, "unit"
    raise RangeError(
        f"{found} are outside [0, 1]: set data_args.data_options.pixel_max (such as 255) to scale them, or "
        f"value_range: real for standardised images with the gaussian likelihood"
    )


def image_axes(shape: tuple[int, ...], axes: str | None, where: str) -> str:
    """Order of an image array's axes, ``"hw"``, ``"hwc"`` or ``"chw"``; ``shape`` includes the samples' axis."""
    if len(shape) == 3 and axes in (None, "hw"):
        return "hw"
    if len(shape) == 4 and axes in ("hwc", "chw"):
        return axes
    if len(shape) == 4 and axes is None:
        for channels in ((1, 3), (4,)):
            last, first = shape[3] in channels, shape[1] in channels
            if last != first:
                return "hwc" if last else "chw"
            if last:
                break
        raise DataError(
            f"{where}: shape {shape} does not say which axis holds the channels; set data_args.data_options.axes to "
            f"hwc or chw"
        )
    raise DataError(
        f"{where}: shape {shape} with data_args.data_options.axes: {axes or 'null'} is neither images "
        f"(n, height, width[, channels]) nor a table (n, columns)"
    )


def check_likelihood(shape: DataShape, config: Config, origin: str) -> None:
    """Raise RangeError when the configured likelihood cannot describe values without bounds (field case D7)."""
    likelihood = config.model_args.vae_options.get("likelihood")
    if likelihood == "bernoulli" and shape.value_range == "real":
        raise RangeError(
            f"{origin}: values are standardised (without bounds), and model_args.vae_options.likelihood is "
            f"bernoulli, which describes [0, 1] only; set it to gaussian"
        )


def check_same_shape(shapes: Mapping[str, DataShape]) -> DataShape:
    """The shape that all silos share. Raises DataError naming the silos and their shapes when they differ."""
    by_shape: dict[DataShape, list[str]] = {}
    for silo, shape in shapes.items():
        by_shape.setdefault(shape, []).append(silo)
    if len(by_shape) == 1:
        return next(iter(by_shape))
    listing = "; ".join(f"{', '.join(names)}: {shape}" for shape, names in by_shape.items())
    raise DataError(f"silos hold data of different shapes ({listing}); bring all to one shape and one set of classes")


def check_pool_parts(pool: Pool) -> None:
    """Raise DataError when the parts of one source have different shapes."""
    stored = {name: part.x.shape[1:] for name, part in pool.parts.items()}
    if len(set(stored.values())) > 1:
        raise DataError(f"{pool.origin}: samples of its parts have different shapes: {stored}")
