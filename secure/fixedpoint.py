"""Fixed point: what float32 coordinates, metrics and statistics become before they are added in a ring.

Vector (Z_2^32, read as int32). Scale 2^b with b = 29 − ⌈log2 clip⌉, i.e. 2^29 / clip for clips that are powers of two.
Scaling by a power of two is exact in float32, and ``rint`` rounds to nearest, ties to even: runs, orders and back-ends
agree bit for bit.

Why sums cannot wrap: a silo's weight is share ≤ 1 and the shares of a cohort add up to at most 1. A weighted coordinate
is therefore held to ``share · clip`` (``effective_clip``), not to ``clip``: the sum over any cohort is at most
clip · 2^b ≤ 2^29 plus K/2 steps of rounding, a quarter of what int32 holds, whatever K is. Holding each silo to the
full ``clip`` would void this proof from four silos on.

Profile ``compact`` has 2^18 steps a clip instead (b = 18 − ⌈log2 clip⌉) and is otherwise the same, with every back-end.
Two of its sums, each at most 2^18 + K/2 in size, fit one 40-bit slot of a ciphertext. Half a step of rounding per silo
is more there: K/2 steps of clip · 2^-18, 1.5e-4 at clip 8 with ten silos. Updates for which that is too coarse are
refused (``protocol.release.check_step``).

Metrics live in Z_2^64 (bound × K must fit), statistics in the field of the totals, made non-negative by an offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from secure.errors import CapacityError, InputError
from secure.gate import MAX_SILOS, MIN_SILOS
from secure.types import MetricSpec, Profile, StatisticSpec, VectorSpec

FRACTION_BITS = 29
"""A coordinate at its clip is at most 2^29 steps."""

COMPACT_BITS = 18
"""In profile ``compact``: at most 2^18 steps."""

MAX_COORDINATES = 1 << 32
"""Longest vector: 16 GiB an upload, and far from the counter's end of one mask stream."""

STATISTIC_BITS = 126
"""Largest sum of a statistic: an element of the totals' field, GF(2^127 − 1) (``protocol/field.py``)."""

_CLIP_EXPONENTS = range(-60, 61)
"""⌈log2 clip⌉ of usable clips: scale and scaled values stay normal float32 numbers."""


def fraction_bits(profile: Profile) -> int:
    """Binary digits of a coordinate at its clip.

    Raises:
        CapacityError: no such profile.
    """
    if profile not in ("standard", "compact"):
        raise CapacityError(f"profile {profile!r} is neither standard nor compact")
    return FRACTION_BITS if profile == "standard" else COMPACT_BITS


def scale_bits(clip: float, profile: Profile = "standard") -> int:
    """b = 29 − ⌈log2 clip⌉: the scale is 2^b steps per unit (26 at clip 8), never more than 2^29 / clip.

    Raises:
        CapacityError: clip is not a finite number in 2^-61 … 2^60.
    """
    if not (math.isfinite(clip) and clip > 0):
        raise CapacityError(f"a clip must be a positive finite number, not {clip}")
    mantissa, exponent = math.frexp(clip)  # clip = mantissa · 2^exponent, mantissa in [0.5, 1)
    ceiling = exponent - 1 if mantissa == 0.5 else exponent
    if ceiling not in _CLIP_EXPONENTS:
        raise CapacityError(f"clip {clip} lies outside 2^-61 … 2^60; rescale the parameters of this block")
    return fraction_bits(profile) - ceiling


def scale_of(clip: float, profile: Profile = "standard") -> float:
    """2^``scale_bits(clip)``: steps per unit, an exact power of two."""
    return math.ldexp(1.0, scale_bits(clip, profile))


def effective_clip(clip: float, share: float) -> float:
    """Largest absolute value of a coordinate after weighting with ``share``, 0 … 1.

    Raises:
        InputError: share outside 0 … 1 (or NaN).
    """
    if not 0.0 <= share <= 1.0:
        raise InputError("a share of weight must lie in 0 … 1")
    return clip * share


def sum_bound(clip: float, cohort_size: int, profile: Profile = "standard") -> int:
    """Largest honest absolute sum in steps: clip · scale plus half a step of rounding per silo."""
    return math.floor(clip * scale_of(clip, profile)) + (cohort_size + 1) // 2


def _limit(scale: float, clip: float) -> np.float32:
    """Largest whole number of steps, exact in float32, that does not exceed clip · scale."""
    exact = math.floor(clip * scale)
    limit = np.float32(exact)
    if int(limit) > exact:
        limit = np.nextafter(limit, np.float32(0))
    return np.float32(math.floor(limit))


def quantise_into(
    chunk: npt.NDArray[np.float32], scale: float, clip: float, out: npt.NDArray[Any], name: str = "vector"
) -> int:
    """Round ``chunk · scale`` to nearest even, held to ± clip · scale; ``out`` doubles as the scratch: no temporaries.

    Args:
        chunk: float32, 1-D.
        scale: steps per unit, a power of two (``scale_of(block.clip)``).
        clip: largest absolute value, i.e. ``effective_clip(block.clip, share)``; zero writes zeros.
        out: int32 (or uint32: two's complement), 1-D, contiguous, same length; must not overlap ``chunk``.
        name: the tensor, for the error's text.

    Returns:
        Number of coordinates that were clipped.

    Raises:
        InputError: NaN or infinity (``out`` is zeroed), or wrong dtypes and shapes.
    """
    _check_arrays(chunk, out, name)
    if chunk.size == 0:
        return 0
    floats = out.view(np.float32)
    integers = out.view(np.int32)
    limit = _limit(scale, clip)
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(chunk, np.float32(scale), out=floats)
    low, high = floats.min(), floats.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        _refuse_non_finite(chunk, out, name)
    clipped = 0
    if high > limit or low < -limit:
        clipped = int(np.count_nonzero(floats > limit)) + int(np.count_nonzero(floats < -limit))
        np.clip(floats, -limit, limit, out=floats)
    np.rint(floats, out=floats)
    np.copyto(integers, floats, casting="unsafe")
    return clipped


def _check_arrays(chunk: npt.NDArray[np.float32], out: npt.NDArray[Any], name: str) -> None:
    if chunk.dtype != np.float32 or out.dtype.kind not in "iu" or out.dtype.itemsize != 4:
        raise InputError(f"{name}: quantising needs float32 in and 32-bit integers out")
    if chunk.ndim != 1 or chunk.shape != out.shape:
        raise InputError(f"{name}: quantising needs two flat arrays of one length")


def _refuse_non_finite(chunk: npt.NDArray[np.float32], out: npt.NDArray[Any], name: str) -> None:
    """Raise with the tensor's name and the kind of value, and nothing else; leave no plaintext in ``out``.

    A finite value that overflows when scaled is no error: it is written as the largest float32 and clipped.
    """
    if bool(np.isfinite(chunk).all()):
        np.nan_to_num(out.view(np.float32), copy=False)
        return
    kind = "NaN" if bool(np.isnan(chunk).any()) else "infinity"
    out[...] = 0
    raise InputError(f"{name} holds {kind}")


def dequantise_into(chunk: npt.NDArray[np.int32], scale: float, out: npt.NDArray[np.float32]) -> None:
    """``chunk / scale`` as float32, no temporaries: one rounding to 24 bits, then an exact division.

    Raises:
        InputError: wrong dtypes or shapes.
    """
    if chunk.dtype != np.int32 or out.dtype != np.float32 or chunk.shape != out.shape:
        raise InputError("dequantising needs int32 in and float32 out, of one shape")
    np.copyto(out, chunk, casting="unsafe")
    np.multiply(out, np.float32(1.0 / scale), out=out)


@dataclass(frozen=True)
class Segment:
    """Neighbouring coordinates with one scale and one effective clip.

    Attributes:
        start, stop: range of coordinates in the flat vector.
        scale: steps per unit.
        clip: effective clip (unit of the parameters); zero where the component is closed or not held.
        bound: largest honest absolute sum over the cohort's clip, in steps, without rounding.
        name: first block, for errors.
    """

    start: int
    stop: int
    scale: float
    clip: float
    bound: int
    name: str


def segments(spec: VectorSpec, share: Sequence[float]) -> tuple[Segment, ...]:
    """Merge neighbouring blocks that quantise alike, so that a network's many small tensors cost one call.

    Args:
        share: this silo's weight per component, 0 … 1 (``Totals.share``); zero for closed components.

    Raises:
        InputError: number or range of shares.
        CapacityError: a clip cannot be used.
    """
    if len(share) != spec.components:
        raise InputError(f"{len(share)} shares for {spec.components} components")
    merged: list[Segment] = []
    start = 0
    for block in spec.blocks:
        stop = start + block.length
        clip = effective_clip(block.clip, share[block.component])
        scale, bound = scale_of(block.clip, spec.profile), sum_bound(block.clip, 0, spec.profile)
        last = merged[-1] if merged else None
        if last is not None and (last.scale, last.clip, last.bound) == (scale, clip, bound):
            merged[-1] = Segment(last.start, stop, scale, clip, bound, last.name)
        elif block.length:
            merged.append(Segment(start, stop, scale, clip, bound, block.name))
        start = stop
    return tuple(merged)


def _steps(value: float, bound: float, resolution: float, name: str) -> tuple[int, bool]:
    """Round a scalar to steps and hold it to its bound: (steps, whether it was clipped)."""
    if not math.isfinite(value):
        raise InputError(f"{name} is NaN or infinite")
    limit = _limit_steps(bound, resolution)
    if abs(value) > bound:
        return (limit if value > 0 else -limit), True
    return max(-limit, min(limit, round(value / resolution))), False


def _limit_steps(bound: float, resolution: float) -> int:
    return round(bound / resolution)


def encode_metric(spec: MetricSpec, value: float) -> tuple[int, bool]:
    """A metric as signed steps of its resolution, and whether it was clipped. Add it modulo 2^64.

    Raises:
        InputError: NaN or infinity, naming the metric.
    """
    return _steps(value, spec.bound, spec.resolution, f"metric {spec.name}")


def decode_metric(spec: MetricSpec, total: int) -> float:
    """Sum of a metric from its sum of steps modulo 2^64 (signed or unsigned reading)."""
    signed = (int(total) + (1 << 63)) % (1 << 64) - (1 << 63)
    return signed * spec.resolution


def encode_statistic(spec: StatisticSpec, value: float) -> int:
    """A statistic as steps above −bound, hence never negative; values beyond the bound are held to it.

    Raises:
        InputError: NaN or infinity, naming the statistic.
    """
    steps, _ = _steps(value, spec.bound, spec.resolution, f"statistic {spec.name}")
    return steps + _limit_steps(spec.bound, spec.resolution)


def decode_statistic(spec: StatisticSpec, total: int, contributors: int) -> float:
    """Sum of a statistic over ``contributors`` silos: takes off their offsets."""
    return (total - contributors * _limit_steps(spec.bound, spec.resolution)) * spec.resolution


def statistic_width(spec: StatisticSpec, cohort_size: int) -> int:
    """Bits that the sum of an encoded statistic over the cohort needs."""
    return max(1, (2 * _limit_steps(spec.bound, spec.resolution) * cohort_size).bit_length())


def magnitude(count: int) -> int:
    """Order of magnitude, rounded up: 0, or the smallest power of ten ≥ count. All that is sent of clipped counts."""
    return 0 if count <= 0 else 10 ** len(str(count - 1)) if count > 1 else 1


def check_capacity(spec: VectorSpec, cohort_size: int) -> None:
    """Prove, before round 1, that no sum over ``cohort_size`` silos can wrap in its ring.

    Raises:
        CapacityError: names the block, metric or statistic, K, and what to change.
    """
    if not MIN_SILOS <= cohort_size <= MAX_SILOS:
        raise CapacityError(f"{cohort_size} silos: the complete graph serves {MIN_SILOS} … {MAX_SILOS}")
    if spec.components < 1:
        raise CapacityError("a vector needs at least one component")
    if spec.length > MAX_COORDINATES:
        raise CapacityError(f"{spec.length} coordinates exceed {MAX_COORDINATES}; split the model over several rounds")
    _check_blocks(spec, cohort_size)
    _check_scalars(spec, cohort_size)


def _check_blocks(spec: VectorSpec, cohort_size: int) -> None:
    for block in spec.blocks:
        if block.length < 0 or not 0 <= block.component < spec.components:
            raise CapacityError(f"block {block.name}: negative length, or a component outside 0 … M−1")
        try:
            bound = sum_bound(block.clip, cohort_size, spec.profile)
        except CapacityError as error:
            raise CapacityError(f"block {block.name}: {error}") from None
        if bound >= 1 << 31:
            raise CapacityError(f"block {block.name}: sums of {cohort_size} silos do not fit 32 bits; lower the clip")


def _check_scalars(spec: VectorSpec, cohort_size: int) -> None:
    """Metrics: bound × K below 2^63 steps. Statistics: the sum fits the totals' field."""
    scalars: list[MetricSpec | StatisticSpec] = [*spec.metrics, *spec.statistics]
    for kind in (spec.metrics, spec.statistics):
        names = [scalar.name for scalar in kind]
        if len(set(names)) != len(names):
            raise CapacityError("metrics and statistics need distinct names")
    for scalar in scalars:
        kind_name = "metric" if isinstance(scalar, MetricSpec) else "statistic"
        ratio = scalar.bound / scalar.resolution if scalar.resolution > 0 else math.nan
        if not (math.isfinite(ratio) and ratio >= 1):
            raise CapacityError(f"{kind_name} {scalar.name}: needs 0 < resolution ≤ bound, both finite")
        if isinstance(scalar, MetricSpec):
            fits = _limit_steps(scalar.bound, scalar.resolution) * cohort_size < 1 << 63
            fits = fits and (scalar.component is None or 0 <= scalar.component < spec.components)
        else:
            fits = statistic_width(scalar, cohort_size) <= STATISTIC_BITS
        if not fits:
            raise CapacityError(
                f"{kind_name} {scalar.name}: sums of {cohort_size} silos do not fit; raise its resolution or lower its "
                "bound, and keep its component in 0 … M−1"
            )
