"""What only a simulation knows of a round: every silo's mixture and partition, held against the truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedgmi_fedml.data import Federation
from fedgmi_fedml.diagnostics import effective_components
from fedgmi_fedml.evaluate import alpha_drift, match_components


class Truth:
    """Compares the silos' memories with the ground truth, round by round.

    Args:
        federation: with the true components where there are any.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._before: dict[int, torch.Tensor] = {}

    def figures(self, memories: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """``alpha_mae``, ``partition_accuracy`` (with ground truth), ``alpha_drift``, ``component_weight`` and
        ``effective_components`` of the present partition; nothing before the first partition."""
        held = {i: m for i, m in sorted(memories.items()) if len(m.get("assignment", ()))}
        if not held:
            return {}
        alpha = {i: torch.from_numpy(np.array(memory["alpha"])) for i, memory in held.items()}
        count = len(next(iter(alpha.values())))
        sizes = sum(np.bincount(memory["assignment"], minlength=count) for memory in held.values())
        weight = np.asarray(sizes, dtype=np.float64) / np.sum(sizes)
        result: dict[str, Any] = {
            "component_weight": weight.tolist(),
            "effective_components": effective_components(weight.tolist()),
        }
        moved = [alpha_drift(self._before[i], now) for i, now in alpha.items() if i in self._before]
        if moved:
            result["alpha_drift"] = float(np.mean(moved))
        self._before = alpha
        return result | self._against_truth(held, alpha)

    def _against_truth(
        self, held: Mapping[int, Mapping[str, Any]], alpha: Mapping[int, torch.Tensor]
    ) -> dict[str, Any]:
        true = self._federation.true_alpha
        if true is None:
            return {}
        rows = [i - 1 for i in held]
        matching = match_components(np.stack([value.numpy() for value in alpha.values()]), true[rows])
        right = total = 0
        for i, memory in held.items():
            labels = self._federation.silos[i - 1].true_component_train
            if labels is not None:
                named = matching.relabel(torch.from_numpy(np.array(memory["assignment"])))
                right, total = right + int((named == labels).sum()), total + len(labels)
        return {"alpha_mae": matching.alpha_mae, "partition_accuracy": right / max(total, 1)}
