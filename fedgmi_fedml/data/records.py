"""The nouns of the data package: a source's pool, one silo's data, a whole federation."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedgmi_fedml.data.table import TableSchema
from fedgmi_fedml.shapes import DataShape

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done and how much there is in all."""

PARTS = ("train", "val", "test")


def stream(seed: int, purpose: str) -> np.random.Generator:
    """Independent random generator for one purpose of one run; equal arguments give equal streams everywhere."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()),)))


@dataclass(frozen=True, repr=False)
class PoolPart:
    """One part (training, validation or test) of a source, as row numbers into an array that parts may share.

    ``x`` is kept in its stored type (usually uint8); ``rows`` (int64) are rows of ``x``. ``y`` (int64) and
    ``columns`` (further per-row values by name, for groups and for ``where`` of a component) go with ``rows``.
    """

    x: Array
    rows: Rows
    y: Rows
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def raw(self, index: Rows) -> Array:
        """Stored samples at positions ``index`` of this part (a copy)."""
        return self.x[self.rows[index]]


@dataclass(frozen=True)
class Pool:
    """Everything one source holds, before it is shared out among silos or split.

    Attributes:
        origin: file, folder or data set, for messages.
        parts: ``"train"`` always, ``"val"`` and ``"test"`` where the source has them.
        class_names: one name per class, in order of the labels.
        scale: stored images are divided by it to reach [0, 1]; 1 for values that are used as they are.
        layout: ``"hw"``, ``"hwc"``, ``"chw"`` (stored order of an image's axes) or ``"table"``.
        value_range: ``"unit"`` or ``"real"``, see ``DataShape``.
        used, skipped: files (or rows) read, and left out as unreadable.
        schema: columns of a table, whose rows ``x`` are float64 as ``TableSchema`` describes; else ``None``.
        group_names: names of the groups that whole numbers in a group column stand for, where known.
    """

    origin: str
    parts: Mapping[str, PoolPart]
    class_names: tuple[str, ...]
    scale: float
    layout: str
    value_range: str = "unit"
    used: int = 0
    skipped: int = 0
    schema: TableSchema | None = None
    group_names: tuple[str, ...] | None = None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a sample as the models see it: (C, H, W) or (F,)."""
        if self.schema is not None:
            return (self.schema.width,)
        stored = tuple(int(side) for side in self.parts["train"].x.shape[1:])
        if self.layout == "hw":
            return (1, *stored)
        if self.layout == "hwc":
            return (stored[2], stored[0], stored[1])
        return stored

    @property
    def shape(self) -> DataShape:
        """What silos must agree on."""
        return DataShape(self.sample_shape, len(self.class_names), self.value_range)

    def images(self, part: str, index: Rows) -> npt.NDArray[np.float32]:
        """Images at positions ``index`` of a part, float32 (n, C, H, W), in [0, 1] unless ``value_range`` is real."""
        values = self.parts[part].raw(index).astype(np.float32)
        if self.scale != 1:
            values /= np.float32(self.scale)
        if self.layout == "hw":
            return values[:, None]
        if self.layout == "hwc":
            return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        return values


@dataclass(repr=False)
class SiloData:
    """One silo's data. Its printed form hides the values.

    Images are float32 (n, C, H, W) in [0, 1]; tables float32 (n, F), standardised; labels int64 (n,).
    ``true_component_*`` (int64 (n,)) exist in simulations only. ``skipped`` counts unreadable files out of
    ``used + skipped``. A silo may be empty: it then takes part with zero weight.

    A table is standardised with securely summed moments: until ``apply_moments`` its x are NaN (so that nothing can
    train on them by mistake) and ``raw`` holds the rows of each part, float64, as ``schema`` describes.
    """

    name: str
    x_train: torch.Tensor
    y_train: torch.Tensor
    x_val: torch.Tensor
    y_val: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    true_component_train: torch.Tensor | None = None
    true_component_val: torch.Tensor | None = None
    true_component_test: torch.Tensor | None = None
    skipped: int = 0
    used: int = 0
    shape: DataShape | None = None
    class_names: tuple[str, ...] = ()
    schema: TableSchema | None = None
    raw: Mapping[str, npt.NDArray[np.float64]] | None = None
    standardised: bool = True

    def part(self, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Samples, labels and true components of part ``"train"``, ``"val"`` or ``"test"``."""
        return getattr(self, f"x_{name}"), getattr(self, f"y_{name}"), getattr(self, f"true_component_{name}")

    def __repr__(self) -> str:
        return f"SiloData({self.name}, {self.shape}, values hidden)"

    @property
    def needs_moments(self) -> bool:
        """Whether ``apply_moments`` must be called before anything can be learnt."""
        return not self.standardised


@dataclass(repr=False)
class Federation:
    """All silos of a simulation and what they share. Its printed form hides the values.

    ``true_alpha`` (N, M') float64 is the share of each true component among a silo's *training* samples; ``None``
    where there is no ground truth. M' may differ from the number of components that are learnt. ``schema`` is set
    for tables: the silos' statistics must be summed and ``apply_moments`` called for each silo.
    """

    shape: DataShape
    class_names: tuple[str, ...]
    silos: list[SiloData]
    true_alpha: npt.NDArray[np.float64] | None = None
    component_names: tuple[str, ...] = ()
    origin: str = ""
    schema: TableSchema | None = None
    used: int = 0
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Federation({self.origin}, {len(self.silos)} silos, {self.shape}, values hidden)"

    @property
    def needs_moments(self) -> bool:
        """Whether some silo still waits for ``apply_moments``."""
        return any(silo.needs_moments for silo in self.silos)

    def summary(self) -> dict[str, Any]:
        """What a simulation's summary says about its data (sizes of all silos: not for a server's eyes)."""
        return {
            "origin": self.origin,
            "shape": list(self.shape.input_shape),
            "classes": list(self.class_names),
            "components": list(self.component_names),
            "samples": {part: [len(silo.part(part)[0]) for silo in self.silos] for part in PARTS},
            "files_used": self.used,
            "files_skipped": self.skipped,
            "files_total": self.used + self.skipped,
            "notes": list(self.notes),
        }
