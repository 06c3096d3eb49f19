"""``load_kit``: a kit that is mixed, cut short, too open or not its owner's is refused, and every fault told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgmi_fedml.provision import certificates
from fedgmi_fedml.provision.kit import KitError, load_kit
from fedgmi_fedml.provision.plan import provision
from fedgmi_fedml.provision.project import read_project
from secure.errors import IdentityError
from secure.identity import PASSPHRASE_VARIABLE, Identity

NOW = 1_800_000_000.0
NAMES = ("north", "south", "east", "west")


def make(folder: Path, federation: str = "demo") -> Path:
    """Kits of four silos."""
    source = (Path(__file__).resolve().parents[2] / "configs/digits.yaml").read_text(encoding="utf-8")
    for key in ("client_num_in_total", "client_num_per_round"):
        source = source.replace(f"{key}: 12", f"{key}: 4")
    (folder / "config.yaml").write_text(source)
    project = {
        "federation": federation, "operator": "office", "config": "config.yaml", "server": {"address": "a.example:1"},
        "silos": [{"name": name, "identity": "make"} for name in NAMES],
    }  # fmt: skip
    (folder / "project.yaml").write_text(json.dumps(project))
    provision(read_project(folder / "project.yaml"), folder / "kits", now=NOW)
    return folder / "kits"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture
def kits(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)
    shutil.copytree(pristine, tmp_path / "kits")
    return tmp_path / "kits"


def problems(folder: Path) -> str:
    with pytest.raises(KitError) as caught:
        load_kit(folder)
    assert caught.value.problems
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_whole_kits_load(kits: Path) -> None:
    for name in ("server", *(f"silo-{name}" for name in NAMES)):
        load_kit(kits / name)
    load_kit(str(kits / "server"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": "fedgmi-kit/2"}, "is of format 'fedgmi-kit/2', this version reads fedgmi-kit/1"),
        ({"role": "king"}, "role must be silo or server, is 'king'"),
        ({"silo_id": None}, "silo_id must lie in 1 … 65535"),
        ({"silo_id": True}, "silo_id must lie in 1 … 65535"),
        ({"silo_id": 70000}, "silo_id must lie in 1 … 65535"),
        ({"server": 8890}, "server is missing or no text"),
        ({"federation": ""}, "federation is missing or no text"),
        ({"operator": 1}, "operator must be text"),
        ({"silo": 1}, "unknown key 'silo': did you mean \"silo_id\""),
        ({"role": "server"}, "bind is missing or no text"),
        ({"role": "server", "bind": "a:1"}, "a server's kit has no silo_id"),
    ],
)
def test_kit_json(kits: Path, change: dict[str, object], expected: str) -> None:
    path = kits / "silo-north" / "kit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert expected in problems(kits / "silo-north")


@pytest.mark.parametrize("content", [b"", b"\x80", b"[]", b"[" * 20_000, b" " * 100_000])
def test_kit_json_that_is_none(kits: Path, content: bytes) -> None:
    (kits / "silo-north" / "kit.json").write_bytes(content)
    assert "is not JSON" in problems(kits / "silo-north")


def test_places_that_are_no_kit(kits: Path) -> None:
    assert "no such folder" in problems(kits / "nobody")
    assert "is a file; a kit is a folder" in problems(kits / "server" / "kit.json")
    assert "the kits are in its subfolders" in problems(kits)
    assert "holds no kit.json, so it is no kit" in problems(kits / "authority")


@pytest.mark.parametrize("name", ["ca.pem", "config.yaml"])
def test_missing_files(kits: Path, name: str) -> None:
    (kits / "silo-north" / name).unlink()
    assert f"lacks {name}; ask the operator for the kit again" in problems(kits / "silo-north")


def swap(name: str, source: str = "silo-south") -> Callable[[Path, Path], None]:
    """Another kit's file in place of this one's."""

    def change(kits: Path, others: Path) -> None:
        origin = others if source.startswith("other/") else kits
        shutil.copy(origin / source.removeprefix("other/") / name, kits / "silo-north" / name)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (swap("tls.pem"), ["tls.pem: is the certificate of fedgmi:demo/silo/2, this kit is fedgmi:demo/silo/1"]),
        (swap("tls.key"), ["tls.key: does not belong to tls.pem"]),
        (swap("identity.pem"), ["identity.pem: is ", "but the key of silo 1 in roster version 1 is"]),
        (swap("kit.json"), ["this kit is fedgmi:demo/silo/2", "but the key of silo 2 in roster"]),
        (swap("ca.pem", "other/silo-north"), ["tls.pem: is not signed by ca.pem beside it"]),
        (swap("roster.json", "other/silo-north"), ["roster.json: is signed by", "trusts another operator"]),
        (swap("policy.json", "other/silo-north"), ["policy.json: trusts another operator"]),
        (swap("kit.json", "other/silo-north"), ["this kit is fedgmi:other/silo/1", "the kit's operator is"]),
        (swap("tls.pem", "other/silo-north"), ["is not signed by ca.pem", "fedgmi:other/silo/1", "does not belong"]),
    ],
)
def test_mixed_kits(kits: Path, others: Path, change: Callable[[Path, Path], None], expected: list[str]) -> None:
    change(kits, others)
    message = problems(kits / "silo-north")
    for part in expected:
        assert part in message


@pytest.mark.parametrize("name", ["ca.pem", "tls.pem", "tls.key", "identity.pem", "roster.json", "policy.json"])
def test_garbled_files(kits: Path, name: str) -> None:
    path = kits / "silo-north" / name
    path.write_bytes(b"garbage")
    assert name in problems(kits / "silo-north")


def test_an_altered_roster(kits: Path) -> None:
    path = kits / "silo-north" / "roster.json"
    document = json.loads(path.read_text())
    document["silos"][1]["organisation"] = "Somebody else"
    path.write_text(json.dumps(document))
    assert "signature on the roster does not verify" in problems(kits / "silo-north")


def test_a_revoked_silo(kits: Path) -> None:
    """Its kit with the roster that ends it."""
    folder = kits.parent / "again"
    folder.mkdir()
    out = make(folder)
    document = json.loads((folder / "project.yaml").read_text())
    document["silos"] = [*document["silos"][1:], {"name": "centre", "identity": "make"}]
    (folder / "project.yaml").write_text(json.dumps(document))
    old = folder / "old"
    shutil.copytree(out / "silo-north", old)
    provision(read_project(folder / "project.yaml"), out, now=NOW, revoke=["north"])
    shutil.copy(out / "silo-south" / "roster.json", old / "roster.json")
    assert "silo 1 was revoked in version 2" in problems(old)
    load_kit(out / "silo-centre")


@pytest.mark.parametrize("name", ["tls.key", "identity.pem"])
def test_keys_that_others_can_read(kits: Path, name: str) -> None:
    (kits / "silo-north" / name).chmod(0o640)
    message = problems(kits / "silo-north")
    assert f"{name} can be read by others (mode 0640); run: chmod 600" in message


def test_an_encrypted_identity(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("silo-north", "server"):
        path = kits / folder / "identity.pem"
        Identity.load(path).save(path, "word", replace=True)
        assert "is encrypted" in problems(kits / folder)
        assert load_kit(kits / folder, "word").name
        monkeypatch.setenv(PASSPHRASE_VARIABLE, "word")
        assert load_kit(kits / folder).identity().fingerprint()
        monkeypatch.delenv(PASSPHRASE_VARIABLE)


class TestForeignKeys:
    @pytest.mark.parametrize(
        ("source", "owner"),
        [
            ("authority/ca.key", "the authority, which must stay with the operator"),
            ("authority/operator.pem", "the operator, which must stay with the operator"),
        ],
    )
    @pytest.mark.parametrize("kit", ["server", "silo-north"])
    def test_the_operators_keys_are_in_no_kit(self, kits: Path, kit: str, source: str, owner: str) -> None:
        (kits / kit / "deep").mkdir()
        shutil.copy(kits / source, kits / kit / "deep" / "harmless.txt")
        assert f"deep/harmless.txt: holds the private key of {owner}" in problems(kits / kit)

    def test_a_server_holds_no_silos_key(self, kits: Path) -> None:
        shutil.copytree(kits / "silo-east", kits / "server" / "copied")
        message = problems(kits / "server")
        assert "copied/identity.pem: holds the private key of silo 3 (east)" in message
        assert "copied/tls.key: holds a private key that is not the server's own" in message

    def test_hidden_among_other_text(self, kits: Path) -> None:
        secret = (kits / "silo-east" / "identity.pem").read_text()
        (kits / "server" / "notes.md").write_text(f"# Notes\nfor later:\n{secret}\nand more")
        assert "notes.md: holds the private key of silo 3 (east)" in problems(kits / "server")
        with (kits / "server" / "roster.json").open("a") as roster:
            roster.write("\n" * 3)
        with (kits / "server" / "tls.key").open("a") as key:
            key.write(secret)
        assert "tls.key: holds the private key of silo 3 (east)" in problems(kits / "server")

    def test_keys_that_cannot_be_told_apart(self, kits: Path) -> None:
        secret = Identity.load(kits / "silo-east" / "identity.pem")
        secret.save(kits / "server" / "spare.pem", "word")
        assert "spare.pem: holds a private key that is not the server's own" in problems(kits / "server")

    def test_own_keys_kept_aside_may_stay(self, kits: Path) -> None:
        (kits / "server" / "tls.key.old").write_bytes(certificates.key_pem(certificates.new_key()))
        Identity.generate().save(kits / "server" / "identity.pem.old-abcde-fghij")
        load_kit(kits / "server")


def test_what_a_kit_gives_is_checked_when_it_is_asked_for(kits: Path) -> None:
    kit = load_kit(kits / "silo-north")
    (kits / "silo-north" / "roster.json").write_text("{}")
    with pytest.raises(IdentityError):
        kit.roster()


def test_dates(kits: Path) -> None:
    kit = load_kit(kits / "silo-north")
    first, last = kit.window()
    assert first == NOW - certificates.DAY
    assert kit.check_dates(NOW) == []
    assert kit.ending(last - 40 * certificates.DAY) == []
    soon = kit.ending(last - 20 * certificates.DAY)
    assert [line.split()[0] for line in soon] == ["tls.pem", "roster.json"]
    early = kit.check_dates(first - 10)
    assert "not valid before" in early[0]
    assert "set the clock right" in early[0]
    late = kit.check_dates(last + 10)
    assert "tls.pem: expired on" in late[0]
    assert "roster version 1 expired" in late[1]
    assert any("ca.pem: expired" in line for line in kit.check_dates(NOW + 3651 * certificates.DAY))
