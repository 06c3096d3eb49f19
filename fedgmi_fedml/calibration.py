"""How confident ELBO differences may be: the temperature of the affinity, from securely summed statistics.

If d = ℓ_k − ℓ_j were a log-likelihood ratio λ between Gaussians of equal spread, its mean would move by δ² from
component k to component j, and its variance within a component would be δ² too. ELBO differences behave like
d = T·λ + o: the means are T·δ² apart, the variance is T²·δ². Hence

    T = (variance within components) / (distance of the components' means)        [dimensionless; ℓ in nats]

This is the reasoning of algorithm.md, "The hard frontier" (score differences ± 57 with spread 130: T near 150). The
sums are taken with responsibilities at the present temperature, so T settles over rounds like EM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from secure.types import StatisticSpec

LARGEST = 1e4
"""T is kept within 1 … LARGEST: below 1 the scores would be made *more* confident than a VAE's own word."""

SMALLEST_WEIGHT = 1e-3
"""Pooled proportion below which a component says nothing about T."""

SMALLEST_SEPARATION = 0.1
"""Distance of means, in standard deviations, below which T cannot be identified."""


@dataclass(frozen=True)
class Calibration:
    """The fitted temperature, and whether the statistics could identify it (else it is the one that went in)."""

    temperature: float
    identified: bool


def _pairs(components: int) -> list[tuple[int, int]]:
    return [(j, k) for j in range(components) for k in range(components) if j != k]


def calibration_statistics_spec(components: int) -> tuple[StatisticSpec, ...]:
    """Mean responsibility of every component; first and second moments of ℓ_k − ℓ_j under responsibility r_j."""
    pairs = _pairs(components)
    return (
        *(StatisticSpec(f"responsibility.{j}", 1.0, 2.0**-30) for j in range(components)),
        *(StatisticSpec(f"difference.{j}.{k}", 1e7, 2.0**-20) for j, k in pairs),
        *(StatisticSpec(f"difference_squared.{j}.{k}", 1e12, 2.0**-20) for j, k in pairs),
    )


def calibration_statistics(
    losses: torch.Tensor | None, resp: torch.Tensor | None, components: int
) -> tuple[float, ...]:
    """One silo's statistics, means over its samples; zeros for a silo without data.

    Args:
        losses: ℓ, (n, M) nats. resp: responsibilities at the present temperature, (n, M).
    """
    pairs = _pairs(components)
    if losses is None or resp is None or not len(losses):
        return (0.0,) * (components + 2 * len(pairs))
    losses, resp = losses.double(), resp.double()
    differences = [(resp[:, j], losses[:, k] - losses[:, j]) for j, k in pairs]
    return (
        *resp.mean(0).tolist(),
        *(float((r * d).mean()) for r, d in differences),
        *(float((r * d.square()).mean()) for r, d in differences),
    )


def fit_temperature(sums: Sequence[float], components: int, present: float) -> Calibration:
    """T from the sums over all silos: the mean over pairs of components, weighted by how much data the pair has.

    Args:
        sums: in the order of ``calibration_statistics_spec``. present: the temperature that they were taken at.

    Halfway (geometrically) from ``present`` to the estimate, so that EM over rounds does not overshoot.
    """
    pairs = _pairs(components)
    weight = sums[:components]
    first = dict(zip(pairs, sums[components : components + len(pairs)], strict=True))
    second = dict(zip(pairs, sums[components + len(pairs) :], strict=True))
    total = math.fsum(weight)
    estimates: list[tuple[float, float]] = []
    for j, k in pairs:
        if j > k or total <= 0 or min(weight[j], weight[k]) < SMALLEST_WEIGHT * total:
            continue
        mean_j, mean_k = first[j, k] / weight[j], -first[k, j] / weight[k]
        spread = second[j, k] + second[k, j] - weight[j] * mean_j**2 - weight[k] * mean_k**2
        variance = max(spread, 0.0) / (weight[j] + weight[k])
        separation = mean_j - mean_k
        if separation > SMALLEST_SEPARATION * math.sqrt(variance) and separation > 0:
            estimates.append((weight[j] + weight[k], variance / separation))
    if not estimates:
        return Calibration(present, identified=False)
    fitted = math.exp(math.fsum(w * math.log(max(t, 1e-6)) for w, t in estimates) / math.fsum(w for w, _ in estimates))
    return Calibration(min(max(math.sqrt(present * fitted), 1.0), LARGEST), identified=True)
