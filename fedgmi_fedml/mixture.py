"""The federation's shared state: M VAEs θ_j, M experts w_j, perhaps a router; one round's step to the next."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fedgmi_fedml.packing import Layout, Part, StateDict
from secure.api import dequantise
from secure.types import Aggregate

PARTS: tuple[Part, ...] = ("vae", "expert", "router")
"""The parts of a state, in the order of its fields."""


@dataclass(frozen=True)
class MixtureState:
    """The shared models. Treated as immutable: no tensor in it is ever written to.

    Attributes:
        vaes: M state dicts (empty for methods without density models).
        experts: M state dicts (empty before the sample-level rounds).
        router: one state dict, the classifier x → component; empty before the sample-level rounds and where it is off.
    """

    vaes: tuple[StateDict, ...] = ()
    experts: tuple[StateDict, ...] = ()
    router: tuple[StateDict, ...] = ()

    @property
    def components(self) -> int:
        """M."""
        return max(len(self.vaes), len(self.experts))

    def parts(self) -> dict[Part, tuple[StateDict, ...]]:
        """The models by part, in the order of digests and files."""
        return {"vae": self.vaes, "expert": self.experts, "router": self.router}

    @classmethod
    def from_parts(cls, parts: Mapping[Part, Sequence[StateDict]]) -> MixtureState:
        """Inverse of ``parts``; a missing part is empty."""
        return cls(*(tuple(parts.get(part, ())) for part in PARTS))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over names, dtypes, shapes and bytes of every tensor: what the proposal of a round is bound to."""
        hasher = hashlib.sha256(b"fedgmi/models/1")
        for part, states in self.parts().items():
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
    parts = {part: list(states) for part, states in state.parts().items()}
    for run in layout.runs:
        if aggregate.open[run.component]:
            models = parts[run.part]
            models[run.index] = layout.add(models[run.index], run.part, run.index, delta)
    return MixtureState.from_parts(parts)


def flatten(state: MixtureState) -> OrderedDict[str, torch.Tensor]:
    """One dictionary ``{"vae.0/…": tensor}``, for files and for the wire."""
    return OrderedDict(
        (f"{part}.{j}/{key}", tensor)
        for part, states in state.parts().items()
        for j, model in enumerate(states)
        for key, tensor in model.items()
    )


def unflatten(tensors: StateDict) -> MixtureState:
    """Inverse of :func:`flatten`."""
    models: dict[str, OrderedDict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        model, _, key = name.partition("/")
        models.setdefault(model, OrderedDict())[key] = tensor

    def collect(part: Part) -> tuple[StateDict, ...]:
        mine = sorted((m for m in models if m.startswith(f"{part}.")), key=lambda m: int(m.split(".")[1]))
        return tuple(models[m] for m in mine)

    return MixtureState.from_parts({part: collect(part) for part in PARTS})
