"""Simulation: how the components are mixed in each silo (the true proportions α, which the method must find)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.data.records import stream
from fedgmi_fedml.errors import ConfigError

Alpha = npt.NDArray[np.float64]


def linear(silos: int, components: int) -> Alpha:
    """α of silo i moves along the path component 0 → 1 → … → M−1; for two components α_i^1 = (i + ½)/N."""
    alpha = np.zeros((silos, components))
    for i in range(silos):
        at = (i + 0.5) / silos * (components - 1)
        low = min(int(at), max(components - 2, 0))
        alpha[i, low] = 1.0 - (at - low)
        if components > 1:
            alpha[i, low + 1] = at - low
    return alpha


def two_level(silos: int, components: int, level: float) -> Alpha:
    """First half of the silos (level, 1 − level), second half the reverse; with M > 2, M blocks with 1 − level on top.

    The rest of each block is spread evenly over the other components.
    """
    block = np.arange(silos) * components // silos
    return _one_on_top(components - 1 - block, components, 1.0 - level)


def dominant(silos: int, components: int, share: float) -> Alpha:
    """One component has ``share`` in each silo (silo i: component i mod M), the rest is spread evenly."""
    return _one_on_top(np.arange(silos) % components, components, share)


def _one_on_top(top: npt.NDArray[Any], components: int, share: float) -> Alpha:
    if components == 1:
        return np.ones((len(top), 1))
    alpha = np.full((len(top), components), (1.0 - share) / (components - 1))
    alpha[np.arange(len(top)), top] = share
    return alpha


def random(silos: int, components: int, generator: np.random.Generator) -> Alpha:
    """Lengths of the M segments cut from [0, 1] by M − 1 uniform points (FedSoft's "random")."""
    cuts = np.sort(generator.random((silos, components - 1)), axis=1)
    return np.diff(cuts, axis=1, prepend=0.0, append=1.0)


def explicit(silos: int, components: int, rows: Any) -> Alpha:
    """Proportions as given, one row a silo (rows are reused in turn when there are fewer); each sums to 1."""
    alpha = np.asarray(rows, dtype=np.float64)
    if alpha.ndim != 2 or alpha.shape[1] != components or not len(alpha):
        raise ConfigError(
            f"data_args.silo_mixture.proportions: needs one row of {components} numbers per silo "
            f"(a row per component of silo_mixture.components), not shape {alpha.shape}"
        )
    if (alpha < 0).any() or not np.allclose(alpha.sum(axis=1), 1.0, atol=1e-6):
        raise ConfigError("data_args.silo_mixture.proportions: every row must be non-negative and sum to 1")
    return alpha[np.arange(silos) % len(alpha)]


def proportions(mixture: Any, silos: int, components: int, seed: int) -> Alpha:
    """α (N, M) float64 for the configured kind; deterministic for a seed."""
    generator = stream(seed, "mixture")
    if mixture.kind == "linear":
        return linear(silos, components)
    if mixture.kind == "two_level":
        return two_level(silos, components, mixture.level)
    if mixture.kind == "dominant":
        return dominant(silos, components, mixture.dominant)
    if mixture.kind == "dirichlet":
        return generator.dirichlet([mixture.concentration] * components, size=silos)
    if mixture.kind == "random":
        return random(silos, components, generator)
    if mixture.kind == "explicit":
        return explicit(silos, components, mixture.proportions or [])
    raise ConfigError(f"data_args.silo_mixture.kind: {mixture.kind!r} has no proportions")


def counts(alpha: Alpha, total: int) -> npt.NDArray[np.int64]:
    """Whole samples per component that sum to ``total``: largest remainders, lower component first on ties."""
    exact = alpha * total
    whole = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - whole), kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    return whole
