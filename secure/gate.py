"""Who may be summed: size classes, the component gate, capped shares, and what K silos can afford.

Feasibility for K silos on the complete graph (secure-aggregation.md): quorum q = ⌊2K/3⌋ + 1, threshold t = q.

* 2q > K + c: two quorums share an honest silo, so a lying server cannot get two survivor sets signed
  (implied by the next line as long as t = q; checked all the same).
* t > 2c: totals are shared with threshold t − c, so that c of t sub-sums expose a liar, and must stay hidden from c.
* drops ≤ K − q: the quorum must survive.
* drops + c + 2 ≤ K: otherwise the gate could never open.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from secure.errors import InputError
from secure.types import Rules

MIN_SILOS = 3
MAX_SILOS = 128

GRID_RATIO = 1.5
MAX_COUNT = 1 << 40
"""Largest sample count of one silo that is accepted."""

MAX_CLASS = (1 << 20) - 1
"""Largest size class; larger silos count as this. It bounds what a total can be, and so how small a lying silo can make
the others' shares: fixed point must not round all but the largest silo to zero."""


@lru_cache(maxsize=64)
def _grid(base: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Classes base · 1.5^k, rounded half up in integers, and the borders between them (geometric means)."""
    classes, power = [base], 0
    while classes[-1] < MAX_CLASS:
        power += 1
        value = (2 * base * 3**power + 2**power) // (2 * 2**power)
        if value > classes[-1]:  # at base 1 the first steps round to the same number
            classes.append(min(value, MAX_CLASS))
    borders = tuple(math.sqrt(low * high) for low, high in itertools.pairwise(classes))
    return tuple(classes), borders


def size_class(n: float, min_samples: int) -> int:
    """Sample count (or responsibility times count) rounded to a geometric grid: min_samples · 1.5^k, as an integer.

    Rounding is to the nearest class by ratio. Square roots and comparisons are exact to the last bit under IEEE 754,
    so every party and the oracle get the same integer.

    Args:
        n: exact count, ≥ 0.
        min_samples: counts below it are class 0 (at least 1 is used).

    Raises:
        InputError: negative, NaN or larger than 2^40.
    """
    if not 0 <= n <= MAX_COUNT:
        raise InputError("a sample count must lie in 0 … 2^40")
    base = max(1, int(min_samples))
    if n < base:
        return 0
    classes, borders = _grid(base)
    return classes[bisect_right(borders, n)]


def size_classes(samples: Sequence[float], min_samples: int) -> tuple[int, ...]:
    """``size_class`` of each component."""
    return tuple(size_class(n, min_samples) for n in samples)


def open_components(holders: Sequence[int], rules: Rules) -> tuple[bool, ...]:
    """Component j is open iff its holders H^j reach max(min_contributors, max_drops + c + 2)."""
    gate = rules.gate()
    return tuple(count >= gate for count in holders)


def capped_share(own_class: int, total: float, w_max: float) -> float:
    """This silo's weight: class / N^j, but never more than ``w_max`` of what all silos release together.

    A silo above that weighs w_max / (1 − w_max) · (N^j − class) / N^j: as the others keep their shares, its part of the
    released sum is then exactly w_max. Shares of a cohort add up to at most one; capped weight is not handed to others,
    the step gets shorter instead. Without the others' classes a mere min(class / N^j, w_max) would leave the sum to a
    dominating silo.

    Returns:
        0 … 1; zero when it holds nothing, and when the total does not even cover its own class (some silo lied).

    Raises:
        InputError: w_max outside (0, 1], a negative class, or a total that is no number.
    """
    if not 0 < w_max <= 1:
        raise InputError("w_max must lie in (0, 1]")
    if own_class < 0 or math.isnan(total):
        raise InputError("size classes and their totals must not be negative")
    if own_class == 0 or own_class > total:
        return 0.0
    if own_class <= w_max * total:
        return own_class / total
    return w_max / (1 - w_max) * (total - own_class) / total


@dataclass(frozen=True)
class Feasible:
    """What K silos can afford.

    Attributes:
        silos: K.
        threshold: t, shares that rebuild a secret; zero when K is refused.
        quorum: q, signatures that settle a survivor set; zero when K is refused.
        max_colluders: largest c without drops; −1 when K is refused.
        max_drops: largest number of drops with one colluder.
        reason: why K is refused; empty when it is served.
    """

    silos: int
    threshold: int
    quorum: int
    max_colluders: int
    max_drops: int
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether this K is served at all."""
        return not self.reason


def feasibility(k: int) -> Feasible:
    """Threshold, quorum, and the most colluders and drops that K silos can afford."""
    if k < MIN_SILOS:
        return Feasible(k, 0, 0, -1, 0, f"{k} silos: with fewer than {MIN_SILOS} a sum shows each silo's update")
    if k > MAX_SILOS:
        return Feasible(k, 0, 0, -1, 0, f"{k} silos: the complete graph of pairwise masks ends at {MAX_SILOS}")
    quorum = 2 * k // 3 + 1
    drops = max(0, min(k - quorum, k - 3))
    return Feasible(k, quorum, quorum, min(_most_colluders(k, quorum), k - 2), drops)


def _most_colluders(k: int, quorum: int) -> int:
    """Largest c with 2q > K + c and t > 2c (t = q)."""
    return min(2 * quorum - k - 1, (quorum - 1) // 2)


def infeasible(k: int, rules: Rules) -> list[str]:
    """Every reason why K silos cannot keep these rules; empty when they can."""
    case = feasibility(k)
    if not case.ok:
        return [case.reason]
    problems = _odd_values(rules)
    most = _most_colluders(k, case.quorum)
    if rules.colluders > most:
        problems.append(f"{k} silos withstand at most {most} colluders (2q > K + c and q > 2c, q = {case.quorum})")
    if rules.max_drops > k - case.quorum:
        problems.append(f"{k} silos survive at most {k - case.quorum} drops (quorum {case.quorum})")
    if rules.gate() > k:
        problems.append(
            f"{k} silos never reach the gate of {rules.gate()} holders, "
            "max(min_contributors, max_drops + colluders + 2)"
        )
    return problems


def smallest_cohort(rules: Rules) -> int:
    """Fewest silos that can keep the rules.

    Raises:
        InputError: no number of silos can; says why.
    """
    for silos in range(MIN_SILOS, MAX_SILOS + 1):
        if not infeasible(silos, rules):
            return silos
    raise InputError(f"no number of silos keeps these rules: {'; '.join(infeasible(MAX_SILOS, rules))}")


def _odd_values(rules: Rules) -> list[str]:
    """Rules that make no sense for any K."""
    problems = []
    if rules.colluders < 0 or rules.max_drops < 0:
        problems.append("colluders and max_drops must not be negative")
    if rules.min_contributors < 2:
        problems.append("min_contributors must be at least 2: a sum over one silo is its update")
    if not 1 <= rules.min_samples <= MAX_CLASS:
        problems.append(f"min_samples must lie in 1 … {MAX_CLASS}")
    if not 0 < rules.w_max <= 1:
        problems.append("w_max must lie in (0, 1]")
    return problems


def check_feasible(k: int, rules: Rules) -> None:
    """Raise with every reason why K silos cannot keep these rules.

    Raises:
        InputError: see ``infeasible``.
    """
    problems = infeasible(k, rules)
    if problems:
        raise InputError("; ".join(problems))


def void_quorum(k: int, colluders: int) -> int:
    """Silos that must sign "no share released, state erased" before a survivor set is forgotten: K − t + c + 1.

    The K − v silos that did not sign may have released a share, and c of the signers may lie: v is the smallest number
    with (K − v) + c < t, so that no secret can have been rebuilt.
    """
    return k - feasibility(k).threshold + colluders + 1


def feasibility_table(sizes: Sequence[int] = (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 100, 128)) -> str:
    """The table as text, for ``fedgmi keys show``, the bench and the README.

    ``colluders`` is the most without drops; ``drops`` the most with one colluder.
    """
    lines = [f"{'silos':>6} {'t = q':>6} {'colluders':>10} {'drops':>6}"]
    for k in sizes:
        case = feasibility(k)
        if case.ok:
            lines.append(f"{k:>6} {case.quorum:>6} {case.max_colluders:>10} {case.max_drops:>6}")
        else:
            lines.append(f"{k:>6} refused: {case.reason}")
    return "\n".join(lines)
