"""A federation as its operator describes it, for the tests of ``fedgmi provision``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedgmi_fedml.provision.plan import Outcome, provision
from fedgmi_fedml.provision.project import read_project
from fedgmi_fedml.provision.request import make_request
from secure.card import Card
from secure.identity import PASSPHRASE_VARIABLE

DAY = 86_400
NOW = 1_800_000_000.0
SILOS = ("north", "south", "east", "west")



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
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An empty folder; no passphrase in the environment."""
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)
    return Site(tmp_path)


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file: inode, mode, content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p.relative_to(folder)): (p.stat().st_ino, p.stat().st_mode, p.read_bytes()) for p in files}


def done(outcome: Outcome, name: str) -> str:
    return "; ".join(next(row.done for row in outcome.rows if row.party.name == name))


