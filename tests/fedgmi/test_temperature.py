"""The temperature: found where silos differ, left alone where nothing can be known, and what it is good for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmi_fedml.affinity import em_proportions
from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.temperature import (
    RANGE,
    Fit,
    fit_temperature,
    silo_proportions,
    temperature_statistics,
    temperature_statistics_spec,
)

torch.set_num_threads(1)
LINEAR = tuple((i + 0.5) / 12 for i in range(12))


def gaussian_silos(
    temperature: float, distance: float, shares: tuple[float, ...] = LINEAR, count: int = 600, offset: float = 0.0
) -> list[torch.Tensor]:
    """Silos that mix N(0, 1) and N(δ, 1); losses are T times the true ones, plus an offset of component 1."""
    generator = torch.Generator().manual_seed(7)
    silos = []
    for share in shares:
        second = torch.rand(count, generator=generator, dtype=torch.float64) < share
        x = torch.randn(count, generator=generator, dtype=torch.float64) + distance * second
        losses = torch.stack([0.5 * x**2, 0.5 * (x - distance) ** 2], dim=1)
        silos.append(temperature * losses + torch.tensor([0.0, offset]))
    return silos


def settle(
    silos: list[torch.Tensor], present: float = 1.0, rounds: int = 12, offset: torch.Tensor | None = None
) -> Fit:
    """What silos and totals do over rounds."""
    fit = Fit(present, torch.tensor([0.5, 0.5], dtype=torch.float64), 0.0, identified=False)
    for _ in range(rounds):
        rows = [temperature_statistics(losses, fit.shares, fit.temperature, offset) for losses in silos]
        fit = fit_temperature(np.sum(rows, axis=0).tolist(), len(silos), fit.temperature, fit.shares)
    return fit


@pytest.mark.parametrize(("true", "distance"), [(1.5, 3.0), (6.0, 3.0), (40.0, 3.0), (6.0, 1.5)])
def test_finds_the_true_temperature(true: float, distance: float) -> None:
    fit = settle(gaussian_silos(true, distance))
    assert fit.identified
    assert true / 1.35 < fit.temperature < true * 1.35
    assert fit.shares.tolist() == pytest.approx([0.5, 0.5], abs=0.03)


def test_comes_down_from_too_large_a_temperature() -> None:
    assert settle(gaussian_silos(4.0, 3.0), present=64.0).temperature == pytest.approx(4.0, rel=0.3)


def test_proportions_come_right_with_it() -> None:
    """Overconfident scores (T = 8) pull the proportions of overlapping components together; the fit undoes it."""
    silos = gaussian_silos(8.0, 1.5)
    fit = settle(silos)

    def error(temperature: float) -> float:
        found = [em_proportions(losses, 200, temperature)[1].item() for losses in silos]
        return float(np.abs(np.array(found) - np.array(LINEAR)).mean())

    assert error(fit.temperature) < 0.5 * error(1.0)


def test_an_offset_that_is_known_does_not_matter() -> None:
    plain, moved = (
        settle(gaussian_silos(6.0, 3.0)),
        settle(gaussian_silos(6.0, 3.0, offset=25.0), offset=torch.tensor([0.0, 25.0])),
    )
    assert moved.temperature == pytest.approx(plain.temperature, rel=1e-6)


@pytest.mark.parametrize(
    "silos",
    [
        gaussian_silos(6.0, 3.0, shares=(0.4,) * 12),  # every silo the same mixture
        gaussian_silos(6.0, 0.0),  # components coincide
        [torch.zeros(50, 2)] * 6,
    ],
    ids=["equal silos", "equal components", "constant scores"],
)
def test_what_cannot_be_identified_stays_as_it_was(silos: list[torch.Tensor]) -> None:
    fit = settle(silos, present=5.0, rounds=4)
    assert not fit.identified
    assert fit.temperature == 5.0
    assert fit.information == pytest.approx(0.0, abs=0.01)


def test_information_is_the_mutual_information_of_pure_silos() -> None:
    """Half the silos hold one component, half the other, far apart: a sample gives its silo's kind away, log 2 nats."""
    silos = gaussian_silos(1.0, 12.0, shares=(0.0, 1.0) * 4)
    assert settle(silos, rounds=2).information == pytest.approx(math.log(2.0), rel=0.01)


def test_silos_without_data_and_one_silo() -> None:
    silos = gaussian_silos(6.0, 3.0)
    rows = [temperature_statistics(losses, torch.tensor([0.5, 0.5]), 4.0) for losses in silos]
    empty = temperature_statistics(None, torch.tensor([0.5, 0.5]), 4.0)
    assert empty == temperature_statistics(torch.zeros(0, 2), torch.tensor([0.5, 0.5]), 4.0)
    sums, half = np.sum(rows, axis=0), torch.tensor([0.5, 0.5])
    first = fit_temperature(sums.tolist(), 12, 4.0, half)
    second = fit_temperature((sums + np.array(empty)).tolist(), 12, 4.0, half)
    assert first.temperature == second.temperature
    nobody = fit_temperature(empty, 0, 4.0, half)
    assert (nobody.temperature, nobody.identified) == (4.0, False)
    assert settle(silos[:1], present=3.0, rounds=1).temperature >= RANGE[0]


def test_steps_by_hand() -> None:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)

    def step(*sums: float) -> Fit:
        return fit_temperature([*sums, 0.0, 0.0, 0.5, 0.5], 1, 4.0, half)

    assert step(0.0, 1.0, 0.0).temperature == 4.0
    assert step(0.0, 1.0, 1.5).temperature == 8.0  # the top lies beyond an octave
    assert step(0.5, 1.0, 0.7).temperature == pytest.approx(4.0 * 2.0 ** (0.5 * 0.2 / 0.8))
    assert step(1.0, 0.5, 0.2).temperature == 2.0  # convex: towards the better end
    assert fit_temperature([9.0, 5.0, 0.0, 0.0, 0.0, 0.5, 0.5], 1, 1.2, half).temperature == RANGE[0]
    with pytest.raises(ModelError, match="7 sums"):
        fit_temperature([0.0] * 6, 1, 1.0, half)


def test_proportions_must_settle_before_the_temperature_moves() -> None:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    first = fit_temperature([0.0, 1.0, 0.9, 0.0, 0.0, 0.7, 0.3], 1, 4.0, half)
    assert (first.temperature, first.identified) == (4.0, False)
    assert fit_temperature([0.0, 1.0, 0.9, 0.0, 0.0, 0.7, 0.3], 1, 4.0, first.shares).temperature > 4.0


def test_noise_alone_moves_nothing() -> None:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    quiet = fit_temperature([0.9, 1.0, 0.95, 1.0, 1.0, 0.5, 0.5], 1, 4.0, half)  # errors of 1 on slope and curvature
    assert (quiet.temperature, quiet.identified) == (4.0, False)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 4), st.integers(1, 60), st.floats(1.0, 1e4), st.integers(0, 10_000))
def test_statistics_stay_finite_and_within_their_bounds(components: int, count: int, scale: float, seed: int) -> None:
    losses = scale * torch.randn(count, components, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    shares = torch.full((components,), 1.0 / components)
    shares[0] = 0.0
    values, spec = temperature_statistics(losses, shares, 1.0), temperature_statistics_spec(components)
    assert len(values) == len(spec)
    assert all(math.isfinite(value) and abs(value) <= item.bound for value, item in zip(values, spec, strict=True))


@settings(deadline=None, max_examples=8)
@given(st.integers(2, 4), st.integers(0, 10_000))
def test_fast_proportions_reach_the_maximum_that_em_reaches(components: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    losses = 2.0 * torch.randn(80, components, generator=generator, dtype=torch.float64)
    tilts = torch.exp(-losses)
    uniform = torch.full((components,), 1.0 / components)
    fast, slow = silo_proportions(tilts, uniform), em_proportions(losses, 600)
    likelihoods = [float(torch.log(tilts @ alpha).mean()) for alpha in (fast, slow)]
    assert fast.sum().item() == pytest.approx(1.0)
    assert likelihoods[0] >= likelihoods[1] - 2e-4
