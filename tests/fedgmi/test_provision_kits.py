"""``fedgmi provision``: kits that belong together, and again, and again: additions, revocations, renewals."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from provision_site import DAY, NOW, SILOS, Site, done, snapshot

from fedgmi_fedml.cli_provision import provision as command
from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.provision import certificates, consent, staging
from fedgmi_fedml.provision.kit import KitError, load_kit
from fedgmi_fedml.provision.plan import provision
from fedgmi_fedml.provision.project import read_project
from secure.gate import infeasible, smallest_cohort
from secure.identity import Identity
from secure.roster import Roster
from secure.types import Rules


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


def test_identities_are_never_derived(site: Site) -> None:
    """Two federations from one project share no key."""
    site.run()
    other = provision(read_project(site.write()), site.folder / "again", now=NOW)
    assert other.roster is not None
    ours = {entry.public_key for entry in Roster.load(site.out / "authority" / "roster.json").silos}
    assert not ours & {entry.public_key for entry in other.roster.silos}
    assert isinstance(Identity.load(site.kit("north") / "identity.pem"), Identity)
