"""Phases B and C of algorithm.md: which candidates become components, and the annealed warm-up on whole silos.

Pure functions: on a server, on a silo and in a test they give the same answer for the same input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedgmi_fedml.affinity import score_matrix
from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models import Vae
from secure.types import StatisticSpec

__all__ = [
    "FIXED_SIGMA_BELOW",
    "PooledLosses",
    "beta_schedule",
    "pair_statistics",
    "pair_statistics_spec",
    "pooled_losses",
    "select_greedy",
    "select_random",
    "survey_statistics",
    "survey_statistics_spec",
    "symmetric_kl_matrix",
    "warmup_responsibilities",
    "whitening",
]

FIXED_SIGMA_BELOW = 5
"""With fewer silos the pooled statistics would give others' losses away: σ is then a constant (algorithm.md, C)."""

WHITE_FLOOR = 1e-3
"""Smallest variance that whitening scales up to the others', relative to the largest: what lies below is noise."""

FIXED_SIGMA = 1.0
"""σ for few silos, in nats: with β near 1, a silo whose loss differs by a nat from the others' leans e : 1."""


# ── B. greedy selection ──────────────────────────────────────────────────────────────────────────────────────────────
def symmetric_kl_matrix(
    vaes: Sequence[Vae], samples: int = 256, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Symmetrised divergence between every two VAEs, float64 (C, C) nats, zero diagonal.

    KL(p‖q) = mean over x ∼ p of [ℓ_q(x) − ℓ_p(x)] over ``samples`` decoded samples of each; the result is
    KL(p‖q) + KL(q‖p), cut off at zero, which an estimate may undershoot. All candidates decode the same latents.
    """
    count = len(vaes)
    state = generator.get_state() if generator is not None else None
    drawn = []
    for vae in vaes:
        if generator is not None and state is not None:
            generator.set_state(state)
        drawn.append(vae.sample(samples, generator).cpu())
    pooled = torch.cat(drawn)
    losses = score_matrix(vaes, pooled).double().view(count, samples, count)  # [p, sample, q]
    mean = losses.mean(dim=1)
    divergence = mean - mean.diagonal().unsqueeze(1)
    symmetric = (divergence + divergence.T).clamp_min(0.0)
    return symmetric.fill_diagonal_(0.0)


def select_greedy(matrix: torch.Tensor, components: int) -> tuple[int, ...]:
    """Max–min selection: the farthest pair, then repeatedly the candidate whose nearest selected one is farthest.

    Deterministic: ties go to the lowest index. Returns ascending indices. Raises ModelError for too few candidates.
    """
    count = len(matrix)
    if components > count:
        raise ModelError(f"{components} components cannot be selected from {count} candidates")
    if components == 1:
        return (int(matrix.sum(1).argmin()),)  # the most central one
    apart = matrix.double().clone().fill_diagonal_(-math.inf)  # so that equal candidates still make a pair
    first, second = divmod(int(apart.argmax()), count)
    chosen = [first, second]
    while len(chosen) < components:
        nearest = matrix[:, chosen].double().min(dim=1).values
        nearest[chosen] = -math.inf
        chosen.append(int(nearest.argmax()))
    return tuple(sorted(chosen))


def select_random(candidates: int, components: int, seed: int) -> tuple[int, ...]:
    """``components`` of ``candidates`` at random, ascending: the ablation of the greedy selection."""
    if components > candidates:
        raise ModelError(f"{components} components cannot be selected from {candidates} candidates")
    order = torch.randperm(candidates, generator=torch.Generator().manual_seed(seed))
    return tuple(sorted(order[:components].tolist()))


# ── C. annealed warm-up ──────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class PooledLosses:
    """What a silo reads from the summed statistics.

    Attributes:
        mean: float64 (M,), mean over silos of L_i^j − mean_j L_i^j, nats. Also the offset of each component.
        sigma: standard deviation of what is left after subtracting ``mean``, over silos and components, nats.
        silos: number of silos with data in the sums.
    """

    mean: torch.Tensor
    sigma: float
    silos: int


def survey_statistics_spec(components: int) -> tuple[StatisticSpec, ...]:
    """The securely summed statistics of a survey: M centred mean losses, the sum of their squares, one for presence."""
    loss = {"bound": 1e7, "resolution": 2.0**-20}
    return (
        *(StatisticSpec(f"centred_loss.{j}", **loss) for j in range(components)),
        StatisticSpec("centred_loss_squares", bound=1e12, resolution=2.0**-20),
        StatisticSpec("silos_with_data", bound=1.0, resolution=1.0),
    )


def _centred(losses: torch.Tensor) -> torch.Tensor:
    """L_i^j − mean_j L_i^j, float64 (M,): what all components find equally hard in this silo is taken out."""
    losses = losses.double()
    return losses - losses.mean()


def survey_statistics(mean_losses: torch.Tensor | None, components: int) -> tuple[float, ...]:
    """One silo's statistics in the order of ``survey_statistics_spec``; ``None`` (no data) gives zeros.

    Args:
        mean_losses: L_i^j, mean loss of this silo's samples under each VAE, (M,) nats.
    """
    if mean_losses is None:
        return (0.0,) * (components + 2)
    centred = _centred(mean_losses)
    return (*centred.tolist(), float(centred.square().sum()), 1.0)


def pair_statistics_spec(components: int) -> tuple[StatisticSpec, ...]:
    """What a warm-up survey sums besides: products of two components' centred losses, M (M − 1) / 2 of them."""
    pairs = itertools.combinations(range(components), 2)
    return tuple(StatisticSpec(f"centred_loss_product.{j}.{k}", bound=1e12, resolution=2.0**-20) for j, k in pairs)


def pair_statistics(mean_losses: torch.Tensor | None, components: int) -> tuple[float, ...]:
    """One silo's part of ``pair_statistics_spec``, nats²; arguments as in ``survey_statistics``."""
    pairs = itertools.combinations(range(components), 2)
    centred = [0.0] * components if mean_losses is None else _centred(mean_losses).tolist()
    return tuple(centred[j] * centred[k] for j, k in pairs)


def pooled_losses(statistics: Sequence[float], components: int) -> PooledLosses:
    """Mean and pooled deviation from the sums, in one pass: σ² = (S₂ − Σ_j S₁ⱼ² / N) / (N·M).

    With fewer than ``FIXED_SIGMA_BELOW`` silos σ is ``FIXED_SIGMA``. Raises ModelError for a wrong number of sums.
    """
    if len(statistics) != components + 2:
        raise ModelError(f"a survey of {components} components has {components + 2} sums, not {len(statistics)}")
    silos = round(statistics[-1])
    sums = torch.tensor(statistics[:components], dtype=torch.float64)
    if silos == 0:
        return PooledLosses(torch.zeros_like(sums), FIXED_SIGMA, 0)
    variance = (statistics[components] - float(sums.square().sum()) / silos) / (silos * components)
    sigma = FIXED_SIGMA if silos < FIXED_SIGMA_BELOW else math.sqrt(max(variance, 0.0))
    return PooledLosses(sums / silos, sigma, silos)


def whitening(products: Sequence[float], pooled: PooledLosses) -> torch.Tensor | None:
    """W, float64 (M, M) per nat, such that W D_i varies alike over the silos in every direction; ``None`` where
    there are too few silos (fewer than ``FIXED_SIGMA_BELOW`` or 2M) to tell, or nothing varies.

        S = Σ_i D_i D_iᵀ / N,    W = (M / (M−1))^½ P S^−½ P,    P = I − 1/M,
        eigenvalues of S from below at ``WHITE_FLOOR`` times the largest

    The factor makes the mean square over silos and components 1, as σ does; with two components W = I / σ. Divided by
    one σ instead, contrasts that are small at first (0° against 180°, beside 0° against 90°) lose against the largest:
    two VAEs then share all silos, and the others starve.

    Args:
        products: sums of ``pair_statistics``. Rows of D_i D_iᵀ add up to zero, which gives the diagonal.
        pooled: from the same survey.
    """
    mean, silos = pooled.mean, pooled.silos
    if silos < max(FIXED_SIGMA_BELOW, 2 * len(mean)):
        return None
    moments = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for (j, k), product in zip(itertools.combinations(range(len(mean)), 2), products, strict=True):
        moments[j, k] = moments[k, j] = product / silos - float(mean[j] * mean[k])
    moments -= torch.diag(moments.sum(1))
    variances, axes = torch.linalg.eigh(moments)
    if len(mean) < 2 or float(variances[-1]) < 1e-18:
        return None
    scales = variances.clamp_min(WHITE_FLOOR * float(variances[-1])).rsqrt()
    centre = torch.eye(len(mean), dtype=torch.float64) - 1.0 / len(mean)
    return math.sqrt(len(mean) / (len(mean) - 1)) * centre @ (axes * scales) @ axes.T @ centre


def warmup_responsibilities(
    losses: torch.Tensor, mean: torch.Tensor, sigma: float, beta: float, white: torch.Tensor | None = None
) -> torch.Tensor:
    """R_i = softmax_j(−β (W D_i)^j), float64 (M,), with D_i^j the silo's losses centred in the silo and by component.

    Args:
        losses: this silo's L_i, (M,) nats. mean, sigma: from ``pooled_losses``. beta: sharpness β ≥ 0.
        white: W from ``whitening``; without it, I / σ.

    σ of zero (all silos alike) gives uniform responsibilities.
    """
    centred = _centred(losses) - mean.double()
    if white is not None:
        return torch.softmax(-beta * (white @ centred), dim=0)
    scale = beta / sigma if sigma > 1e-9 else 0.0
    return torch.softmax(-scale * centred, dim=0)


def beta_schedule(round_index: int, b0: float, b1: float, limit: float | None = None) -> float:
    """β of warm-up round r: b0 + b1·r, never above ``limit`` (the β beyond which a component fell below the gate)."""
    beta = b0 + b1 * round_index
    return beta if limit is None else min(beta, limit)
