"""Metrics: hand-computed values, undefined cases, invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.evaluate import (
    accuracy,
    alpha_drift,
    area_under_curve,
    assignment_margins,
    expert_component_accuracy,
    match_components,
    mean_defined,
    misassignment_rate,
    partition_accuracy,
    specialisation_gap,
)

torch.set_num_threads(1)


def test_alpha_error_by_hand() -> None:
    true = np.array([[0.9, 0.1], [0.4, 0.6]])
    swapped = np.array([[0.2, 0.8], [0.6, 0.4]])
    matching = match_components(swapped, true)
    assert matching.true_of == (1, 0)
    assert matching.alpha_mae == pytest.approx((0.1 + 0.1 + 0.0 + 0.0) / 4)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 1000))
def test_matching_undoes_any_renaming(components: int, silos: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    true = generator.dirichlet(np.ones(components), silos)
    order = generator.permutation(components)
    matching = match_components(true[:, order], true)
    assert matching.alpha_mae == pytest.approx(0.0, abs=1e-12)
    assert sorted(matching.true_of) == list(range(components))


def test_more_or_fewer_components_than_true_ones() -> None:
    true = np.array([[0.5, 0.5], [0.2, 0.8]])
    more = match_components(np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]]), true)
    assert sorted(more.true_of) == [-1, 0, 1]
    assert more.alpha_mae == pytest.approx((0.2 + 0.3) / 4)
    fewer = match_components(np.array([[1.0], [1.0]]), true)
    assert fewer.true_of == (1,)
    assert fewer.alpha_mae == pytest.approx((0.5 + 0.2 + 0.5 + 0.2) / 4)


def test_matching_refuses_matrices_that_do_not_fit() -> None:
    for estimated, true in ((np.ones((2, 2)), np.ones((3, 2))), (np.ones(2), np.ones(2)), (np.ones((0, 2)),) * 2):
        with pytest.raises(ModelError):
            match_components(estimated, true)


def test_partition_accuracy_by_hand() -> None:
    assigned, true = torch.tensor([1, 1, 0, 0, 0]), torch.tensor([0, 0, 1, 1, 0])
    assert partition_accuracy(assigned, true) == pytest.approx(0.8)
    matching = match_components(np.array([[0.6, 0.4]]), np.array([[0.4, 0.6]]))
    assert partition_accuracy(assigned, true, matching) == pytest.approx(0.8)
    assert partition_accuracy(torch.tensor([2, 2, 2]), torch.tensor([0, 0, 1])) == pytest.approx(2 / 3)
    assert math.isnan(partition_accuracy(torch.zeros(0).long(), torch.zeros(0).long()))


def test_unmatched_components_are_wrong() -> None:
    matching = match_components(np.array([[0.5, 0.3, 0.2]]), np.array([[0.5, 0.5]]))
    surplus = matching.true_of.index(-1)
    assert partition_accuracy(torch.tensor([surplus]), torch.tensor([0]), matching) == 0.0


def test_expert_by_component_and_gap_by_hand() -> None:
    # two experts, four samples, labels 0 1 0 1, components 0 0 1 1
    right, wrong = [0.9, 0.1], [0.1, 0.9]
    probabilities = torch.tensor([[right, wrong, right, right], [wrong, wrong, right, wrong]])
    labels, components = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    table = expert_component_accuracy(probabilities, labels, components, 3)
    assert table[:, :2].tolist() == [[1.0, 0.5], [0.5, 1.0]]
    assert np.isnan(table[:, 2]).all()
    matching = match_components(np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([[0.5, 0.5], [0.9, 0.1]]))
    assert specialisation_gap(table[:, :2], matching) == pytest.approx(0.5)
    assert specialisation_gap(table, matching) == pytest.approx(0.5)  # an absent component does not count
    assert math.isnan(specialisation_gap(np.array([[0.7]]), match_components(np.ones((1, 1)), np.ones((1, 1)))))


def test_accuracy() -> None:
    assert accuracy(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1])) == 0.5
    assert math.isnan(accuracy(torch.zeros(0, 2), torch.zeros(0).long()))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_area_under_curve_equals_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    scores = torch.tensor([float(score) for score, _ in pairs])
    positive = torch.tensor([flag for _, flag in pairs])
    ours = area_under_curve(scores, positive)
    if positive.all() or not positive.any():
        assert math.isnan(ours)  # a silo with one class: undefined, left out of the mean
    else:
        assert ours == pytest.approx(roc_auc_score(positive.numpy(), scores.numpy()))


def test_means_leave_undefined_values_out() -> None:
    assert mean_defined([0.5, math.nan, 1.0]) == 0.75
    assert math.isnan(mean_defined([math.nan]))
    assert math.isnan(mean_defined([]))


def test_margins_and_misassignment_by_hand() -> None:
    aff = torch.tensor([[0.0, math.log(3.0), -50.0], [2.0, 2.0, 2.0]])
    assert assignment_margins(aff).tolist() == pytest.approx([math.log(3.0), 0.0], rel=1e-6)
    assert misassignment_rate(aff) == pytest.approx((0.25 + 2 / 3) / 2, rel=1e-6)
    assert math.isinf(assignment_margins(torch.zeros(1, 1))[0])
    assert math.isnan(misassignment_rate(torch.zeros(0, 2)))


def test_drift() -> None:
    assert alpha_drift(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])) == 1.0
    assert alpha_drift(torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.6])) == pytest.approx(0.1)
