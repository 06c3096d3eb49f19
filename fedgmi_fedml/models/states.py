"""State dicts in and out of modules: names and shapes checked, dtypes restored, integer counters left local."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import nn

from fedgmi_fedml.errors import ModelError

__all__ = ["Bank", "State", "VaeBank", "export_state", "load_state", "parameter_count", "strip_prefix"]

State = OrderedDict[str, torch.Tensor]
"""Name → float32 CPU tensor, in the module's own order. Integer and boolean buffers are not in it: they stay local."""

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_PREFIX = "module."


def strip_prefix(state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """The same state without the ``module.`` that data-parallel wrappers put in front of every name."""
    while state and all(name.startswith(_PREFIX) for name in state):
        state = {name[len(_PREFIX) :]: value for name, value in state.items()}
    return state


def _floating(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's own floating-point parameters and buffers, by name, in order, not copied."""
    return {name: value for name, value in module.state_dict().items() if value.is_floating_point()}


def export_state(module: nn.Module) -> State:
    """Copies of all floating-point parameters and buffers as float32 CPU tensors."""
    return OrderedDict(
        (name, value.detach().to(device="cpu", dtype=torch.float32, copy=True).contiguous())
        for name, value in _floating(module).items()
    )


def load_state(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Copies ``state`` into ``module`` in place, in the module's own dtypes and on its device.

    A common ``module.`` prefix is ignored, and so are entries that are integer or boolean (counters stay local; a
    BatchNorm's batch counter starts at zero, so that nothing depends on what the instance did before).

    Raises ModelError naming the first missing, unknown or differently shaped tensor.
    """
    state = strip_prefix(state)
    own = module.state_dict()
    with torch.no_grad():
        for name, target in own.items():
            if not target.is_floating_point():
                if name.endswith("num_batches_tracked"):
                    target.zero_()
                continue
            if name not in state:
                raise ModelError(f"the state has no tensor {name!r} {tuple(target.shape)}")
            if state[name].shape != target.shape:
                expected, got = tuple(target.shape), tuple(state[name].shape)
                raise ModelError(f"tensor {name!r} has shape {got}, this model needs {expected}")
            target.copy_(state[name])
    unknown = [name for name in state if name not in own]
    if unknown:
        raise ModelError(f"the state has a tensor {unknown[0]!r} that this model does not know")


def parameter_count(module: nn.Module) -> int:
    """Number of floating-point values in the module's state (parameters and float buffers)."""
    return sum(value.numel() for value in _floating(module).values())


class Bank(Sequence[ModuleT]):
    """M models that share one module instance: ``bank[j]`` loads state j into it and returns it.

    One model at a time is valid: the previous one is overwritten. Saves memory and the time to build modules.
    """

    def __init__(self, module: ModuleT, states: Sequence[Mapping[str, torch.Tensor]]) -> None:
        self._module = module
        self._states = tuple(states)

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, index: int) -> ModuleT:  # type: ignore[override]
        load_state(self._module, self._states[index])
        return self._module

    def __iter__(self) -> Iterator[ModuleT]:
        return (self[index] for index in range(len(self)))


VaeBank = Bank
"""A ``Bank`` of VAEs."""
