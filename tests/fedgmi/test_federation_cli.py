"""``fedgmi server`` and ``fedgmi silo`` as far as they go without a network: help, kits, settings, folders."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedgmi_fedml import cli
from fedgmi_fedml.config import load_config
from fedgmi_fedml.provision.example import EXAMPLE
from fedgmi_fedml.provision.plan import provision
from fedgmi_fedml.provision.project import read_project
from fedgmi_fedml.summary import RunSummary

SILOS = 5


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """A server's kit and five silos'."""
    folder = tmp_path_factory.mktemp("kits")
    changes = [f"train_args.client_num_in_total={SILOS}", f"train_args.client_num_per_round={SILOS}"]
    (folder / "config.yaml").write_text(load_config("digits", changes).to_yaml())
    silos = "".join(f"  - {{name: clinic-{i}, identity: make}}\n" for i in range(1, SILOS + 1))
    (folder / "project.yaml").write_text(
        "federation: test\noperator: tester\nconfig: config.yaml\nserver: {address: 'localhost:8890'}\nsilos:\n" + silos
    )
    provision(read_project(folder / "project.yaml"), folder / "kits", now=time.time())
    return folder / "kits"


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.mark.parametrize("command", ["server", "silo"])
def test_help_teaches(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"fedgmi {command} --kit kits/" in out
    for word in ("--kit", "--out", "--repeatable", "report", "killed"):
        assert word in out.lower()


@pytest.mark.parametrize("command", [("server",), ("silo", "--simulated-part", 1)])
def test_cohorts_from_the_seed_are_refused_in_a_deployment(run, kits, tmp_path, command):
    kit = kits / ("server" if command[0] == "server" else "silo-clinic-1")
    code, _, err = run(*command, "--kit", kit, "--out", tmp_path / "out")
    assert code == 2
    assert "fedgmi_args.secure.cohort_nonces: seed" in err
    assert "set it to system" in err
    assert not (tmp_path / "out").exists()


def test_a_kit_of_the_other_role_is_refused_with_the_right_command(run, kits):
    code, _, err = run("server", "--kit", kits / "silo-clinic-1", "--repeatable")
    assert code == 2
    assert "is the kit of clinic-1, a silo: start it with fedgmi silo" in err
    code, _, err = run("silo", "--kit", kits / "server", "--repeatable", "--simulated-part", 1)
    assert code == 2
    assert "start it with fedgmi server" in err


@pytest.mark.parametrize("given", [(), ("--data", ".", "--simulated-part", 1)])
def test_a_silo_needs_data_of_one_kind(run, kits, given):
    code, _, err = run("silo", "--kit", kits / "silo-clinic-1", *given)
    assert code == 2
    assert "either --data PATH" in err


def test_a_part_beyond_the_silos_is_refused(run, kits, tmp_path):
    command = ("silo", "--kit", kits / "silo-clinic-1", "--repeatable", "--out", tmp_path / "out")
    code, _, err = run(*command, "--simulated-part", SILOS + 1)
    assert code == 2
    assert f"to {SILOS} silos" in err


def test_a_transport_of_fedmls_is_named(run, kits):
    code, _, err = run("server", "--kit", kits / "server", "--repeatable", "--set", "comm_args.backend=GRPC")
    assert code == 2
    assert "comm_args.backend: GRPC is FedML's transport" in err


def test_an_expired_kit_is_refused_with_the_date(run, kits, monkeypatch):
    from fedgmi_fedml.federation import start

    monkeypatch.setattr(start.time, "time", lambda: 4e9)
    code, _, err = run("server", "--kit", kits / "server", "--repeatable")
    assert code == 2
    assert "expired on 20" in err


@pytest.mark.parametrize("command", [("server",), ("silo", "--simulated-part", 1)])
def test_a_finished_run_stands(run, kits, tmp_path, command):
    RunSummary(view="server", status="finished").save(tmp_path)
    kit = kits / ("server" if command[0] == "server" else "silo-clinic-1")
    code, out, _ = run(*command, "--kit", kit, "--repeatable", "--out", tmp_path)
    assert code == 0
    assert "has finished already" in out
    assert "choose another --out" in out


def test_own_data_that_differ_are_refused_before_dialling(run, kits, tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (20, 9, 9), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x=images, y=np.arange(20) % 10)
    settings = ("data_args.dataset=npz", "data_args.announced_shape=[1, 8, 8]", "data_args.data_options={classes: 10}")
    changes = [word for setting in settings for word in ("--set", setting)]
    command = ("silo", "--kit", kits / "silo-clinic-1", "--repeatable", "--data", tmp_path / "own.npz")
    code, _, err = run(*command, *changes, "--out", tmp_path / "out")
    assert code == 2
    assert "clinic-1: the data hold samples of shape 1 × 9 × 9, but the federation announced 1 × 8 × 8" in err
    assert not (tmp_path / "out").exists()


def test_a_public_set_is_nobodys_own_data(run, kits, tmp_path):
    (tmp_path / "own.npz").write_bytes(b"")
    code, _, err = run("silo", "--kit", kits / "silo-clinic-1", "--repeatable", "--data", tmp_path / "own.npz")
    assert code == 2
    assert "public data set" in err


def test_a_kit_that_lacks_files_is_explained(run, kits, tmp_path):
    shutil.copytree(kits / "silo-clinic-2", tmp_path / "kit")
    (tmp_path / "kit" / "ca.pem").unlink()
    code, _, err = run("silo", "--kit", tmp_path / "kit", "--simulated-part", 2)
    assert code == 2
    assert "lacks ca.pem" in err


@pytest.mark.slow
def test_starting_up_imports_no_fedml_and_no_scipy():
    code = (
        "import sys, fedgmi_fedml.federation.server, fedgmi_fedml.federation.silo, fedgmi_fedml.cli_federation\n"
        "print(sorted({'fedml', 'scipy', 'sklearn', 'torchvision', 'tenseal'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_the_readmes_configuration_and_the_example_project_make_kits(tmp_path) -> None:
    """What a first reader types, in order."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (tmp_path / "config.yaml").write_text(readme.partition("```yaml\n")[2].partition("```")[0])
    project = tmp_path / "project.yaml"
    project.write_text(EXAMPLE.replace("identity: request", "identity: make"))
    made = subprocess.run(
        [sys.executable, "-m", "fedgmi_fedml.cli", "provision", project, "--yes"], cwd=tmp_path, capture_output=True
    )
    assert made.returncode == 0, made.stderr
    assert {"server", "silo-north", "silo-west"} <= {path.name for path in (tmp_path / "kits").iterdir()}
