"""``fedgmi provision`` with silos that make their own keys: requests, refusals, what is handed back."""

from __future__ import annotations

import os
import shutil

import pytest
from click.testing import CliRunner
from provision_site import NOW, Site, done, snapshot

from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.provision import certificates, consent
from fedgmi_fedml.provision.kit import KitError, load_kit
from fedgmi_fedml.provision.request import make_request, read_request
from secure.card import Card
from secure.errors import SecureError
from secure.policy import Policy
from secure.roster import Roster


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
