"""Size classes, the component gate, capped shares, and the table of what K silos can afford."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure import gate
from secure.errors import InputError
from secure.types import Rules


class TestSizeClass:
    def test_grid_from_eight(self):
        # 8 · 1.5^k: 8, 12, 18, 27, 40.5, 60.75, 91.125, 136.6875, 205.03…, rounded half up.
        assert gate._grid(8)[0][:9] == (8, 12, 18, 27, 41, 61, 91, 137, 205)

    @pytest.mark.parametrize(
        ("n", "expected"),
        [(0, 0), (7, 0), (7.999, 0), (8, 8), (9, 8), (9.79, 8), (9.8, 12), (12, 12), (14, 12), (15, 18), (800, 692)],
    )
    def test_table(self, n, expected):
        assert gate.size_class(n, 8) == expected

    def test_border_between_two_classes(self):
        """Nearest by ratio: the border of 8 and 12 is √96 = 9.797…"""
        assert gate.size_class(math.nextafter(math.sqrt(96), 0), 8) == 8
        assert gate.size_class(math.nextafter(math.sqrt(96), 100), 8) == 12

    @given(st.floats(0, 2**40), st.integers(1, 10_000))
    def test_within_a_factor(self, n, least):
        value = gate.size_class(n, least)
        assert isinstance(value, int)
        if n < least:
            assert value == 0
        else:
            assert least <= value <= gate.MAX_CLASS
            assert 0.6 < value / min(n, gate.MAX_CLASS) < 1.7  # √1.5 = 1.22…, and the rounding of small classes
            assert gate.size_class(value, least) == value

    @given(st.floats(0, 2**40), st.floats(0, 2**40), st.integers(1, 1000))
    def test_monotonic(self, one, other, least):
        low, high = sorted((one, other))
        assert gate.size_class(low, least) <= gate.size_class(high, least)

    def test_grid_is_strictly_increasing_from_any_base(self):
        for base in (1, 2, 3, 7, 8, 1000, gate.MAX_CLASS):
            classes, borders = gate._grid(base)
            assert all(low < high for low, high in itertools.pairwise(classes))
            assert classes[0] == base
            assert classes[-1] == gate.MAX_CLASS
            assert all(low < b < high for (low, high), b in zip(itertools.pairwise(classes), borders, strict=True))

    def test_min_samples_below_one_counts_as_one(self):
        assert gate.size_class(0.5, 0) == 0
        assert gate.size_class(1, 0) == 1

    @pytest.mark.parametrize("n", [-1, -1e-9, float("nan"), float("inf"), 2.0**41])
    def test_refused(self, n):
        with pytest.raises(InputError) as caught:
            gate.size_class(n, 8)
        assert str(n) not in str(caught.value)  # counts stay out of messages

    def test_many(self):
        assert gate.size_classes((3, 8, 800), 8) == (0, 8, 692)

    def test_hides_nearby_counts(self):
        assert len({gate.size_class(n, 8) for n in range(650, 840)}) == 1


class TestGate:
    @pytest.mark.parametrize(
        ("rules", "least"),
        [
            (Rules(), 4),
            (Rules(min_contributors=6), 6),
            (Rules(max_drops=3, colluders=2), 7),
            (Rules(max_drops=0, colluders=0, min_contributors=2), 2),
        ],
    )
    def test_opens_exactly_at_the_gate(self, rules, least):
        assert gate.open_components((least - 1, least, least + 1, 0), rules) == (False, True, True, False)

    @given(st.integers(0, 10), st.integers(0, 10), st.integers(2, 10))
    def test_after_worst_drops_and_colluders_two_honest_remain(self, drops, colluders, least):
        rules = Rules(colluders=colluders, max_drops=drops, min_contributors=least)
        assert rules.gate() - drops - colluders >= 2

    @given(st.lists(st.sampled_from([0, 8, 12, 18, 205, 692]), min_size=1, max_size=20), st.floats(0.05, 1))
    def test_shares_add_up_to_at_most_one(self, classes, w_max):
        total = sum(classes)
        shares = [gate.capped_share(own, float(total), w_max) for own in classes]
        assert sum(shares) <= 1 + 1e-12
        assert all(0 <= share <= w_max for share in shares)
        alone = w_max < 1 and total in classes
        assert all((share == 0) == (own == 0 or alone) for share, own in zip(shares, classes, strict=True))

    @given(st.lists(st.sampled_from([8, 12, 18, 205, 692, 10**6]), min_size=2, max_size=20), st.floats(0.5, 1))
    def test_no_silo_outweighs_what_is_released(self, classes, w_max):
        shares = [gate.capped_share(own, float(sum(classes)), w_max) for own in classes]
        assert max(shares) <= w_max * sum(shares) * (1 + 1e-9)

    def test_dominating_silo_is_capped(self):
        assert gate.capped_share(900, 1000, 0.5) == 0.1  # as much as the others together
        assert gate.capped_share(100, 1000, 0.5) == 0.1
        assert gate.capped_share(900, 1000, 0.75) == pytest.approx(0.3)
        assert gate.capped_share(900, 1000, 1.0) == 0.9

    def test_total_that_does_not_cover_the_own_class(self):
        assert gate.capped_share(8, 7, 0.5) == 0.0

    @pytest.mark.parametrize(
        ("own", "total", "w_max"), [(-8, 8, 0.5), (8, float("nan"), 0.5), (8, 16, 0), (8, 16, 1.5)]
    )
    def test_impossible_shares(self, own, total, w_max):
        with pytest.raises(InputError):
            gate.capped_share(own, total, w_max)


class TestFeasibility:
    @pytest.mark.parametrize(
        ("silos", "quorum", "colluders", "drops"),
        # By hand: q = ⌊2K/3⌋ + 1; c ≤ min(2q − K − 1, (q − 1) / 2, K − 2); drops ≤ min(K − q, K − 3).
        [
            (3, 3, 1, 0),
            (4, 3, 1, 1),
            (5, 4, 1, 1),
            (6, 5, 2, 1),
            (7, 5, 2, 2),
            (10, 7, 3, 3),
            (12, 9, 4, 3),
            (100, 67, 33, 33),
            (128, 86, 42, 42),
        ],
    )
    def test_by_hand(self, silos, quorum, colluders, drops):
        case = gate.feasibility(silos)
        assert (case.threshold, case.quorum, case.max_colluders, case.max_drops) == (quorum, quorum, colluders, drops)
        assert case.ok
        assert case.reason == ""

    @pytest.mark.parametrize("silos", range(3, 129))
    def test_inequalities(self, silos):
        case = gate.feasibility(silos)
        q = case.quorum
        assert 2 * q > silos + case.max_colluders  # two quorums share an honest silo
        assert case.threshold > 2 * case.max_colluders  # neither secrets nor totals fall to colluders alone
        assert silos - case.max_drops >= q  # the quorum survives
        ok = Rules(colluders=min(1, case.max_colluders), max_drops=case.max_drops, min_contributors=2)
        assert gate.infeasible(silos, ok) == []
        worse = Rules(colluders=1, max_drops=case.max_drops + 1, min_contributors=2)
        assert gate.infeasible(silos, worse)
        most = Rules(colluders=case.max_colluders, max_drops=0, min_contributors=2)
        assert gate.infeasible(silos, most) == []
        more = Rules(colluders=case.max_colluders + 1, max_drops=0, min_contributors=2)
        assert gate.infeasible(silos, more)

    @pytest.mark.parametrize(("silos", "word"), [(-1, "fewer"), (0, "fewer"), (2, "fewer"), (129, "128")])
    def test_refused_with_the_reason(self, silos, word):
        case = gate.feasibility(silos)
        assert not case.ok
        assert word in case.reason
        assert (case.threshold, case.max_colluders) == (0, -1)
        with pytest.raises(InputError, match=word):
            gate.check_feasible(silos, Rules())

    def test_every_reason_at_once(self):
        problems = gate.infeasible(4, Rules(colluders=3, max_drops=2, min_contributors=9))
        assert [any(word in p for p in problems) for word in ("colluders (", "drops (", "gate of 9")] == [True] * 3

    @pytest.mark.parametrize(
        ("rules", "word"),
        [
            (Rules(colluders=-1), "negative"),
            (Rules(max_drops=-1), "negative"),
            (Rules(min_contributors=1), "its update"),
            (Rules(min_samples=0), "min_samples"),
            (Rules(w_max=0.0), "w_max"),
            (Rules(w_max=1.1), "w_max"),
            (Rules(w_max=float("nan")), "w_max"),
        ],
    )
    def test_odd_rules(self, rules, word):
        assert any(word in problem for problem in gate.infeasible(10, rules))

    def test_defaults_suit_four_and_not_three(self):
        gate.check_feasible(4, Rules())
        with pytest.raises(InputError, match="drops"):
            gate.check_feasible(3, Rules())
        gate.check_feasible(3, Rules(max_drops=0, min_contributors=3))

    @pytest.mark.parametrize("silos", range(3, 129))
    def test_void_quorum(self, silos):
        """With v signatures no secret was rebuilt: the silent silos and c liars among the signers are fewer than t."""
        case = gate.feasibility(silos)
        for colluders in range(min(case.max_colluders, silos - 2) + 1):
            signers = gate.void_quorum(silos, colluders)
            assert (silos - signers) + colluders < case.threshold
            assert (silos - (signers - 1)) + colluders >= case.threshold  # and one fewer would not do

    def test_table_names_every_size(self):
        text = gate.feasibility_table((2, 3, 10, 200))
        lines = text.splitlines()
        assert len(lines) == 5
        assert "refused" in lines[1]
        assert "refused" in lines[4]
        assert lines[2].split() == ["3", "3", "1", "0"]
        assert lines[3].split() == ["10", "7", "3", "3"]
        assert "128" in gate.feasibility_table()
