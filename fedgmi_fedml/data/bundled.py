"""Data sets that come with scikit-learn: nothing to download."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgmi_fedml.data.records import Pool, PoolPart
from fedgmi_fedml.data.table import numeric_schema


def digits() -> Pool:
    """1797 handwritten digits, 8 × 8, values 0 … 16."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    part = PoolPart(
        bunch.images.astype(np.uint8), np.arange(len(bunch.target), dtype=np.int64), bunch.target.astype(np.int64)
    )
    names = tuple(str(label) for label in range(10))
    return Pool("scikit-learn digits", {"train": part}, names, 16.0, "hw", used=len(part))


def table(name: str) -> Pool:
    """``breast_cancer`` (569 × 30, 2 classes) or ``wine`` (178 × 13, 3 classes); ranges are the table's own."""
    from sklearn import datasets

    bunch: Any = datasets.load_breast_cancer() if name == "breast_cancer" else datasets.load_wine()
    rows = np.asarray(bunch.data, dtype=np.float64)
    features = [str(feature) for feature in bunch.feature_names]
    columns = {feature: rows[:, at] for at, feature in enumerate(features)}
    part = PoolPart(rows, np.arange(len(rows), dtype=np.int64), bunch.target.astype(np.int64), columns)
    classes = tuple(str(label) for label in bunch.target_names)
    schema = numeric_schema(rows, features, max_rows=len(rows))
    return Pool(f"scikit-learn {name}", {"train": part}, classes, 1.0, "table", "real", len(rows), 0, schema)
