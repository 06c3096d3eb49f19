"""State dicts ↔ the flat float32 vector that secure aggregation sums.

The one place that knows which tensors travel: every floating-point tensor of a component's VAE and expert, BatchNorm's
running statistics included, in the order of the state dict. Integer tensors (``num_batches_tracked``) stay local.

    component 0: [ VAE tensors … | expert tensors … ]   component 1: [ … ]   …   component M: [ router tensors … ]

A *run* is one model's stretch of the vector. Every run belongs to one component of ``secure``'s ``VectorSpec``, whose
gate and weights it shares; the runs of a component lie side by side. What all silos hold (the router) is a component
of its own, behind the M of the mixture.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fedgmi_fedml.errors import ModelError
from secure.types import Block, MetricSpec, StatisticSpec, VectorSpec

Part = Literal["vae", "expert", "router"]
StateDict = Mapping[str, torch.Tensor]
FloatVector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TensorSlot:
    """Where one tensor lies, relative to the start of its run."""

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


@dataclass(frozen=True)
class Run:
    """One model's stretch of the vector.

    Attributes:
        component: whose gate and weights it shares, 0 … ``Layout.components`` − 1.
        part, index: which model of the shared state: the ``index``-th of this part.
        start: first coordinate in the vector.
        slots: its tensors, in the order of the state dict.
    """

    component: int
    part: Part
    index: int
    start: int
    slots: tuple[TensorSlot, ...]

    @property
    def stop(self) -> int:
        """First coordinate behind the run."""
        return self.start + (self.slots[-1].stop if self.slots else 0)

    def of(self, vector: FloatVector) -> FloatVector:
        """View of this run in ``vector``, shape (P,)."""
        return vector[self.start : self.stop]

    @property
    def name(self) -> str:
        """``vae.0``, ``expert.1``, ``router.0``: for people, blocks and metrics."""
        return f"{self.part}.{self.index}"


class Layout:
    """The layout of an upload: a list of runs.

    Args:
        runs: (component, part, example state dict) of every model that travels, components ascending from 0 without a
            gap. Of the examples only names, shapes and dtypes are used. The n-th run of a part is its n-th model.
        clip: largest absolute value of one weighted coordinate, in the parameters' own unit.
    """

    def __init__(self, runs: Iterable[tuple[int, Part, StateDict]], clip: float) -> None:
        self.clip = clip
        found: list[Run] = []
        for component, part, example in runs:
            last = found[-1] if found else None
            if component - (last.component if last else -1) not in ((0, 1) if last else (1,)):
                raise ValueError("the components of a layout must ascend from 0 without a gap")
            index = sum(run.part == part for run in found)
            found.append(Run(component, part, index, last.stop if last else 0, _slots(part, example)))
        self.runs = tuple(found)
        self.components = found[-1].component + 1 if found else 0
        self._runs = {(run.part, run.index): run for run in found}

    @classmethod
    def mixture(
        cls,
        examples: Mapping[Part, StateDict],
        components: int,
        clip: float,
        common: Mapping[Part, StateDict] | None = None,
    ) -> Layout:
        """One model of each part in ``examples`` for every component, then what all silos hold, as component M."""
        runs = [(j, part, example) for j in range(components) for part, example in examples.items()]
        runs += [(components, part, example) for part, example in (common or {}).items()]
        return cls(runs, clip)

    @property
    def length(self) -> int:
        """Number of coordinates of the whole vector, P."""
        return self.runs[-1].stop if self.runs else 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that travel, in order of first appearance."""
        return tuple(dict.fromkeys(run.part for run in self.runs))

    def spec(
        self, metrics: Sequence[MetricSpec] = (), statistics: Sequence[StatisticSpec] = (), *, survey: bool = False
    ) -> VectorSpec:
        """The agreed layout for ``secure``: one block a tensor, which errors can name. A survey uploads none."""
        blocks = tuple(
            Block(f"{run.name}/{slot.key}:{'x'.join(map(str, slot.shape))}", slot.length, self.clip, run.component)
            for run in self.runs
            for slot in run.slots
        )
        return VectorSpec(self.components, () if survey else blocks, tuple(metrics), tuple(statistics))

    def component(self, vector: FloatVector, j: int) -> FloatVector:
        """View of all of component ``j``'s runs in ``vector``."""
        mine = [run for run in self.runs if run.component == j]
        return vector[mine[0].start : mine[-1].stop]

    def write_delta(self, out: FloatVector, part: Part, index: int, local: StateDict, start: StateDict) -> None:
        """Write ``local − start`` of the ``index``-th model of ``part`` into ``out`` (shape (P,)).

        Raises:
            ModelError: a tensor is missing, or its shape differs.
        """
        run = self._runs[part, index]
        stretch = run.of(out)
        for slot in run.slots:
            ours, theirs = _tensor(local, slot), _tensor(start, slot)
            np.subtract(ours, theirs, out=stretch[slot.start : slot.stop], casting="same_kind")

    def add(self, state: StateDict, part: Part, index: int, delta: FloatVector) -> OrderedDict[str, torch.Tensor]:
        """``state + delta`` for the ``index``-th model of ``part``; what does not travel is kept, dtypes restored."""
        run = self._runs[part, index]
        stretch = run.of(delta)
        result = OrderedDict(state)
        for slot in run.slots:
            moved = _tensor(state, slot) + stretch[slot.start : slot.stop]
            result[slot.key] = torch.from_numpy(moved.reshape(slot.shape)).to(state[slot.key].dtype)
        return result


def _slots(part: Part, example: StateDict) -> tuple[TensorSlot, ...]:
    """Slots of all floating-point tensors, one behind the other."""
    slots: list[TensorSlot] = []
    for key, tensor in example.items():
        if tensor.is_floating_point():
            slots.append(TensorSlot(part, key, tuple(tensor.shape), slots[-1].stop if slots else 0))
    return tuple(slots)


def _tensor(state: StateDict, slot: TensorSlot) -> FloatVector:
    """The tensor of ``slot`` as a flat float32 array."""
    tensor = state.get(slot.key)
    if tensor is None or tuple(tensor.shape) != slot.shape:
        found = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise ModelError(f"{slot.part} tensor {slot.key!r} is {found}; the federation agreed on shape {slot.shape}")
    flat: FloatVector = tensor.detach().to(torch.float32).reshape(-1).numpy()
    return flat
