"""Findings: each appears where it should, is silent where it should, and says what to do."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedgmi_fedml.diagnostics import (
    collapsed_posteriors,
    component_similarity,
    effective_components,
    idle_components,
    indistinguishable_components,
    overlap_rate,
    posterior_kl,
    surplus_components,
    unreliable_proportions,
)
from fedgmi_fedml.initialisation import symmetric_kl_matrix
from fedgmi_fedml.local_training import TrainSettings, train_vae
from fedgmi_fedml.models import Bank, DataShape, export_state, make_vae

torch.set_num_threads(1)


def pair(divergence: float) -> torch.Tensor:
    return torch.tensor([[0.0, divergence], [divergence, 0.0]])


@settings(deadline=None)
@given(st.floats(0.0, 10.0))
def test_overlap_is_the_bayes_error_of_two_gaussians(distance: float) -> None:
    """N(0, 1) against N(δ, 1): symmetric KL δ², error Φ(−δ/2)."""
    assert overlap_rate(distance**2) == pytest.approx(float(norm.cdf(-distance / 2)), rel=1e-6)
    assert component_similarity(pair(distance**2))[0, 1].item() == pytest.approx(
        2 * overlap_rate(distance**2), rel=1e-5
    )


def test_indistinguishable_pair_is_named_with_its_rate() -> None:
    (finding,) = indistinguishable_components(pair(1.0))
    assert finding.code == "indistinguishable"
    assert finding.components == (0, 1)
    assert "31%" in finding.text
    assert "fewer components" in finding.text
    assert indistinguishable_components(pair(30.0)) == []
    assert indistinguishable_components(torch.zeros(1, 1)) == []


def test_idle_component_is_reported_after_two_closed_rounds() -> None:
    history = [(True, True), (True, False), (True, False), (True, False)]
    (finding,) = idle_components(history)
    assert finding.components == (1,)
    assert "3 rounds" in finding.text
    assert idle_components(history[:2]) == []
    assert idle_components([*history, (True, True)]) == []
    assert idle_components([]) == []


def test_collapse_is_reported_and_nan_counts_as_collapsed() -> None:
    assert [finding.components for finding in collapsed_posteriors([12.0, 0.01, math.nan])] == [(1,), (2,)]


def test_unreliable_proportions() -> None:
    assert unreliable_proportions(0.05) == []
    assert unreliable_proportions(math.nan) == []
    codes = [finding.code for finding in unreliable_proportions(0.4, drift=0.3, temperature_identified=False)]
    assert codes == ["proportions_unreliable", "proportions_moving", "temperature_unidentified"]


def test_effective_components_by_hand() -> None:
    assert effective_components([10.0, 10.0]) == pytest.approx(2.0)
    assert effective_components([10.0, 0.0]) == pytest.approx(1.0)
    assert effective_components([0.0, 0.0]) == 0.0
    assert effective_components([1.0, 3.0]) == pytest.approx(math.exp(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75))))


def test_twins_count_once() -> None:
    """Five components of which three are the same and two are the same: two in effect (field report D4)."""
    matrix = torch.full((5, 5), 1e4)
    matrix[:3, :3] = 0.0
    matrix[3:, 3:] = 0.0
    assert effective_components([1, 2, 3, 2, 4], matrix) == pytest.approx(2.0)
    (finding,) = surplus_components(effective_components([1] * 5, matrix), 5)
    assert "components: 2" in finding.text
    assert surplus_components(4.2, 5) == []
    assert surplus_components(1.0, 1) == []


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=6), st.floats(0.0, 1e4))
def test_effective_components_lie_between_one_and_m(weights: list[float], divergence: float) -> None:
    matrix = torch.full((len(weights), len(weights)), divergence).fill_diagonal_(0.0)
    value = effective_components(weights, matrix)
    assert value == 0.0 or 1.0 - 1e-9 <= value <= len(weights) + 1e-9


def test_a_heavy_kl_weight_collapses_and_is_seen() -> None:
    """Field report D6: with β = 50 KL and margins vanish, and every warning says so."""
    generator = torch.Generator().manual_seed(0)
    x = torch.eye(4)[torch.randint(0, 4, (100,), generator=generator)].repeat_interleave(5, dim=1)  # one bar of four
    shape, found = DataShape((20,), 2), {}
    for weight in (1.0, 50.0):
        vae = make_vae("mlp", {"hidden": [16], "latent": 2, "kl_weight": weight}, shape, 0)
        settings = TrainSettings(30, 20, learning_rate=0.03)
        states = [train_vae(vae, export_state(vae), x, settings, torch.Generator().manual_seed(i))[0] for i in range(2)]
        bank = Bank(vae, states)
        found[weight] = (
            collapsed_posteriors(posterior_kl(bank, 200, torch.Generator().manual_seed(1))),
            indistinguishable_components(symmetric_kl_matrix(bank, 200, torch.Generator().manual_seed(1))),
        )
    assert [len(findings) for findings in found[50.0]] == [2, 1]
    assert found[1.0][0] == []
