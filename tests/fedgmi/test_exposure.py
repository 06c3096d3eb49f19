"""Repeats never single silos out: checked against what a silo's own journal accepts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmi_fedml.rounds.exposure import Exposure
from secure.errors import PolicyRefusal
from secure.journal import Journal

START = b"s" * 32


def test_first_time_and_the_same_cohort_again_are_free():
    exposure = Exposure(b"b" * 32, 1)
    assert exposure.choose(START, {3, 1, 2, 4}) == (1, 2, 3, 4)
    exposure.note(START, (1, 2, 3, 4))
    assert exposure.choose(START, {1, 2, 3, 4}) == (1, 2, 3, 4)
    assert exposure.choose(START, {1, 2, 3, 4, 5}) == (1, 2, 3, 4), "not one more either"
    assert exposure.choose(b"t" * 32, {1, 2, 3}) == (1, 2, 3), "other models, other totals"


def test_one_lost_silo_takes_others_with_it():
    exposure = Exposure(b"b" * 32, 1)
    exposure.note(START, tuple(range(1, 11)))
    again = exposure.choose(START, set(range(1, 10)))
    assert len(again) == 7
    assert 10 not in again
    assert again == exposure.choose(START, set(range(1, 10))), "deterministic"


def test_too_few_left_means_nobody():
    exposure = Exposure(b"b" * 32, 1)
    exposure.note(START, (1, 2, 3, 4, 5))
    assert exposure.choose(START, {1, 2, 3, 4}) == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(1, 24)), min_size=1, max_size=6), st.integers(0, 2))
def test_a_journal_accepts_every_cohort_that_is_chosen(availables, colluders):
    exposure, journal = Exposure(b"b" * 32, colluders), Journal()
    exposure.note(START, tuple(range(1, 25)))
    journal.bind("first", START, tuple(range(1, 25)), b"0" * 32, colluders=colluders)
    for number, available in enumerate(availables):
        chosen = exposure.choose(START, available)
        if not chosen:
            continue
        try:
            journal.bind(repr(chosen), START, chosen, bytes([number]) * 32, colluders=colluders)
        except PolicyRefusal as refusal:
            raise AssertionError(f"{chosen} refused") from refusal
        exposure.note(START, chosen)
