"""Is the trend of the estimated proportions right? Rank correlation over the silos, and the rising curve near them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression
from scipy.stats import spearmanr

from fedgmi_fedml.evaluate import mean_defined

__all__ = ["monotone", "spearman"]

FloatArray = npt.NDArray[np.float64]


def spearman(estimated: FloatArray, true: FloatArray) -> float:
    """Mean over components of Spearman's rank correlation over silos; NaN where nothing varies.

    Args:
        estimated, true: (N, M) in the same order of components.

    Equal values share the mean of their ranks. Where true proportions take two values only (10:90), a perfect estimate
    that varies within the two groups stays below one.
    """
    pairs = [(estimated[:, j], true[:, j]) for j in range(true.shape[1])]
    return mean_defined([_correlation(*pair) for pair in pairs])


def _correlation(x: FloatArray, y: FloatArray) -> float:
    varies = np.ptp(x) > 0 and np.ptp(y) > 0
    return float(spearmanr(x, y).statistic) if varies else float("nan")


def monotone(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The rising curve nearest to the points (least squares), at every distinct x."""
    xs, inverse, counts = np.unique([x for x, _ in points], return_inverse=True, return_counts=True)
    means = np.bincount(inverse, [y for _, y in points]) / counts
    curve = isotonic_regression(means, weights=counts).x
    return list(zip(xs.tolist(), curve.tolist(), strict=True))
