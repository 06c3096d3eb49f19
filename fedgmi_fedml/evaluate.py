"""What a run is worth: metrics on tensors, with ground truth (simulation) and without. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedgmi_fedml.errors import ModelError

__all__ = [
    "Matching",
    "accuracy",
    "alpha_drift",
    "area_under_curve",
    "assignment_margins",
    "expert_component_accuracy",
    "match_components",
    "mean_defined",
    "misassignment_rate",
    "partition_accuracy",
    "specialisation_gap",
]

FloatArray = npt.NDArray[np.float64]


def _assign(cost: FloatArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and columns of the cheapest one-to-one assignment. SciPy takes a quarter of a second to import, and a
    deployment, which has no truth to match, never needs it."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost)
    return rows, columns


@dataclass(frozen=True)
class Matching:
    """The best naming of learned components after true ones.

    Attributes:
        true_of: for each learned component its true one, or −1 where there are more learned than true ones.
        alpha_mae: mean absolute error of the mixture proportions over silos and true components.
    """

    true_of: tuple[int, ...]
    alpha_mae: float

    def relabel(self, assigned: torch.Tensor) -> torch.Tensor:
        """Learned component numbers → true ones (−1 for unmatched), same shape, int64."""
        return torch.tensor(self.true_of, dtype=torch.int64)[assigned]


def match_components(estimated: FloatArray, true: FloatArray) -> Matching:
    """Hungarian assignment of learned to true components with the least absolute error of the proportions.

    Args:
        estimated: (N, M) mixture proportions, rows sum to one. true: (N, M*).

    A true component without a partner counts with an estimate of zero. Where M > M* the surplus mass shows as error of
    the components it was taken from.
    """
    estimated, true = np.asarray(estimated, dtype=np.float64), np.asarray(true, dtype=np.float64)
    if estimated.ndim != 2 or true.ndim != 2 or len(estimated) != len(true) or not len(true):
        raise ModelError("proportions must be two matrices with one row for each silo")
    size = max(estimated.shape[1], true.shape[1])
    padded = [np.pad(matrix, ((0, 0), (0, size - matrix.shape[1]))) for matrix in (estimated, true)]
    cost = np.abs(padded[0][:, :, None] - padded[1][:, None, :]).mean(axis=0)
    rows, columns = _assign(cost)
    true_of = [int(columns[j]) if columns[j] < true.shape[1] else -1 for j in range(estimated.shape[1])]
    error = sum(cost[row, column] for row, column in zip(rows, columns, strict=True) if column < true.shape[1])
    return Matching(tuple(true_of), float(error) / true.shape[1])


def partition_accuracy(assigned: torch.Tensor, true: torch.Tensor, matching: Matching | None = None) -> float:
    """Share of samples in the right component. Without ``matching`` the best naming on these samples is used.

    Args:
        assigned, true: int64 (n,). NaN for no samples.
    """
    if len(true) == 0:
        return math.nan
    if matching is not None:
        return float((matching.relabel(assigned) == true).double().mean())
    size = int(max(assigned.max(), true.max())) + 1
    table = torch.bincount(assigned * size + true, minlength=size * size).view(size, size).numpy()
    rows, columns = _assign(-table)
    return float(table[rows, columns].sum()) / len(true)


def accuracy(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of samples whose most probable class is right; NaN for no samples."""
    return math.nan if len(labels) == 0 else float((probabilities.argmax(1) == labels).double().mean())


def expert_component_accuracy(
    probabilities: torch.Tensor, labels: torch.Tensor, components: torch.Tensor, count: int
) -> FloatArray:
    """Accuracy of expert j on the samples of true component k, (M, count); NaN where a component has no sample.

    Args:
        probabilities: (M, n, classes) of every expert. labels, components: int64 (n,).
    """
    right = (probabilities.argmax(2) == labels).double()
    table = np.full((len(right), count), math.nan)
    for k in range(count):
        mask = components == k
        if bool(mask.any()):
            table[:, k] = right[:, mask].mean(dim=1).numpy()
    return table


def specialisation_gap(table: FloatArray, matching: Matching) -> float:
    """Mean accuracy of experts on their own component minus that on the others'; NaN where either is empty."""
    own = [table[j, k] for j, k in enumerate(matching.true_of) if k >= 0]
    others = [table[j, k] for j in range(len(table)) for k in range(table.shape[1]) if k != matching.true_of[j]]
    return mean_defined(own) - mean_defined(others)


def area_under_curve(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """Area under the ROC curve by ranks (ties count half); NaN, "undefined", where only one class is there.

    Args:
        scores: (n,) larger for more positive. positive: bool (n,).
    """
    hits = int(positive.sum())
    misses = len(positive) - hits
    if hits == 0 or misses == 0:
        return math.nan
    _, inverse, counts = torch.unique(scores.double(), return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts.double() - 1.0) / 2.0)[inverse]
    return float((ranks[positive].sum() - hits * (hits + 1) / 2.0) / (hits * misses))


def mean_defined(values: Sequence[float]) -> float:
    """Mean of the values that are defined (not NaN); NaN where none is."""
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


def assignment_margins(aff: torch.Tensor) -> torch.Tensor:
    """a of the best component minus a of the second, float64 (B,) nats ≥ 0; infinite with one component."""
    if aff.shape[1] < 2:
        return torch.full((len(aff),), math.inf, dtype=torch.float64)
    best = aff.double().topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def misassignment_rate(aff: torch.Tensor) -> float:
    """Mean of 1 − max_j r_j(x): the share of wrong assignments, if the responsibilities are honest; NaN if empty."""
    if len(aff) == 0:
        return math.nan
    return float((1.0 - torch.softmax(aff.double(), 1).max(1).values).mean())


def alpha_drift(before: torch.Tensor, after: torch.Tensor) -> float:
    """Total variation between two mixtures, ½ Σ_j |α_j − α'_j|, between 0 and 1."""
    return 0.5 * float((before.double() - after.double()).abs().sum())
