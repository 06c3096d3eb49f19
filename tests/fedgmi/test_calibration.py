"""Temperature from summed statistics: right where the model holds, unchanged where it cannot be identified."""

import pytest
import torch

from fedgmi_fedml.affinity import affinities, responsibilities
from fedgmi_fedml.calibration import (
    LARGEST,
    Calibration,
    calibration_statistics,
    calibration_statistics_spec,
    fit_temperature,
)


def gaussian_losses(count, delta, temperature, share, seed, offset=0.0):
    """Losses whose difference ℓ_1 − ℓ_0 is T times a true log-likelihood ratio, plus an offset; and the true labels."""
    generator = torch.Generator().manual_seed(seed)
    second = torch.rand(count, generator=generator) < share
    noise = torch.randn(count, generator=generator)
    ratio = torch.where(second, -(delta**2) / 2, delta**2 / 2) + delta * noise
    losses = torch.stack([torch.zeros(count), temperature * ratio + offset], dim=1)
    return losses, second


def settle(silos, temperature=1.0, rounds=40):
    """EM over rounds, as silos and totals do it, with known proportions."""
    identified = []
    for _ in range(rounds):
        sums = [0.0] * len(calibration_statistics_spec(2))
        for losses, share in silos:
            aff = affinities(losses, torch.log(torch.tensor([1 - share, share])), temperature)
            mine = calibration_statistics(losses, responsibilities(aff), 2)
            sums = [a + b for a, b in zip(sums, mine, strict=True)]
        fitted = fit_temperature(sums, 2, temperature)
        temperature = fitted.temperature
        identified.append(fitted.identified)
    return temperature, identified[-1]


@pytest.mark.parametrize("true", [1.0, 4.0, 60.0])
def test_finds_the_temperature(true):
    """Silos with 10 … 90 % of a component, components three standard deviations apart: T within a quarter."""
    silos = [(gaussian_losses(2000, 3.0, true, share, i)[0], share) for i, share in enumerate((0.1, 0.3, 0.7, 0.9))]
    fitted, identified = settle(silos)
    assert identified and true / 1.25 < fitted < true * 1.25


def test_components_that_coincide_leave_it_as_it_was():
    losses = torch.zeros(500, 2)
    sums = calibration_statistics(losses, torch.full((500, 2), 0.5), 2)
    assert fit_temperature(sums, 2, 7.0) == Calibration(7.0, identified=False)


def test_nobody_has_data():
    assert not fit_temperature(calibration_statistics(None, None, 3), 3, 2.0).identified


def test_an_idle_component_has_no_say():
    losses, _ = gaussian_losses(1000, 3.0, 5.0, 0.5, 0)
    third = torch.cat([losses, torch.full((1000, 1), 1e5)], dim=1)
    aff = affinities(third, torch.log(torch.tensor([0.5, 0.5, 1e-4])), 5.0)
    sums = calibration_statistics(third, responsibilities(aff), 3)
    assert 4.0 < fit_temperature(sums, 3, 5.0).temperature < 6.5


def test_stays_within_its_limits():
    losses, _ = gaussian_losses(1000, 3.0, 1e9, 0.5, 0)
    aff = affinities(losses, torch.log(torch.tensor([0.5, 0.5])), 1e9)
    assert fit_temperature(calibration_statistics(losses, responsibilities(aff), 2), 2, 1e9).temperature == LARGEST
