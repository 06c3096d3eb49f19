"""Sharing a pool out among silos, and a silo's samples into training, validation and test parts, without reuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgmi_fedml.data.components import Component
from fedgmi_fedml.data.mixtures import Alpha, counts
from fedgmi_fedml.data.records import PARTS, Pool, Rows, stream
from fedgmi_fedml.errors import DataError

_PREFERENCE = {"train": ("train",), "val": ("val", "train"), "test": ("test", "train")}


class ShortageError(DataError):
    """The pool has fewer samples than the silos ask for."""


@dataclass(frozen=True)
class Draw:
    """Samples of one component for one part of one silo: positions ``index`` within the pool's part ``source``."""

    component: int
    source: str
    index: Rows


Plan = dict[str, list[Draw]]
"""Per part of a silo (``"train"``, ``"val"``, ``"test"``): where its samples come from."""


def part_sizes(train: int, validation_share: float, test_share: float) -> dict[str, int]:
    """Sizes of the parts of a silo with ``train`` training samples; the shares are of the silo's whole data."""
    total = train / (1.0 - validation_share - test_share)
    return {"train": train, "val": round(total * validation_share), "test": round(total * test_share)}


class _Deck:
    """A pool's samples in random order per component, each dealt at most once.

    With ``reuse`` each is dealt at most once *per component*, and still never to two different parts, so that nothing
    that one silo is tested on was trained on by another.
    """

    def __init__(self, pool: Pool, components: Sequence[Component], seed: int, reuse: bool) -> None:
        self._reuse = reuse
        self._owner = {name: np.zeros(len(part), dtype=np.int8) for name, part in pool.parts.items()}
        self._order: dict[tuple[str, int], Rows] = {}
        for name, part in pool.parts.items():
            shuffled = stream(seed, f"deal {name}").permutation(len(part))
            for number, component in enumerate(components):
                self._order[name, number] = shuffled[component.eligible(part)[shuffled]]

    def deal(self, name: str, component: int, wanted: int, part: str) -> Rows:
        """At most ``wanted`` unused positions of the pool's part ``name``, for a silo's ``part``."""
        order = self._order.get((name, component))
        if order is None or wanted <= 0:
            return np.zeros(0, dtype=np.int64)
        owner, mine = self._owner[name], PARTS.index(part) + 1
        # Look a little further than wanted first: other components may have used some of the next ones.
        for reach in (4 * wanted + 64, len(order)):
            held = owner[order[:reach]]
            free = np.flatnonzero((held == 0) | ((held == mine) & self._reuse))[:wanted]
            if len(free) == wanted:
                break
        taken = order[free]
        owner[taken] = mine
        self._order[name, component] = order[free[-1] + 1 :] if len(free) else order[:0]
        return taken


def share_out(
    pool: Pool,
    components: Sequence[Component],
    alpha: Alpha,
    sizes: Sequence[dict[str, int]],
    seed: int,
    reuse: bool = False,
) -> list[Plan]:
    """Per silo and part, what to take from where. Training parts are served first.

    No sample is used twice (with ``reuse``: by one component). Validation and test samples come from the source's own
    parts while those last, then from unused training samples. Raises ShortageError when the pool does not hold enough.
    """
    deck = _Deck(pool, components, seed, reuse)
    plans: list[Plan] = [{part: [] for part in PARTS} for _ in sizes]
    for part in PARTS:
        for silo, size in enumerate(sizes):
            for component, wanted in enumerate(counts(alpha[silo], size[part]).tolist()):
                for source in _PREFERENCE[part]:
                    taken = deck.deal(source, component, wanted, part)
                    wanted -= len(taken)
                    if len(taken):
                        plans[silo][part].append(Draw(component, source, taken))
                if wanted:
                    raise ShortageError(_shortage(pool, components, alpha, sizes, component))
    return plans


def _shortage(
    pool: Pool, components: Sequence[Component], alpha: Alpha, sizes: Sequence[dict[str, int]], component: int
) -> str:
    held = {name: int(components[component].eligible(part).sum()) for name, part in pool.parts.items()}
    asked = dict.fromkeys(PARTS, 0)
    for row, size in zip(alpha, sizes, strict=True):
        for part in PARTS:
            asked[part] += int(counts(row, size[part])[component])
    return (
        f"{pool.origin}: {len(sizes)} silos ask for {_list(asked)} samples of component {component} "
        f"({components[component].name}), which has {_list(held)} (perhaps shared with other components); "
        f"no sample is used twice: lower data_args.silo_mixture.samples_per_silo (null: as many as there are) or "
        f"train_args.client_num_in_total"
    )


def _list(numbers: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in numbers.items())


def largest_that_fits(
    pool: Pool, components: Sequence[Component], alpha: Alpha, shares: tuple[float, float], seed: int
) -> int:
    """Largest number of training samples that every silo can have (same for all), by bisection."""
    low, high = 0, len(pool.parts["train"]) // len(alpha) + 1
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            share_out(pool, components, alpha, [part_sizes(middle, *shares)] * len(alpha), seed)
            low = middle
        except ShortageError:
            high = middle
    return low


def hold_out(y: Rows, count: int, generator: np.random.Generator) -> tuple[Rows, Rows]:
    """Positions (kept, held out) of labels ``y``; ``count`` are held out, from every class in proportion."""
    shuffled = generator.permutation(len(y))
    by_class = shuffled[np.argsort(y[shuffled], kind="stable")]
    places = ((np.arange(count) + 0.5) * len(y) / max(count, 1)).astype(np.int64)
    chosen = np.zeros(len(y), dtype=bool)
    chosen[by_class[places]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def split_own(
    pool: Pool, rows: dict[str, Rows], shares: tuple[float, float], generator: np.random.Generator
) -> dict[str, tuple[str, Rows]]:
    """A silo's own samples (positions per part of the pool) as (source part, positions) for each of its parts.

    The source's own validation and test parts are used where the silo has samples there; otherwise the shares are
    held out of its training samples.
    """
    train = rows["train"]
    total = len(train)
    parts: dict[str, tuple[str, Rows]] = {}
    for part, share in (("val", shares[0]), ("test", shares[1])):
        if len(rows.get(part, ())):
            parts[part] = (part, rows[part])
            continue
        kept, held = hold_out(pool.parts["train"].y[train], min(round(total * share), len(train)), generator)
        parts[part], train = ("train", train[held]), train[kept]
    return {"train": ("train", train), **parts}
