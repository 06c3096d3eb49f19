"""What outlives a round: the counter, one release per starting point, isolation across phases, damage never silent."""

import json
import os
import stat
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure import _files
from secure.errors import InputError, JournalError, PolicyRefusal
from secure.journal import Journal

START, OTHER = b"\x01" * 32, b"\x02" * 32
ONE, TWO = b"\xa1" * 32, b"\xa2" * 32
EVERYONE = (1, 2, 3, 4, 5, 6, 7, 8)


@pytest.fixture(params=["memory", "disk"])
def journal(request, tmp_path):
    return Journal(None if request.param == "memory" else tmp_path / "journal")


class TestCounter:
    def test_grows(self, journal):
        for step in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (3, 0, 5), (3, 7, 0)]:
            journal.begin("run", *step)
            assert journal.last("run") == step

    @pytest.mark.parametrize("step", [(1, 2, 3), (1, 2, 2), (1, 1, 9), (0, 9, 9), (1, 2, 0)])
    def test_never_repeats_nor_goes_back(self, journal, step):
        journal.begin("run", 1, 2, 3)
        with pytest.raises(PolicyRefusal, match="does not follow"):
            journal.begin("run", *step)
        assert journal.last("run") == (1, 2, 3)

    def test_another_cohort_of_the_same_round_is_the_same_session(self, journal):
        """Cohorts of a round are disjoint: a silo that joins two of them would be in two sums from one start."""
        journal.begin("run", 0, 0, 0, group=0)
        with pytest.raises(PolicyRefusal):
            journal.begin("run", 0, 0, 0, group=1)

    def test_runs_count_apart(self, journal):
        journal.begin("one", 3, 9, 0)
        journal.begin("two", 0, 0, 0)
        assert journal.last("three") is None

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=20))
    def test_accepts_exactly_the_records(self, steps):
        journal, best = Journal(), None
        for step in steps:
            if best is None or step > best:
                journal.begin("run", *step)
                best = step
            else:
                with pytest.raises(PolicyRefusal):
                    journal.begin("run", *step)

    def test_restarted_means_dropped(self, tmp_path):
        Journal(tmp_path).begin("run", 2, 5, 0)
        restarted = Journal(tmp_path)
        with pytest.raises(PolicyRefusal, match="restarted"):
            restarted.begin("run", 2, 5, 0)
        restarted.begin("run", 2, 5, 1)


class TestOneRelease:
    def test_the_same_survivors_again_and_again(self, journal):
        for session in (ONE, TWO, ONE):
            journal.bind("rounds", START, EVERYONE, session)
        assert journal.bound("rounds", START) == EVERYONE
        assert journal.bound("rounds", OTHER) is None
        assert journal.bound("warmup", START) is None

    def test_order_does_not_matter(self, journal):
        journal.bind("rounds", START, (3, 1, 2), ONE)
        journal.bind("rounds", START, (1, 2, 3), TWO)

    @pytest.mark.parametrize(
        "survivors", [EVERYONE[:-1], EVERYONE[1:], (*EVERYONE[:-1], 9), (*EVERYONE, 9), (11, 12, 13, 14)]
    )
    def test_other_survivors_are_refused(self, journal, survivors):
        """A round unmasked, then repeated without one silo: the difference would be that silo's update."""
        journal.bind("rounds", START, EVERYONE, ONE)
        with pytest.raises(PolicyRefusal, match="other survivors"):
            journal.bind("rounds", START, survivors, TWO)
        journal.bind("rounds", OTHER, survivors, TWO)
        assert journal.bound("rounds", START) == EVERYONE

    def test_across_restarts_and_runs(self, tmp_path):
        first = Journal(tmp_path)
        first.begin("run one", 0, 0, 0)
        first.bind("rounds", START, EVERYONE, ONE)
        second = Journal(tmp_path)
        second.begin("run two", 0, 0, 0)  # another run from the same starting models
        with pytest.raises(PolicyRefusal):
            second.bind("rounds", START, EVERYONE[:-1], TWO)

    def test_digest_length(self, journal):
        for digest in (b"", b"x" * 31):
            with pytest.raises(InputError):
                journal.bind("rounds", digest, EVERYONE, ONE)


class TestVoid:
    def test_clears_the_binding(self, journal):
        journal.bind("rounds", START, EVERYONE, ONE)
        journal.void(ONE)
        assert journal.bound("rounds", START) is None
        journal.bind("rounds", START, EVERYONE[:-1], TWO)

    def test_only_of_that_session(self, journal):
        journal.bind("rounds", START, EVERYONE, ONE)
        journal.bind("rounds", START, EVERYONE, TWO)
        journal.void(ONE)
        assert journal.bound("rounds", START) == EVERYONE
        with pytest.raises(PolicyRefusal):
            journal.bind("rounds", START, EVERYONE[:-1], ONE)
        journal.void(TWO)
        assert journal.bound("rounds", START) is None

    def test_released_shares_cannot_be_undone(self, journal):
        journal.bind("rounds", START, EVERYONE, ONE)
        journal.mark_released("rounds", START, ONE)
        with pytest.raises(PolicyRefusal, match="cannot be void"):
            journal.void(ONE)
        journal.bind("rounds", START, EVERYONE, ONE)  # re-signing does not wash the mark away
        with pytest.raises(PolicyRefusal):
            journal.void(ONE)
        assert journal.bound("rounds", START) == EVERYONE

    def test_nothing_leaves_without_a_binding(self, journal):
        with pytest.raises(PolicyRefusal, match="not bound"):
            journal.mark_released("rounds", START, ONE)
        journal.bind("rounds", START, EVERYONE, ONE)
        for phase, start, session in (("rounds", START, TWO), ("warmup", START, ONE), ("rounds", OTHER, ONE)):
            with pytest.raises(PolicyRefusal, match="not bound"):
                journal.mark_released(phase, start, session)
        journal.void(ONE)
        with pytest.raises(PolicyRefusal, match="not bound"):
            journal.mark_released("rounds", START, ONE)  # voided means: state erased, no share ever

    def test_unknown_sessions_are_ignored(self, journal):
        journal.bind("rounds", START, EVERYONE, ONE)
        journal.void(TWO)
        assert journal.bound("rounds", START) == EVERYONE


class TestIsolation:
    @pytest.mark.parametrize(
        ("first", "second", "colluders", "good"),
        [
            (EVERYONE, EVERYONE, 1, True),
            ((1, 2, 3, 4), (5, 6, 7, 8), 1, True),  # disjoint cohorts
            (EVERYONE, EVERYONE[:-1], 1, False),  # the difference is silo 8
            (EVERYONE, EVERYONE[:-2], 1, False),  # two silos, one of them may collude
            (EVERYONE, EVERYONE[:-3], 1, True),
            (EVERYONE, EVERYONE[:-3], 2, False),
            (EVERYONE, EVERYONE[:-4], 2, True),
            ((1, 2, 3, 4), (4, 5, 6, 7), 1, False),  # overlap of one
            ((1, 2), (1, 2), 1, False),  # too few to begin with
            ((1, 2), (1, 2), 0, True),
        ],
    )
    def test_across_phases(self, journal, first, second, colluders, good):
        def bind_both():
            journal.bind("candidates", START, first, ONE, colluders=colluders)
            journal.bind("warmup", START, second, TWO, colluders=colluders)

        if good:
            bind_both()
        else:
            with pytest.raises(PolicyRefusal, match=f"fewer than {colluders + 2} silos"):
                bind_both()
            journal.bind("warmup", OTHER, (11, 12, 13, 14), TWO, colluders=colluders)

    def test_three_sets_together(self, journal):
        """Pairwise fine, yet the three cut out two silos: {1..4} ∩ {3..8} …"""
        journal.bind("a", START, (1, 2, 3, 4, 5, 6), ONE)
        journal.bind("b", START, (4, 5, 6, 7, 8, 9), ONE)
        with pytest.raises(PolicyRefusal):
            journal.bind("c", START, (1, 2, 4, 5, 7, 8), TWO)
        assert journal.bound("c", START) is None

    def test_voided_sets_do_not_count(self, journal):
        journal.bind("a", START, EVERYONE, ONE)
        journal.void(ONE)
        journal.bind("b", START, EVERYONE[:-1], TWO)

    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.sets(st.integers(1, 9), min_size=1), min_size=1, max_size=4), st.integers(0, 2))
    def test_no_combination_of_accepted_sets_is_smaller(self, sets, colluders):
        """Brute force over small integer coefficients: each non-zero combination covers at least c + 2 silos."""
        journal, accepted = Journal(), []
        for index, members in enumerate(sets):
            try:
                journal.bind(f"phase {index}", START, sorted(members), ONE, colluders=colluders)
            except PolicyRefusal:
                continue
            accepted.append(members)
        import itertools

        for weights in itertools.product((-2, -1, 0, 1, 2), repeat=len(accepted)):
            mix = [sum(w for w, members in zip(weights, accepted, strict=True) if s in members) for s in range(1, 10)]
            covered = sum(value != 0 for value in mix)
            assert covered == 0 or covered >= colluders + 2


class TestRosterVersion:
    def test_highest_is_kept(self, journal):
        assert journal.roster_version() == 0
        journal.note_roster(3, b"d" * 32)
        journal.note_roster(3, b"d" * 32)
        journal.note_roster(5, b"e" * 32)
        assert journal.roster_version() == 5
        with pytest.raises(PolicyRefusal, match="older"):
            journal.note_roster(3, b"d" * 32)
        with pytest.raises(PolicyRefusal, match="another roster"):
            journal.note_roster(5, b"f" * 32)

    def test_across_restarts(self, tmp_path):
        Journal(tmp_path).note_roster(2, b"d" * 32)
        with pytest.raises(PolicyRefusal):
            Journal(tmp_path).note_roster(1, b"d" * 32)


def filled(folder):
    journal = Journal(folder)
    journal.bind("rounds", START, EVERYONE, ONE)
    journal.begin("run", 0, 0, 0)
    return journal


class TestDisk:
    def test_modes(self, tmp_path):
        filled(tmp_path / "j")
        assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o700
        files = [p for p in (tmp_path / "j").rglob("*") if p.is_file()]
        assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}

    @pytest.mark.parametrize("name", ["journal.json", f"bindings/{START.hex()}.json"])
    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: b"",
            lambda data: data[:-1],
            lambda data: data[: len(data) // 2],
            lambda data: b"{}",
            lambda data: b"[]",
            lambda data: b"\xff" * 40,
            lambda data: data.replace(b"/1", b"/9", 1),
            lambda data: data.replace(b"[", b"[7, ", 1),
            lambda data: b"[" * 100_000,
        ],
    )
    def test_damage_is_one_clear_error(self, tmp_path, name, damage):
        journal = filled(tmp_path)
        path = tmp_path / name
        path.write_bytes(damage(path.read_bytes()))
        for attempt in (
            lambda: Journal(tmp_path),
            lambda: journal.bind("rounds", START, EVERYONE, ONE) or journal.begin("run", 9, 9, 9),
        ):
            with pytest.raises(JournalError) as caught:
                attempt()
            assert str(path) in str(caught.value)
            assert "restore the journal folder from a backup" in str(caught.value)

    @pytest.mark.parametrize("change", [b"survivors", b"rounds", b"bound"])
    def test_a_tampered_value_breaks_the_checksum(self, tmp_path, change):
        filled(tmp_path)
        path = tmp_path / "bindings" / f"{START.hex()}.json"
        path.write_bytes(path.read_bytes().replace(change, change[::-1]))
        with pytest.raises(JournalError, match="damaged"):
            Journal(tmp_path)

    def test_a_missing_head_is_not_an_empty_journal(self, tmp_path):
        filled(tmp_path)
        (tmp_path / "journal.json").unlink()
        with pytest.raises(JournalError, match="missing although bindings exist"):
            Journal(tmp_path)

    def test_a_head_lost_while_running(self, tmp_path):
        journal = filled(tmp_path)
        (tmp_path / "journal.json").unlink()
        with pytest.raises(JournalError, match="missing"):
            journal.begin("run", 1, 0, 0)

    def test_lost_bindings_show(self, tmp_path):
        filled(tmp_path)
        (tmp_path / "bindings" / f"{START.hex()}.json").unlink()
        with pytest.raises(JournalError, match="lost files"):
            Journal(tmp_path)

    def test_a_binding_under_another_name(self, tmp_path):
        journal = filled(tmp_path)
        path = tmp_path / "bindings" / f"{START.hex()}.json"
        path.with_name(f"{OTHER.hex()}.json").write_bytes(path.read_bytes())
        with pytest.raises(JournalError, match="other starting models"):
            journal.bound("rounds", OTHER)

    def test_crash_while_writing_changes_nothing(self, tmp_path, monkeypatch):
        journal = filled(tmp_path)

        def crash(*_args):
            raise OSError(28, "No space left on device")

        for step in ("fsync", "replace"):
            with monkeypatch.context() as patch:
                patch.setattr(_files.os, step, crash)
                with pytest.raises(JournalError, match="No space"):
                    journal.begin("run", 5, 0, 0)
        assert Journal(tmp_path).last("run") == (0, 0, 0)
        journal.begin("run", 5, 0, 0)

    def test_leftover_temporaries_do_no_harm(self, tmp_path):
        filled(tmp_path)
        (tmp_path / ".journal.json.0123.tmp").write_bytes(b"half")
        (tmp_path / "bindings" / ".x.json.0123.tmp").write_bytes(b"half")
        assert Journal(tmp_path).last("run") == (0, 0, 0)

    def test_unusable_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(JournalError, match="cannot be used"):
            Journal(tmp_path / "file")

    def test_unreadable_file(self, tmp_path):
        journal = filled(tmp_path)
        (tmp_path / "journal.json").unlink()
        (tmp_path / "journal.json").mkdir()
        with pytest.raises(JournalError, match="cannot be read"):
            journal.last("run")

    def test_lost_folder(self, tmp_path):
        journal = filled(tmp_path / "j")
        (tmp_path / "j").rename(tmp_path / "k")
        with pytest.raises(JournalError, match="cannot be used"):
            journal.last("run")

    def test_two_processes_cannot_both_start_a_session(self, tmp_path):
        """Many journals on one folder (as of processes), each trying to start the same session: exactly one may."""
        Journal(tmp_path)
        won, refused = [], []

        def contend():
            journal = Journal(tmp_path)
            for number in range(5):
                try:
                    journal.begin("run", 0, number, 0)
                    won.append(number)
                except PolicyRefusal:
                    refused.append(number)

        threads = [threading.Thread(target=contend) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(won)) == len(won)
        assert len(won) + len(refused) == 20

    def test_holds_no_payload(self, tmp_path):
        """Ids, digests and counters only."""
        filled(tmp_path)
        texts = [p.read_text() for p in tmp_path.rglob("*.json")]
        assert all(set(json.loads(t)) == {"format", "sha256", "body"} for t in texts)
        assert repr(Journal(tmp_path)) == f"<Journal {os.fspath(tmp_path / 'journal.json')}>"
