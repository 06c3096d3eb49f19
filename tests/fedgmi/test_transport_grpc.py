"""Links over real sockets with mutual TLS: messages, cuts, silence, identity, and what strangers can do."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import transport_kit as kit

from fedgmi_fedml.transport.api import Arrived, Closed, Delivered, LinkError, Lost, Opened, Received
from fedgmi_fedml.transport.grpc_options import METHOD, grpc
from fedgmi_fedml.transport.grpc_server import GrpcServer
from fedgmi_fedml.transport.grpc_silo import GrpcSilo
from fedgmi_fedml.transport.settings import LinkSettings

QUICK = kit.QUICK


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory):
    made = kit.Consortium(tmp_path_factory.mktemp("consortium"))
    made.server_files = made.server()
    made.silo_files = {silo: made.silo(silo) for silo in range(12)}
    return made


@pytest.fixture
def net(consortium) -> Iterator[SimpleNamespace]:
    """Makes servers, silos and proxies, and closes them."""
    made: list = []

    def server(settings: LinkSettings = QUICK, port: int = 0, silos: Callable = lambda: range(12), **kwargs):
        made.append(
            GrpcServer(
                f"127.0.0.1:{port}",
                kwargs.pop("tls", consortium.server_files),
                run_id="run-1",
                federation="clinics",
                silos=silos,
                settings=settings,
            )
        )
        return made[-1]

    def silo(number: int, port: int, settings: LinkSettings = QUICK, host: str = "localhost", **kwargs):
        tls = kwargs.pop("tls", None) or consortium.silo_files[number]
        federation = kwargs.pop("federation", "clinics")
        made.append(GrpcSilo(f"{host}:{port}", tls, silo=number, federation=federation, settings=settings))
        return made[-1]

    def proxy(target: int):
        made.append(kit.TcpProxy(target))
        return made[-1]

    yield SimpleNamespace(server=server, silo=silo, proxy=proxy, consortium=consortium)
    for one in reversed(made):
        one.close()


def opened(server, silo, number: int = 0) -> None:
    """The link is open and both ends know."""
    assert silo.receive(10) == Opened("run-1")
    assert server.receive(10) == Arrived(number)


def test_messages_of_any_size_travel_both_ways(net) -> None:
    server = net.server()
    silo = net.silo(0, server.port)
    opened(server, silo)
    messages = [random.Random(size).randbytes(size) for size in (0, 1, 1000, 1 << 20, 9_000_000, 3)]
    for message in messages:
        silo.send(message)
        server.send(0, message)
    assert [server.receive(10) for _ in messages] == [Received(0, message) for message in messages]
    assert [silo.receive(10) for _ in messages] == [Delivered(message) for message in messages]
    assert silo.flush(5)
    assert server.flush(5)
    silo.close()
    assert server.receive(5) == Lost(0, "it has left")


def test_a_server_that_closes_tells_its_silos(net) -> None:
    server = net.server()
    silos = [net.silo(number, server.port) for number in range(3)]
    for silo in silos:
        assert silo.receive(10) == Opened("run-1")
    for _ in silos:
        server.send(server.receive(5).silo, b"the end")
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < 3
    for silo in silos:
        assert silo.receive(5) == Delivered(b"the end")
        assert silo.receive(5) == Closed("it has stopped", False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_cuts_at_any_byte_lose_nothing_and_double_nothing(net, seed: int) -> None:
    chance = random.Random(seed)
    settings = LinkSettings(chunk_bytes=20_000, heartbeat_seconds=0.2, silence_seconds=3, backoff=(0.01, 0.05))
    server = net.server(settings)
    proxy = net.proxy(server.port)
    # within the handshake, the first frames, in the middle of frames up and down
    proxy.cut_after = [chance.choice([50, 2_000, 4_500, 6_000, 30_000, 200_000]) for _ in range(12)]
    silo = net.silo(0, proxy.port, settings)
    opened(server, silo)
    messages = [chance.randbytes(chance.randint(0, 60_000)) for _ in range(60)]

    def send() -> None:
        for message in messages:
            silo.send(message)

    threading.Thread(target=send, daemon=True).start()
    for message in messages:
        server.send(0, message)
    assert [server.receive(20) for _ in messages] == [Received(0, message) for message in messages]
    assert [silo.receive(20) for _ in messages] == [Delivered(message) for message in messages]
    assert proxy.connections > 5
    assert server.receive(0.2) is None


def test_a_slow_network_only_takes_longer(net) -> None:
    server = net.server()
    proxy = net.proxy(server.port)
    proxy.delay = 0.005
    silo = net.silo(0, proxy.port)
    opened(server, silo)
    message = random.Random(3).randbytes(3_000_000)
    silo.send(message)
    assert server.receive(20) == Received(0, message)
    assert proxy.connections == 1


@pytest.mark.slow
def test_a_connection_that_swallows_everything_is_cut_and_resumed(net) -> None:
    settings = LinkSettings(
        heartbeat_seconds=0.2, silence_seconds=1.0, grace_seconds=20, backoff=(0.05, 0.2), dial_seconds=30
    )
    server = net.server(settings)
    proxy = net.proxy(server.port)
    silo = net.silo(0, proxy.port, settings)
    opened(server, silo)
    proxy.stalled.set()
    silo.send(b"up" * 1_000_000)
    server.send(0, b"down" * 1_000_000)
    time.sleep(2.5)
    proxy.stalled.clear()
    assert server.receive(15) == Received(0, b"up" * 1_000_000)
    assert silo.receive(15) == Delivered(b"down" * 1_000_000)
    assert proxy.connections > 1


@pytest.mark.slow
def test_a_silo_behind_a_dead_network_is_lost_and_may_come_back(net) -> None:
    settings = LinkSettings(heartbeat_seconds=0.1, silence_seconds=1, grace_seconds=1, backoff=(0.05, 0.2))
    server = net.server(settings)
    proxy = net.proxy(server.port)
    silo = net.silo(0, proxy.port, settings)
    opened(server, silo)
    other = net.silo(1, server.port, settings)
    opened(server, other, 1)
    proxy.stalled.set()
    assert server.receive(10) == Lost(0, "cut off, and not back within 1 s")
    server.send(1, b"undisturbed")
    assert other.receive(5) == Delivered(b"undisturbed")
    proxy.stalled.clear()
    opened(server, silo)


@pytest.mark.slow
def test_a_silo_may_be_early(net, caplog) -> None:
    caplog.set_level(logging.INFO, "fedgmi_fedml")
    port = kit.free_port()
    silo = net.silo(0, port)
    time.sleep(3)
    assert silo.receive(0) is None
    server = net.server(port=port)
    opened(server, silo)
    lines = [record.message for record in caplog.records]
    assert lines[0] == (
        f"no connection to the server at localhost:{port}: nothing listens at localhost:{port} (connection refused); "
        "trying again for 20 s"
    )
    assert lines[1:] == [f"connected to the server at localhost:{port}"]


def test_a_host_that_cannot_be_resolved_is_named_at_once(net, caplog) -> None:
    caplog.set_level(logging.INFO, "fedgmi_fedml")
    silo = net.silo(0, 8890, LinkSettings(dial_seconds=1, backoff=(0.05, 0.2)), host="nowhere.invalid")
    with pytest.raises(
        LinkError, match=r'reached at nowhere\.invalid:8890 for 1 s: the name "nowhere.invalid" cannot'
    ) as e:
        silo.receive(15)
    assert not e.value.fatal
    assert len(caplog.records) == 1


def test_a_second_server_on_the_port_fails_at_once(net, capfd) -> None:
    server = net.server()
    with pytest.raises(
        LinkError, match=f"port {server.port} on 127.0.0.1 is taken, perhaps by another federation"
    ) as e:
        net.server(port=server.port)
    assert e.value.fatal
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("bind", "words"),
    [("nowhere.invalid:0", "cannot be resolved"), ("8890", "must be host:port"), ("192.0.2.1:0", "no address of this")],
)
def test_an_address_that_cannot_be_bound(consortium, bind: str, words: str) -> None:
    with pytest.raises(LinkError, match=words):
        GrpcServer(bind, consortium.server_files, run_id="r", federation="clinics", silos=list)


# ---- who is it -------------------------------------------------------------------------------------------------------


def refusal(silo) -> str:
    """Why the silo is refused, for good."""
    with pytest.raises(LinkError) as error:
        silo.receive(15)
    assert error.value.fatal
    return str(error.value)


def test_a_certificate_of_another_silo_is_refused_and_named(net, consortium) -> None:
    server = net.server()
    silo = net.silo(1, server.port, tls=consortium.silo_files[0])
    assert refusal(silo) == (
        f"the server at localhost:{server.port} refuses silo 1: the silo says it is silo 1 (fedgmi:clinics/silo/1), "
        "but its certificate names fedgmi:clinics/silo/0: use the kit of silo 1, or the id that the kit was made for"
    )
    assert server.receive(0.1) is None


def test_a_silo_off_the_roster_is_refused_until_it_is_listed(net) -> None:
    roster = {0}
    server = net.server(silos=lambda: roster)
    assert "silo 5 is not on the server's roster" in refusal(net.silo(5, server.port))
    roster.add(5)
    opened(server, net.silo(5, server.port), 5)


def test_another_federation_is_refused(net) -> None:
    server = net.server()
    assert 'belongs to federation "labs", the server to "clinics"' in refusal(
        net.silo(0, server.port, federation="labs")
    )


def test_another_version_of_the_protocol_is_refused(net, monkeypatch) -> None:
    server = net.server()
    monkeypatch.setattr("fedgmi_fedml.transport.silo_end.VERSION", 9)
    told = refusal(net.silo(0, server.port))
    assert "the server speaks version 1 of the link's protocol, this silo version 9: install the same" in told


def test_a_second_process_of_the_same_silo_takes_over(net) -> None:
    server = net.server()
    first = net.silo(0, server.port)
    opened(server, first)
    second = net.silo(0, server.port)
    assert second.receive(5) == Opened("run-1")
    assert server.receive(5) == Lost(0, "started again")
    assert server.receive(5) == Arrived(0)
    second.close()
    first.close()


# ---- strangers -------------------------------------------------------------------------------------------------------


def without_certificate(consortium, port: int) -> bytes:
    """What the port says to somebody who speaks TLS but shows no certificate."""
    context = ssl.create_default_context(cafile=consortium.ca)
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", port))
    try:
        with plain, context.wrap_socket(plain, server_hostname="localhost") as tls:
            tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            return tls.recv(100)
    except OSError:
        return b""


def test_garbage_at_the_port_does_nothing(net, capfd, caplog, consortium) -> None:
    caplog.set_level(logging.INFO)
    server = net.server()
    silo = net.silo(0, server.port)
    opened(server, silo)
    held = []
    for garbage in (
        b"", b"GET / HTTP/1.1\r\n\r\n", pickle.dumps({"a": os.getcwd}), random.Random(0).randbytes(100_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100), b"\x16\x03\x01\xff\xff" + bytes(70_000),
    ):  # fmt: skip
        stranger = socket.create_connection(("127.0.0.1", server.port))
        held.append(stranger)  # and stays
        with contextlib.suppress(OSError):
            stranger.sendall(garbage)
    assert without_certificate(consortium, server.port) == b"", "TLS alone opens nothing"
    silo.send(b"undisturbed")
    assert server.receive(5) == Received(0, b"undisturbed")
    assert server.receive(0.2) is None
    assert capfd.readouterr().err == ""
    assert [record.message for record in caplog.records] == []


@pytest.mark.parametrize(
    "frames",
    [
        [b""], [b"\xff" * 100], [pickle.dumps([1])], [b"\x80"], [bytes(5_000)], [bytes(4 << 20)], [bytes(9 << 20)],
        [b"\x81\xa7version\x01"],
    ],
)  # fmt: skip
def test_a_member_that_talks_nonsense_is_hung_up_on(net, consortium, frames: list[bytes], caplog) -> None:
    """The right certificate, the wrong bytes."""
    caplog.set_level(logging.INFO, "fedgmi_fedml")
    server = net.server()
    files = consortium.silo_files[0]
    credentials = grpc.ssl_channel_credentials(
        files.ca.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
        try:
            assert list(channel.stream_stream(METHOD)(iter(frames), timeout=10)) == []
        except grpc.RpcError as error:
            assert error.code() != grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError) as unknown:
            channel.unary_unary("/fedgmi.Link/Other")(b"", timeout=10)
        assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert server.receive(0.1) is None
    assert caplog.records == []


def test_a_member_that_says_nothing_is_cut_off(net, consortium, monkeypatch) -> None:
    monkeypatch.setattr("fedgmi_fedml.transport.hub.FIRST_FRAME_SECONDS", 0.5)
    server = net.server()
    files = consortium.silo_files[0]
    credentials = grpc.ssl_channel_credentials(
        files.ca.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    never = threading.Event()
    with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
        call = channel.stream_stream(METHOD)(iter(lambda: never.wait() and b"", None), timeout=10)
        with pytest.raises(grpc.RpcError) as error:
            list(call)
        assert error.value.code() != grpc.StatusCode.DEADLINE_EXCEEDED
    never.set()


def test_dialling_something_else_says_so(net, consortium) -> None:
    """A TCP server that hangs up, one that talks plainly, and one that never says anything."""

    def serve(answer: bytes | None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))

        def accept() -> None:
            kept = []
            while True:
                connection, _ = listener.accept()
                kept.append(connection)
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        return listener.getsockname()[1]

    short = LinkSettings(dial_seconds=0.5, backoff=(0.05, 0.2), heartbeat_seconds=0.2, silence_seconds=1.0)
    for answer, words in (
        (b"", "cut the connection before TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks no TLS"),
    ):
        with pytest.raises(LinkError, match=words) as error:
            net.silo(0, serve(answer), short).receive(15)
        assert not error.value.fatal
    with pytest.raises(LinkError, match="for 0.5 s: .*(no answer|no TLS|cut the connection)"):
        net.silo(0, serve(None), short).receive(20)


# ---- proxies ---------------------------------------------------------------------------------------------------------


def test_proxies_of_the_environment_are_never_used(net, monkeypatch) -> None:
    dead = f"http://127.0.0.1:{kit.free_port()}"
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, dead)
    monkeypatch.delenv("no_proxy", raising=False)
    server = net.server()
    opened(server, net.silo(0, server.port))


class ConnectProxy(kit.TcpProxy):
    """An HTTP proxy that maps every name to the target."""

    asked: list[bytes]

    def reach(self, near: socket.socket) -> socket.socket:
        request = b""
        while b"\r\n\r\n" not in request:
            request += near.recv(4096)
        self.__dict__.setdefault("asked", []).append(request.split(b"\r\n")[0])
        far = super().reach(near)
        near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        return far


def test_an_explicit_proxy_is_used_but_not_to_this_machine(net, consortium) -> None:
    server = net.server(tls=consortium.server(("fedgmi.invalid", "localhost")))
    proxy = ConnectProxy(server.port)
    proxied = LinkSettings(proxy=f"127.0.0.1:{proxy.port}", heartbeat_seconds=0.2, silence_seconds=3)
    opened(server, net.silo(0, 8890, proxied, host="fedgmi.invalid"))
    assert proxy.asked == [b"CONNECT fedgmi.invalid:8890 HTTP/1.1"]
    dead = LinkSettings(proxy=f"127.0.0.1:{kit.free_port()}", dial_seconds=0.5, backoff=(0.05, 0.2))
    opened(server, net.silo(1, server.port, dead), 1)
    with pytest.raises(LinkError, match=r"the proxy 127\.0\.0\.1:\d+: nothing listens at"):
        net.silo(2, 8890, dead, host="fedgmi.invalid").receive(15)
    proxy.close()
