"""What is asked of FedGMI at every place of a grid, and whether it holds: nothing that falls short is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedgmi_fedml.experiments.groups import Group, Place, distinct
from fedgmi_fedml.experiments.tables import Entry, Table

__all__ = ["targets"]

TREND = 0.98
"""Least Spearman correlation of the proportions for linear mixtures."""

NEAR_ORACLE = 0.01
"""Largest distance of the personalised accuracy to the oracle's."""

_SOFT = ("ifca", "fedsoft")
_RIVALS = ("ifca", "fedsoft", "fedem", "fedavg", "local")

Figures = Callable[[str, str], "float | None"]


def targets(groups: Sequence[Group]) -> Table | None:
    """One row a place and claim: what was found, what is asked, whether it is met. ``None`` without rivals."""
    rows: list[tuple[Entry, ...]] = []
    for place in distinct(g.place for g in groups):
        here = {g.method: g for g in groups if g.place == place and g.variant == "default"}
        if "fedgmi" not in here or len(here) < 2:
            continue

        def figure(method: str, name: str, here: dict[str, Group] = here) -> float | None:
            value = here[method].value(name) if method in here else None
            return None if value is None else value.mean

        for claim, found, asked, met in _claims(place, figure):
            where = f"{place.data}, {place.mixture}, K = {place.k}"
            rows.append((Entry(where), Entry(claim), Entry(found), Entry(asked), Entry("met" if met else "MISSED")))
    if not rows:
        return None
    missed = sum(row[-1].text != "met" for row in rows)
    notes = (f"{len(rows) - missed} of {len(rows)} met. Means over seeds.",)
    return Table("targets", "What is asked of FedGMI", ("Place", "Claim", "Found", "Asked", ""), tuple(rows), notes)


def _claims(place: Place, figure: Figures) -> Iterator[tuple[str, str, str, bool]]:
    error, gap, accuracy = (
        figure("fedgmi", name) for name in ("alpha_mae", "specialisation_gap", "personalised_accuracy")
    )
    others = _known(figure, _SOFT, "alpha_mae")
    if error is not None and others:
        bound = min(others.values()) / 2
        yield (
            "error of the proportions",
            f"{error:.3f}",
            f"≤ {bound:.3f}, half of {_names(others, min)}",
            error <= bound,
        )
    others = _known(figure, _SOFT, "specialisation_gap")
    if gap is not None and others:
        bound = max(others.values())
        yield "specialisation gap", f"{gap:.3f}", f"> {bound:.3f}, that of {_names(others, max)}", gap > bound
    others = _known(figure, _RIVALS, "personalised_accuracy")
    if accuracy is not None and others:
        bound = max(others.values())
        yield "personalised accuracy", f"{accuracy:.3f}", f"≥ {bound:.3f}, {_names(others, max)}", accuracy >= bound
    oracle = figure("oracle", "personalised_accuracy")
    if accuracy is not None and oracle is not None:
        bound = oracle - NEAR_ORACLE
        yield "accuracy near the oracle's", f"{accuracy:.3f}", f"≥ {bound:.3f}", accuracy >= bound
    trend = figure("fedgmi", "alpha_spearman")
    if trend is not None and "linear" in place.mixture:
        yield "monotone trend (Spearman)", f"{trend:.3f}", f"≥ {TREND}", trend >= TREND


def _known(figure: Figures, methods: Sequence[str], name: str) -> dict[str, float]:
    found = ((method, figure(method, name)) for method in methods)
    return {method: value for method, value in found if value is not None}


def _names(values: dict[str, float], best: Callable[..., str]) -> str:
    return best(values, key=values.__getitem__)
