"""``fedgmi preflight``: on a good node all passes; on a broken one the right check fails, by name, and says why."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.federation import preflight, preflight_network, preflight_sizes
from fedgmi_fedml.federation.preflight import Check, Request, run_checks
from fedgmi_fedml.provision.kit import load_kit
from fedgmi_fedml.provision.plan import provision
from fedgmi_fedml.provision.project import read_project

DAY = 86_400
ROOT = Path(__file__).resolve().parents[2]

CONFIG = """
common_args: {training_type: cross_silo}
data_args: {dataset: npz, data_path: null, data_options: {classes: 4}, announced_shape: [1, 6, 6]}
model_args: {model: mlp, model_options: {hidden: [8]}, vae: mlp, vae_options: {hidden: [16], latent: 4}}
train_args: {federated_optimizer: FedGMI, client_num_in_total: 4, client_num_per_round: 4, comm_round: 2}
comm_args: {backend: FEDGMI_GRPC}
fedgmi_args: {components: 2, initialisation: {cohort_size: 4}, secure: {cohort_nonces: system}}
"""


def samples(path: Path, **change: object) -> Path:
    """An npz of forty images of 6 × 6, values 0 … 1, four classes."""
    made = np.random.default_rng(0)
    arrays = {"x_train": made.random((40, 6, 6), dtype=np.float32), "y_train": np.arange(40) % 4}
    np.savez(path, **(arrays | change))  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of four silos on the loopback."""
    folder = tmp_path_factory.mktemp("federation")
    (folder / "config.yaml").write_text(CONFIG.replace("data_path: null", "data_path: own.npz"))
    names = ("north", "south", "east", "west")
    project = {
        "federation": "demo", "operator": "office", "config": "config.yaml",
        "server": {"address": "localhost:8890", "bind": "127.0.0.1:8890"},
        "silos": [{"name": name, "identity": "make"} for name in names],
    }  # fmt: skip
    (folder / "project.yaml").write_text(json.dumps(project))
    provision(read_project(folder / "project.yaml"), folder / "kits", now=time.time())
    return folder


@pytest.fixture
def site(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, in a folder of this test's own: kits on machines of their own, and one silo's samples."""
    shutil.copytree(made, tmp_path / "federation")
    for name in ("silo-north", "server"):
        shutil.copytree(made / "kits" / name, tmp_path / name / "kit")
    samples(tmp_path / "own.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checks(kit: Path | None = Path("silo-north/kit"), now: float | None = None, **more: object) -> dict[str, Check]:
    request = Request(**({"kit": kit, "data": Path("own.npz"), "offline": True} | more))  # type: ignore[arg-type]
    return {check.name: check for check in run_checks(request, now)}


def failed(found: dict[str, Check]) -> list[str]:
    return [name for name, check in found.items() if check.status == "fail"]


def text(found: dict[str, Check], name: str) -> str:
    assert found[name].status == "fail", found[name]
    return found[name].finding.text


class TestGoodNodes:
    def test_a_silo_is_ready_without_a_server(self, site: Path) -> None:
        found = checks()
        assert failed(found) == []
        assert {name for name, check in found.items() if check.status == "skip"} == {
            "server name", "server port", "server TLS",
        }  # fmt: skip
        assert all(check.status == "pass" for name, check in found.items() if not name.startswith("server "))
        kit = load_kit("silo-north/kit")
        assert kit.identity().fingerprint() in found["kit"].finding.text
        policy = kit.policy()
        assert policy is not None
        assert policy.config_digest is not None
        assert policy.config_digest.hex() in found["configuration"].finding.text

    def test_figures_of_the_data_stay_apart(self, site: Path) -> None:
        found = checks()["data"].finding
        assert "28 samples to train on" in found.local
        assert "28" not in found.text

    def test_a_server_is_ready(self, site: Path) -> None:
        found = checks(Path("server/kit"), data=None, bind="127.0.0.1:0")
        assert failed(found) == []
        assert "training step" not in found
        assert "own port" in found

    def test_offline_leaves_the_network_alone(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        touched: list[object] = []
        for name in ("getaddrinfo", "create_connection", "socket"):
            monkeypatch.setattr(socket, name, lambda *words, **named: touched.append(words))
        assert failed(checks()) == []
        assert touched == []
        checks(offline=False)
        assert touched != []

    def test_nothing_is_left_behind(self, site: Path) -> None:
        before = sorted(site.rglob("*"))
        checks()
        checks(Path("server/kit"), data=None)
        assert sorted(site.rglob("*")) == before

    def test_read_only_data_are_fine(self, site: Path) -> None:
        folder = site / "readonly"
        folder.mkdir()
        shutil.copy("own.npz", folder)
        (folder / "own.npz").chmod(0o444)
        folder.chmod(0o555)
        try:
            assert failed(checks(data=folder / "own.npz")) == []
        finally:
            folder.chmod(0o755)

    def test_names_are_told_before_their_work(self, site: Path) -> None:
        begun: list[str] = []
        finished = [check.name for check in run_checks(Request(config="digits", offline=True), begun=begun.append)]
        assert begun == finished


class TestBrokenNodes:
    def test_no_kit(self, site: Path) -> None:
        assert "no such folder" in text(checks(Path("nowhere")), "kit")
        assert "the kits are in its subfolders" in text(checks(Path("federation/kits")), "kit")

    def test_what_rests_on_a_broken_kit_is_skipped_and_the_rest_is_checked(self, site: Path) -> None:
        (site / "silo-north/kit/tls.pem").write_text("no certificate")
        found = checks(config="silo-north/kit/config.yaml")
        assert failed(found) == ["kit"]
        for name in ("certificate dates", "roster", "policy", "clock"):
            assert found[name].finding.text == "not checked: needs a kit that is whole" or name == "clock"
            assert found[name].status == "skip"
        assert found["training step"].status == "pass"

    def test_a_broken_servers_kit_is_still_a_servers(self, site: Path) -> None:
        shutil.copy("federation/kits/silo-east/identity.pem", "server/kit/found.pem")
        found = checks(Path("server/kit"), data=None)
        assert "found.pem: holds the private key of silo 3 (east)" in text(found, "kit")
        assert "own port" in found
        assert "policy" not in found

    def test_keys_of_others_beside_the_kit(self, site: Path) -> None:
        found = checks(Path("federation/kits/server"), data=None)["foreign keys"]
        assert found.status == "warn"
        assert "authority/ca.key" in found.finding.text
        assert checks()["foreign keys"].status == "pass"

    def test_readable_keys(self, site: Path) -> None:
        for name in ("tls.key", "identity.pem"):
            (site / "silo-north/kit" / name).chmod(0o644)
        message = text(checks(), "kit")
        assert "tls.key can be read by others (mode 0644); run: chmod 600" in message
        assert "identity.pem can be read by others" in message

    @pytest.mark.parametrize(
        ("days", "expected"),
        [(-3, "not valid before"), (366, "expired on"), (340, "ask the operator for a renewed kit")],
    )
    def test_dates(self, site: Path, days: int, expected: str) -> None:
        found = checks(now=time.time() + days * DAY)
        wanted = "warn" if days == 340 else "fail"
        assert found["certificate dates"].status == wanted
        assert expected in found["certificate dates"].finding.text
        assert found["roster"].status == wanted
        assert found["clock"].status == ("pass" if days == 340 else "fail")

    def test_a_clock_that_lags_a_few_hours(self, site: Path) -> None:
        found = checks(now=time.time() - 2 * 3600)
        assert failed(found) == []
        assert found["clock"].status == "warn"
        assert "the roster was signed 2.0 h later" in found["clock"].finding.text

    def test_an_older_consent(self, site: Path) -> None:
        project = json.loads((site / "federation/project.yaml").read_text())
        project["silos"].append({"name": "centre", "identity": "make"})
        config = (site / "federation/config.yaml").read_text().replace("in_total: 4", "in_total: 5")
        (site / "federation/config.yaml").write_text(config)
        (site / "federation/project.yaml").write_text(json.dumps(project))
        provision(read_project(site / "federation/project.yaml"), site / "federation/kits", now=time.time())
        shutil.copy("federation/kits/silo-north/roster.json", "silo-north/kit/roster.json")
        assert "accepts roster version 1, the kit holds version 2" in text(checks(), "kit")

    def test_another_configuration(self, site: Path) -> None:
        found = checks(overrides=("train_args.comm_round=3",))
        assert "differs from the kit's config.yaml in train_args.comm_round" in text(found, "configuration")
        assert "not the one that was accepted here" in text(found, "policy")

    def test_an_invalid_configuration(self, site: Path) -> None:
        path = site / "silo-north/kit/config.yaml"
        path.write_text(path.read_text().replace("comm_round: 2", "comm_round: 0\n"))
        found = checks()
        assert "comm_round" in text(found, "configuration")
        assert found["model"].status == "skip"
        assert found["certificate dates"].status == "pass"

    def test_a_stricter_policy(self, site: Path) -> None:
        path = site / "silo-north/kit/policy.json"
        document = json.loads(path.read_text())
        document["rules"] |= {"w_max": 0.3}
        document["max_clip"] = 2.0
        path.write_text(json.dumps(document))
        message = text(checks(), "policy")
        assert "w_max 0.5 is more than 0.3" in message
        assert "clip 8 is more than max_clip 2" in message

    def test_a_simulations_settings(self, site: Path) -> None:
        found = checks(config="digits", kit=None)
        assert "cohort_nonces: seed" in text(found, "deployment settings")
        found = checks(config="silo-north/kit/config.yaml", kit=None, overrides=("comm_args.heartbeat=1",))
        assert "heartbeat_seconds" in text(found, "deployment settings")

    @pytest.mark.parametrize(
        ("change", "check", "expected"),
        [
            ({"x_train": np.full((40, 6, 6), np.nan, np.float32)}, "data", "NaN or infinite"),
            ({"x_train": np.ones((40, 7, 7), np.float32)}, "announced samples", "1 × 7 × 7"),
            ({"y_train": np.full(40, 9)}, "data", "class"),
            ({"x_train": np.full((40, 6, 6), 300.0, np.float32)}, "data", ""),
        ],
        ids=["nan", "shape", "labels", "range"],
    )
    def test_bad_samples(self, site: Path, change: dict[str, object], check: str, expected: str) -> None:
        samples(site / "own.npz", **change)
        found = checks()
        assert expected in text(found, check)
        assert found["training step"].status == "skip"

    def test_missing_samples(self, site: Path) -> None:
        assert "nowhere.npz" in text(checks(data=Path("nowhere.npz")), "data")
        found = checks(data=None)
        assert found["data"].finding.text == "not checked: needs this silo's samples (--data)"
        assert found["announced samples"].status == "warn"

    def test_no_samples(self, site: Path) -> None:
        samples(site / "own.npz", x_train=np.zeros((0, 6, 6), np.float32), y_train=np.zeros(0, np.int64))
        found = checks()
        assert failed(found) == []
        assert found["data"].status == "warn"
        assert found["training step"].status == "skip"

    def test_a_model_that_raises(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (site / "mine.py").write_text("def expert(shape):\n    raise LookupError('weights.bin is not there')\n")
        monkeypatch.syspath_prepend(str(site))
        found = checks(overrides=("model_args.model=mine:expert", "model_args.model_options={}"))
        assert "weights.bin is not there" in text(found, "model")
        assert found["memory"].status == "skip"

    def test_a_model_whose_step_is_not_finite(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (site / "wild.py").write_text(
            "import torch\nfrom torch import nn\n"
            "class Wild(nn.Module):\n"
            "    def __init__(self, shape):\n        super().__init__()\n"
            "        self.layer = nn.Linear(shape.size, shape.classes)\n"
            "    def forward(self, x):\n"
            "        y = self.layer(x.flatten(1))\n"
            "        return y * float('inf') if self.training else y\n"
        )
        monkeypatch.syspath_prepend(str(site))
        found = checks(overrides=("model_args.model=wild:Wild", "model_args.model_options={}"))
        assert "diverged (trial step, expert)" in text(found, "training step")

    def test_a_device_that_is_not_there(self, site: Path) -> None:
        assert "cuda:7 is not there" in text(checks(overrides=("device_args.device=cuda:7",)), "device")

    def test_too_little_memory(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preflight_sizes, "available", lambda: 0)
        assert "give this machine or container more" in text(checks(), "memory")

    def test_too_little_disk(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil.disk_usage(".")._replace(free=10 << 20)
        monkeypatch.setattr(preflight_sizes.shutil, "disk_usage", lambda place: usage)
        assert "choose another folder (--out)" in text(checks(), "disk")

    def test_a_folder_that_cannot_be_written(self, site: Path) -> None:
        (site / "taken").write_text("")
        assert "taken/north: cannot be written" in text(checks(out=site / "taken/north"), "folders")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs to become another user")
def test_another_user_without_rights(site: Path) -> None:
    """Not root, and the kit is somebody else's: named, no traceback; and samples that may only be read are enough."""
    checks()  # whatever is imported late is imported
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(site / "silo-north", folder / "theirs")
        shutil.copytree(site / "silo-north", folder / "own")
        shutil.copy(site / "own.npz", folder / "samples.npz")
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else path.stat().st_mode)
        for path in [folder / "own", *(folder / "own").rglob("*")]:
            os.chown(path, 65534, 65534)
        os.chdir(folder)
        os.seteuid(65534)
        try:
            theirs = checks(Path("theirs/kit"), data=folder / "samples.npz", out=folder / "runs")
            own = checks(Path("own/kit"), data=folder / "samples.npz", out=folder / "own/runs")
        finally:
            os.seteuid(0)
            os.chdir(site)
    assert "cannot be read" in text(theirs, "kit")
    assert "cannot be written by this user" in text(theirs, "folders")
    assert failed(own) == []


class Server:
    """A TLS server with a kit's files, for handshakes only."""

    def __init__(self, kit: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(kit / "tls.pem", kit / "tls.key")
        context.load_verify_locations(kit / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        self._context, self.peers = context, []  # type: ignore[var-annotated]
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._open = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._open:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(connection, server_side=True) as secured:
                    self.peers.append(secured.getpeercert())
                    secured.sendall(b"hello")
            except OSError:
                connection.close()

    def close(self) -> None:
        self._open = False
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._socket.close()
        self._thread.join(5)


@pytest.fixture
def server(site: Path) -> Iterator[Server]:
    running = Server(site / "server/kit")
    yield running
    running.close()


class TestNetwork:
    def test_kits_shake_hands(self, site: Path, server: Server) -> None:
        found = checks(offline=False, address=f"localhost:{server.port}")
        assert failed(found) == []
        assert all(found[name].status == "pass" for name in ("server name", "server port", "server TLS"))
        names = {name for peer in server.peers for name in peer.get("subjectAltName", ())}
        assert names == {("URI", "fedgmi:demo/silo/1")}

    def test_wrong_name(self, site: Path, server: Server) -> None:
        found = checks(offline=False, address=f"127.0.0.1:{server.port}")
        message = text(found, "server TLS")
        assert "not for the name 127.0.0.1" in message
        assert "localhost" in message

    def test_foreign_authority(self, site: Path, server: Server) -> None:
        other = site / "other"
        shutil.copytree("federation", other, ignore=shutil.ignore_patterns("kits"))
        provision(read_project(other / "project.yaml"), other / "kits", now=time.time())
        found = checks(other / "kits/silo-north", offline=False, address=f"localhost:{server.port}")
        assert "not of this consortium's authority" in text(found, "server TLS")

    @pytest.mark.parametrize(("age", "expected"), [(400, "expired"), (-30, "not valid before")])
    def test_a_servers_certificate_out_of_its_dates(self, site: Path, age: int, expected: str) -> None:
        """Made by the same authority while the clock was another."""
        project, now, out = site / "federation/project.yaml", time.time(), site / "kits"
        project.write_text(json.dumps(json.loads(project.read_text()) | {"validity_days": 20}))
        provision(read_project(project), out, now=min(now, now - age * DAY))
        shutil.copytree(out, site / "early")
        provision(read_project(project), out, now=max(now, now - age * DAY), renew=["server"])
        server, silo = (site / "early", out) if age > 0 else (out, site / "early")
        running = Server(server / "server")
        try:
            found = checks(silo / "silo-north", offline=False, address=f"localhost:{running.port}")
        finally:
            running.close()
        assert expected in text(found, "server TLS")

    def test_nobody_there(self, site: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as place:
            port = place.getsockname()[1]
        found = checks(offline=False, address=f"localhost:{port}")
        assert "nothing listens" in text(found, "server port")
        assert found["server TLS"].status == "skip"

    def test_no_such_name(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*arguments: object, **named: object) -> object:
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(preflight_network.socket, "getaddrinfo", unknown)
        found = checks(offline=False, address="fed.invalid:1")
        assert '"fed.invalid" cannot be resolved' in text(found, "server name")
        assert found["server port"].status == "skip"

    def test_no_address(self, site: Path) -> None:
        assert "must be host:port" in text(checks(offline=False, address="fed"), "server name")

    def test_a_port_in_use(self, site: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as place:
            bind = f"127.0.0.1:{place.getsockname()[1]}"
            found = checks(Path("server/kit"), data=None, bind=bind)
        assert "is in use: another server, or another federation" in text(found, "own port")
        found = checks(Path("server/kit"), data=None, bind="203.0.113.7:8890")
        assert "is no address of this machine" in text(found, "own port")


class TestSizes:
    def test_a_containers_limit_counts(self, tmp_path: Path) -> None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
        assert preflight_sizes.available(tmp_path) == 8000 * 1024
        group = tmp_path / "sys/fs/cgroup"
        group.mkdir(parents=True)
        (group / "memory.max").write_text("max\n")
        (group / "memory.current").write_text("1000\n")
        assert preflight_sizes.available(tmp_path) == 8000 * 1024
        (group / "memory.max").write_text("5000\n")
        assert preflight_sizes.available(tmp_path) == 4000
        assert preflight_sizes.available(tmp_path / "nothing") == 1 << 62

    def test_this_process_holds_something(self) -> None:
        assert preflight_sizes.resident() > 1 << 20


class TestCommandLine:
    def invoke(self, *arguments: str, code: int) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedgmi_fedml.cli", "preflight", *arguments],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @pytest.mark.slow
    def test_a_table_without_colours(self, site: Path) -> None:
        output = self.invoke("--kit", "silo-north/kit", "--data", "own.npz", "--offline", code=0)
        assert "\x1b" not in output
        assert "Ready: 20 checks passed, 3 skipped." in output
        assert "28 samples to train on" in output

    @pytest.mark.slow
    def test_json_without_the_datas_figures(self, site: Path) -> None:
        output = self.invoke("--kit", "silo-north/kit", "--data", "own.npz", "--offline", "--json", code=0)
        document = json.loads(output)
        assert document["ready"] is True
        assert "samples to train on" not in output
        assert {check["status"] for check in document["checks"]} == {"pass", "skip"}

    @pytest.mark.slow
    def test_a_failure_is_exit_code_2(self, site: Path) -> None:
        output = self.invoke("--kit", "silo-north/kit", "--data", "own.npz", code=2)
        assert "Not ready: server port." in output

    def test_nothing_asked(self, site: Path) -> None:
        assert "give --kit" in self.invoke(code=2)


def test_a_checks_own_mistake_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(node: preflight.Node) -> preflight.Finding:
        raise FedgmiError("what and where")

    monkeypatch.setattr(preflight, "_all_checks", lambda: [("one", ("silo",), broken)])
    (check,) = run_checks(Request())
    assert (check.status, check.finding.text) == ("fail", "what and where")
