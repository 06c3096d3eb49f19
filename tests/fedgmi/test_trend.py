"""Rank correlation of proportions, and the rising curve through them: hand-computed."""

import math

import numpy as np
import pytest

from fedgmi_fedml.experiments.trend import monotone, spearman


def test_a_rising_estimate_has_correlation_one_whatever_its_scale():
    true = np.array([[0.1, 0.9], [0.4, 0.6], [0.8, 0.2]])
    assert spearman(true**3, true) == pytest.approx(1.0)
    assert spearman(1 - true, true) == pytest.approx(-1.0)


def test_ties_share_the_mean_of_their_ranks():
    """Ranks 1.5, 1.5, 3.5, 3.5 against 1, 2, 3, 4: 4 / sqrt(4 · 5)."""
    true, estimated = np.array([[0.1], [0.1], [0.9], [0.9]]), np.array([[0.1], [0.2], [0.3], [0.4]])
    assert spearman(estimated, true) == pytest.approx(4 / math.sqrt(20))


def test_where_nothing_varies_there_is_no_correlation(recwarn):
    assert math.isnan(spearman(np.full((3, 1), 0.5), np.array([[0.1], [0.2], [0.3]])))
    assert not recwarn.list
    mixed = np.array([[0.1, 0.5], [0.2, 0.5], [0.3, 0.5]])
    assert spearman(mixed, mixed) == pytest.approx(1.0), "what can be measured counts"


def test_the_rising_curve_pools_what_falls():
    xs, ys = zip(*monotone([(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 4.0)]), strict=True)
    assert xs == (0.0, 1.0, 2.0, 3.0)
    assert ys == pytest.approx((1.0, 2.5, 2.5, 4.0))


def test_points_of_one_x_weigh_as_many_as_they_are():
    """At x = 0 two points with mean 4, at x = 1 one with 1: pooled to 3."""
    assert [y for _, y in monotone([(0.0, 3.0), (0.0, 5.0), (1.0, 1.0)])] == pytest.approx([3.0, 3.0])
