"""State dicts ↔ the flat float32 vector that secure aggregation sums.

The one place that knows which tensors travel: every floating-point tensor of a component's VAE and expert, BatchNorm's
running statistics included, in the order of the state dict. Integer tensors (BatchNorm's ``num_batches_tracked``) stay local.

    component 0: [ VAE tensors … | expert tensors … ]   component 1: [ … ]   …
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fedgmi_fedml.errors import ModelError
from secure.types import Block, MetricSpec, StatisticSpec, VectorSpec

Part = Literal["vae", "expert"]
StateDict = Mapping[str, torch.Tensor]
FloatVector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TensorSlot:
    """Where one tensor of one component lies, relative to the start of the component's run."""

    part: Part
    key: str
    shape: tuple[int, ...]
    start: int

    @property
    def length(self) -> int:
        """Number of coordinates (1 for a 0-d tensor)."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def stop(self) -> int:
        """First coordinate behind the tensor."""
        return self.start + self.length


class Layout:
    """The layout of ``components`` equal runs of coordinates.

    Args:
        examples: per part that travels, an example state dict (only names, shapes and dtypes are used).
        components: number of components M.
        clip: largest absolute value of one weighted coordinate, in the parameters' own unit.
    """

    def __init__(self, examples: Mapping[Part, StateDict], components: int, clip: float) -> None:
        self.components = components
        self.parts: tuple[Part, ...] = tuple(examples)
        self.clip = clip
        slots: list[TensorSlot] = []
        at = 0
        for part, example in examples.items():
            for key, tensor in example.items():
                if not tensor.is_floating_point():
                    continue
                slots.append(TensorSlot(part, key, tuple(tensor.shape), at))
                at = slots[-1].stop
        self.slots = tuple(slots)
        self.component_length = at

    @property
    def length(self) -> int:
        """Number of coordinates of the whole vector, P."""
        return self.component_length * self.components

    def spec(
        self, metrics: Sequence[MetricSpec] = (), statistics: Sequence[StatisticSpec] = (), *, survey: bool = False
    ) -> VectorSpec:
        """The agreed layout for ``secure``: one block a tensor, so that an error can name it. A survey uploads nothing."""
        blocks = (
            ()
            if survey
            else tuple(
                Block(f"{slot.part}.{j}/{slot.key}:{'x'.join(map(str, slot.shape))}", slot.length, self.clip, j)
                for j in range(self.components)
                for slot in self.slots
            )
        )
        return VectorSpec(self.components, blocks, tuple(metrics), tuple(statistics))

    def component(self, vector: FloatVector, j: int) -> FloatVector:
        """View of component ``j``'s run of ``vector``."""
        return vector[j * self.component_length : (j + 1) * self.component_length]

    def write_delta(self, out: FloatVector, j: int, part: Part, local: StateDict, start: StateDict) -> None:
        """Write ``local − start`` of one part of component ``j`` into ``out`` (shape (P,)).

        Raises:
            ModelError: a tensor is missing, or its shape differs.
        """
        run = self.component(out, j)
        for slot in self._slots_of(part):
            ours, theirs = _tensor(local, slot), _tensor(start, slot)
            np.subtract(ours, theirs, out=run[slot.start : slot.stop], casting="same_kind")

    def add(self, state: StateDict, j: int, part: Part, delta: FloatVector) -> OrderedDict[str, torch.Tensor]:
        """``state + delta`` for one part of component ``j``; tensors that do not travel are kept, dtypes restored."""
        run = self.component(delta, j)
        result = OrderedDict(state)
        for slot in self._slots_of(part):
            moved = _tensor(state, slot) + run[slot.start : slot.stop]
            result[slot.key] = torch.from_numpy(moved.reshape(slot.shape)).to(state[slot.key].dtype)
        return result

    def _slots_of(self, part: Part) -> Iterator[TensorSlot]:
        return (slot for slot in self.slots if slot.part == part)


def _tensor(state: StateDict, slot: TensorSlot) -> FloatVector:
    """The tensor of ``slot`` as a flat float32 array."""
    tensor = state.get(slot.key)
    if tensor is None or tuple(tensor.shape) != slot.shape:
        found = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise ModelError(f"{slot.part} tensor {slot.key!r} is {found}; the federation agreed on shape {slot.shape}")
    flat: FloatVector = tensor.detach().to(torch.float32).reshape(-1).numpy()
    return flat
