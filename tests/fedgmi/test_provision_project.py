"""The project file and the command ``fedgmi provision``: what is refused, and what is said."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from provision_site import Site

from fedgmi_fedml.errors import ConfigError, FedgmiError
from fedgmi_fedml.provision.example import EXAMPLE
from fedgmi_fedml.provision.kit import load_kit
from fedgmi_fedml.provision.project import read_project
from secure.card import Card


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
