"""The plaintext oracle: what a session must release, computed from everybody's secrets in plain integer arithmetic.

Written against the design, not against the package: nothing here imports ``secure`` except its nouns.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np


def size_class(n: float, min_samples: int) -> int:
    """Nearest (by ratio) of min_samples · 1.5^k, rounded half up; zero below min_samples."""
    if n < min_samples:
        return 0
    classes = []
    for k in range(200):
        value = math.floor(min_samples * Fraction(3, 2) ** k + Fraction(1, 2))
        if not classes or value > classes[-1]:
            classes.append(min(value, (1 << 20) - 1))
        if classes[-1] == (1 << 20) - 1:
            break
    return max(c for i, c in enumerate(classes) if i == 0 or classes[i - 1] * c <= n * n)


def totals(params, samples, statistics, organisations=None):
    """(classes by silo, weights, holders, sums of statistics, open)."""
    cohort, rules = params.cohort, params.rules
    classes = {silo: [size_class(n, rules.min_samples) for n in samples[silo]] for silo in cohort}
    organisations = organisations or {silo: silo for silo in cohort}
    speaker = {}
    for silo in sorted(cohort):
        speaker.setdefault(organisations[silo], silo)
    counted = set(speaker.values())
    m = range(params.spec.components)
    weights = tuple(sum(classes[silo][j] for silo in cohort) for j in m)
    holders = tuple(sum(classes[silo][j] > 0 for silo in counted) for j in m)
    gate = max(rules.min_contributors, rules.max_drops + rules.colluders + 2)
    sums = tuple(
        sum(round(max(-s.bound, min(s.bound, statistics[silo][k])) / s.resolution) for silo in cohort) * s.resolution
        for k, s in enumerate(params.spec.statistics)
    )
    return classes, weights, holders, sums, tuple(count >= gate for count in holders)


def shares(params, classes, weights, opened):
    """Silo → weight per component."""
    cap = params.rules.w_max

    def one(own, total):
        """Own part of the released weight, were every other silo to keep its share, is at most ``cap``."""
        return own / total if own <= cap * total else cap / (1 - cap) * (total - own) / total

    return {
        silo: tuple(one(own[j], weights[j]) if opened[j] and own[j] else 0.0 for j in range(params.spec.components))
        for silo, own in classes.items()
    }


def quantised(params, vector, share):
    """One silo's integer coordinates, and how many were clipped."""
    out, start, clipped = np.zeros(params.spec.length, dtype=np.int64), 0, 0
    for block in params.spec.blocks:
        part = vector[start : start + block.length]
        scale = 2.0 ** (29 - math.ceil(math.log2(block.clip)))
        weight = share[block.component]
        if weight:
            limit = np.float32(math.floor(block.clip * weight * scale))
            limit = limit if limit <= block.clip * weight * scale else np.nextafter(limit, np.float32(0))
            limit = np.float32(math.floor(limit))
            scaled = part * np.float32(scale)
            clipped += int((np.abs(scaled) > limit).sum())
            out[start : start + block.length] = np.rint(np.clip(scaled, -limit, limit)).astype(np.int64)
        start += block.length
    return out, clipped


def release(params, samples, statistics, vectors, metrics, survivors, organisations=None):
    """(int values, metrics, clipped order-of-magnitude sum, open)."""
    classes, weights, _, _, opened = totals(params, samples, statistics, organisations)
    share = shares(params, classes, weights, opened)
    values, clipped = np.zeros(params.spec.length, dtype=np.int64), 0
    for silo in survivors:
        one, count = quantised(params, vectors[silo], share[silo])
        values += one
        clipped += 10 ** math.ceil(math.log10(count)) if count else 0
    sums = {}
    for item in params.spec.metrics:
        is_open = item.component is None or opened[item.component]
        sums[item.name] = (
            sum(
                round(max(-item.bound, min(item.bound, metrics[silo][item.name])) / item.resolution)
                for silo in survivors
            )
            * item.resolution
            if is_open
            else 0.0
        )
    return values.astype(np.int32), sums, clipped, opened
