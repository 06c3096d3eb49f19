"""Write deploy/constraints.txt: one pin for each package, with markers where the Pythons differ.

    python .ci/lock.py python3.10 python3.11 python3.12

For each interpreter, pip (22.2 or newer, of that interpreter) resolves the project with all extras and reports; nothing
is installed. Run it after a change of the dependencies, then run `deploy/test.sh` in a fresh clone before committing.
Pins that the present file holds are kept where they still fit, unless `--upgrade` is given.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "deploy" / "constraints.txt"
HEADER = """\
# What was seen working together, for each Python that the project supports (docs/installation.md has the matrix).
# Written by .ci/lock.py; pyproject.toml holds the ranges. Used by deploy/demo.sh and deploy/test.sh, and by hand with
# `pip install -c deploy/constraints.txt …`.
"""
# Held on every Python: wandb 0.13.2 (FedML needs it) imports pkg_resources, which setuptools 81 dropped, and the
# source packages that FedML needs are built with these too.
EXTRA_PINS = {"setuptools": "80.10.2", "wheel": "0.48.0"}


def resolve(python: str, upgrade: bool) -> tuple[str, dict[str, str]]:
    """Resolve for one interpreter: its "3.x" and {normalised package name: version}.

    Raises:
        subprocess.CalledProcessError: pip found no set of versions (its own message says why).
    """
    version = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report)]
        if TARGET.exists() and not upgrade:
            command += ["-c", str(TARGET)]
        subprocess.run([*command, f"{ROOT}[all,dev]"], check=True)
        installs = json.loads(report.read_text())["install"]
    pins = {re.sub(r"[-_.]+", "-", i["metadata"]["name"]).lower(): i["metadata"]["version"] for i in installs}
    pins.pop("fedgmi-fedml")
    return version, {**pins, **EXTRA_PINS}


def merge(resolved: dict[str, dict[str, str]]) -> list[str]:
    """Constraint lines: no marker where every Python that has the package agrees, else one line a version."""
    lines = []
    for name in sorted(set().union(*resolved.values())):
        pythons: dict[str, list[str]] = {}
        for python, pins in resolved.items():
            if name in pins:
                pythons.setdefault(pins[name].split("+")[0], []).append(python)
        if len(pythons) == 1:
            lines.append(f"{name}=={next(iter(pythons))}")
            continue
        for pin, where in pythons.items():
            marker = " or ".join(f'python_version == "{python}"' for python in where)
            lines.append(f"{name}=={pin} ; {marker}")
    return lines


def main() -> int:
    """Resolve for every interpreter named, then write the file in one go."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--upgrade", action="store_true", help="forget the present pins")
    options = parser.parse_args()
    resolved = dict(resolve(python, options.upgrade) for python in options.pythons)
    TARGET.write_text(HEADER + "\n".join(merge(resolved)) + "\n")
    print(f"{TARGET}: {', '.join(f'Python {v}: {len(p)} packages' for v, p in resolved.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
