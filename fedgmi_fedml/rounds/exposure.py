"""Which cohort may repeat a step whose totals are already out.

Totals of two cohorts that differ by one silo, from the same models, would show that silo's numbers; silos refuse such a
proposal (``secure``, "One release per starting point"). So a repeat takes the same cohort, or leaves out c + 2 silos.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from secure.beacon import draw
from secure.errors import InputError

REMEMBERED = 256
"""Starting models that are kept in mind: more than candidates begin side by side."""


class Exposure:
    """The cohorts whose totals are out, by starting models: whatever the phase, the same silos hold the same samples.

    Args:
        beacon: draws who else sits out; not the server's choice.
        colluders: c.
        known: cohorts whose totals came out before the server was restarted.
    """

    def __init__(
        self, beacon: bytes, colluders: int, known: Mapping[bytes, tuple[tuple[int, ...], ...]] | None = None
    ) -> None:
        self._beacon, self._apart = beacon, colluders + 2
        self._cohorts = {start: list(cohorts) for start, cohorts in (known or {}).items()}

    @property
    def cohorts(self) -> dict[bytes, tuple[tuple[int, ...], ...]]:
        """By starting models, in order."""
        return {start: tuple(cohorts) for start, cohorts in self._cohorts.items()}

    def note(self, start: bytes, cohort: tuple[int, ...]) -> None:
        """This cohort's totals are out."""
        known = self._cohorts.setdefault(start, [])
        if cohort not in known:
            known.append(cohort)
        while len(self._cohorts) > REMEMBERED:  # a run goes on from its last models, never from much older ones
            del self._cohorts[next(iter(self._cohorts))]

    def choose(self, start: bytes, wanted: Iterable[int]) -> tuple[int, ...]:
        """The silos of those wanted that may take part, ascending; empty where any choice would single some out."""
        cohort = tuple(sorted(wanted))
        known = self._cohorts.get(start, [])
        if not known or cohort in known:
            return cohort
        last = known[-1]
        if set(last) <= set(cohort):
            return last
        keep = sorted(set(cohort) & set(last))
        try:
            keep = list(draw(self._beacon, f"sits out/{start.hex()}", keep, min(len(keep), len(last) - self._apart)))
        except InputError:
            return ()
        return tuple(keep) if self._apart_from_all(keep, known) else ()

    def _apart_from_all(self, cohort: list[int], known: list[tuple[int, ...]]) -> bool:
        """Every cell that the cohorts cut the silos into holds nobody, or at least c + 2."""
        sets = [set(cohort), *map(set, known)]
        cells: dict[tuple[bool, ...], int] = {}
        for silo in set().union(*sets):
            cell = tuple(silo in members for members in sets)
            cells[cell] = cells.get(cell, 0) + 1
        return all(size >= self._apart for size in cells.values())
