"""``fedgmi keys``: the whole order of work through the command line, and bad input that ends with exit code 2."""

import json
import os
import stat
import subprocess
import sys

import pytest
from click.testing import CliRunner

from fedgmi_fedml.cli_keys import keys
from secure import _files
from secure.card import Card
from secure.identity import PASSPHRASE_VARIABLE, Identity
from secure.policy import Policy
from secure.roster import Roster

SILOS = ("north", "south", "east", "west")


@pytest.fixture(autouse=True)
def _no_passphrase(monkeypatch):
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)


def run(*arguments, code=0, answers=None):
    result = CliRunner().invoke(keys, [str(a) for a in arguments], input=answers)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def card_of(folder):
    return folder / "identity.public.json"


def key_of(folder):
    return folder / "identity.pem"


def snapshot(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def parties(tmp_path):
    for role, name in (("operator", "op"), ("server", "hub"), *(("silo", silo) for silo in SILOS)):
        run("init", "--role", role, "--name", name, "--organisation", f"{name} org", "--out", tmp_path / name)
    return tmp_path


def build(parties, *more, silos=SILOS, out="roster.json", code=0):
    cards = [part for silo in silos for part in ("--silo", card_of(parties / silo))]
    return run("roster", "--operator", key_of(parties / "op"), "--out", parties / out, *cards, *more, code=code)


@pytest.fixture
def roster(parties):
    build(parties, "--server", card_of(parties / "hub"))
    return parties / "roster.json"


@pytest.fixture
def policy(parties, roster):
    told = Card.load(card_of(parties / "op")).fingerprint().replace("-", " ").upper()
    run("accept", roster, "--policy", parties / "policy.json", "--operator-fingerprint", told)
    return parties / "policy.json"


class TestInit:
    def test_makes_a_private_key_and_a_card(self, tmp_path):
        output = run("init", "--name", "north", "--out", tmp_path / "new" / "keys")
        folder = tmp_path / "new" / "keys"
        assert stat.S_IMODE(key_of(folder).stat().st_mode) == 0o600
        card = Card.load(card_of(folder))
        assert (card.role, card.name, card.organisation) == ("silo", "north", "north")
        assert card.public_key == Identity.load(key_of(folder)).public_key
        assert card.fingerprint() in output
        assert "not encrypted" in output

    @pytest.mark.parametrize("existing", ["identity.pem", "identity.public.json"])
    def test_never_overwrites(self, tmp_path, existing):
        (tmp_path / existing).write_text("precious")
        before = snapshot(tmp_path)
        assert "rotate" in run("init", "--name", "north", "--out", tmp_path, code=2)
        assert snapshot(tmp_path) == before

    def test_nothing_half_written(self, tmp_path, monkeypatch):
        real = _files.write_atomic

        def card_fails(path, *args, **kwargs):
            if path.suffix == ".json":
                raise OSError(28, "No space left on device")
            real(path, *args, **kwargs)

        monkeypatch.setattr("secure.card.write_atomic", card_fails)
        assert "No space" in run("init", "--name", "north", "--out", tmp_path, code=2)
        assert snapshot(tmp_path) == {}

    def test_passphrases(self, tmp_path, monkeypatch):
        output = run("init", "--name", "a", "--out", tmp_path / "a", "--ask-passphrase", answers="pass\npass\n")
        assert "not encrypted" not in output
        assert "pass\n" not in output
        Identity.load(key_of(tmp_path / "a"), "pass")
        output = run(
            "init", "--name", "b", "--out", tmp_path / "b", "--ask-passphrase", answers="one\ntwo\nsame\nsame\n"
        )
        assert "do not match" in output
        Identity.load(key_of(tmp_path / "b"), "same")
        monkeypatch.setenv(PASSPHRASE_VARIABLE, "from the environment")
        run("init", "--name", "c", "--out", tmp_path / "c")
        Identity.load(key_of(tmp_path / "c"), "from the environment")

    @pytest.mark.parametrize("arguments", [[], ["--name", " "], ["--name", "x", "--role", "king"]])
    def test_bad_input(self, tmp_path, arguments):
        run("init", "--out", tmp_path, *arguments, code=2)
        assert snapshot(tmp_path) == {}


class TestRoster:
    def test_lists_and_signs(self, parties, roster):
        made = Roster.load(roster)
        made.verify(Identity.load(key_of(parties / "op")).public_key)
        assert made.version == 1
        assert [(e.silo_id, e.name) for e in made.silos] == list(enumerate(SILOS, 1))
        assert made.server_key == Card.load(card_of(parties / "hub")).public_key

    def test_first_roster_needs_a_server(self, parties):
        assert "--server" in build(parties, code=2)

    def test_never_overwrites_by_accident(self, parties, roster):
        assert "--from" in build(parties, "--server", card_of(parties / "hub"), code=2)

    def test_roles_are_checked(self, parties):
        assert "not of a server" in build(parties, "--server", card_of(parties / "north"), code=2)
        assert "not of a silo" in build(parties, "--server", card_of(parties / "hub"), silos=("hub",), code=2)

    def test_cards_are_checked(self, parties):
        text = card_of(parties / "north").read_text()
        card_of(parties / "north").write_text(text.replace("north org", "south org"))
        assert "altered" in build(parties, "--server", card_of(parties / "hub"), code=2)
        assert not (parties / "roster.json").exists()

    def test_same_silo_twice(self, parties):
        assert "same name" in build(parties, "--server", card_of(parties / "hub"), silos=("north", "north"), code=2)

    def test_update_adds_and_removes_without_reusing_ids(self, parties, roster):
        build(parties, "--from", roster, "--remove", 4, silos=())
        run("init", "--name", "new", "--out", parties / "new")
        build(parties, "--from", roster, silos=("new",))
        made = Roster.load(roster)
        assert made.version == 3
        assert [(e.silo_id, e.name) for e in made.silos] == [(1, "north"), (2, "south"), (3, "east"), (5, "new")]
        assert made.retired == (4,)

    def test_unknown_silo_to_remove(self, parties, roster):
        before = roster.read_bytes()
        assert "no such silo to remove: 9" in build(parties, "--from", roster, "--remove", 9, silos=(), code=2)
        assert roster.read_bytes() == before

    def test_another_operator_cannot_update(self, parties, roster):
        run("init", "--role", "operator", "--name", "other", "--out", parties / "other")
        output = run(
            "roster", "--operator", key_of(parties / "other"), "--from", roster, "--out", parties / "x.json", code=2
        )
        assert "another operator" in output

    def test_rotated_keys_prove_themselves(self, parties, roster):
        for name in ("north", "hub"):
            run("rotate", key_of(parties / name))
        build(parties, "--from", roster, "--server", card_of(parties / "hub"), silos=("north",))
        made = Roster.load(roster)
        assert made.silo_of(Card.load(card_of(parties / "north")).public_key) == 1
        assert made.server_key == Card.load(card_of(parties / "hub")).public_key

    @pytest.mark.parametrize(("name", "role"), [("north", "silo"), ("hub", "server")])
    def test_lost_keys_need_the_operators_word(self, parties, roster, name, role):
        run("init", "--role", role, "--name", name, "--out", parties / "again")
        flag = ["--silo" if role == "silo" else "--server", card_of(parties / "again")]
        assert f"--replace '{name}'" in build(parties, "--from", roster, *flag, silos=(), code=2)
        build(parties, "--from", roster, *flag, "--replace", name, silos=())
        made = Roster.load(roster)
        key = Card.load(card_of(parties / "again")).public_key
        assert key in (made.server_key, made.public_key(1))

    def test_operators_key_with_passphrase(self, parties, monkeypatch):
        run(
            "init",
            "--role",
            "operator",
            "--name",
            "op2",
            "--out",
            parties / "op2",
            "--ask-passphrase",
            answers="p\np\n",
        )
        arguments = [
            "roster", "--operator", key_of(parties / "op2"), "--server", card_of(parties / "hub"),
            "--silo", card_of(parties / "north"), "--out", parties / "r.json",
        ]  # fmt: skip
        assert PASSPHRASE_VARIABLE in run(*arguments, code=2)
        run(*arguments, "--ask-passphrase", answers="wrong\n", code=2)
        run(*arguments, "--ask-passphrase", answers="p\n")


class TestAccept:
    def test_pins_the_roster(self, policy, roster):
        pinned = Policy.load(policy)
        made = Roster.load(roster)
        assert (pinned.roster_version, pinned.roster_digest) == (1, made.digest())
        assert stat.S_IMODE(policy.stat().st_mode) == 0o600

    def test_fingerprint_may_be_typed(self, parties, roster):
        told = Card.load(card_of(parties / "op")).fingerprint()
        run("accept", roster, "--policy", parties / "p.json", answers=f"{told}\n")
        assert (parties / "p.json").exists()

    @pytest.mark.parametrize("told", ["", "babab", "babab-" * 7 + "babab"])
    def test_wrong_fingerprint_writes_nothing(self, parties, roster, told):
        run("accept", roster, "--policy", parties / "p.json", "--operator-fingerprint", told, code=2)
        assert not (parties / "p.json").exists()

    def test_settings_of_a_new_policy(self, parties, roster):
        told = Card.load(card_of(parties / "op")).fingerprint()
        run(
            "accept", roster, "--policy", parties / "p.json", "--operator-fingerprint", told, "--min-cohort", 3,
            "--max-drops", 0, "--min-contributors", 3, "--backend", "masked", "--backend", "none",
        )  # fmt: skip
        made = Policy.load(parties / "p.json")
        assert (made.min_cohort, made.rules.max_drops, made.backends) == (3, 0, ("masked", "none"))
        output = run(
            "accept", roster, "--policy", parties / "q.json", "--operator-fingerprint", told, "--min-cohort", 3, code=2
        )
        assert "drops" in output
        assert not (parties / "q.json").exists()

    def test_update_asks_and_keeps_other_settings(self, parties, policy, roster):
        document = json.loads(policy.read_text())
        policy.write_text(json.dumps({**document, "max_clip": 2.0}))
        build(parties, "--from", roster, "--remove", 4, silos=())
        before = policy.read_bytes()
        run("accept", roster, "--policy", policy, answers="n\n", code=1)
        assert policy.read_bytes() == before
        run("accept", roster, "--policy", policy, answers="y\n")
        assert (Policy.load(policy).roster_version, Policy.load(policy).max_clip) == (2, 2.0)

    def test_older_and_foreign_rosters_are_refused(self, parties, policy, roster):
        old = roster.read_bytes()
        build(parties, "--from", roster, "--remove", 4, silos=())
        run("accept", roster, "--policy", policy, "--yes", "--journal", parties / "journal")
        (parties / "old.json").write_bytes(old)
        assert "does not follow" in run("accept", parties / "old.json", "--policy", policy, "--yes", code=2)
        told = Card.load(card_of(parties / "op")).fingerprint()
        output = run(
            "accept", parties / "old.json", "--policy", parties / "fresh.json", "--operator-fingerprint", told,
            "--journal", parties / "journal", code=2,
        )  # fmt: skip
        assert "older than version 2" in output
        assert not (parties / "fresh.json").exists()

    def test_forged_roster(self, parties, policy, roster):
        roster.write_text(roster.read_text().replace('"north"', '"mallory"'))
        assert "does not verify" in run("accept", roster, "--policy", policy, "--yes", code=2)


class TestShow:
    def test_everything(self, parties, policy, roster):
        output = run("show", key_of(parties / "north"), card_of(parties / "hub"), roster, policy)
        for name in ("north", "hub", "op"):
            assert Card.load(card_of(parties / name)).fingerprint() in output
        assert "roster version 1, 4 silos, valid until" in output
        assert "at most       1 drops" in output

    def test_table(self):
        output = run("show")
        assert "t = q" in output
        assert "128" in output
        lines = run("show", "--silos", 3, "--silos", 500).splitlines()
        assert lines[-2].split() == ["3", "3", "1", "0"]
        assert "refused" in lines[-1]

    def test_no_private_byte_is_printed(self, parties):
        pem = key_of(parties / "north").read_text().splitlines()[1]
        assert pem[20:40] not in run("show", key_of(parties / "north"))

    def test_encrypted_key(self, tmp_path):
        run("init", "--name", "a", "--out", tmp_path, "--ask-passphrase", answers="p\np\n")
        assert PASSPHRASE_VARIABLE in run("show", key_of(tmp_path), code=2)
        assert "private key   encrypted" in run("show", key_of(tmp_path), "--ask-passphrase", answers="p\n")

    def test_expired_roster(self, roster, monkeypatch):
        monkeypatch.setattr("fedgmi_fedml.cli_keys_files.time.time", lambda: 1e11)
        assert "EXPIRED on" in run("show", roster)

    @pytest.mark.parametrize(
        "content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"format": "fedgmi-roster/1"}', b"-----BEGIN"]
    )
    def test_garbage(self, tmp_path, content):
        (tmp_path / "file").write_bytes(content)
        (tmp_path / "file").chmod(0o600)
        assert "Error" in run("show", tmp_path / "file", code=2)

    def test_absent(self, tmp_path):
        run("show", tmp_path / "absent", code=2)


class TestRotate:
    def test_replaces_and_keeps_the_old_file_aside(self, parties):
        folder = parties / "north"
        old = Identity.load(key_of(folder))
        output = run("rotate", key_of(folder))
        new = Identity.load(key_of(folder))
        (aside,) = folder.glob("identity.pem.old-*")
        assert Identity.load(aside).public_key == old.public_key != new.public_key
        card = Card.load(card_of(folder))
        assert (card.public_key, card.previous_key, card.name) == (new.public_key, old.public_key, "north")
        assert stat.S_IMODE(key_of(folder).stat().st_mode) == 0o600
        assert str(aside) in output
        assert new.fingerprint() in output
        run("rotate", key_of(folder))  # and once more

    @pytest.mark.parametrize("victim", ["identity.pem", "identity.public.json"])
    def test_everything_as_before_when_a_step_fails(self, parties, monkeypatch, victim):
        real = _files.write_atomic

        def fails(path, *args, **kwargs):
            if path.name == victim:
                raise OSError(28, "No space left on device")
            real(path, *args, **kwargs)

        before = snapshot(parties / "north")
        monkeypatch.setattr("secure.card.write_atomic", fails)
        monkeypatch.setattr("secure.identity.write_atomic", fails)
        run("rotate", key_of(parties / "north"), code=2)
        assert snapshot(parties / "north") == before

    def test_encrypted_stays_encrypted(self, tmp_path, monkeypatch):
        run("init", "--name", "a", "--out", tmp_path, "--ask-passphrase", answers="p\np\n")
        run("rotate", key_of(tmp_path), "--ask-passphrase", answers="p\n")
        Identity.load(key_of(tmp_path), "p")
        monkeypatch.setenv(PASSPHRASE_VARIABLE, "p")
        run("rotate", key_of(tmp_path))
        monkeypatch.delenv(PASSPHRASE_VARIABLE)
        assert b"ENCRYPTED" in key_of(tmp_path).read_bytes()

    def test_card_of_another_key(self, parties):
        card_of(parties / "north").write_bytes(card_of(parties / "south").read_bytes())
        before = snapshot(parties / "north")
        assert "another key" in run("rotate", key_of(parties / "north"), code=2)
        assert snapshot(parties / "north") == before

    def test_existing_file_aside(self, parties):
        folder = parties / "north"
        aside = f"identity.pem.old-{Identity.load(key_of(folder)).fingerprint()[:11]}"
        (folder / aside).write_text("precious")
        before = snapshot(folder)
        assert "cannot be made" in run("rotate", key_of(folder), code=2)
        assert snapshot(folder) == before


def test_help_of_every_command():
    for command in ("init", "roster", "accept", "show", "rotate"):
        assert "--help" in run(command, "--help")
    assert "Order of work" in run("--help")


def test_does_not_import_torch():
    code = "import sys, fedgmi_fedml.cli_keys; print(sorted({'torch', 'fedml', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "[]"
