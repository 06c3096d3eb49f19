"""The shape of one sample, shared by the data sources and the models (kept apart so that neither imports the other)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

__all__ = ["DataShape"]

_RANGES = ("unit", "real")


@dataclass(frozen=True)
class DataShape:
    """What every silo of a federation must agree on about its data.

    ``input_shape`` is (channels, height, width) for images or (features,) for tables; ``classes`` the number of
    classes; ``value_range`` is ``"unit"`` for values within [0, 1] (Bernoulli or Gaussian likelihood) and ``"real"``
    for standardised values without bounds (Gaussian likelihood only).

    Raises ValueError for an empty or non-positive shape, fewer than one class, or an unknown range.
    """

    input_shape: tuple[int, ...]
    classes: int
    value_range: str = "unit"

    def __post_init__(self) -> None:
        if not self.input_shape or any(side < 1 for side in self.input_shape):
            raise ValueError(f"input_shape must hold positive sizes, not {self.input_shape}")
        if len(self.input_shape) not in (1, 3):
            raise ValueError(f"input_shape must be (features,) or (channels, height, width), not {self.input_shape}")
        if self.classes < 1:
            raise ValueError(f"classes must be at least 1, not {self.classes}")
        if self.value_range not in _RANGES:
            raise ValueError(f"value_range must be one of {_RANGES}, not {self.value_range!r}")

    @property
    def is_image(self) -> bool:
        """Whether samples are images (channels, height, width)."""
        return len(self.input_shape) == 3

    @property
    def size(self) -> int:
        """Number of values in one sample."""
        return prod(self.input_shape)

    def __str__(self) -> str:
        return f"{'×'.join(map(str, self.input_shape))}, {self.classes} classes, {self.value_range} values"
