"""The federation's shared state: M VAEs θ_j and M experts w_j, and the step from one round's state to the next."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fedgmi_fedml.packing import Layout, StateDict
from secure.api import dequantise
from secure.types import Aggregate


@dataclass(frozen=True)
class MixtureState:
    """The shared models, one per component. Treated as immutable: no tensor in it is ever written to.

    Attributes:
        vaes: M state dicts (empty for methods without density models).
        experts: M state dicts (empty before the sample-level rounds).
    """

    vaes: tuple[StateDict, ...] = ()
    experts: tuple[StateDict, ...] = ()

    @property
    def components(self) -> int:
        """M."""
        return max(len(self.vaes), len(self.experts))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over names, dtypes, shapes and bytes of every tensor: what the proposal of a round is bound to."""
        hasher = hashlib.sha256(b"fedgmi/models/1")
        for part, states in (("vae", self.vaes), ("expert", self.experts)):
            for j, state in enumerate(states):
                for key, tensor in sorted(state.items()):
                    hasher.update(f"{part}.{j}/{key}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
                    hasher.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
        return hasher.digest()


def apply_aggregate(state: MixtureState, aggregate: Aggregate, layout: Layout) -> MixtureState:
    """θ_j ← θ_j + Σ_i (n_i^j / N^j)·(θ_i^j − θ_j), and likewise w_j (algorithm.md, "One round", step 4).

    Pure: the server and every silo reach the same bits. A component that stayed closed keeps its parameters.
    """
    delta = dequantise(aggregate)

    def step(states: Sequence[StateDict], part: str) -> tuple[StateDict, ...]:
        if part not in layout.parts:
            return tuple(states)
        return tuple(
            layout.add(s, j, part, delta) if aggregate.open[j] else s  # type: ignore[arg-type]
            for j, s in enumerate(states)
        )

    return MixtureState(step(state.vaes, "vae"), step(state.experts, "expert"))


def flatten(state: MixtureState) -> OrderedDict[str, torch.Tensor]:
    """One dictionary ``{"vae.0/…": tensor}``, for files and for the wire."""
    return OrderedDict(
        (f"{part}.{j}/{key}", tensor)
        for part, states in (("vae", state.vaes), ("expert", state.experts))
        for j, model in enumerate(states)
        for key, tensor in model.items()
    )


def unflatten(tensors: StateDict) -> MixtureState:
    """Inverse of :func:`flatten`."""
    models: dict[str, OrderedDict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        model, _, key = name.partition("/")
        models.setdefault(model, OrderedDict())[key] = tensor

    def collect(part: str) -> tuple[StateDict, ...]:
        mine = sorted((m for m in models if m.startswith(f"{part}.")), key=lambda m: int(m.split(".")[1]))
        return tuple(models[m] for m in mine)

    return MixtureState(collect("vae"), collect("expert"))
