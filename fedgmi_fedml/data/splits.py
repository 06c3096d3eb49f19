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


class Shortage(DataError):
    """The pool has fewer samples than the silos ask for."""


@dataclass(frozen=True)
class Draw:
    """Samples of one component for one part of one silo: positions ``index`` within the pool's part ``source``."""

    component: int
    source: str
    index: Rows


def part_sizes(train: int, validation_share: float, test_share: float) -> dict[str, int]:
    """Sizes of the parts of a silo with ``train`` training samples; the shares are of the silo's whole data."""
    total = train / max(1.0 - validation_share - test_share, 1e-9)
    return {"train": train, "val": round(total * validation_share), "test": round(total * test_share)}


class _Deck:
    """A pool's samples in random order per component, each dealt at most once."""

    def __init__(self, pool: Pool, components: Sequence[Component], seed: int) -> None:
        self._used = {name: np.zeros(len(part), dtype=bool) for name, part in pool.parts.items()}
        self._order: dict[tuple[str, int], Rows] = {}
        for name, part in pool.parts.items():
            shuffled = stream(seed, f"deal {name}").permutation(len(part))
            for number, component in enumerate(components):
                self._order[name, number] = shuffled[component.eligible(part)[shuffled]]

    def deal(self, name: str, component: int, wanted: int) -> Rows:
        """At most ``wanted`` unused positions of a pool's part."""
        order = self._order.get((name, component))
        if order is None or not wanted:
            return np.zeros(0, dtype=np.int64)
        free = order[~self._used[name][order]]
        taken = free[:wanted]
        self._used[name][taken] = True
        self._order[name, component] = free[wanted:]
        return taken


def share_out(
    pool: Pool, components: Sequence[Component], alpha: Alpha, sizes: Sequence[dict[str, int]], seed: int
) -> list[dict[str, list[Draw]]]:
    """Per silo and part, what to take from where. Training parts are served first.

    Validation and test samples come from the source's own parts while those last, then from unused training samples.
    Raises Shortage when the pool does not hold enough.
    """
    deck = _Deck(pool, components, seed)
    plans: list[dict[str, list[Draw]]] = [{part: [] for part in PARTS} for _ in sizes]
    for part in PARTS:
        for silo, size in enumerate(sizes):
            for component, wanted in enumerate(counts(alpha[silo], size[part])):
                for source in _PREFERENCE[part]:
                    taken = deck.deal(source, component, int(wanted))
                    wanted -= len(taken)
                    if len(taken):
                        plans[silo][part].append(Draw(component, source, taken))
                if wanted:
                    raise Shortage(_shortage(pool, components, alpha, sizes, component))
    return plans


def _shortage(
    pool: Pool, components: Sequence[Component], alpha: Alpha, sizes: Sequence[dict[str, int]], component: int
) -> str:
    held = {name: int(components[component].eligible(part).sum()) for name, part in pool.parts.items()}
    asked = sum(int(counts(row, sum(size.values()))[component]) for row, size in zip(alpha, sizes, strict=True))
    return (
        f"{pool.origin}: component {component} ({components[component].name}) has {sum(held.values())} samples "
        f"({', '.join(f'{count} {name}' for name, count in held.items())}) and {len(sizes)} silos ask for {asked} "
        f"of it; lower data_args.silo_mixture.samples_per_silo or train_args.client_num_in_total"
    )


def largest_that_fits(
    pool: Pool, components: Sequence[Component], alpha: Alpha, shares: tuple[float, float], seed: int
) -> int:
    """Largest number of training samples that every silo can have (same for all)."""
    low, high = 0, len(pool.parts["train"]) // len(alpha) + 1
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            share_out(pool, components, alpha, [part_sizes(middle, *shares)] * len(alpha), seed)
            low = middle
        except Shortage:
            high = middle
    return low
