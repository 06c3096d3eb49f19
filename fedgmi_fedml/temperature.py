"""The affinity's temperature from securely summed log-likelihoods: which T explains best how silos differ?

With g_j(x) = −(ℓ_j(x) − o_j) / T, components are taken to have densities in the ratio exp(g_j − g_k) (an exponential
tilt; Anderson 1979, Qin 1999), silo i's data to be their mixture with proportions α_i, and all silos' to be the mixture
with the mean proportions π. What one sample then says about the silo it comes from is

    log [ Σ_j α_i^j exp g_j(x)  /  Σ_j π_j exp g_j(x) ]        [nats]

and its mean over samples and silos, J(T), is the log-likelihood of "which silo" with α_i at its maximum: an estimate of
the mutual information between samples and silos. It needs no true labels and no normalisation of the g_j. Scores that
are too confident (T too small) pull the α_i together and pay for confident mistakes; T too large blurs what is known.
J is zero for all T where silos do not differ or components coincide, and nothing can then be said about T.

Silos send J at T/2, T and 2T, and their proportions; every silo moves T to the top of the parabola through the sums, at
most one octave at a time. On finished runs with T = 1: MNIST 0/180 (linear) gives T = 5, where the error of α is
smallest (0.018 at T = 1, 0.003 there); FedSoft's 30:70 0.032 → 0.02–0.03; letters by case 0.140 → 0.074.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedgmi_fedml.errors import ModelError
from secure.types import StatisticSpec

__all__ = ["Fit", "fit_temperature", "silo_proportions", "temperature_statistics", "temperature_statistics_spec"]

OCTAVES = (-1.0, 0.0, 1.0)
"""log₂ of the temperatures tried, relative to the present one."""

RANGE = (1.0, 1e4)
"""T below 1 would make the scores more confident than a VAE's own word."""

SURE = 3.0
"""Standard errors that J must change by between the three temperatures before T moves."""

SETTLED = 0.05
"""Largest change of a mean proportion since the last statistics at which J counts as a likelihood; its error
is of second order in that change."""

_SMALLEST = 1e-6
"""Proportions are kept above this, so that no logarithm meets zero."""


@dataclass(frozen=True)
class Fit:
    """A temperature and what is known about it.

    Attributes:
        temperature: T for the next round.
        shares: π, mean proportions of the silos, float64 (M,): the ``shares`` of the next statistics.
        information: J at the temperature that the statistics were taken at, nats a sample.
        identified: whether J says anything about T; if not, T is the one that went in.
    """

    temperature: float
    shares: torch.Tensor
    information: float
    identified: bool


def temperature_statistics_spec(components: int) -> tuple[StatisticSpec, ...]:
    """J at three temperatures, the variances of its mean slope and curvature, M proportions."""
    likelihood = {"bound": 50.0, "resolution": 2.0**-30}
    return (
        *(StatisticSpec(f"silo_likelihood.{octave:+.0f}", **likelihood) for octave in OCTAVES),
        StatisticSpec("silo_likelihood_slope_variance", 2500.0, 2.0**-40),
        StatisticSpec("silo_likelihood_curvature_variance", 2500.0, 2.0**-40),
        *(StatisticSpec(f"silo_proportion.{j}", 1.0, 2.0**-30) for j in range(components)),
    )


def _tilts(
    losses: torch.Tensor, temperature: float, offset: torch.Tensor | None, extra: torch.Tensor | None
) -> torch.Tensor:
    """exp g_j(x), float64 (n, M), each row divided by its largest entry."""
    shifted = losses.double() if offset is None else losses.double() - offset.double()
    g = -shifted / temperature if extra is None else -shifted / temperature + extra.double()
    return torch.exp(g - g.max(dim=1, keepdim=True).values)


def silo_proportions(tilts: torch.Tensor, start: torch.Tensor, passes: int = 100) -> torch.Tensor:
    """The maximum-likelihood α, float64 (M,), of one silo: EM, sped up by extrapolation (SQUAREM, Varadhan 2008).

    Args:
        tilts: density of each component at each sample, up to a factor of the sample's own, (n, M). start: (M,), > 0.
    """

    def step(alpha: torch.Tensor) -> torch.Tensor:
        return (alpha * (tilts / (tilts @ alpha).unsqueeze(1)).mean(0)).clamp_min(_SMALLEST)

    alpha = start.double() / start.double().sum()
    for _ in range(passes):
        first = step(alpha)
        second = step(first)
        change, bend = first - alpha, second - 2.0 * first + alpha
        if float(change.abs().max()) < 1e-5:
            return second / second.sum()
        stride = -max(1.0, float(change.norm() / bend.norm().clamp_min(1e-12)))
        leap = alpha - 2.0 * stride * change + stride * stride * bend
        alpha = step(leap / leap.sum()) if bool((leap > _SMALLEST).all()) else second
    return alpha / alpha.sum()


def temperature_statistics(
    losses: torch.Tensor | None,
    shares: torch.Tensor,
    temperature: float,
    offset: torch.Tensor | None = None,
    extra: torch.Tensor | None = None,
) -> tuple[float, ...]:
    """One silo's statistics in the order of ``temperature_statistics_spec``; zeros without data.

    Args:
        losses: ℓ, (n, M) nats. shares: π from the last ``Fit`` (uniform at first). temperature: present T.
        offset: o, (M,) nats. extra: further evidence, (n, M) nats, which no temperature divides.
    """
    components = len(shares)
    if losses is None or len(losses) == 0:
        return (0.0,) * (len(OCTAVES) + 2 + components)
    start = torch.full((components,), 1.0 / components, dtype=torch.float64)
    prior = shares.double().clamp_min(_SMALLEST)
    columns, alphas = [], []
    for octave in OCTAVES:
        tilts = _tilts(losses, temperature * 2.0**octave, offset, extra)
        alphas.append(silo_proportions(tilts, start))
        columns.append(torch.log(tilts @ alphas[-1]) - torch.log(tilts @ (prior / prior.sum())))
    slope, curvature = columns[2] - columns[0], columns[0] - 2.0 * columns[1] + columns[2]
    spread = [float(values.var(correction=0)) / len(losses) for values in (slope, curvature)]
    return (*(float(column.mean()) for column in columns), *spread, *alphas[1].tolist())


def fit_temperature(sums: Sequence[float], silos: int, present: float, shares: torch.Tensor) -> Fit:
    """The next temperature, from the sums over ``silos`` silos with data.

    Args:
        sums: in the order of ``temperature_statistics_spec``.
        present, shares: the temperature and mean proportions that the statistics were taken at.
    """
    count = len(OCTAVES)
    if len(sums) != count + 2 + len(shares):
        raise ModelError(f"calibration of {len(shares)} components has {count + 2 + len(shares)} sums, not {len(sums)}")
    if silos == 0:
        return Fit(present, shares, 0.0, identified=False)
    low, middle, high = (value / silos for value in sums[:count])
    slope, curvature = high - low, low - 2.0 * middle + high
    slope_error, curvature_error = (math.sqrt(max(value, 0.0)) / silos for value in sums[count : count + 2])
    proportions = torch.tensor(sums[count + 2 :], dtype=torch.float64) / silos
    settled = float((proportions - shares.double()).abs().max()) <= SETTLED
    if not settled or (abs(slope) <= SURE * slope_error and -curvature <= SURE * curvature_error):
        return Fit(present, proportions, middle, identified=False)
    octaves = max(-1.0, min(1.0, -0.5 * slope / curvature)) if curvature < 0.0 else math.copysign(1.0, slope)
    moved = min(max(present * 2.0**octaves, RANGE[0]), RANGE[1])
    return Fit(moved, proportions, middle, identified=True)
