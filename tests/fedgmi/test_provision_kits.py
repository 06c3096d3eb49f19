"""``fedgmi provision``: kits that belong together, and again, and again: additions, revocations, renewals, requests."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedgmi_fedml.cli_provision import provision as command
from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import ConfigError, FedgmiError
from fedgmi_fedml.provision import certificates, consent, staging
from fedgmi_fedml.provision.example import EXAMPLE
from fedgmi_fedml.provision.kit import KitError, load_kit
from fedgmi_fedml.provision.plan import Outcome, provision
from fedgmi_fedml.provision.project import read_project
from fedgmi_fedml.provision.request import make_request, read_request
from secure.card import Card
from secure.errors import SecureError
from secure.gate import infeasible, smallest_cohort
from secure.identity import PASSPHRASE_VARIABLE, Identity
from secure.policy import Policy
from secure.roster import Roster
from secure.types import Rules

DAY = 86_400
NOW = 1_800_000_000.0
SILOS = ("north", "south", "east", "west")


@pytest.fixture(autouse=True)
def _no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)


class Site:
    """A folder with a project that tests change and provision."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "kits"
        self.silos: dict[str, str] = dict.fromkeys(SILOS, "make")
        self.more: dict[str, object] = {}
        self.server: dict[str, object] = {"address": "fed.example.org:8890", "names": ["127.0.0.1", "localhost"]}

    def write(self, silos: int | None = None) -> Path:
        count = silos or len(self.silos)
        text = Path("configs/digits.yaml") if Path("configs").is_dir() else None
        source = (text or Path(__file__).resolve().parents[2] / "configs/digits.yaml").read_text(encoding="utf-8")
        for key in ("client_num_in_total", "client_num_per_round"):
            source = source.replace(f"{key}: 12", f"{key}: {count}")
        (self.folder / "config.yaml").write_text(source)
        document = {
            "federation": "demo", "operator": "Consortium office", "config": "config.yaml", "server": self.server,
            "silos": [{"name": name, "identity": how} for name, how in self.silos.items()],
            **self.more,
        }  # fmt: skip
        (self.folder / "project.yaml").write_text(json.dumps(document))
        return self.folder / "project.yaml"

    def run(self, now: float = NOW, **more: object) -> Outcome:
        return provision(read_project(self.write()), self.out, now=now, **more)  # type: ignore[arg-type]

    def kit(self, name: str) -> Path:
        return self.out / ("server" if name == "server" else f"silo-{name}")

    def answer(self, name: str) -> Card:
        """The silo makes its keys in a copy of its kit on another machine and sends the request."""
        own = self.folder / "elsewhere" / name
        shutil.copytree(self.kit(name), own, dirs_exist_ok=True)
        card = make_request(own).card
        shutil.copytree(own / "request", self.out / "requests" / name, dirs_exist_ok=True)
        return card

    def complete(self, name: str) -> Path:
        """The silo copies the completed kit over its own."""
        own = self.folder / "elsewhere" / name
        shutil.copytree(self.kit(name), own, dirs_exist_ok=True)
        return own


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file: inode, mode, content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p.relative_to(folder)): (p.stat().st_ino, p.stat().st_mode, p.read_bytes()) for p in files}


def done(outcome: Outcome, name: str) -> str:
    return "; ".join(next(row.done for row in outcome.rows if row.party.name == name))


class TestFirstRun:
    def test_kits_are_whole_private_and_belong_together(self, site: Site) -> None:
        outcome = site.run()
        assert outcome.waiting == ()
        assert outcome.roster is not None
        assert outcome.roster.version == 1
        for number, name in enumerate(SILOS, 1):
            kit = load_kit(site.kit(name))
            assert (kit.role, kit.silo_id, kit.name, kit.federation) == ("silo", number, name, "demo")
            assert kit.server_address == "fed.example.org:8890"
            assert kit.identity().public_key == kit.roster().public_key(number)
            policy = kit.policy()
            assert policy is not None
            policy.check_roster(kit.roster(), NOW)
            assert kit.check_dates(NOW) == []
            assert kit.ending(NOW) == []
            assert load_config(kit.config).digest() == policy.config_digest.hex()  # type: ignore[union-attr]
            for secret in ("tls.key", "identity.pem", "policy.json"):
                assert stat.S_IMODE((kit.folder / secret).stat().st_mode) == 0o600
            assert stat.S_IMODE(kit.folder.stat().st_mode) == 0o700
        server = load_kit(site.kit("server"))
        assert (server.silo_id, server.bind, server.policy()) == (None, "0.0.0.0:8890", None)
        assert server.identity().public_key == server.roster().server_key

    def test_the_policy_demands_exactly_the_runs_rules(self, site: Site) -> None:
        site.run()
        kit = load_kit(site.kit("north"))
        policy, config = kit.policy(), load_config(kit.config)
        assert policy is not None
        assert policy.rules == Rules(**config.fedgmi_args.secure.rules.model_dump())
        assert (policy.backends, policy.max_clip, policy.min_cohort) == (("masked",), 8.0, 4)

    def test_the_schedule_is_the_rounds_own(self) -> None:
        from fedgmi_fedml.rounds.phases import ORDER

        assert consent.PHASES == ORDER

    @pytest.mark.parametrize("rules", [Rules(), Rules(2, 1, 4), Rules(1, 0, 3), Rules(3, 4, 9)])
    def test_the_smallest_cohort_keeps_the_rules(self, rules: Rules) -> None:
        size = smallest_cohort(rules)
        assert size >= rules.gate()
        assert infeasible(size, rules) == []
        assert all(infeasible(fewer, rules) for fewer in range(3, size))

    def test_authority_stays_private_and_apart(self, site: Site) -> None:
        site.run()
        folder = site.out / "authority"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for secret in ("ca.key", "operator.pem"):
            assert stat.S_IMODE((folder / secret).stat().st_mode) == 0o600
            data = (folder / secret).read_bytes()
            assert all(data not in p.read_bytes() for p in site.out.glob("s*/*"))
        assert "PRIVATE" not in (folder / "registry.json").read_text()
        assert "Never copy this folder to the server" in (folder / "README.md").read_text()

    def test_a_passphrase_encrypts_the_authority_only(self, site: Site) -> None:
        site.run(passphrase="word")
        for name in ("ca.key", "operator.pem"):
            assert b"ENCRYPTED" in (site.out / "authority" / name).read_bytes()
        load_kit(site.kit("north"))
        assert site.run(passphrase="word").changed == 0
        with pytest.raises(FedgmiError, match="wrong passphrase"):
            site.run(passphrase="other")
        with pytest.raises(FedgmiError, match="encrypted"):
            site.run()

    def test_readmes_name_the_fingerprints_and_the_next_command(self, site: Site) -> None:
        outcome = site.run()
        for name in ("north", "server"):
            text = (site.kit(name) / "README.md").read_text()
            assert outcome.operator in text
            assert load_kit(site.kit(name)).identity().fingerprint() in text
            assert "fedgmi preflight --kit" in text
        assert "fedgmi silo --kit" in (site.kit("north") / "README.md").read_text()
        assert "fedgmi server --kit" in (site.kit("server") / "README.md").read_text()


class TestAgain:
    def test_nothing_changed_nothing_touched(self, site: Site) -> None:
        site.run()
        before = snapshot(site.out)
        outcome = site.run(now=NOW + 100 * DAY)
        assert outcome.changed == 0
        assert snapshot(site.out) == before

    def test_a_silo_is_added_and_old_kits_stay_valid(self, site: Site) -> None:
        site.run()
        old, before = site.folder / "old-north", snapshot(site.out)
        shutil.copytree(site.kit("north"), old)
        site.silos["centre"] = "make"
        outcome = site.run(now=NOW + DAY)
        assert outcome.roster_is_new
        assert (outcome.roster.version, len(outcome.roster.silos)) == (2, 5)  # type: ignore[union-attr]
        assert load_kit(site.kit("centre")).silo_id == 5
        after = snapshot(site.out)
        for name in ("ca.pem", "tls.pem", "tls.key", "identity.pem", "identity.public.json", "kit.json"):
            assert after[f"silo-north/{name}"] == before[f"silo-north/{name}"]
        load_kit(old)  # with the roster of before, until the silo takes the new one
        policy = load_kit(site.kit("north")).policy()
        assert policy is not None
        assert policy.roster_version == 2

    def test_removal_needs_its_name_and_retires_the_id(self, site: Site) -> None:
        site.silos["centre"] = "make"
        site.run()
        del site.silos["east"]
        before = snapshot(site.out)
        with pytest.raises(FedgmiError, match=r"no longer lists east.*--revoke east"):
            site.run()
        assert snapshot(site.out) == before
        outcome = site.run(revoke=["east"])
        assert [party.name for party in outcome.revoked] == ["east"]
        assert outcome.roster is not None
        assert (outcome.roster.version, outcome.roster.retired) == (2, (3,))
        assert not site.kit("east").exists()
        assert (site.out / "revoked" / "silo-east-3" / "silo-east" / "kit.json").exists()
        assert site.run(revoke=["east"]).changed == 0
        site.silos["east"] = "make"  # another machine under the old name: a new silo
        again = site.run()
        assert load_kit(site.kit("east")).silo_id == 6
        assert again.roster is not None
        assert again.roster.retired == (3,)

    @pytest.mark.parametrize(
        ("revoke", "text"),
        [(["north"], "take it out of"), (["nroth"], 'did you mean "north"'), (["x"], "no such silo")],
    )
    def test_revoking_what_cannot_be(self, site: Site, revoke: list[str], text: str) -> None:
        site.run()
        with pytest.raises(FedgmiError, match=text):
            site.run(revoke=revoke)

    def test_certificates_are_renewed_in_time_and_on_request(self, site: Site) -> None:
        site.run()
        first = load_kit(site.kit("north"))
        serial = certificates.read_certificate(first.certificate.read_bytes(), "").serial_number
        assert done(site.run(renew=["north"]), "north") == "certificate renewed as asked"
        kit = load_kit(site.kit("north"))
        renewed = certificates.read_certificate(kit.certificate.read_bytes(), "")
        assert renewed.serial_number != serial
        assert done(site.run(), "north") == ""
        late = site.run(now=NOW + 340 * DAY)
        assert "certificate renewed (would end on" in done(late, "south")
        assert late.roster is not None
        assert late.roster.version == 2
        assert load_kit(site.kit("south")).check_dates(NOW + 400 * DAY) == []
        with pytest.raises(FedgmiError, match=r"--renew nort: no such party; did you mean .north"):
            site.run(renew=["nort"])

    def test_short_lives_are_not_renewed_on_each_run(self, site: Site) -> None:
        site.more["validity_days"] = 7
        site.run()
        assert site.run(now=NOW + 2 * DAY).changed == 0
        assert "renewed" in done(site.run(now=NOW + 6 * DAY), "north")

    def test_other_names_of_the_server_renew_its_certificate_only(self, site: Site) -> None:
        site.run()
        site.server["names"] = ["10.0.0.7"]
        outcome = site.run()
        assert done(outcome, "server") == "certificate renewed for other names"
        assert done(outcome, "north") == ""
        certificate = certificates.read_certificate(load_kit(site.kit("server")).certificate.read_bytes(), "")
        assert certificates.hosts_of(certificate) == ["fed.example.org", "10.0.0.7"]

    def test_kits_that_were_given_out_become_updates_without_keys(self, site: Site) -> None:
        site.run()
        own = site.folder / "own"
        shutil.move(site.kit("north"), own)
        site.silos["centre"] = "make"
        site.run()
        update = site.kit("north")
        assert not any((update / name).exists() for name in ("identity.pem", "tls.key", "policy.json"))
        with pytest.raises(KitError, match=r"lacks identity.pem and tls.key: this is an update"):
            load_kit(update)
        shutil.copytree(update, own, dirs_exist_ok=True)
        with pytest.raises(KitError, match=r"accepts roster version 1, the kit holds version 2"):
            load_kit(own)
        result = CliRunner().invoke(command, ["accept", str(own), "--yes"])
        assert result.exit_code == 1  # the roster is of the year 2027: not valid by this machine's clock

    def test_lost_keys_are_replaced(self, site: Site) -> None:
        site.run()
        old = load_kit(site.kit("north")).identity().public_key
        shutil.rmtree(site.kit("north"))
        outcome = site.run(rekey=["north"])
        kit = load_kit(site.kit("north"))
        assert kit.silo_id == 1
        assert kit.identity().public_key != old
        assert outcome.roster is not None
        assert outcome.roster.version == 2

    def test_a_changed_configuration_is_pinned_anew(self, site: Site) -> None:
        site.run()
        before = load_kit(site.kit("north")).policy()
        project = site.write()
        text = (site.folder / "config.yaml").read_text().replace("comm_round: 15", "comm_round: 3")
        (site.folder / "config.yaml").write_text(text)
        outcome = provision(read_project(project), site.out, now=NOW)
        assert done(outcome, "north") == "new configuration; new policy"
        after = load_kit(site.kit("north")).policy()
        assert before is not None
        assert after is not None
        assert before.config_digest != after.config_digest
        assert before.roster_digest == after.roster_digest

    def test_other_federation_server_and_case(self, site: Site) -> None:
        site.run()
        site.more["federation"] = "other"
        with pytest.raises(FedgmiError, match="authority of federation 'demo', the project names 'other'"):
            site.run()
        site.more.clear()
        site.server["name"] = "hub"
        with pytest.raises(FedgmiError, match="its name cannot change"):
            site.run()
        del site.server["name"], site.silos["west"]
        site.silos["West"] = "make"
        with pytest.raises(FedgmiError, match="differs from west by case only"):
            site.run()

    @pytest.mark.parametrize("name", ["ca.key", "ca.pem", "operator.pem", "registry.json"])
    def test_an_incomplete_authority_is_never_replaced(self, site: Site, name: str) -> None:
        site.run()
        (site.out / "authority" / name).unlink()
        before = snapshot(site.out)
        with pytest.raises(FedgmiError, match=rf"lacks {name}; restore it from a backup"):
            site.run()
        assert snapshot(site.out) == before

    def test_a_damaged_authority_says_so(self, site: Site) -> None:
        site.run()
        key = site.out / "authority" / "ca.key"
        key.chmod(0o644)
        with pytest.raises(FedgmiError, match=r"can be read by others; run: chmod 600"):
            site.run()
        key.chmod(0o600)
        key.write_bytes(certificates.key_pem(certificates.new_key()))
        with pytest.raises(FedgmiError, match="is not the certificate of ca.key"):
            site.run()
        (site.out / "authority" / "registry.json").write_text("{}")
        with pytest.raises(FedgmiError, match=r"is damaged, or not of format"):
            site.run()


class TestRequests:
    def test_the_whole_exchange(self, site: Site) -> None:
        site.silos["west"] = "request"
        first = site.run()
        assert first.waiting == ("west",)
        assert first.roster is None
        assert not any((site.kit("west") / name).exists() for name in ("identity.pem", "tls.key", "tls.pem"))
        assert (site.kit("north") / "tls.pem").exists()
        with pytest.raises(
            KitError, match=r"lacks identity.pem and tls.key: make them here with: fedgmi provision req"
        ):
            load_kit(site.kit("west"))
        with pytest.raises(KitError, match=r"lacks roster.json, which the operator makes"):
            load_kit(site.kit("north"))
        card = site.answer("west")
        with pytest.raises(KitError, match=r"lacks tls.pem and roster.json, which the operator makes: send the folder"):
            load_kit(site.folder / "elsewhere" / "west")
        seen: list[Card] = []
        second = site.run(confirm=seen.extend)
        assert seen == [card]
        assert second.roster is not None
        assert second.roster.public_key(4) == card.public_key
        assert not (site.kit("west") / "policy.json").exists()  # its own consent
        own = site.complete("west")
        with pytest.raises(KitError, match=r"lacks policy.json, this silo's consent: fedgmi provision accept"):
            load_kit(own)
        kit_roster = Roster.load(own / "roster.json")
        consent.policy_for(kit_roster, load_config(own / "config.yaml")).save(own / "policy.json")
        assert load_kit(own).silo_id == 4
        before = snapshot(site.out)
        third = site.run(confirm=seen.extend)
        assert (third.changed, seen) == (0, [card])
        assert snapshot(site.out) == before

    def test_making_the_request_again_changes_nothing(self, site: Site) -> None:
        site.silos["west"] = "request"
        site.run()
        site.answer("west")
        own = site.folder / "elsewhere" / "west"
        before = snapshot(own)
        make_request(own)
        assert snapshot(own) == before

    def test_refusal_writes_nothing(self, site: Site) -> None:
        site.silos["west"] = "request"
        site.run()
        site.answer("west")
        before = snapshot(site.out)

        def refuse(cards: list[Card]) -> None:
            raise RuntimeError("not the voice I know")

        with pytest.raises(RuntimeError):
            site.run(confirm=refuse)
        assert snapshot(site.out) == before

    def test_a_swapped_certificate_request_is_found(self, site: Site) -> None:
        site.silos["west"] = "request"
        site.run()
        site.answer("west")
        from cryptography.hazmat.primitives.serialization import Encoding

        other = certificates.new_request(certificates.new_key(), "west").public_bytes(Encoding.PEM)
        (site.out / "requests" / "west" / "tls.csr").write_bytes(other)
        with pytest.raises(FedgmiError, match="is not signed by the card's key"):
            site.run()

    @pytest.mark.parametrize("name", ["identity.public.json", "tls.csr", "request.json"])
    def test_incomplete_and_garbled_requests(self, site: Site, name: str) -> None:
        site.silos["west"] = "request"
        site.run()
        site.answer("west")
        path = site.out / "requests" / "west" / name
        path.write_bytes(b"\x80garbage")
        with pytest.raises((FedgmiError, SecureError), match="requests/west"):
            site.run()
        path.unlink()
        with pytest.raises(FedgmiError, match=f"lacks {name}"):
            site.run()

    def test_requests_under_another_name(self, site: Site) -> None:
        site.silos |= {"west": "request", "south": "request"}
        site.run()
        site.answer("west")
        os.rename(site.out / "requests" / "west", site.out / "requests" / "south")
        with pytest.raises(FedgmiError, match=r"was made by 'west' of federation 'demo', not by 'south'"):
            site.run()
        with pytest.raises(FedgmiError):
            read_request(site.out / "requests" / "south", "other", "west")

    def test_requests_of_nobody_and_of_the_revoked(self, site: Site) -> None:
        site.silos |= {"centre": "make", "west": "request"}
        site.run()
        site.answer("west")
        os.rename(site.out / "requests" / "west", site.out / "requests" / "wset")
        with pytest.raises(FedgmiError, match=r'wset: no party has this name: did you mean "west"'):
            site.run()
        os.rename(site.out / "requests" / "wset", site.out / "requests" / "west")
        site.run()
        del site.silos["west"]
        site.run(revoke=["west"])
        assert not (site.out / "requests" / "west").exists()  # else it would let a later west in
        site.silos["west"] = "request"
        assert site.run().waiting == ("west",)

    def test_the_folder_itself_may_lie_there(self, site: Site) -> None:
        site.silos["west"] = "request"
        site.run()
        card = site.answer("west")
        shutil.move(site.out / "requests" / "west", site.out / "request")
        shutil.move(site.out / "request", site.out / "requests" / "west" / "request")
        outcome = site.run()
        assert outcome.roster is not None
        assert outcome.roster.public_key(4) == card.public_key

    def test_a_later_request_does_not_hold_up_a_revocation(self, site: Site) -> None:
        site.silos["centre"] = "make"
        site.run()
        del site.silos["east"]
        site.silos["later"] = "request"
        outcome = site.run(revoke=["east"])
        assert outcome.waiting == ("later",)
        assert outcome.roster is not None
        assert [entry.name for entry in outcome.roster.silos] == ["north", "south", "west", "centre"]
        assert not (site.kit("later") / "roster.json").exists()
        site.answer("later")
        final = site.run().roster
        assert final is not None
        assert (final.version, final.silos[-1].name, final.silos[-1].silo_id) == (3, "later", 6)

    def test_rotation_is_vouched_for_by_the_old_key_and_loss_by_the_operator(self, site: Site) -> None:
        from fedgmi_fedml.cli_keys import keys

        site.silos["west"] = "request"
        site.run()
        site.answer("west")
        site.run()
        own = site.complete("west")
        assert CliRunner().invoke(keys, ["rotate", str(own / "identity.pem")]).exit_code == 0
        make_request(own)
        shutil.copytree(own / "request", site.out / "requests" / "west", dirs_exist_ok=True)
        seen: list[Card] = []
        outcome = site.run(confirm=seen.extend)
        assert seen == []
        assert "identity rotated by its owner" in done(outcome, "west")
        for name in ("identity.pem", "identity.public.json", "tls.key"):
            (own / name).unlink()
        make_request(own)
        shutil.copytree(own / "request", site.out / "requests" / "west", dirs_exist_ok=True)
        with pytest.raises(FedgmiError, match=r"the old key did not sign it.*--rekey west"):
            site.run()
        outcome = site.run(rekey=["west"], confirm=seen.extend)
        assert len(seen) == 1
        assert "certificate issued for its new key" in done(outcome, "west")

    def test_an_owners_own_key_replaces_the_one_the_operator_made(self, site: Site) -> None:
        site.run()
        own = site.folder / "elsewhere" / "north"
        shutil.copytree(site.kit("north"), own)
        from fedgmi_fedml.cli_keys import keys

        assert CliRunner().invoke(keys, ["rotate", str(own / "identity.pem")]).exit_code == 0
        (own / "tls.key").unlink()
        make_request(own)
        shutil.copytree(own / "request", site.out / "requests" / "north")
        site.run()
        assert not (site.kit("north") / "identity.pem").exists()  # else a copy would undo the rotation
        assert (site.kit("north") / "identity.pem.old").exists()
        site.complete("north")
        load = Roster.load(own / "roster.json")
        policy = Policy.load(own / "policy.json").accept(load, NOW)
        policy.save(own / "policy.json")
        assert load_kit(own).identity().public_key == load.public_key(1)

    def test_the_server_may_make_its_own(self, site: Site) -> None:
        site.server["identity"] = "request"
        assert site.run().waiting == ("server",)
        site.answer("server")
        assert site.run().waiting == ()
        assert load_kit(site.complete("server")).bind == "0.0.0.0:8890"

    def test_two_parties_with_one_key(self, site: Site) -> None:
        site.silos |= {"west": "request", "east": "request"}
        site.run()
        site.answer("west")
        own = site.folder / "elsewhere" / "east"
        shutil.copytree(site.kit("east"), own)
        shutil.copy(site.folder / "elsewhere" / "west" / "identity.pem", own)
        make_request(own)
        shutil.copytree(own / "request", site.out / "requests" / "east")
        with pytest.raises(FedgmiError, match="has the same key as east; each needs its own"):
            site.run()


class TestNothingHalfWritten:
    def test_a_full_disk_changes_nothing(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        site.run()
        before = snapshot(site.out)
        site.silos["centre"] = "make"
        real, written = staging._write, []

        def fills_up(path: Path, data: bytes, mode: int) -> None:
            if len(written) > 4:
                raise OSError(28, "No space left on device", str(path))
            written.append(path)
            real(path, data, mode)

        monkeypatch.setattr(staging, "_write", fills_up)
        with pytest.raises(FedgmiError, match="No space left on device"):
            site.run()
        assert snapshot(site.out) == before

    @pytest.mark.parametrize("after", [0, 1, 7, 20])
    def test_a_machine_that_stops_among_the_moves(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, after: int
    ) -> None:
        site.run()
        site.silos["centre"] = "make"
        del site.silos["east"]
        moved: list[object] = []
        real: Callable[..., None] = os.replace

        def stops(*args: object) -> None:
            if len(moved) > after:
                raise KeyboardInterrupt
            moved.append(args)
            real(*args)

        monkeypatch.setattr(staging.os, "replace", stops)
        with pytest.raises(KeyboardInterrupt):
            site.run(revoke=["east"])
        monkeypatch.setattr(staging.os, "replace", real)
        outcome = site.run()  # knows of the revocation: it counted as made
        assert outcome.changed == 0
        assert outcome.roster is not None
        assert (outcome.roster.version, outcome.roster.retired) == (2, (3,))
        for name in ("server", "north", "centre"):
            load_kit(site.kit(name))
        assert not (site.out / ".staged").exists()

    def test_one_operator_at_a_time(self, site: Site) -> None:
        import fcntl

        site.run()
        handle = os.open(site.out, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            with pytest.raises(FedgmiError, match="another fedgmi provision is at work"):
                site.run()
        finally:
            os.close(handle)


class TestProject:
    def test_every_problem_at_once(self, site: Site) -> None:
        project = site.write(silos=5)
        project.write_text(
            "federation: 'de mo'\nconfig: config.yaml\nserver: {adress: x}\nsilos:\n  - {name: north, identity: mak}\n"
            "  - {nam: south, identity: make}\nvalidity_days: 0\nallow: true\n"
        )
        with pytest.raises(ConfigError) as caught:
            read_project(project)
        text = str(caught.value)
        for part in (
            "line 1, federation: must be 1 to 40 letters", "operator: missing", "server.address: missing",
            'server.adress: unknown key: did you mean "address"',
            'silos.0.identity: "mak" is not known: did you mean "make"',
            'silos.1.nam: unknown key: did you mean "name"', "silos.1.name: missing",
            "validity_days: must be at least 1",
            "allow: unknown key", "9 problems",
        ):  # fmt: skip
            assert part in text, part

    @pytest.mark.parametrize(
        ("server", "text"),
        [
            ({"address": "fed.example.org"}, "must be host:port"),
            ({"address": "fed.example.org:0"}, "port from 1 to 65535"),
            ({"address": "*.example.org:1"}, "no wildcard"),
            ({"address": "2001:db8::1:90"}, "stands in brackets"),
            ({"address": "300.1.1.1:90"}, "DNS name"),
            ({"address": "a:1", "bind": "here"}, "server.bind: must be host:port"),
            ({"address": "a:1", "names": ["b:2"]}, "server.names.0: must be a DNS name or an IP address without port"),
            ({"address": "a:1", "name": "north"}, "is the name of the server already"),
        ],
    )
    def test_addresses(self, site: Site, server: dict[str, object], text: str) -> None:
        site.server = server
        with pytest.raises(ConfigError, match=text.replace("*", r"\*")):
            read_project(site.write())

    def test_addresses_that_are_fine(self, site: Site) -> None:
        site.server = {"address": "[2001:DB8:0::1]:90", "names": ["h_1.lan", "10.0.0.1"]}
        site.run()
        assert site.run().changed == 0  # however an address is spelt
        settled = read_project(site.write())
        assert settled.hosts == ("2001:db8::1", "h_1.lan", "10.0.0.1")
        assert settled.bind == "0.0.0.0:90"

    def test_the_configuration_must_fit(self, site: Site) -> None:
        project = site.write(silos=6)
        with pytest.raises(ConfigError, match="client_num_in_total: is 6, but the project lists 4 silos"):
            read_project(project)
        text = (site.folder / "config.yaml").read_text()
        (site.folder / "config.yaml").write_text(text.replace(": 6", ": 4").replace("backend: masked", "backend: none"))
        with pytest.raises(ConfigError, match="backend: none protects nothing"):
            read_project(project)
        site.more["allow_unprotected"] = True
        document = json.loads(project.read_text()) | site.more
        project.write_text(json.dumps(document))
        assert any("NOTHING is protected" in line for line in read_project(project).warnings)
        (site.folder / "config.yaml").write_text(text.replace(": 6", ": 4").replace("comm_round", "comm_rounds"))
        with pytest.raises(ConfigError, match="comm_round"):
            read_project(project)
        (site.folder / "config.yaml").unlink()
        with pytest.raises(ConfigError, match="config: .*no such file"):
            read_project(project)

    def test_organisations_count_not_silos(self, site: Site) -> None:
        project = site.write()
        document = json.loads(project.read_text())
        for silo in document["silos"]:
            silo["organisation"] = "One Group"
        project.write_text(json.dumps(document))
        with pytest.raises(ConfigError, match=r"belong to 1 organisations, but .* only over 4"):
            read_project(project)

    def test_the_example_is_a_project(self, site: Site) -> None:
        site.write()
        (site.folder / "project.yaml").write_text(EXAMPLE)
        settled = read_project(site.folder / "project.yaml")
        assert settled.hosts == ("fed.example.org", "10.1.2.3")
        assert all(silo.identity == "request" for silo in settled.project.silos)

    def test_nothing_remains_of_a_first_run_that_fails(self, site: Site) -> None:
        with pytest.raises(FedgmiError, match="--renew nobody: no such party"):
            site.run(renew=["nobody"])
        assert not site.out.exists()

    def test_shipped_configurations_by_name(self, site: Site) -> None:
        site.silos = {f"silo-{number}": "make" for number in range(12)}
        site.more["config"] = "digits"
        assert read_project(site.write()).config.common_args.run_name == "digits"


class TestCommandLine:
    def invoke(self, *arguments: object, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedgmi_fedml.cli", "provision", *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def test_the_whole_order_of_work(self, site: Site) -> None:
        site.silos["west"] = "request"
        project = site.write()
        output = self.invoke(project)
        assert "waiting    west" in output
        own = site.folder / "elsewhere" / "west"
        shutil.copytree(site.kit("west"), own)
        fingerprint = (
            Card.load(own / "identity.public.json").fingerprint()
            if "send to" not in self.invoke("request", own)
            else Card.load(own / "request" / "identity.public.json").fingerprint()
        )
        shutil.copytree(own / "request", site.out / "requests" / "west")
        refused = self.invoke(project, code=2)
        assert fingerprint in refused
        assert "repeat with --yes" in refused
        output = self.invoke(project, "--yes")
        assert "version 1, 4 silos, new" in output
        site.complete("west")
        operator = Card.load(site.out / "authority" / "operator.public.json").fingerprint()
        wrong = self.invoke("accept", own, "--operator-fingerprint", fingerprint, code=2)
        assert "not signed by the operator whose fingerprint you gave" in wrong
        assert not (own / "policy.json").exists()
        assert "is pinned" in self.invoke("accept", own, "--operator-fingerprint", operator.replace("-", " ").upper())
        assert load_kit(own).name == "west"
        assert "nothing had to be changed" in self.invoke(project)
        output = self.invoke(project, "--renew", "north")
        assert "next       send their kits again to: north (each" in output

    def test_no_torch(self, site: Site) -> None:
        project = site.write()
        code = (
            "import sys; from fedgmi_fedml.cli import run; run(sys.argv[1:]); "
            "print('HEAVY', {'torch', 'fedml', 'grpc', 'sklearn'} & set(sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, "provision", str(project)], capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        assert "HEAVY set()" in done.stdout

    def test_acceptance_keeps_what_the_silo_had_made_stricter(self, site: Site) -> None:
        import time

        now = time.time()
        site.run(now=now)
        kit = site.kit("north")
        policy = json.loads((kit / "policy.json").read_text())
        policy["rules"]["w_max"] = 0.4
        (kit / "policy.json").write_text(json.dumps(policy))
        own = site.folder / "own"
        shutil.move(kit, own)
        site.silos["centre"] = "make"
        site.run(now=now)
        shutil.copytree(site.kit("north"), own, dirs_exist_ok=True)
        output = self.invoke("accept", own, "--yes")
        assert "rules: w_max 0.5 is more than 0.4" in output
        kept = load_kit(own).policy()
        assert kept is not None
        assert (kept.rules.w_max, kept.roster_version) == (0.4, 2)


def test_identities_are_never_derived(site: Site) -> None:
    """Two federations from one project share no key."""
    site.run()
    other = provision(read_project(site.write()), site.folder / "again", now=NOW)
    assert other.roster is not None
    ours = {entry.public_key for entry in Roster.load(site.out / "authority" / "roster.json").silos}
    assert not ours & {entry.public_key for entry in other.roster.silos}
    assert isinstance(Identity.load(site.kit("north") / "identity.pem"), Identity)
