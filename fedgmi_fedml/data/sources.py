"""Sources that are arrays: npz files and scikit-learn's data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedgmi_fedml.data.records import Array, Pool, PoolPart
from fedgmi_fedml.errors import DataError


def _part(x: Array, y: Array) -> PoolPart:
    return PoolPart(x, np.arange(len(x), dtype=np.int64), np.asarray(y).reshape(len(x)).astype(np.int64))


def load_npz(path: Path) -> Pool:
    """A pool from an npz file with ``x_train``, ``y_train`` and, where present, ``x_val``, ``x_test`` and ``classes``."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; set data_args.data_path to the npz file")
    with np.load(path, allow_pickle=False) as arrays:
        parts = {
            name: _part(arrays[f"x_{name}"], arrays[f"y_{name}"])
            for name in ("train", "val", "test")
            if f"x_{name}" in arrays.files
        }
        top = max(int(part.y.max()) for part in parts.values())
        classes = arrays["classes"].tolist() if "classes" in arrays.files else list(range(top + 1))
    layout = "hw" if parts["train"].x.ndim == 3 else "hwc"
    return Pool(str(path), parts, tuple(map(str, classes)), 255.0, layout)


def load_digits() -> Pool:
    """scikit-learn's 1797 handwritten digits, 8 × 8, values 0 … 16."""
    from sklearn.datasets import load_digits as sklearn_digits

    bunch: Any = sklearn_digits()
    part = _part(bunch.images.astype(np.uint8), bunch.target)
    return Pool("scikit-learn digits", {"train": part}, tuple(str(i) for i in range(10)), 16.0, "hw")
