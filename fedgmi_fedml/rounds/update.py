"""What a silo brings to a session, what it remembers, and what its driver asks of a method."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch

from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import FloatVector
from fedgmi_fedml.rounds.wire import Plan
from secure.types import Totals


@dataclass(frozen=True, repr=False)
class LocalUpdate:
    """What a silo brings to a session. Its printed form hides the values.

    Attributes:
        samples: per component n_i^j (warm-up: R_i^j n_i); size classes are made of them in ``secure``.
        vector: local − global, float32 (P,), not yet weighted; ``None`` where the phase uploads no models.
        statistics: for the totals, seen as sums by silos only.
        metrics: seen as sums by the server; those of a component are multiplied by the silo's share of it.
    """

    samples: tuple[float, ...]
    vector: FloatVector | None = None
    statistics: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "LocalUpdate(values hidden)"

    def without_vector(self) -> LocalUpdate:
        """The same, once the vector lies on disk."""
        return replace(self, vector=None)

    def weighted_metrics(self, share: Sequence[float]) -> dict[str, float]:
        """Metrics with those named ``….j`` multiplied by the silo's share of component j."""
        weighted = {}
        for name, value in self.metrics.items():
            _, dot, j = name.rpartition(".")
            weighted[name] = value * share[int(j)] if dot else value
        return weighted


@dataclass(frozen=True, repr=False)
class Memory:
    """What a silo remembers between rounds; it never leaves the silo. Goes with the models of one digest.

    Attributes:
        alpha: mixture proportions α_i, float64 (M,).
        assignment: component of every training sample, int64 (n,), or ``None`` before the first partition.
        leaning: warm-up responsibilities R_i^j from the last survey, float64 (M,), or ``None``.
        offset: pooled mean loss of each component from the last totals, float64 (M,) nats, or ``None``.
        shares: π, mean mixture proportions over the silos from the last totals, float64 (M,), or ``None``.
        temperature: fitted T, whether it was identified, and the silos' mean proportions at the fit, (2 + M,); or
            ``None`` where T is set by hand.
        moments: for tables the mean and spread of every feature over all silos, float64 (2, F), or ``None``.
    """

    alpha: torch.Tensor
    assignment: torch.Tensor | None = None
    leaning: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    moments: torch.Tensor | None = None
    temperature: torch.Tensor | None = None
    shares: torch.Tensor | None = None

    def __repr__(self) -> str:
        return "Memory(values hidden)"


class LocalWork(Protocol):
    """What the silo's driver asks of a method."""

    def work(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """Train from ``state``; may take minutes."""

    def on_totals(self, plan: Plan, totals: Totals) -> None:
        """The cohort's totals are known."""

    def on_release(self, plan: Plan | None, digest: bytes) -> None:
        """The shared models have moved on to ``digest`` (``plan`` is ``None`` where this silo took no part)."""

    def finish(self, final: MixtureState, best: MixtureState) -> None:
        """The run is over."""


def memory_to_arrays(memory: Memory) -> OrderedDict[str, np.ndarray[Any, Any]]:
    """Memory → named arrays, for a checkpoint."""
    found = ((item.name, getattr(memory, item.name)) for item in fields(memory))
    return OrderedDict((name, value.numpy()) for name, value in found if value is not None)


def memory_from_arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Memory:
    """Inverse of ``memory_to_arrays``."""
    return Memory(**{name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})
