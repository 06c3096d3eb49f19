"""Cohorts from committed nonces: nobody chooses, everybody agrees, nobody is drawn twice."""

import hashlib
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure.beacon import NONCE_BYTES, _Stream, commitment, disjoint_cohorts, draw, from_reveals, new_nonce
from secure.errors import BlameError, InputError

silo_sets = st.lists(st.integers(1, 500), min_size=1, max_size=60, unique=True)
BEACON = bytes(range(32))


def reveals(nonces):
    return {silo: (commitment(silo, nonce), nonce) for silo, nonce in nonces.items()}


NONCES = {silo: bytes([silo]) * NONCE_BYTES for silo in (1, 2, 3)}


class TestBeacon:
    def test_commitment_is_a_labelled_hash(self):
        label, nonce = b"fedgmi/1/beacon/commitment", bytes(32)
        fields = (label, (7).to_bytes(8, "big"), nonce)
        framed = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
        assert commitment(7, nonce) == hashlib.sha256(framed).digest()

    def test_depends_on_every_nonce_and_the_context_not_on_order(self):
        base = from_reveals(reveals(NONCES))
        assert len(base) == 32
        assert from_reveals(dict(reversed(reveals(NONCES).items()))) == base
        others = {from_reveals(reveals({**NONCES, silo: bytes(32)})) for silo in NONCES}
        others.add(from_reveals(reveals({1: NONCES[1], 2: NONCES[2]})))
        others.add(from_reveals(reveals(NONCES), b"run"))
        others.add(from_reveals(reveals({1: NONCES[2], 2: NONCES[1], 3: NONCES[3]})))
        assert base not in others
        assert len(others) == 6

    def test_a_wrong_nonce_names_its_silo(self):
        shown = reveals(NONCES)
        for bad in (bytes(32), b"", NONCES[2] + b"x"):
            with pytest.raises(BlameError, match="silo 2") as caught:
                from_reveals({**shown, 2: (shown[2][0], bad)})
            assert caught.value.culprit == 2

    def test_a_copied_commitment_does_not_open(self):
        """A silo that repeats another's commitment and then its nonce is caught: the id is hashed in."""
        shown = reveals(NONCES)
        with pytest.raises(BlameError, match="silo 9"):
            from_reveals({**shown, 9: shown[1]})

    def test_nobody(self):
        with pytest.raises(InputError):
            from_reveals({})

    def test_nonces(self):
        assert len(new_nonce()) == NONCE_BYTES
        assert new_nonce() != new_nonce()
        assert new_nonce(lambda n: b"n" * n) == b"n" * 32
        for bad in (b"", bytes(31), bytes(33)):
            with pytest.raises(InputError):
                commitment(1, bad)


class TestDraw:
    @given(silo_sets, st.data())
    def test_a_subset_of_the_right_size(self, silos, data):
        k = data.draw(st.integers(1, len(silos)))
        cohort = draw(BEACON, "rounds/1", silos, k)
        assert len(cohort) == k
        assert set(cohort) <= set(silos)
        assert list(cohort) == sorted(set(cohort))
        assert draw(BEACON, "rounds/1", data.draw(st.permutations(silos)), k) == cohort

    def test_pinned(self):
        # Made by this package's first version: a change here breaks runs between versions.
        assert draw(BEACON, "rounds/1/0", range(1, 21), 6) == PINNED_DRAW
        assert disjoint_cohorts(BEACON, "candidates/0", range(1, 12), 4) == PINNED_COHORTS

    def test_beacon_and_label_matter(self):
        drawn = {draw(BEACON, f"rounds/{r}", range(1, 101), 10) for r in range(50)}
        drawn |= {draw(bytes([b]) * 32, "rounds/0", range(1, 101), 10) for b in range(50)}
        assert len(drawn) == 100

    def test_every_subset_equally_likely(self):
        """All 10 pairs out of 5, 5,000 draws: each 500 ± 5 standard deviations (106)."""
        counts = Counter(draw(BEACON, str(i), range(1, 6), 2) for i in range(5000))
        assert set(counts) == set(itertools.combinations(range(1, 6), 2))
        assert all(394 < count < 606 for count in counts.values())

    def test_numbers_are_unbiased_by_rejection(self, monkeypatch):
        blocks = iter([b"\xff" * 32, (10).to_bytes(8, "big") + bytes(24)])

        class Hash:
            def digest(self):
                return next(blocks)

        stream = _Stream(BEACON, "x")
        monkeypatch.setattr("secure.beacon.hashlib.sha256", lambda _data: Hash())
        assert stream.below(7) == 3  # the first block lies above the largest multiple of 7

    @pytest.mark.parametrize(("silos", "k"), [([1, 2], 3), ([1, 2], 0), ([1, 2], -1), ([], 1), ([1, 1, 2], 2)])
    def test_refused(self, silos, k):
        with pytest.raises(InputError):
            draw(BEACON, "x", silos, k)


class TestDisjointCohorts:
    @given(silo_sets, st.data())
    def test_each_silo_once_and_no_cohort_too_small(self, silos, data):
        size = data.draw(st.integers(1, len(silos)))
        cohorts = disjoint_cohorts(BEACON, "candidates/0", silos, size)
        assert sorted(itertools.chain.from_iterable(cohorts)) == sorted(silos)
        sizes = [len(cohort) for cohort in cohorts]
        assert min(sizes) >= size
        assert max(sizes) - min(sizes) <= 1
        assert len(cohorts) == len(silos) // size
        assert all(list(cohort) == sorted(cohort) for cohort in cohorts)
        assert disjoint_cohorts(BEACON, "candidates/0", data.draw(st.permutations(silos)), size) == cohorts

    def test_partners_vary(self):
        partners = {
            s for i in range(60) for c in disjoint_cohorts(BEACON, str(i), range(1, 13), 4) if 1 in c for s in c
        }
        assert partners == set(range(1, 13))

    @pytest.mark.parametrize(("silos", "size"), [([1, 2, 3], 4), ([1], 0), ([], 1), ([1, 1], 1)])
    def test_refused(self, silos, size):
        with pytest.raises(InputError):
            disjoint_cohorts(BEACON, "x", silos, size)


PINNED_DRAW = (10, 11, 14, 15, 16, 19)
PINNED_COHORTS = ((3, 6, 7, 8, 9, 10), (1, 2, 4, 5, 11))
