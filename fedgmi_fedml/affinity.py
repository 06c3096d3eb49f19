"""From losses to components: ℓ, affinity, MAP, responsibilities and mixture proportions. Pure functions on tensors.

    a_j(x) = −(ℓ_j(x) − o_j) / T + log α_j + e_j        [nats; algorithm.md, "One sample's affinity"]

ℓ_j is sample x's loss under VAE j, o_j an optional offset of component j, T a temperature. e_j holds the two further
terms that are options of ours (docs/method.md): ``router_term`` and, for training samples only, ``label_term``.
Everything after ℓ is computed in float64: M columns cost nothing, and losses near 1e6 nats would lose their
differences in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models import Vae
from fedgmi_fedml.models.vaes import standard_normal

__all__ = [
    "LABEL_FLOOR",
    "PROPORTION_FLOOR",
    "ROUTER_FLOOR",
    "SCORE_KINDS",
    "Evidence",
    "affinities",
    "assign",
    "em_proportions",
    "estimate_alpha",
    "label_term",
    "log_proportions",
    "responsibilities",
    "router_term",
    "score_matrix",
    "scores",
]

SCORE_KINDS = ("elbo", "reconstruction", "iwae")

PROPORTION_FLOOR = 1e-4
"""A proportion below this, divided by M, counts as that much, so that log α stays finite and no component of a silo
is lost for good: a sample that fits it better by log(M / 1e-4) ≈ 10 nats still goes there."""

LABEL_FLOOR = -8.0
"""Nats; an expert that is sure and wrong says no more against a component than this."""

ROUTER_FLOOR = -10.0
"""Nats; the router says no more against a component than this."""

_SMALLEST_SHARE = 1e-3
"""A component's share of all silos' data counts as at least this in the router's term."""


def _loss(vae: Vae, x: torch.Tensor, kind: str, generator: torch.Generator | None, samples: int) -> torch.Tensor:
    """ℓ of one batch, (B,) nats."""
    mean, logvar = vae.encode(x)
    if kind == "iwae":
        return _importance_weighted(vae, x, mean, logvar, generator, samples)
    nll = vae.reconstruction_nll(x, vae.decode(mean))
    return nll if kind == "reconstruction" else nll + vae.kl(mean, logvar)


def _importance_weighted(
    vae: Vae,
    x: torch.Tensor,
    mean: torch.Tensor,
    logvar: torch.Tensor,
    generator: torch.Generator | None,
    samples: int,
) -> torch.Tensor:
    """−log (1/k) Σ_k p(x|z_k) p(z_k) / q(z_k|x) with z_k ∼ q (Burda et al. 2016), (B,) nats."""
    logs = []
    for _ in range(samples):
        noise = standard_normal(mean, generator)
        z = mean + noise * torch.exp(0.5 * logvar)
        prior_over_posterior = 0.5 * (noise.square() + logvar - z.square()).sum(1)
        logs.append(prior_over_posterior - vae.reconstruction_nll(x, vae.decode(z)))
    return torch.log(torch.tensor(float(samples))) - torch.logsumexp(torch.stack(logs), dim=0)


def scores(
    vae: Vae,
    x: torch.Tensor,
    kind: str = "elbo",
    batch: int = 500,
    generator: torch.Generator | None = None,
    samples: int = 8,
) -> torch.Tensor:
    """ℓ of every sample under one VAE, float32 (B,) nats on the CPU.

    Args:
        x: (B, *input_shape) on the VAE's device or on the CPU.
        kind: ``"elbo"`` (latent at its posterior mean: reconstruction NLL + KL, nothing random), ``"reconstruction"``
            (the first term alone) or ``"iwae"`` (importance-weighted bound with ``samples`` draws).
        batch: samples per forward pass.
        generator: source of the draws; only ``"iwae"`` uses it.

    Raises ModelError for an unknown kind and where a loss is not finite.
    """
    if kind not in SCORE_KINDS:
        raise ModelError(f"affinity score must be one of {', '.join(SCORE_KINDS)}, not {kind!r}")
    device = next(vae.parameters()).device
    was_training = vae.training
    vae.eval()
    out = torch.empty(len(x))
    with torch.inference_mode():
        for start in range(0, len(x), batch):
            part = x[start : start + batch].to(device)
            out[start : start + batch] = _loss(vae, part, kind, generator, samples)
    vae.train(was_training)
    if not bool(torch.isfinite(out).all()):
        raise ModelError("a VAE gives losses that are not finite: its training has diverged")
    return out


def score_matrix(
    vaes: Iterable[Vae],
    x: torch.Tensor,
    kind: str = "elbo",
    batch: int = 500,
    generator: torch.Generator | None = None,
    samples: int = 8,
) -> torch.Tensor:
    """ℓ of every sample under every VAE, float32 (B, M) nats. ``vaes`` is iterated once (a ``VaeBank`` will do).

    For ``"iwae"`` every VAE gets the same draws, which takes their noise out of the differences between components.
    """
    start = generator.get_state() if generator is not None else None
    columns = []
    for vae in vaes:
        if generator is not None and start is not None:
            generator.set_state(start)
        columns.append(scores(vae, x, kind, batch, generator, samples))
    return torch.stack(columns, dim=1)


def log_proportions(alpha: torch.Tensor | Sequence[float]) -> torch.Tensor:
    """log α, float64 (M,), after lifting every α_j to at least ``PROPORTION_FLOOR`` / M and normalising."""
    values = torch.as_tensor(alpha, dtype=torch.float64)
    if values.ndim != 1 or not len(values) or not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise ModelError("mixture proportions must be finite, non-negative and one per component")
    values = values / values.sum() if float(values.sum()) > 0 else torch.full_like(values, 1.0 / len(values))
    values = values.clamp_min(PROPORTION_FLOOR / len(values))
    return torch.log(values / values.sum())


@dataclass(frozen=True)
class Evidence:
    """All that B samples say about their components, apart from the silo's proportions.

    Attributes:
        losses: ℓ, float32 (B, M) nats.
        extra: router's and label's terms, float64 (B, M) nats, or ``None``.
    """

    losses: torch.Tensor
    extra: torch.Tensor | None = None


def affinities(
    losses: torch.Tensor,
    log_alpha: torch.Tensor,
    temperature: float = 1.0,
    offset: torch.Tensor | None = None,
    extra: torch.Tensor | None = None,
) -> torch.Tensor:
    """a_j(x) = −(ℓ_j(x) − o_j) / T + log α_j + e_j(x), float64 (B, M) nats.

    Args:
        losses: ℓ, (B, M) nats. log_alpha: (M,) from ``log_proportions``. temperature: T > 0.
        offset: o, (M,) nats, subtracted from the losses; ``None`` for none.
        extra: e, (B, M) nats: the router's and the label's terms; ``None`` for none.
    """
    if not temperature > 0.0:
        raise ModelError(f"the temperature must be positive, not {temperature}")
    shifted = losses.double() if offset is None else losses.double() - offset.double()
    scored = -shifted / temperature + log_alpha.double()
    return scored if extra is None else scored + extra.double()


def label_term(probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """max(log p(y | x; w_j), ``LABEL_FLOOR``), float64 (B, M) nats: the joint model p_j(x, y) = p_j(x) · p(y | x; w_j).

    For the training partition only; a prediction knows no label.

    Args:
        probabilities: every expert's class probabilities, (M, B, C). labels: int64 (B,).
    """
    given = probabilities[:, torch.arange(len(labels)), labels].double().T
    return torch.log(given.clamp_min(0.0)).clamp_min(LABEL_FLOOR)


def router_term(probabilities: torch.Tensor, shares: torch.Tensor | None, weight: float = 1.0) -> torch.Tensor:
    """weight · max(log g_j(x) − log π_j, ``ROUTER_FLOOR``), float64 (B, M) nats.

    The router's posterior g_j(x) divided by its training prior π is a likelihood ratio, to which every silo adds its
    own log α.

    Args:
        probabilities: g, (B, M). shares: π, mean of α over the silos, (M,); ``None``: uniform.
    """
    components = probabilities.shape[1]
    prior = torch.full((components,), 1.0 / components) if shares is None else shares
    prior = (prior.double() / prior.double().sum()).clamp_min(_SMALLEST_SHARE)
    return weight * (torch.log(probabilities.double()) - torch.log(prior)).clamp_min(ROUTER_FLOOR)


def responsibilities(aff: torch.Tensor) -> torch.Tensor:
    """softmax_j a_j(x), float64 (B, M); rows sum to one, finite for affinities of any finite size."""
    return torch.softmax(aff.double(), dim=1)


def assign(aff: torch.Tensor) -> torch.Tensor:
    """argmax_j a_j(x), int64 (B,). Ties go to the lowest component."""
    return aff.argmax(dim=1)


def estimate_alpha(aff: torch.Tensor, mode: str = "soft") -> torch.Tensor:
    """New mixture proportions, float64 (M,): the mean responsibility (``soft``) or the share assigned (``hard``).

    Without a single sample nothing is known: uniform.
    """
    components = aff.shape[1]
    if len(aff) == 0:
        return torch.full((components,), 1.0 / components, dtype=torch.float64)
    if mode == "soft":
        return responsibilities(aff).mean(dim=0)
    if mode == "hard":
        return torch.bincount(assign(aff), minlength=components).double() / len(aff)
    raise ModelError(f"proportions must be soft or hard, not {mode!r}")


def em_proportions(
    losses: torch.Tensor,
    passes: int = 20,
    temperature: float = 1.0,
    offset: torch.Tensor | None = None,
    start: torch.Tensor | None = None,
    extra: torch.Tensor | None = None,
) -> torch.Tensor:
    """α of a silo with the VAEs fixed, by ``passes`` EM steps from uniform (or ``start``); float64 (M,).

    Each step cannot lower the likelihood Σ_x log Σ_j α_j exp(−(ℓ_j − o_j) / T + e_j). For silos that join late: no
    labels, no training.
    """
    components = losses.shape[1]
    alpha = torch.full((components,), 1.0 / components, dtype=torch.float64) if start is None else start.double()
    for _ in range(passes):
        alpha = estimate_alpha(affinities(losses, log_proportions(alpha), temperature, offset, extra))
    return alpha
