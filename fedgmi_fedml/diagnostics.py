"""Warnings in words a user can act on: what is wrong, how sure that is, and what to try.

Thresholds stand at the top, with their reasons. Every function takes plain figures, so that a server can call it with
what the promise of secure aggregation allows it to know, and a silo with its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedgmi_fedml.models import Vae

__all__ = [
    "Finding",
    "collapsed_posteriors",
    "component_similarity",
    "effective_components",
    "idle_components",
    "indistinguishable_components",
    "overlap_rate",
    "posterior_kl",
    "surplus_components",
    "unreliable_proportions",
]

OVERLAP_LIMIT = 0.1
"""Two components that would swap more than a tenth of their samples are called indistinguishable (Φ(−√D/2) > 0.1 means
a symmetric KL below 6.6 nats)."""

MISASSIGNMENT_LIMIT = 0.2
"""Above one wrong assignment in five the mixture proportions are called unreliable: real MNIST rotations run at
0.03–0.1, letters by case at 0.25, CIFAR-10 rotations at 0.35."""

COLLAPSE_NATS = 0.5
"""A posterior that carries less than half a nat says next to nothing about its sample; MNIST's carry 15–25."""

IDLE_ROUNDS = 2
"""Rounds in a row that a component stays closed before it is reported: one is chance where K of N silos take part."""

DRIFT_LIMIT = 0.1
"""Proportions that still move by more than this (total variation) in the last round have not settled."""

SURPLUS = 0.6
"""Fewer effective components than this share of M means that M was set too high."""


@dataclass(frozen=True)
class Finding:
    """One warning.

    Attributes:
        code: stable name for programs, e.g. ``"indistinguishable"``.
        text: for people, with the remedy.
        components: the components concerned.
    """

    code: str
    text: str
    components: tuple[int, ...] = ()


def overlap_rate(symmetric_kl: float) -> float:
    """Share of samples that two components would swap, Φ(−√D / 2), between 0 and ½.

    Exact for two Gaussians of equal covariance and equal weight, whose symmetric KL is D = δ² (δ their distance in
    standard deviations) and whose Bayes error is Φ(−δ/2). Optimistic where VAEs are overconfident.
    """
    return 0.5 * math.erfc(math.sqrt(max(symmetric_kl, 0.0)) / 2.0 / math.sqrt(2.0))


def component_similarity(separability: torch.Tensor) -> torch.Tensor:
    """Twice the overlap of every two components, float64 (M, M): 1 for the same density, 0 for disjoint ones."""
    return torch.special.erfc(separability.double().clamp_min(0.0).sqrt() / 2.0 / math.sqrt(2.0))


def effective_components(weights: Sequence[float], separability: torch.Tensor | None = None) -> float:
    """How many different components carry the data, from 1 to M (0 without any data).

    exp(−Σ_j p_j log Σ_k S_jk p_k) with p the shares and S the similarity (Leinster and Cobbold 2012): idle components
    do not count, and two that describe the same data count as one. Without ``separability`` all count as different.
    """
    total = math.fsum(weights)
    if total <= 0:
        return 0.0
    shares = torch.tensor([weight / total for weight in weights], dtype=torch.float64)
    similarity = torch.eye(len(shares), dtype=torch.float64)
    if separability is not None:
        similarity = component_similarity(separability)
    ordinary = similarity @ shares
    held = shares > 0
    return float(torch.exp(-(shares[held] * ordinary[held].log()).sum()))


def posterior_kl(vaes: Sequence[Vae], samples: int = 256, generator: torch.Generator | None = None) -> list[float]:
    """Mean KL(q(z|x) ‖ p(z)) of every VAE over its own decoded samples, nats: needs the models, no data."""
    means = []
    for vae in vaes:
        with torch.inference_mode():
            means.append(float(vae.kl(*vae.encode(vae.sample(samples, generator))).mean()))
    return means


def indistinguishable_components(separability: torch.Tensor, limit: float = OVERLAP_LIMIT) -> list[Finding]:
    """A finding for every pair whose overlap exceeds ``limit``. ``separability``: symmetric KL, (M, M) nats."""
    findings = []
    for j in range(len(separability)):
        for k in range(j + 1, len(separability)):
            rate = overlap_rate(float(separability[j, k]))
            if rate > limit:
                findings.append(
                    Finding(
                        "indistinguishable",
                        f"components {j} and {k} can hardly be told apart (symmetric KL {separability[j, k]:.2g} nats, "
                        f"estimated misassignment {rate:.0%}): use fewer components, a better VAE or more warm-up",
                        (j, k),
                    )
                )
    return findings


def idle_components(history: Sequence[Sequence[bool]], rounds: int = IDLE_ROUNDS) -> list[Finding]:
    """A finding for every component that was closed in each of the last ``rounds`` rounds.

    Args:
        history: per round, which components were open (held by enough silos to be released).
    """
    recent = history[-rounds:]
    if len(recent) < rounds:
        return []
    findings = []
    for j in range(len(recent[0])):
        if not any(row[j] for row in recent):
            since = next((at for at, row in enumerate(reversed(history)) if row[j]), len(history))
            findings.append(
                Finding(
                    "idle",
                    f"component {j} has been frozen for {since} rounds: too few silos hold enough of its samples. It "
                    "keeps its parameters; use fewer components, more candidates, or more silos a round",
                    (j,),
                )
            )
    return findings


def collapsed_posteriors(kl: Sequence[float], limit: float = COLLAPSE_NATS) -> list[Finding]:
    """A finding for every VAE whose posterior equals the prior. ``kl``: mean KL of each component, nats."""
    return [
        Finding(
            "posterior_collapse",
            f"the VAE of component {j} ignores its latent (KL {value:.2g} nats): its scores compare average samples "
            "only; lower the KL weight or the learning rate, train longer, or use a smaller decoder",
            (j,),
        )
        for j, value in enumerate(kl)
        if not value > limit
    ]


def unreliable_proportions(
    misassignment: float, drift: float = 0.0, temperature_identified: bool = True, limit: float = MISASSIGNMENT_LIMIT
) -> list[Finding]:
    """Findings that say why mixture proportions should not be trusted.

    Args:
        misassignment: mean of 1 − max_j r_j(x), in [0, 1); NaN (unknown) gives no finding.
        drift: total variation of the proportions in the last round.
        temperature_identified: whether calibration could find its temperature.
    """
    findings = []
    if misassignment > limit:
        findings.append(
            Finding(
                "proportions_unreliable",
                f"about {misassignment:.0%} of the samples are in doubt between components: read mixture proportions "
                "as rough, and prefer mixture gating to map",
            )
        )
    if drift > DRIFT_LIMIT:
        findings.append(
            Finding("proportions_moving", f"proportions still moved by {drift:.2g} in the last round: add rounds")
        )
    if not temperature_identified:
        findings.append(
            Finding(
                "temperature_unidentified",
                "the silos' scores do not say how confident they are (temperature not identified): proportions may be "
                "too close to each other or too far apart by an unknown factor",
            )
        )
    return findings


def surplus_components(effective: float, components: int, share: float = SURPLUS) -> list[Finding]:
    """A finding where far fewer components carry the data than were asked for."""
    if components < 2 or effective >= share * components:
        return []
    return [
        Finding(
            "surplus_components",
            f"only about {effective:.1f} of {components} components are in effect: the data may hold fewer; try "
            f"components: {max(1, round(effective))}",
        )
    ]
