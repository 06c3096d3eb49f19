"""Certificates that are wrong in every way: told in one line with host, reason and dates, and fatal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import transport_kit as kit

from fedgmi_fedml.transport import credentials
from fedgmi_fedml.transport.api import Arrived, LinkError, Opened
from fedgmi_fedml.transport.credentials import TlsFiles, certificate_dates, expiry_warning, read_tls, show_date
from fedgmi_fedml.transport.grpc_server import GrpcServer
from fedgmi_fedml.transport.grpc_silo import GrpcSilo
from fedgmi_fedml.transport.handshake import explain, is_loopback, split_address

DAY, NOW, QUICK = kit.DAY, kit.NOW, kit.QUICK
LATER = {"first": NOW + 2 * DAY, "last": NOW + 90 * DAY}
EARLIER = {"first": NOW - 9 * DAY, "last": NOW - 2 * DAY}


@pytest.fixture
def consortium(tmp_path: Path):
    return kit.Consortium(tmp_path / "clinics")


@pytest.fixture
def net(consortium) -> Iterator[SimpleNamespace]:
    """Makes servers and silos, unjudged where asked for, and closes them."""
    made: list = []

    def server(tls: TlsFiles) -> GrpcServer:
        made.append(GrpcServer("127.0.0.1:0", tls, run_id="r", federation="clinics", silos=lambda: [0], settings=QUICK))
        return made[-1]

    def silo(port: int, tls: TlsFiles, host: str = "localhost") -> GrpcSilo:
        made.append(GrpcSilo(f"{host}:{port}", tls, silo=0, federation="clinics", settings=QUICK))
        return made[-1]

    yield SimpleNamespace(server=server, silo=silo)
    for one in reversed(made):
        one.close()


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends take whatever their own files say: the other side has to notice."""

    def unjudged(tls: TlsFiles, now: object = None) -> credentials.TlsBytes:
        return credentials.TlsBytes(tls.ca.read_bytes(), tls.certificate.read_bytes(), tls.key.read_bytes())

    for module in ("credentials", "grpc_silo", "handshake"):
        monkeypatch.setattr(f"fedgmi_fedml.transport.{module}.read_tls", unjudged)


def told(silo: GrpcSilo) -> str:
    """The fatal error that the silo is given."""
    with pytest.raises(LinkError) as error:
        silo.receive(15)
    assert error.value.fatal
    return str(error.value)


# ---- the other side's ----------------------------------------------------------------------------------------------


def test_an_expired_server(net, consortium, careless) -> None:
    server = net.server(consortium.server(**EARLIER))
    message = told(net.silo(server.port, consortium.silo(0)))
    assert message.startswith(
        f"the certificate of the server at localhost:{server.port} expired on {show_date(NOW - 2 * DAY)} (today is "
    )


def test_a_server_that_is_not_valid_yet(net, consortium, careless) -> None:
    server = net.server(consortium.server(**LATER))
    message = told(net.silo(server.port, consortium.silo(0)))
    assert (
        f"localhost:{server.port} is not valid before {show_date(NOW + 2 * DAY)}; this machine's clock says" in message
    )


def test_a_server_of_another_authority(net, consortium, tmp_path: Path) -> None:
    server = net.server(kit.Consortium(tmp_path / "other", "labs").server())
    message = told(net.silo(server.port, consortium.silo(0)))
    assert f"of the server at localhost:{server.port} is not of this consortium's authority" in message
    assert "signed by “labs authority”" in message


def test_a_server_of_another_name(net, consortium) -> None:
    server = net.server(consortium.server(("fedgmi.example.org", "192.0.2.7")))
    for host in ("localhost", "127.0.0.1"):
        message = told(net.silo(server.port, consortium.silo(0), host))
        assert (
            f"server at {host}:{server.port} is not for the name {host} but for fedgmi.example.org, 192.0.2.7"
            in message
        )


def test_a_silo_cannot_pose_as_the_server(net, consortium) -> None:
    """The right authority, a silo's certificate: no host name in it, and signed for another use."""
    posing = net.server(consortium.silo(3))
    message = told(net.silo(posing.port, consortium.silo(0)))
    assert message.startswith(f"the certificate of the server at localhost:{posing.port} is not ")


def test_a_server_can_be_dialled_by_its_address(net, consortium) -> None:
    server = net.server(consortium.server(("127.0.0.1",)))
    assert net.silo(server.port, consortium.silo(0), "127.0.0.1").receive(10) == Opened("r")


@pytest.mark.parametrize("dates", [EARLIER, LATER], ids=["expired", "not yet valid"])
def test_a_silo_outside_its_dates_is_told_by_the_server(net, consortium, careless, dates) -> None:
    server = net.server(consortium.server())
    message = told(net.silo(server.port, consortium.silo(0, **dates)))
    assert f"localhost:{server.port} does not accept this silo's certificate: " in message
    assert f"valid from {show_date(dates['first'])} to {show_date(dates['last'])}, signed by “clinics auth" in message
    assert server.receive(0.1) is None


def test_a_silo_of_another_authority_is_told_by_the_server(net, consortium, careless, tmp_path: Path) -> None:
    server = net.server(consortium.server())
    foreign = kit.Consortium(tmp_path / "other", "labs").silo(0)
    message = told(net.silo(server.port, TlsFiles(consortium.ca, foreign.certificate, foreign.key)))
    assert "does not accept this silo's certificate: " in message
    assert "signed by “labs authority”" in message
    assert server.receive(0.1) is None


# ---- one's own, before anything is dialled or bound ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dates", "words"),
    [
        (EARLIER, f"expired on {show_date(NOW - 2 * DAY)} (today is"),
        (LATER, f"not valid before {show_date(NOW + 2 * DAY)};"),
    ],
    ids=["expired", "not yet valid"],
)
def test_ones_own_certificate_outside_its_dates(net, consortium, dates, words: str) -> None:
    for make in (
        lambda: net.server(consortium.server(**dates)),
        lambda: net.silo(1, consortium.silo(0, **dates)),
    ):
        with pytest.raises(LinkError) as error:
            make()
        assert error.value.fatal
        assert words in str(error.value)
        assert "tls.pem" in str(error.value)


def test_files_that_do_not_belong_together(consortium, tmp_path: Path) -> None:
    good, other = consortium.silo(0), consortium.silo(1)
    foreign = kit.Consortium(tmp_path / "other", "labs")
    cases = [
        (
            TlsFiles(good.ca, good.certificate, other.key),
            r"tls\.key: is not the private key of tls\.pem: take both from",
        ),
        (TlsFiles(foreign.ca, good.certificate, good.key), "signed by “clinics authority”, not by the consortium's"),
        (TlsFiles(good.ca, good.certificate, tmp_path / "none.key"), r"none\.key: cannot be read \(No such file"),
        (TlsFiles(good.key, good.certificate, good.key), "holds no certificate in PEM form"),
    ]
    for files, words in cases:
        with pytest.raises(LinkError, match=words) as error:
            read_tls(files)
        assert error.value.fatal


def test_an_encrypted_key_is_named_and_nobody_is_asked_for_a_passphrase(consortium) -> None:
    from cryptography.hazmat.primitives import serialization as form

    files = consortium.silo(0)
    key = form.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(LinkError, match="is encrypted; the TLS key of a kit is kept without a passphrase"):
        read_tls(files)


def test_the_end_is_announced_a_fortnight_ahead(net, consortium, caplog) -> None:
    ends = NOW + 10 * DAY
    files = consortium.silo(0, last=ends)
    assert certificate_dates(files) == (NOW - DAY, ends)
    assert expiry_warning(files, NOW - 5 * DAY) is None
    warning = f"this party's TLS certificate (tls.pem) expires on {show_date(ends)}: ask the operator for a new kit"
    assert expiry_warning(files) == warning
    assert "authority (ca.pem) expires on" in expiry_warning(consortium.silo(1, last=NOW + 2000 * DAY), NOW + 890 * DAY)
    caplog.set_level(logging.WARNING)
    server = net.server(consortium.server())
    net.silo(server.port, files)
    assert server.receive(10) == Arrived(0)
    assert [record.message for record in caplog.records] == [warning]


# ---- explain ---------------------------------------------------------------------------------------------------------


def test_explain(net, consortium) -> None:
    server = net.server(consortium.server())
    silo = consortium.silo(0)
    assert explain(f"localhost:{server.port}", silo) is None
    assert "nothing listens at localhost:" in explain(f"localhost:{kit.free_port()}", silo)
    assert explain("nowhere.invalid:1", silo).startswith('the name "nowhere.invalid" cannot be resolved (')
    assert server.receive(0.1) is None


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:70000", "::1:8890"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(LinkError, match=r"must be host:port") as error:
        split_address(address)
    assert error.value.fatal


def test_addresses() -> None:
    assert split_address("fedgmi.example.org:8890") == ("fedgmi.example.org", 8890)
    assert split_address("[::1]:8890") == ("::1", 8890)
    assert [is_loopback(host) for host in ("localhost", "127.3.0.1", "::1", "10.0.0.1", "localhost.org")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_secrets_are_not_shown(consortium) -> None:
    shown = repr(read_tls(consortium.silo(0)))
    assert "PRIVATE" not in shown
