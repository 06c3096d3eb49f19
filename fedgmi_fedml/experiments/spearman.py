"""Spearman's rank correlation of estimated and true proportions: is the trend over the silos right?"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.evaluate import mean_defined

FloatArray = npt.NDArray[np.float64]


def spearman(estimated: FloatArray, true: FloatArray) -> float:
    """Mean over components of the rank correlation over silos; NaN where nothing varies.

    Args:
        estimated, true: (N, M) in the same order of components.

    Equal values share the mean of their ranks. Where true proportions take two values only (10:90), a perfect estimate
    that varies within the two groups stays below one.
    """
    return mean_defined([_correlation(_ranks(estimated[:, j]), _ranks(true[:, j])) for j in range(true.shape[1])])


def _ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: FloatArray = (ends - (counts - 1) / 2.0)[inverse]
    return ranks


def _correlation(x: FloatArray, y: FloatArray) -> float:
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else math.nan
