"""What is installed: pins that fit the ranges on every Python, and a wheel that works without the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12")


def constraints_for(python: str) -> dict[str, str]:
    """{package: version} of deploy/constraints.txt on one Python."""
    pins: dict[str, str] = {}
    for line in (ROOT / "deploy" / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"python_version": python}):
            continue
        name = canonicalize_name(requirement.name)
        assert name not in pins, f"two pins for {name} on Python {python}"
        (specifier,) = requirement.specifier
        assert specifier.operator == "=="
        pins[name] = specifier.version
    return pins


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_has_a_pin_that_fits_it(python: str, pyproject: dict[str, Any]) -> None:
    pins = constraints_for(python)
    project = pyproject["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    for line in lines:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"python_version": python, "extra": ""})
        if not applies or name == "fedgmi-fedml":
            continue
        assert name in pins, f"{name} has no pin on Python {python}"
        assert requirement.specifier.contains(pins[name]), f"{name}=={pins[name]} does not fit {line}"


@pytest.mark.parametrize(("python", "wanted"), [("3.10", True), ("3.11", True), ("3.12", False)])
def test_fedml_is_left_out_where_it_cannot_be_installed(python: str, wanted: bool, pyproject: dict[str, Any]) -> None:
    requirements = [Requirement(line) for line in pyproject["project"]["dependencies"]]
    (fedml,) = (requirement for requirement in requirements if requirement.name == "fedml")
    assert fedml.marker is not None
    assert fedml.marker.evaluate({"python_version": python}) is wanted


@pytest.mark.parametrize("python", ["3.10", "3.11"])
def test_fedmls_caps_are_kept(python: str) -> None:
    pins = {name: int(version.split(".")[0]) for name, version in constraints_for(python).items()}
    assert pins["numpy"] < 2
    assert pins["protobuf"] < 4
    assert pins["setuptools"] < 81


def test_the_package_list_is_what_lies_in_the_folders(pyproject: dict[str, Any]) -> None:
    """A new sub-package that is not listed would be missing from the wheel, though everything works in a checkout."""
    on_disk = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for package in ("fedgmi_fedml", "secure")
        for init in (ROOT / package).rglob("__init__.py")
    }
    assert set(pyproject["tool"]["setuptools"]["packages"]) == on_disk | {"fedgmi_fedml.configs"}


def test_the_change_log_and_licence_are_up_to_date() -> None:
    version = re.search(r'__version__ = "(.+)"', (ROOT / "fedgmi_fedml" / "version.py").read_text(encoding="utf-8"))
    assert version is not None
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy (so that nothing is left in the checkout) and without any network."""
    source = tmp_path_factory.mktemp("source")
    for path in [ROOT / "pyproject.toml", ROOT / "LICENSE", *ROOT.glob("README.md")]:
        shutil.copy(path, source)
    for name in ("fedgmi_fedml", "secure", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("fedgmi_fedml-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment that holds the wheel, far from the repository.

    Its dependencies come from the present environment by a path file, which, unlike system site packages, does not
    bring along the editable install of the checkout.
    """
    home = tmp_path_factory.mktemp("elsewhere") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    python = home / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def outside(installed: Path, *command: str) -> str:
    """Run a program of the fresh environment in an empty folder; its standard output."""
    folder = installed.parent.parent / "empty"
    folder.mkdir(exist_ok=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FEDGMI", "COV"))}
    done = subprocess.run(
        [str(installed / command[0]), *command[1:]],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_is_what_is_imported(installed: Path) -> None:
    code = "import fedgmi_fedml, secure.api; print(fedgmi_fedml.__file__, secure.api.__file__)"
    where = outside(installed, "python", "-c", code)
    assert where.count(str(installed.parent)) == 2
    assert str(ROOT) not in where


@pytest.mark.slow
def test_every_module_of_the_wheel_can_be_imported(installed: Path) -> None:
    code = (
        "import importlib, pkgutil, fedgmi_fedml, secure\n"
        "for package in (fedgmi_fedml, secure):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
    )
    outside(installed, "python", "-W", "ignore", "-c", code)


@pytest.mark.slow
def test_the_program_works_without_the_repository(installed: Path) -> None:
    assert "simulate" in outside(installed, "fedgmi", "--help")
    assert "0.1.0" in outside(installed, "fedgmi", "--version")
    shown = outside(installed, "fedgmi", "config", "show", "digits")
    assert "fedgmi_args" in shown
    assert "dataset: digits" in shown


@pytest.mark.slow
def test_types_texts_and_configs_travel_in_the_wheel(installed: Path) -> None:
    (site,) = installed.parent.glob("lib/python*/site-packages")
    texts = [p.relative_to(ROOT) for p in ROOT.glob("*/README.md") if p.parent.name in ("secure", "fedgmi_fedml")]
    for name in (Path("fedgmi_fedml/py.typed"), Path("secure/py.typed"), *texts):
        assert (site / name).is_file(), name
    configs = {path.name for path in (ROOT / "configs").glob("*.yaml")}
    assert configs <= {path.name for path in (site / "fedgmi_fedml" / "configs").iterdir()}
    assert not [path for path in site.iterdir() if path.name in ("tests", "deploy", "configs")]
