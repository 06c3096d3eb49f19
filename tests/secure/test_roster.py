"""The signed roster and public key cards: what is signed, what is refused, and that files survive a round trip."""

import dataclasses
import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure.card import Card
from secure.errors import IdentityError
from secure.identity import Identity
from secure.roster import Roster, RosterEntry, iso_time, parse_time

NOW = 1_900_000_000
OPERATOR, SERVER = Identity.generate(), Identity.generate()
SILOS = [Identity.generate() for _ in range(5)]


def entries(count=4):
    return [RosterEntry(i + 1, f"hospital {i + 1}", f"org {i // 2}", SILOS[i].public_key) for i in range(count)]


def issue(**changes):
    settings = {"version": 1, "issued": NOW, "expires": NOW + 1000, "silos": entries(), "server_key": SERVER.public_key}
    return Roster.issue(changes.pop("operator", OPERATOR), **{**settings, **changes})


class TestSigning:
    def test_verifies_and_orders(self):
        roster = issue(silos=reversed(entries()))
        roster.verify(OPERATOR.public_key)
        assert [entry.silo_id for entry in roster.silos] == [1, 2, 3, 4]
        assert roster.digest() == issue().digest()
        assert len(roster.digest()) == 32

    @pytest.mark.parametrize(
        "change",
        [
            {"version": 2},
            {"issued": NOW - 1},
            {"expires": NOW + 1001},
            {"server_key": Identity.generate().public_key},
            {"retired": (9,)},
            {"silos": tuple(entries(3))},
            {"silos": (dataclasses.replace(entries()[0], name="x"), *entries()[1:])},
            {"silos": (dataclasses.replace(entries()[0], organisation="x"), *entries()[1:])},
            {"silos": (dataclasses.replace(entries()[0], public_key=SILOS[4].public_key), *entries()[1:])},
            {"silos": (*entries()[:3], dataclasses.replace(entries()[3], silo_id=9))},
            {"signature": bytes(64)},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_any_change_breaks_the_signature(self, change):
        altered = dataclasses.replace(issue(), **change)
        assert ("signature" in change) == (altered.digest() == issue().digest())
        with pytest.raises(IdentityError, match="does not verify"):
            altered.verify(OPERATOR.public_key)

    def test_other_operator(self):
        stranger = Identity.generate()
        with pytest.raises(IdentityError, match=r"another operator.*" + stranger.fingerprint()):
            issue(operator=stranger).verify(OPERATOR.public_key)

    def test_operator_key_swapped_in(self):
        """Whoever re-signs a roster under his own key is not the trusted operator."""
        stranger = Identity.generate()
        forged = dataclasses.replace(issue(operator=stranger), operator_key=OPERATOR.public_key)
        with pytest.raises(IdentityError, match="does not verify"):
            forged.verify(OPERATOR.public_key)

    def test_signed_nonsense_is_still_nonsense(self):
        draft = dataclasses.replace(issue(), version=0)
        signed = dataclasses.replace(draft, signature=OPERATOR.sign("roster", draft.digest()))
        with pytest.raises(IdentityError, match="version"):
            signed.verify(OPERATOR.public_key)

    def test_a_signature_for_another_purpose_does_not_serve(self):
        roster = issue()
        other = dataclasses.replace(roster, signature=OPERATOR.sign("vote", roster.digest()))
        with pytest.raises(IdentityError):
            other.verify(OPERATOR.public_key)


class TestContent:
    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"version": 0}, "version"),
            ({"expires": NOW}, "expires"),
            ({"silos": []}, "no silos"),
            ({"silos": [RosterEntry(0, "a", "o", SILOS[0].public_key)]}, "65535"),
            ({"silos": [RosterEntry(65536, "a", "o", SILOS[0].public_key)]}, "65535"),
            ({"silos": [entries()[0], entries()[0]]}, "distinct"),
            ({"silos": [entries()[0], RosterEntry(2, "HOSPITAL 1", "o", SILOS[1].public_key)]}, "names"),
            ({"silos": [RosterEntry(1, " ", "o", SILOS[0].public_key)]}, "names"),
            ({"silos": [RosterEntry(1, "a", " ", SILOS[0].public_key)]}, "organisation"),
            ({"silos": [RosterEntry(1, "a", "o", b"short")]}, "32 bytes"),
            ({"silos": [RosterEntry(1, "a", "o", SERVER.public_key)]}, "own"),
            ({"server_key": OPERATOR.public_key}, "own"),
            ({"retired": (1,)}, "left"),
        ],
    )
    def test_refused_when_issued(self, change, word):
        with pytest.raises(IdentityError, match=word):
            issue(**change)

    def test_every_problem_at_once(self):
        with pytest.raises(IdentityError) as caught:
            issue(version=0, expires=0, silos=[])
        assert str(caught.value).count(";") == 2

    @pytest.mark.parametrize(
        ("now", "word"), [(NOW - 86401, "clock"), (NOW + 1000, "expired on 2030"), (NOW + 10**6, "expired")]
    )
    def test_clock(self, now, word):
        roster = issue()
        roster.check_current(NOW - 86400)
        roster.check_current(NOW + 999)
        with pytest.raises(IdentityError, match=word):
            roster.check_current(now)

    def test_look_up(self):
        roster = issue()
        assert roster.public_key(3) == SILOS[2].public_key
        assert roster.silo_of(SILOS[2].public_key) == 3
        assert roster.entry(1).fingerprint() == SILOS[0].fingerprint()
        with pytest.raises(IdentityError, match="silo 9 is not in roster version 1"):
            roster.public_key(9)
        with pytest.raises(IdentityError):
            roster.silo_of(SERVER.public_key)

    def test_organisations_count_once(self):
        silos = [*entries(4), RosterEntry(5, "five", " ORG 0 ", SILOS[4].public_key)]
        roster = issue(silos=silos)
        assert roster.organisations((5, 1, 2, 3)) == {"org 0": (1, 2, 5), "org 1": (3,)}
        assert roster.representatives((5, 2, 3)) == (2, 3)
        assert roster.representatives((5,)) == (5,)
        with pytest.raises(IdentityError):
            roster.representatives((1, 77))


class TestFiles:
    def test_round_trip_and_mode(self, tmp_path):
        roster = issue(retired=(7, 6))
        roster.save(tmp_path / "roster.json")
        again = Roster.load(tmp_path / "roster.json")
        assert again == roster
        assert again.retired == (6, 7)
        again.verify(OPERATOR.public_key)
        assert stat.S_IMODE((tmp_path / "roster.json").stat().st_mode) == 0o644

    def test_times(self):
        assert iso_time(0) == "1970-01-01T00:00:00Z"
        assert iso_time(NOW) == "2030-03-17T17:46:40Z"
        assert parse_time(iso_time(NOW)) == NOW

    def test_repr_leaves_out_the_signature(self):
        assert "signature" not in repr(issue())

    @pytest.mark.parametrize(
        "change",
        [
            {"format": "fedgmi-roster/2"},
            {"version": "1"},
            {"version": True},
            {"version": 1 << 70},
            {"issued": 5},
            {"issued": "yesterday"},
            {"operator_key": "zz"},
            {"silos": {}},
            {"silos": [1]},
            {"silos": [{"id": 1}]},
            {"retired": 5},
            {"extra": 1},
        ],
        ids=str,
    )
    def test_other_forms_are_refused(self, change):
        document = {**json.loads(issue().to_json()), **change}
        with pytest.raises(IdentityError, match="not a roster"):
            Roster.from_json(json.dumps(document).encode())

    @pytest.mark.parametrize(
        "data", [b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b" " * (1 << 24) + b"{}"]
    )
    def test_garbage(self, data):
        with pytest.raises(IdentityError):
            Roster.from_json(data)

    @given(st.binary(max_size=60))
    def test_random_bytes(self, data):
        with pytest.raises(IdentityError):
            Roster.from_json(data)

    @pytest.mark.parametrize("name", sorted(json.loads(issue().to_json())))
    def test_a_missing_key(self, name):
        document = json.loads(issue().to_json())
        del document[name]
        with pytest.raises(IdentityError):
            Roster.from_json(json.dumps(document).encode())

    def test_unreadable(self, tmp_path):
        with pytest.raises(IdentityError, match="cannot be read"):
            Roster.load(tmp_path / "absent")
        (tmp_path / "bad").write_text("{}")
        with pytest.raises(IdentityError, match="bad: not a roster"):
            Roster.load(tmp_path / "bad")
        (tmp_path / "file").write_text("")
        with pytest.raises(IdentityError, match="cannot be written"):
            issue().save(tmp_path / "file" / "roster.json")


class TestCard:
    def test_round_trip(self, tmp_path):
        card = Card.issue(SILOS[0], "silo", " hospital 1 ", "org")
        card.save(tmp_path / "card.json")
        assert Card.load(tmp_path / "card.json") == card
        assert card.name == "hospital 1"
        assert card.fingerprint() == SILOS[0].fingerprint()
        assert stat.S_IMODE((tmp_path / "card.json").stat().st_mode) == 0o644
        with pytest.raises(IdentityError, match="exists"):
            card.save(tmp_path / "card.json")
        card.save(tmp_path / "card.json", overwrite=True)

    def test_rotation_is_signed_by_both_keys(self):
        card = Card.issue(SILOS[1], "silo", "h", "o", previous=SILOS[0])
        assert Card.from_json(card.to_json()).previous_key == SILOS[0].public_key
        forged = dataclasses.replace(Card.issue(SILOS[1], "silo", "h", "o"), previous_key=SILOS[0].public_key)
        with pytest.raises(IdentityError, match="altered"):
            forged.verify()
        by_new = dataclasses.replace(forged, proof=SILOS[1].sign("public-key-card", forged._body()))
        with pytest.raises(IdentityError, match="altered"):
            by_new.verify()  # the old key never signed

    @pytest.mark.parametrize("change", [{"name": "x"}, {"organisation": "x"}, {"role": "server"}, {"proof": bytes(64)}])
    def test_altered(self, change):
        card = dataclasses.replace(Card.issue(SILOS[0], "silo", "h", "o"), **change)
        with pytest.raises(IdentityError, match="altered"):
            Card.from_json(card.to_json())

    def test_someone_elses_key(self):
        card = dataclasses.replace(Card.issue(SILOS[0], "silo", "h", "o"), public_key=SILOS[1].public_key)
        with pytest.raises(IdentityError):
            card.verify()

    def test_printed_fingerprint_is_not_trusted(self):
        document = json.loads(Card.issue(SILOS[0], "silo", "h", "o").to_json())
        document["fingerprint"] = SILOS[1].fingerprint()
        assert Card.from_json(json.dumps(document).encode()).fingerprint() == SILOS[0].fingerprint()

    @pytest.mark.parametrize(
        ("role", "name", "organisation"), [("silo", " ", "o"), ("silo", "n", ""), ("king", "n", "o")]
    )
    def test_refused_when_issued(self, role, name, organisation):
        with pytest.raises(IdentityError):
            Card.issue(SILOS[0], role, name, organisation)

    @pytest.mark.parametrize(
        "change",
        [
            {"format": "x"},
            {"role": "king"},
            {"name": 5},
            {"name": " "},
            {"organisation": ""},
            {"public_key": "00"},
            {"previous_key": "00"},
            {"proof": 5},
        ],
        ids=str,
    )
    def test_other_forms_are_refused(self, change):
        document = {**json.loads(Card.issue(SILOS[0], "silo", "h", "o").to_json()), **change}
        with pytest.raises(IdentityError, match="not a public key card"):
            Card.from_json(json.dumps(document).encode())

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b" " * (1 << 17), b"[" * 60_000])
    def test_garbage(self, data):
        with pytest.raises(IdentityError):
            Card.from_json(data)

    def test_unreadable(self, tmp_path):
        with pytest.raises(IdentityError, match="cannot be read"):
            Card.load(tmp_path / "absent")
        (tmp_path / "bad").write_text("{}")
        with pytest.raises(IdentityError, match="bad: not a public"):
            Card.load(tmp_path / "bad")
        with pytest.raises(IdentityError, match="cannot be written"):
            Card.issue(SILOS[0], "silo", "h", "o").save(tmp_path / "bad" / "card.json")
