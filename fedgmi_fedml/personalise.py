"""A silo's personalised predictions: its experts, weighted for each sample by what the VAEs say about it.

    p_i(y | x) = Σ_j r_i^j(x) · p(y | x; w_j)        [algorithm.md, "Personalised prediction"]

Responsibilities come from x alone: no label enters the gating.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from fedgmi_fedml.affinity import affinities, assign, log_proportions, responsibilities, score_matrix
from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.local_training import expert_predictions
from fedgmi_fedml.models import Vae

__all__ = ["GATINGS", "expert_probabilities", "gate_weights", "mix", "predict"]

GATINGS = ("mixture", "map")


def gate_weights(aff: torch.Tensor, gating: str = "mixture") -> torch.Tensor:
    """Weight of every expert for every sample, float64 (B, M), rows sum to one.

    ``mixture``: the responsibilities; ``map``: one for the most likely component, zero for the others.
    """
    if gating == "mixture":
        return responsibilities(aff)
    if gating == "map":
        return nn.functional.one_hot(assign(aff), aff.shape[1]).double()
    raise ModelError(f"gating must be one of {', '.join(GATINGS)}, not {gating!r}")


def expert_probabilities(experts: Iterable[nn.Module], x: torch.Tensor, batch: int = 500) -> torch.Tensor:
    """Every expert's class probabilities, float32 (M, B, classes). ``experts`` is iterated once (or a ``Bank``)."""
    return torch.stack([expert_predictions(expert, None, x, batch) for expert in experts])


def mix(weights: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Σ_j weights[b, j] · probabilities[j, b, c], float64 (B, classes)."""
    return torch.einsum("bj,jbc->bc", weights.double(), probabilities.double())


def predict(
    vaes: Iterable[Vae],
    experts: Iterable[nn.Module],
    alpha: torch.Tensor,
    x: torch.Tensor,
    gating: str = "mixture",
    *,
    kind: str = "elbo",
    temperature: float = 1.0,
    offset: torch.Tensor | None = None,
    batch: int = 500,
    generator: torch.Generator | None = None,
    samples: int = 8,
) -> torch.Tensor:
    """Personalised class probabilities, float64 (B, classes), rows sum to one.

    Args:
        alpha: this silo's mixture proportions, (M,). x: (B, *input_shape). Others: see ``affinity.score_matrix`` and
            ``affinity.affinities``.
    """
    losses = score_matrix(vaes, x, kind, batch, generator, samples)
    weights = gate_weights(affinities(losses, log_proportions(alpha), temperature, offset), gating)
    probabilities = expert_probabilities(experts, x, batch)
    if probabilities.shape[0] != weights.shape[1]:
        raise ModelError(f"{probabilities.shape[0]} experts do not match {weights.shape[1]} VAEs")
    return mix(weights, probabilities)
