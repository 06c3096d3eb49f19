"""What a session takes in and gives out as NumPy: checks of a submitted vector, a release as an ``Aggregate``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from secure.errors import InputError, ProtocolError
from secure.fixedpoint import COMPACT_BITS, scale_of
from secure.gate import size_classes
from secure.messages import Release
from secure.prg import CHUNK
from secure.types import Aggregate, Contribution, SessionParams, VectorSpec

COARSEST = 0.25
"""Largest part of one silo's update of a component (in the L2 norm) that rounding may change in profile ``compact``."""


def byte_view(array: npt.NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array, without a copy (an empty array's view cannot be cast)."""
    return array.data.cast("B") if array.size else memoryview(b"")


def check_vector(spec: VectorSpec, vector: Any) -> tuple[float, ...]:
    """Refuse anything but a finite, flat, contiguous float32 vector of the agreed length. No temporaries.

    Returns:
        The norm of each ``CHUNK`` of coordinates: no coordinate in it is larger.

    Raises:
        InputError: names the block that holds NaN or infinity.
    """
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32:
        raise InputError("the vector must be a float32 array")
    if vector.shape != (spec.length,) or not vector.flags.c_contiguous:
        raise InputError(f"the vector must be flat and contiguous, with {spec.length} coordinates")
    # A NaN or an infinity survives a sum of squares; the converse (overflow) is looked at block by block.
    with np.errstate(over="ignore", invalid="ignore"):
        parts = (vector[start : start + CHUNK] for start in range(0, len(vector), CHUNK))
        squares = [float(np.dot(part, part)) for part in parts]
    if not all(map(math.isfinite, squares)):
        _name_bad_block(spec, vector)
    return tuple(math.sqrt(square) for square in squares)


def check_step(spec: VectorSpec, vector: npt.NDArray[np.float32], share: Sequence[float]) -> None:
    """In profile ``compact``: refuse an update that rounding would change by more than ``COARSEST``.

    Args:
        vector: weighted, finite.
        share: this silo's weight per component; those without are not looked at.

    Raises:
        InputError: names the component, how much of it would be lost, and what to change.
    """
    if spec.profile != "compact":
        return
    lost, whole = [0.0] * spec.components, [0.0] * spec.components
    start = 0
    for block in spec.blocks:
        stop, j = start + block.length, block.component
        for at in range(start, stop if share[j] else start, CHUNK):
            steps = vector[at : min(stop, at + CHUNK)] * np.float64(scale_of(block.clip, spec.profile))
            unit = scale_of(block.clip, spec.profile) ** -2.0  # blocks of other clips count in the parameters' unit
            whole[j] += unit * float(np.dot(steps, steps))
            steps -= np.rint(steps)
            lost[j] += unit * float(np.dot(steps, steps))
        start = stop
    for j, (part, all_of_it) in enumerate(zip(lost, whole, strict=True)):
        if part > COARSEST**2 * all_of_it:
            raise InputError(
                f"component {j}: profile compact would change this silo's update by more than {COARSEST:.0%}; its "
                f"step, 2^-{COMPACT_BITS} of the clip, is too coarse for updates so small: use profile standard, or a "
                "smaller clip"
            )


def _name_bad_block(spec: VectorSpec, vector: npt.NDArray[np.float32]) -> None:
    start = 0
    for block in spec.blocks:
        part = vector[start : start + block.length]
        start += block.length
        if block.length and not (math.isfinite(float(part.min())) and math.isfinite(float(part.max()))):
            raise InputError(f"{block.name} holds NaN or infinity")


def check_contribution(params: SessionParams, contribution: Contribution) -> None:
    """Refuse totals of another layout, or values that are no counts.

    Raises:
        InputError: says which.
    """
    if len(contribution.samples) != params.spec.components:
        raise InputError(f"samples of {len(contribution.samples)} components, not {params.spec.components}")
    if len(contribution.statistics) != len(params.spec.statistics):
        raise InputError("number of statistics differs from the layout")
    if not all(math.isfinite(value) for value in contribution.statistics):
        raise InputError("a statistic is NaN or infinite")
    size_classes(contribution.samples, params.rules.min_samples)


def metric_values(spec: VectorSpec, metrics: Mapping[str, float], opened: Sequence[bool]) -> tuple[float, ...]:
    """Metrics in the layout's order, held to their bounds, zero where their component is closed.

    Raises:
        InputError: other names than the layout's, NaN or infinity.
    """
    names = [item.name for item in spec.metrics]
    if sorted(metrics) != sorted(names):
        raise InputError("metrics must have exactly the names of the layout: " + ", ".join(names))
    values = []
    for item in spec.metrics:
        value = float(metrics[item.name])
        if not math.isfinite(value):
            raise InputError(f"metric {item.name} is NaN or infinite")
        is_open = item.component is None or opened[item.component]
        values.append(max(-item.bound, min(item.bound, value)) if is_open else 0.0)
    return tuple(values)


def read_release(message: Release, params: SessionParams, dtype: str) -> Aggregate:
    """The aggregate of a release, with a read-only view of its bytes.

    Raises:
        ProtocolError: it does not fit the session's layout, cohort or rules about drops.
    """
    data = memoryview(message.values)
    if data.nbytes != 4 * params.spec.length:
        raise ProtocolError("release does not fit the layout")
    return aggregate_of(message, params, np.frombuffer(data, dtype=dtype))


def aggregate_of(
    message: Release, params: SessionParams, values: npt.NDArray[Any], sealed: bytes | memoryview = b""
) -> Aggregate:
    """The aggregate of a release whose values were read already, or cannot be (``sealed``).

    Raises:
        ProtocolError: it does not fit the session's layout, cohort or rules about drops.
    """
    spec, cohort = params.spec, params.cohort
    least = max(1, len(cohort) - params.rules.max_drops)
    if not set(message.survivors) <= set(cohort) or len(message.survivors) < least:
        raise ProtocolError("release names survivors that the rules do not allow")
    if len(message.open) != spec.components or len(message.metrics) != len(spec.metrics):
        raise ProtocolError("release does not fit the layout")
    values.flags.writeable = False
    names = [item.name for item in spec.metrics]
    return Aggregate(
        spec=spec,
        values=values,
        open=message.open,
        cohort=cohort,
        survivors=message.survivors,
        metrics=dict(zip(names, message.metrics, strict=True)),
        clipped_share=message.clipped_share,
        sealed=sealed,
    )
