"""Shamir sharing: a hand-computed example, exactness, thresholds, encodings."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure import shamir
from secure.errors import InputError, ProtocolError
from secure.shamir import PRIME, combine, interpolate, split

holders_sets = st.lists(st.integers(1, 65535), min_size=1, max_size=12, unique=True)


def coefficients(*values: int):
    """A random source that makes ``split`` use these coefficients, highest power first."""
    data = b"".join(value.to_bytes(66, "big") for value in values)
    return lambda count: data[:count]


def test_hand_computed_example():
    # f(x) = 1234 + 166 x + 94 x²: the worked example of the article "Shamir's secret sharing" in Wikipedia.
    shares = split(1234, 3, [1, 2, 3, 4, 5, 6], coefficients(94, 166))
    assert shares == {1: 1494, 2: 1942, 3: 2578, 4: 3402, 5: 4414, 6: 5614}
    assert combine({2: 1942, 4: 3402, 5: 4414}) == 1234


def test_wrap_around_the_field_by_hand():
    # f(x) = (p − 1) + (p − 2) x  ≡  −1 − 2x, so f(1) = p − 3 and f(5) = p − 11.
    assert split(PRIME - 1, 2, [1, 5], coefficients(PRIME - 2)) == {1: PRIME - 3, 5: PRIME - 11}


def test_the_modulus_is_prime():
    # Fermat to a few bases; 2^521 − 1 is the 13th Mersenne prime (R. M. Robinson, 1952).
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))


@given(st.integers(0, PRIME - 1), holders_sets, st.data())
def test_any_threshold_set_gives_the_secret(secret, holders, data):
    threshold = data.draw(st.integers(1, len(holders)))
    shares = split(secret, threshold, holders)
    chosen = data.draw(st.permutations(holders))[:threshold]
    assert combine({holder: shares[holder] for holder in chosen}) == secret
    assert combine(shares) == secret  # more than t good shares do no harm


@given(st.integers(0, PRIME - 1), st.integers(2, 8))
def test_fewer_than_threshold_say_nothing(secret, threshold):
    """With t − 1 shares every other secret is just as possible: some polynomial joins them to it."""
    holders = list(range(1, threshold + 1))
    shares = split(secret, threshold, holders)
    known = {holder: shares[holder] for holder in holders[:-1]}
    *weights, last_weight = shamir._weights(tuple(holders), 0)
    for wanted in (0, 1, (secret + 1) % PRIME, PRIME - 1):
        rest = sum(weight * known[holder] for weight, holder in zip(weights, known, strict=True))
        last = (wanted - rest) * pow(last_weight, -1, PRIME) % PRIME
        assert combine({**known, holders[-1]: last}) == wanted


@given(st.integers(0, PRIME - 1), st.integers(2, 9))
def test_one_share_too_few_misses(secret, threshold):
    shares = split(secret, threshold, range(1, threshold + 1))
    del shares[threshold]
    assert combine(shares) != secret  # equal with chance 2^-521


@given(st.integers(0, PRIME - 1), st.integers(1, 6))
def test_interpolate_predicts_further_shares(secret, threshold):
    shares = split(secret, threshold, range(1, 10))
    base = {holder: shares[holder] for holder in range(1, threshold + 1)}
    assert all(interpolate(base, holder) == shares[holder] for holder in shares)


def test_a_bad_share_shows():
    shares = split(7, 3, range(1, 6))
    shares[2] = (shares[2] + 1) % PRIME
    assert combine({h: shares[h] for h in (1, 2, 3)}) != 7
    assert combine({h: shares[h] for h in (1, 3, 4)}) == 7
    assert interpolate({h: shares[h] for h in (1, 3, 4)}, 2) != shares[2]


@pytest.mark.parametrize(
    ("secret", "threshold", "holders"),
    [
        (-1, 2, [1, 2]),
        (PRIME, 2, [1, 2]),
        (1, 0, [1, 2]),
        (1, 3, [1, 2]),
        (1, 1, []),
        (1, 2, [1, 1]),
        (1, 2, [0, 1]),
        (1, 2, [1, 65536]),
        (1, 2, [-1, 2]),
    ],
)
def test_refused_splits(secret, threshold, holders):
    with pytest.raises(InputError):
        split(secret, threshold, holders)


def test_refused_combinations():
    with pytest.raises(InputError):
        combine({})
    with pytest.raises(InputError):
        combine({0: 5})
    for share in (-1, PRIME):
        with pytest.raises(ProtocolError):
            combine({1: share, 2: 0})


def test_errors_name_no_secret():
    for call in (lambda: split(PRIME + 12345, 1, [1]), lambda: combine({1: PRIME + 12345})):
        with pytest.raises((InputError, ProtocolError)) as caught:
            call()
        assert "12345" not in str(caught.value)


def test_random_elements_reject_the_modulus():
    drawn = iter([b"\xff" * 66, (5).to_bytes(66, "big")])
    assert shamir.random_element(lambda _count: next(drawn)) == 5
    # In a split: the first coefficient comes out as p (all ones) and is drawn again.
    answers = iter([b"\xff" * 66, (9).to_bytes(66, "big")])
    assert split(1, 2, [1, 2], lambda _count: next(answers)) == {1: 10, 2: 19}


def test_random_elements_use_only_521_bits():
    value = shamir.random_element(lambda count: b"\xfe" + bytes(count - 1))
    assert value == 0  # the upper seven bits of the first byte are dropped


def test_share_encoding():
    for share in (0, 1, PRIME - 1):
        assert shamir.decode_share(shamir.encode_share(share)) == share
    for data in (b"", bytes(65), bytes(67), PRIME.to_bytes(66, "big"), b"\xff" * 66):
        with pytest.raises(ProtocolError):
            shamir.decode_share(data)


def test_fast_enough_for_a_hundred_silos():
    """67 of 100: a silo splits six secrets, the server combines 100. Budget 120 ms a silo for the whole protocol."""
    secret, holders = int.from_bytes(os.urandom(32), "big"), range(1, 101)
    start = time.process_time()
    dealt = [split(secret, 67, holders) for _ in range(6)]
    splitting = time.process_time() - start
    chosen = {holder: dealt[0][holder] for holder in range(20, 87)}
    start = time.process_time()
    assert all(combine(chosen) == secret for _ in range(100))
    combining = time.process_time() - start
    assert splitting < 0.060
    assert combining < 0.120
