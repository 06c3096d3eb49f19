"""The arrows of the house hold, and the checks that hold them can fail.

Layers and independence are contracts of import-linter in pyproject.toml. Here is what those cannot say: by which doors
``secure`` is entered, and which room may import which outside package.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
OURS = {"fedgmi_fedml", "secure"}

# Whole modules of secure/ that learning may import. Everything else in there is behind secure.api.
DOORS = {"api", "types", "errors", "identity", "roster", "card", "policy", "journal", "gate", "beacon"}
# Single names from behind the doors: a type for annotations, no working part.
NAMES_PAST_THE_DOORS = {("secure.keys", "RandomBytes")}

SECURE_MAY_IMPORT = {"numpy", "cryptography", "msgpack"}
# Outside package -> the rooms (prefixes of module names) that may import it.
OWNERS = {
    "fedml": ("fedgmi_fedml.fedml_adapter",),
    "tenseal": ("secure.homomorphic",),
    "torchvision": ("fedgmi_fedml.models", "fedgmi_fedml.data"),
    "sklearn": ("fedgmi_fedml.data",),
    "yaml": ("fedgmi_fedml.config",),
    "click": ("fedgmi_fedml.cli",),
    "grpc": ("fedgmi_fedml.transport",),
    "flwr": ("fedgmi_fedml.bench_peers",),
}
# Never part of our environment: the bench of peers runs in another interpreter, where the peer is installed.
NOT_OURS_TO_INSTALL = {"flwr"}
# Imported by one name, installed by another, and Python 3.10's importlib.metadata cannot tell.
OTHERWISE_NAMED = {"sklearn": "scikit-learn"}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Who imports whom, functions' own imports included; nothing is run."""
    return grimp.build_graph("fedgmi_fedml", "secure", include_external_packages=True, cache_dir=None)


def outside_imports(graph: grimp.ImportGraph) -> list[tuple[str, str]]:
    """(our module, top-level third-party package) for every such import."""
    return [
        (importer, imported)
        for importer in sorted(graph.modules)
        if importer.split(".")[0] in OURS
        for imported in sorted(graph.find_modules_directly_imported_by(importer))
        if imported.split(".")[0] not in OURS | set(sys.stdlib_module_names)
    ]


def in_room(module: str, room: str) -> bool:
    """Whether the module is the room, in the room, or named after it (cli_run belongs to cli)."""
    return re.match(re.escape(room) + r"($|[._])", module) is not None


def test_secure_imports_three_outside_packages_only(graph: grimp.ImportGraph) -> None:
    found = {
        (module, package)
        for module, package in outside_imports(graph)
        if in_room(module, "secure") and not in_room(module, "secure.homomorphic")
    }
    assert {(m, p) for m, p in found if p not in SECURE_MAY_IMPORT} == set()
    assert {p for _, p in found} == SECURE_MAY_IMPORT


def test_outside_packages_stay_in_their_rooms(graph: grimp.ImportGraph) -> None:
    strays = [
        f"{module} imports {package}"
        for module, package in outside_imports(graph)
        if package in OWNERS and not any(in_room(module, room) for room in OWNERS[package])
    ]
    assert strays == []


def test_learning_enters_secure_by_its_doors_only() -> None:
    strays = []
    for path in sorted((ROOT / "fedgmi_fedml").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                taken = [(alias.name, "") for alias in node.names if in_room(alias.name, "secure")]
            elif isinstance(node, ast.ImportFrom) and node.module and in_room(node.module, "secure"):
                taken = [(node.module, alias.name) for alias in node.names]
            else:
                continue
            for module, name in taken:
                room = module.split(".")[1] if "." in module else name
                if room not in DOORS and (module, name) not in NAMES_PAST_THE_DOORS:
                    strays.append(f"{path.relative_to(ROOT)}:{node.lineno}: {module} {name}")
    assert strays == []


def test_every_outside_package_is_declared(graph: grimp.ImportGraph, pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    declared = {canonicalize_name(Requirement(line).name) for line in [*project["dependencies"], *extras]}
    distributions = importlib.metadata.packages_distributions()
    homes = {name: distributions.get(name, [OTHERWISE_NAMED.get(name, name)]) for _, name in outside_imports(graph)}
    missing = {package for package, names in homes.items() if not {canonicalize_name(n) for n in names} & declared}
    assert missing - NOT_OURS_TO_INSTALL == set()


# One violation for each contract; functions' own imports count too.
VIOLATIONS = {
    "secure/shamir.py": "import torch",
    "fedgmi_fedml/mixture.py": "def lazily():\n    import fedml",
    "fedgmi_fedml/affinity.py": "from fedgmi_fedml.rounds import wire",
    "secure/types.py": "import secure.api",
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the packages in ``folder``."""
    program = shutil.which("lint-imports", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert program is not None
    command = [program, "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_contracts_are_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


def test_contracts_can_be_broken(tmp_path: Path) -> None:
    for package in OURS:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, code in VIOLATIONS.items():
        with (tmp_path / name).open("a") as source:
            source.write("\n" + code + "\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert "Contracts: 0 kept, 4 broken." in done.stdout, done.stdout
