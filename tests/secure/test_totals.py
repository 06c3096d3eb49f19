"""The field of the totals, its sharing and the proof that nobody counts twice, by themselves."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure.errors import BlameError, CapacityError, InputError, ProtocolError
from secure.protocol.field import (
    PRIME,
    dot,
    elements,
    encoded,
    inverses,
    is_codeword,
    share_lists,
    uniform,
    weights,
)
from secure.protocol.totals import (
    HolderView,
    Layout,
    add_up,
    challenge,
    check_totals_capacity,
    combine,
    deal,
)
from secure.types import Block, StatisticSpec, VectorSpec

SPEC = VectorSpec(3, (Block("a", 1, 8.0, 0),), (), (StatisticSpec("s", 10.0, 0.5),))
LAYOUT = Layout.of(SPEC)
numbers = st.integers(0, PRIME - 1)


def test_prime_is_the_mersenne_prime():
    assert PRIME == 170141183460469231731687303715884105727  # Lucas, 1876
    assert pow(3, PRIME - 1, PRIME) == 1


@given(
    st.lists(numbers, max_size=6),
    st.sets(st.one_of(st.integers(1, 200), st.integers(65000, 65535)), min_size=1, max_size=12),
    st.data(),
)
def test_any_threshold_of_shares_gives_the_values_back(values, holders, data):
    holders = sorted(holders)
    threshold = data.draw(st.integers(1, len(holders)))
    shares = share_lists(values, threshold, holders, os.urandom)
    chosen = tuple(sorted(data.draw(st.permutations(holders))[:threshold]))
    at_zero = weights(chosen, 0)
    shares = {holder: elements(data) for holder, data in shares.items()}
    for index, value in enumerate(values):
        assert dot(at_zero, [shares[holder][index] for holder in chosen]) == value
        assert is_codeword({holder: shares[holder][index] for holder in holders}, threshold, os.urandom)


def test_extreme_coefficients_do_not_spill_between_lanes():
    """The largest and the smallest elements, p itself (which stands for zero), small and large ids and thresholds."""
    for holders, threshold in ((range(65535 - 127, 65536), 128), (range(1, 129), 128), ((1, 65535), 2), ((7,), 1)):
        for drawn in (PRIME - 1, PRIME, 0, (1 << 128) - 1):
            block = drawn.to_bytes(16, "little")
            values = [PRIME - 1, 0, 1, PRIME - 1, 5]
            shares = share_lists(values, threshold, holders, lambda count, block=block: block * (count // 16))
            for holder in holders:
                tail = sum(drawn % (1 << 127) * pow(holder, power, PRIME) for power in range(1, threshold))
                assert elements(shares[holder]) == [(value + tail) % PRIME for value in values]


def test_one_share_less_says_nothing():
    """For every value there is a polynomial through the shares of the others."""
    holders = (1, 2, 5)
    shares = {holder: elements(data) for holder, data in share_lists([7], 3, holders, os.urandom).items()}
    for guess in (0, 7, 12345):
        points = (0, 1, 2)
        at = weights(points, 5)
        third = dot(at, [guess, shares[1][0], shares[2][0]])
        assert dot(weights(holders, 0), [shares[1][0], shares[2][0], third]) == guess


@given(st.integers(0, 5), st.integers(1, PRIME - 1))
def test_one_wrong_share_is_no_codeword(place, change):
    holders = (1, 2, 3, 9, 300, 65535)
    shares = {h: elements(data)[0] for h, data in share_lists([5], 4, holders, os.urandom).items()}
    shares[holders[place]] = (shares[holders[place]] + change) % PRIME
    assert not is_codeword(shares, 4, os.urandom)


def test_no_redundancy_is_always_a_codeword():
    assert is_codeword({1: 5, 2: 6}, 2, os.urandom)


@given(st.lists(st.integers(1, PRIME - 1), max_size=9))
def test_inverses(values):
    assert [value * inverse % PRIME for value, inverse in zip(values, inverses(values), strict=True)] == [1] * len(
        values
    )


def test_encoding_is_strict():
    assert elements(encoded([0, 1, PRIME - 1])) == [0, 1, PRIME - 1]
    for bad in (b"x", PRIME.to_bytes(16, "little"), b"\xff" * 16):
        with pytest.raises(ProtocolError):
            elements(bad)
    with pytest.raises(InputError):
        weights((1, 1), 0)


def test_uniform_rejects_the_prime_itself():
    draws = iter([b"\xff" * 16, (5).to_bytes(16, "little")])
    assert uniform(1, lambda count: next(draws)) == [5]


def shared(values, threshold, holders):
    return {holder: elements(data) for holder, data in share_lists(values, threshold, holders, os.urandom).items()}


def run(dealings, holders=(1, 2, 3, 4, 5, 6, 7), threshold=4, counted=None, lie=None):
    dealt = {dealer: shared(values, threshold, holders) for dealer, values in dealings.items()}
    r = challenge(b"t" * 32, LAYOUT.bits)
    views = {
        holder: add_up(LAYOUT, {dealer: dealt[dealer][holder] for dealer in dealt}, counted or sorted(dealt), r)
        for holder in holders
    }
    if lie:
        views = lie(views)
    return combine(LAYOUT, views, sorted(dealt), threshold, r, os.urandom)


def honest(silo):
    return deal(SPEC, (silo % 2 * 12, 18, 0), (0.5 * silo,), os.urandom)


def test_sums_of_honest_dealers():
    dealings = {silo: honest(silo) for silo in range(1, 8)}
    holders, totals, steps = run(dealings)[:3], run(dealings)[3:6], run(dealings)[6:]
    assert holders == (4, 7, 0)
    assert totals == (48, 126, 0)
    assert steps == (28 + 7 * 20,)
    assert run(dealings, counted=(1, 2, 3))[:3] == (2, 3, 0)


def altered(place, value):
    """Silo 3's elements with one bit replaced, and the quotient that fits best."""
    import secure.protocol.totals as totals

    values, bits = honest(3), LAYOUT.bits
    values[place] = value
    values[bits + 1 : LAYOUT.proof] = totals._quotient(values[:bits], values[bits])
    return {silo: honest(silo) for silo in range(1, 8)} | {3: values}


@given(st.integers(0, LAYOUT.bits - 1), st.one_of(st.integers(0, 3), numbers))
@settings(max_examples=40, deadline=None)
def test_only_zeros_and_ones_pass(place, value):
    if value in (0, 1):
        run(altered(place, value))
    else:
        with pytest.raises(BlameError) as caught:
            run(altered(place, value))
        assert caught.value.culprit == 3


def test_digits_make_any_class_in_range_and_no_other():
    top = (1 << 20) - 1
    values = deal(SPEC, (top, 0, 5), (0.0,), os.urandom)
    others = {silo: deal(SPEC, (0, 0, 0), (0.0,), os.urandom) for silo in range(2, 8)}
    assert run(others | {1: values})[:6] == (1, 0, 1, top, 0, 5)


@pytest.mark.parametrize("place", [LAYOUT.bits, LAYOUT.bits + 1, LAYOUT.proof - 1])
def test_wrong_quotient_of_good_indicators_is_caught(place):
    values = honest(3)
    values[place] = (values[place] + 1) % PRIME
    with pytest.raises(BlameError):
        run({silo: honest(silo) for silo in range(1, 8)} | {3: values})


@pytest.mark.parametrize("liars", [(1,), (1, 2), (5, 6, 7)])
def test_up_to_spare_many_lying_holders_are_noticed(liars):
    def lie(views):
        for liar in liars:
            view = views[liar]
            views[liar] = HolderView((view.sums[0] + 1, *view.sums[1:]), view.openings)
        return views

    with pytest.raises(ProtocolError):
        run({silo: honest(silo) for silo in range(1, 8)}, lie=lie)


def test_too_few_or_short_views():
    with pytest.raises(ProtocolError):
        run({silo: honest(silo) for silo in range(1, 8)}, lie=lambda views: dict(list(views.items())[:3]))
    with pytest.raises(ProtocolError):
        run({1: honest(1)}, lie=lambda views: {h: HolderView(v.sums[:-1], v.openings) for h, v in views.items()})


def test_openings_are_uniform_and_tell_nothing_of_the_indicators():
    """f(r) is masked by u: for a fixed transcript it takes other values every time, with equal indicators."""
    r = challenge(b"t" * 32, LAYOUT.bits)
    seen = set()
    for _ in range(50):
        dealt = shared(honest(1), 1, (1,))
        seen.add(add_up(LAYOUT, {1: dealt[1]}, (1,), r).openings[0])
    assert len(seen) == 50


def test_challenge_depends_on_everything_and_avoids_the_nodes():
    values = {challenge(bytes([n]) * 32, 63) for n in range(100)}
    assert len(values) == 100
    assert all(63 < value < PRIME - 64 for value in values)


def test_statistics_too_wide_for_the_field():
    with pytest.raises(CapacityError, match="wide"):
        check_totals_capacity(VectorSpec(1, (), (), (StatisticSpec("wide", 1e30, 1e-9),)), 100)


def test_views_hide():
    assert "hidden" in repr(HolderView((1,), (2,)))
