"""A silo's policy: refuses every proposal that asks for less, lists all problems at once, pins rosters by consent."""

import dataclasses
import importlib
import json
import stat

import pytest

from secure.errors import IdentityError, PolicyRefusal
from secure.identity import Identity
from secure.policy import Policy, weaker_rules
from secure.roster import Roster, RosterEntry
from secure.types import Block, Rules, SessionParams, VectorSpec

NOW = 1_900_000_000
OPERATOR, SERVER = Identity.generate(), Identity.generate()
KEYS = [Identity.generate().public_key for _ in range(6)]
SPEC = VectorSpec(2, (Block("vae.0/w", 4, 8.0, 0), Block("vae.1/w", 4, 1.0, 1)))


def make_roster(version=1, operator=OPERATOR, count=6):
    silos = [RosterEntry(i + 1, f"h{i}", f"o{i}", KEYS[i]) for i in range(count)]
    return Roster.issue(
        operator, version=version, issued=NOW, expires=NOW + 1000, silos=silos, server_key=SERVER.public_key
    )


ROSTER = make_roster()
POLICY = Policy.for_roster(ROSTER, NOW)
GOOD = SessionParams(
    run_id="run",
    phase="rounds",
    round=3,
    attempt=0,
    backend="masked",
    cohort=(1, 2, 3, 4, 5, 6),
    spec=SPEC,
    start_digest=b"s" * 32,
    config_digest=b"c" * 32,
    roster_digest=ROSTER.digest(),
)
OTHER_SPEC = VectorSpec(2, (*SPEC.blocks, Block("extra", 1, 1.0, 0)))


def proposal(**changes):
    return dataclasses.replace(GOOD, **changes)


def with_rules(**changes):
    return proposal(rules=Rules(**changes))


class TestCheck:
    def test_good_proposals_pass(self):
        assert POLICY.check(GOOD) == []
        assert POLICY.check(with_rules(colluders=2, max_drops=0, min_contributors=6, min_samples=20, w_max=0.3)) == []
        assert POLICY.check(with_rules(verified_sums=True)) == []

    @pytest.mark.parametrize(
        ("params", "word"),
        [
            (proposal(backend="none"), "back-end"),
            (proposal(backend="homomorphic"), "back-end"),
            (proposal(cohort=(1, 2, 3)), "smaller than 4"),
            (proposal(cohort=()), "smaller than 4"),
            (proposal(cohort=(2, 1, 3, 4, 5)), "ascending"),
            (proposal(cohort=(1, 1, 2, 3, 4)), "ascending"),
            (proposal(phase="party"), "schedule"),
            (proposal(round=-1), "negative"),
            (proposal(roster_digest=bytes(32)), "roster differs"),
            (proposal(start_digest=b""), "32 bytes"),
            (proposal(config_digest=b"x"), "32 bytes"),
            (proposal(spec=VectorSpec(1, (Block("big", 1, 8.01, 0), Block("bigger", 1, 9.0, 0)))), "block big and 1"),
            (proposal(spec=VectorSpec(1, (Block("nan", 1, float("nan"), 0),))), "block nan"),
            (with_rules(colluders=0), "colluders 0 is less"),
            (with_rules(max_drops=2), "max_drops 2 is more"),
            (with_rules(min_contributors=3, max_drops=0), "min_contributors 3 is less"),
            (with_rules(min_samples=7), "min_samples 7 is less"),
            (with_rules(w_max=0.51), "w_max 0.51 is more"),
            (with_rules(w_max=float("nan")), "w_max nan is more"),
            (with_rules(colluders=3), "colluders (2q"),
            (with_rules(min_contributors=7), "gate of 7"),
            (proposal(cohort=tuple(range(1, 130))), "128"),
        ],
    )
    def test_each_way_of_asking_for_less(self, params, word):
        assert any(word in problem for problem in POLICY.check(params)), POLICY.check(params)

    @pytest.mark.parametrize(
        ("setting", "good", "bad", "word"),
        [
            ({"config_digest": b"c" * 32}, GOOD, proposal(config_digest=b"d" * 32), "configuration"),
            ({"schemas": {"rounds": SPEC.digest()}}, GOOD, proposal(spec=OTHER_SPEC), "schema"),
            ({"schemas": {"warmup": SPEC.digest()}}, proposal(spec=OTHER_SPEC), None, ""),
            ({"rules": Rules(verified_sums=True)}, with_rules(verified_sums=True), GOOD, "verified sums"),
            ({"max_clip": 16.0}, proposal(spec=VectorSpec(1, (Block("b", 1, 16.0, 0),))), None, ""),
        ],
    )
    def test_pinned_settings(self, setting, good, bad, word):
        policy = dataclasses.replace(POLICY, **setting)
        assert policy.check(good) == []
        assert bad is None or [word in problem for problem in policy.check(bad)] == [True]

    def test_lists_everything_at_once(self):
        worst = proposal(
            backend="none", cohort=(3, 1), phase="party", roster_digest=bytes(32), rules=Rules(0, 5, 1, 1, 1.0),
            spec=VectorSpec(1, (Block("b", 1, 99.0, 0),)), start_digest=b"",
        )  # fmt: skip
        assert len(POLICY.check(worst)) >= 11

    def test_stricter_is_never_weaker(self):
        assert weaker_rules(Rules(), Rules()) == []
        assert weaker_rules(Rules(2, 0, 5, 9, 0.4, True), Rules()) == []
        assert len(weaker_rules(Rules(), Rules(2, 0, 5, 9, 0.4, True))) == 6

    def test_phase_index(self):
        assert [POLICY.phase_index(p) for p in POLICY.phases] == [0, 1, 2, 3]
        with pytest.raises(PolicyRefusal, match="schedule"):
            POLICY.phase_index("party")


class TestRosterConsent:
    def test_the_accepted_roster(self):
        POLICY.check_roster(ROSTER, NOW)

    @pytest.mark.parametrize(
        ("roster", "now", "word"),
        [
            (make_roster(2), NOW, "fedgmi keys accept"),
            (make_roster(operator=Identity.generate()), NOW, "another operator"),
            (ROSTER, NOW + 1000, "expired"),
            (dataclasses.replace(ROSTER, signature=bytes(64)), NOW, "does not verify"),
        ],
    )
    def test_anything_else(self, roster, now, word):
        with pytest.raises(IdentityError, match=word):
            POLICY.check_roster(roster, now)

    def test_consent_is_explicit_and_goes_forward(self):
        newer = make_roster(3, count=5)
        accepted = POLICY.accept(newer, NOW + 5)
        accepted.check_roster(newer, NOW + 5)
        assert (accepted.roster_version, accepted.accepted) == (3, NOW + 5)
        assert accepted.rules == POLICY.rules
        assert accepted.check(GOOD)  # the old roster is refused now
        with pytest.raises(IdentityError, match="follow"):
            accepted.accept(make_roster(2), NOW)
        with pytest.raises(IdentityError, match="follow"):
            accepted.accept(make_roster(3, count=6), NOW)  # the same version with another content
        assert accepted.accept(newer, NOW + 9).accepted == NOW + 9

    def test_consent_needs_the_same_operator_and_a_roster_in_force(self):
        with pytest.raises(IdentityError, match="another operator"):
            POLICY.accept(make_roster(2, operator=Identity.generate()), NOW)
        with pytest.raises(IdentityError, match="expired"):
            POLICY.accept(make_roster(2), NOW + 1000)
        with pytest.raises(IdentityError, match="expired"):
            Policy.for_roster(ROSTER, NOW + 1000)


class TestFile:
    def test_round_trip(self, tmp_path):
        policy = dataclasses.replace(
            POLICY,
            config_digest=b"c" * 32,
            schemas={"rounds": SPEC.digest()},
            backends=("masked", "homomorphic"),
            rules=Rules(2, 0, 5, 9, 0.25, True),
            min_cohort=6,
            max_clip=4,
            phases=("rounds",),
        )
        policy.save(tmp_path / "policy.json")
        assert Policy.load(tmp_path / "policy.json") == policy
        assert stat.S_IMODE((tmp_path / "policy.json").stat().st_mode) == 0o600

    def test_yaml(self, tmp_path):
        (tmp_path / "policy.yaml").write_text(
            "# hand-written\n"
            "format: fedgmi-policy/1\n"
            f"operator_key: '{OPERATOR.public_key.hex()}'\n"
            f"roster: {{version: 1, digest: '{ROSTER.digest().hex()}'}}\n"
            "rules:\n  w_max: 0.4\n  verified_sums: true\n"
        )
        policy = Policy.load(tmp_path / "policy.yaml")
        assert policy.rules == Rules(w_max=0.4, verified_sums=True)
        assert policy.accepted == 0
        assert policy.min_cohort == 4

    def test_yaml_without_pyyaml(self, tmp_path, monkeypatch):
        def absent(name):
            raise ImportError(name)

        monkeypatch.setattr(importlib, "import_module", absent)
        (tmp_path / "policy.yaml").write_text("format: fedgmi-policy/1\n")
        with pytest.raises(IdentityError, match="PyYAML"):
            Policy.load(tmp_path / "policy.yaml")

    def test_every_problem_at_once(self):
        document = POLICY.to_mapping()
        document |= {
            "format": "x", "operator_key": "zz", "backends": ["masked", "telepathy"], "min_cohort": True,
            "max_clip": -1.0, "phases": [], "config_digest": "00", "schemas": {"rounds": 5}, "surprise": 1,
            "rules": {"colluders": 1.5, "typo": 1}, "roster": {"version": "1", "digest": None, "accepted": "noon"},
        }  # fmt: skip
        with pytest.raises(IdentityError) as caught:
            Policy.from_mapping(document)
        for word in (
            "format", "operator_key", "telepathy", "min_cohort", "max_clip", "phases", "config_digest",
            "schemas.rounds", "surprise", "rules.colluders", "rules.typo", "roster.version", "roster.digest",
            "accepted",
        ):  # fmt: skip
            assert word in str(caught.value), word

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"min_cohort": 2}, "min_cohort"),
            ({"min_cohort": 129}, "min_cohort"),
            ({"min_cohort": 3}, "drops"),
            ({"rules": {"colluders": 9}}, "colluders"),
            ({"rules": 5}, "rules"),
            ({"max_clip": float("inf")}, "max_clip"),
            ({"max_clip": "8"}, "max_clip"),
            ({"phases": ["rounds", "rounds"]}, "twice"),
            ({"phases": "rounds"}, "phases"),
            ({"backends": [1]}, "backends"),
            ({"rules": {"verified_sums": 1}}, "verified_sums"),
        ],
        ids=str,
    )
    def test_impossible_settings(self, change, word):
        with pytest.raises(IdentityError, match=word):
            Policy.from_mapping({**POLICY.to_mapping(), **change})

    @pytest.mark.parametrize("document", [None, [], "text", 5, {}])
    def test_not_a_policy(self, document):
        with pytest.raises(IdentityError, match="not a policy"):
            Policy.from_mapping(document)

    @pytest.mark.parametrize("data", [b"\xff\xfe\xfa", b"{]: [", b"- a\n- b\n"])
    def test_garbage(self, tmp_path, data):
        (tmp_path / "policy.json").write_bytes(data)
        with pytest.raises(IdentityError, match=r"policy\.json"):
            Policy.load(tmp_path / "policy.json")

    def test_unreadable(self, tmp_path):
        with pytest.raises(IdentityError, match="cannot be read"):
            Policy.load(tmp_path / "absent")
        (tmp_path / "file").write_text("")
        with pytest.raises(IdentityError, match="cannot be written"):
            POLICY.save(tmp_path / "file" / "policy.json")

    def test_file_is_plain_json(self, tmp_path):
        POLICY.save(tmp_path / "p")
        document = json.loads((tmp_path / "p").read_text())
        assert document["operator_fingerprint"] == OPERATOR.fingerprint()

    def test_settings_are_checked_at_first_consent(self):
        with pytest.raises(IdentityError, match="telepathy"):
            Policy.for_roster(ROSTER, NOW, backends=("telepathy",))
