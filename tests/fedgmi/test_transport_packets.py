"""Links over a carrier of packets that loses, doubles, delays, swaps and reads them; TLS runs inside."""

from __future__ import annotations

import dataclasses
import queue
import random
import ssl
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import transport_kit as kit

from fedgmi_fedml.transport.api import Arrived, Delivered, LinkError, Lost, Opened, Received
from fedgmi_fedml.transport.packet_server import PacketServer
from fedgmi_fedml.transport.packet_silo import PacketSilo
from fedgmi_fedml.transport.packet_stream import ConnectionEnded, PacketStream, PostFailed, read_packet

# A lost packet of the handshake costs a silence; a link has to outlive several.
PATIENT = dataclasses.replace(kit.QUICK, silence_seconds=1.0, grace_seconds=60.0)

Fate = Callable[[int, bytes], list[bytes]]


class Carrier:
    """Queues between addresses; ``fate`` says what becomes of a packet."""

    def __init__(self) -> None:
        self.ends: dict[int, Callable[[int, bytes], None]] = {}
        self.fate: Fate = lambda sender, packet: [packet]
        self.seen: list[bytes] = []
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._carry, daemon=True).start()

    def post(self, sender: int, to: int, packet: bytes) -> None:
        if to not in self.ends:
            raise PostFailed(f"nobody listens at {to}")
        self.seen.append(packet)
        for one in self.fate(sender, packet):
            self._queue.put((sender, to, one))

    def _carry(self) -> None:
        while True:
            sender, to, packet = self._queue.get()
            if to in self.ends:
                self.ends[to](sender, packet)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> kit.Consortium:
    return kit.Consortium(tmp_path_factory.mktemp("consortium"))


@pytest.fixture
def net(consortium) -> Iterator[SimpleNamespace]:
    carrier, made = Carrier(), []

    def server(tls=None, silos=(1, 2, 3)):
        end = PacketServer(
            tls or consortium.server(), lambda to, packet: carrier.post(0, to, packet), lambda: None,
            run_id="run-1", federation="clinics", silos=lambda: silos, settings=PATIENT,
        )  # fmt: skip
        carrier.ends[0] = end.take
        made.append(end)
        return end

    def silo(number: int, tls=None):
        end = PacketSilo(
            "the test's server", tls or consortium.silo(number), lambda packet: carrier.post(number, 0, packet),
            lambda: None, silo=number, federation="clinics", settings=PATIENT,
        )  # fmt: skip
        carrier.ends[number] = lambda sender, packet: end.take(packet)
        made.append(end)
        return end

    yield SimpleNamespace(carrier=carrier, server=server, silo=silo)
    carrier.fate = lambda sender, packet: [packet]
    for end in reversed(made):
        end.vanish()


def exchange(server, silo, number: int = 1) -> None:
    """Messages of many sizes arrive both ways, once and in order."""
    messages = [random.Random(size).randbytes(size) for size in (0, 1, 1000, 1 << 20, 5_000_000, 3)]
    for message in messages:
        silo.send(message)
        server.send(number, message)
    assert [server.receive(30) for _ in messages] == [Received(number, message) for message in messages]
    assert [silo.receive(30) for _ in messages] == [Delivered(message) for message in messages]


def opened(server, silo, number: int = 1) -> None:
    assert silo.receive(20) == Opened("run-1")
    assert server.receive(20) == Arrived(number)


def test_messages_of_any_size_travel_and_the_carrier_reads_none(net) -> None:
    server, silo = net.server(), net.silo(1)
    opened(server, silo)
    exchange(server, silo)
    silo.send(b"a secret of the clinic " * 40)
    assert server.receive(10) == Received(1, b"a secret of the clinic " * 40)
    assert not any(b"a secret of the clinic" in packet or b"clinics" in packet for packet in net.carrier.seen)
    silo.close()
    assert server.receive(10) == Lost(1, "it has left")


@pytest.mark.parametrize("seed", range(4))
def test_lost_doubled_and_swapped_packets_harm_nothing(net, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("fedgmi_fedml.transport.packet_stream.GAP_SECONDS", 0.5)
    chance, held = random.Random(seed), []

    def fate(sender: int, packet: bytes) -> list[bytes]:
        what = chance.random()
        if what < 0.03:
            return []
        if what < 0.2:
            return [packet, packet]
        if what < 0.4 and not held:
            held.append((sender, packet))
            return []
        if held and held[0][0] == sender:
            return [packet, held.pop()[1]]
        return [packet]

    server, silo = net.server(), net.silo(1)
    opened(server, silo)
    net.carrier.fate = fate
    exchange(server, silo)


def test_packets_of_an_old_connection_open_nothing_anew(net) -> None:
    server, silo = net.server(), net.silo(1)
    opened(server, silo)
    first = list(net.carrier.seen)
    silo.close()
    assert server.receive(10) == Lost(1, "it has left")
    for packet in first:
        server.take(1, packet)
    assert server.receive(0.5) is None
    silo = net.silo(1)
    opened(server, silo)


def test_a_silo_may_come_before_its_server_and_outlive_one(net) -> None:
    silo = net.silo(1)
    assert silo.receive(0.5) is None
    server = net.server()
    opened(server, silo)
    server.vanish()
    server = net.server()
    opened(server, silo)
    exchange(server, silo)


def test_garbage_at_either_end_is_ignored(net) -> None:
    server, silo = net.server(), net.silo(1)
    opened(server, silo)
    for size in (0, 1, 20, 21, 22, 5000):
        server.take(1, random.Random(size).randbytes(size))
        server.take(9, bytes(16) + b"\0\0\0\0\0" + random.Random(size).randbytes(size))
        silo.take(random.Random(size).randbytes(size))
    exchange(server, silo)


def test_forged_packets_within_a_connection_cut_it_and_the_link_goes_on(net) -> None:
    server, silo = net.server(), net.silo(1)
    opened(server, silo)
    connection = net.carrier.seen[-1][:16]
    for number in range(30):
        server.take(1, connection + number.to_bytes(4, "big") + b"\0" + b"forged")
    exchange(server, silo)


def test_another_silos_certificate_is_refused(net, consortium) -> None:
    net.server()
    silo = net.silo(1, tls=consortium.silo(2))
    with pytest.raises(LinkError, match="use the kit of silo 1") as refused:
        silo.receive(20)
    assert refused.value.fatal


def test_a_server_of_another_consortium_is_refused(net, tmp_path) -> None:
    net.server(tls=kit.Consortium(tmp_path / "other").server())
    with pytest.raises(LinkError, match="none of this consortium's") as refused:
        net.silo(1).receive(20)
    assert refused.value.fatal


def test_a_silo_that_poses_as_the_server_is_refused(net, consortium) -> None:
    """With a certificate that may serve, of this consortium, but another party's."""
    net.server(tls=consortium.issue("poser", ["fedgmi:clinics/silo/3"], ("localhost",)))
    with pytest.raises(LinkError, match="what answers is not fedgmi:clinics/server") as refused:
        net.silo(1).receive(20)
    assert refused.value.fatal


def test_a_certificate_of_another_authority_is_refused_by_the_server(net, consortium, tmp_path) -> None:
    server, other = net.server(), kit.Consortium(tmp_path / "other").silo(1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # what `tls_context` would not make
    context.check_hostname = False
    context.load_cert_chain(other.certificate, other.key)
    context.load_verify_locations(consortium.ca)
    stream = PacketStream(bytes(16), context, lambda packet: net.carrier.post(1, 0, packet), server=False)
    net.carrier.ends[1] = lambda sender, packet: stream.arrive(*read_packet(packet)[1:])
    with pytest.raises(ConnectionEnded, match="the other side refuses this party's certificate"):
        list(stream.frames())
    assert server.receive(0.2) is None
