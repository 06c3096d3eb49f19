"""The two ends within one process: events, restarts, cuts and injected faults."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from fedgmi_fedml.transport.api import Arrived, Closed, Delivered, LinkError, Lost, Opened, Received
from fedgmi_fedml.transport.memory import Fault, FrameSeen, MemoryNetwork
from fedgmi_fedml.transport.settings import LinkSettings

QUICK = LinkSettings(
    chunk_bytes=1024, window_bytes=8192, heartbeat_seconds=0.05, silence_seconds=0.5, grace_seconds=5.0,
    dial_seconds=10.0, backoff=(0.01, 0.05),
)  # fmt: skip


@pytest.fixture
def network() -> Iterator[Callable[..., MemoryNetwork]]:
    """Makes networks and closes them."""
    made = []

    def make(silos: int = 1, fault: Callable | None = None, settings: LinkSettings = QUICK) -> MemoryNetwork:
        made.append(MemoryNetwork("run-1", range(silos), fault, settings))
        return made[-1]

    yield make
    for one in made:
        one.fault = None
        one.close()


def opened(network: MemoryNetwork, silo: int = 0) -> None:
    """The silo's link is open and both ends know."""
    assert network.silo(silo).receive(5) == Opened("run-1")
    assert network.server.receive(5) == Arrived(silo)


def test_messages_travel_both_ways_in_order(network) -> None:
    net = network(2)
    for silo in (0, 1):
        opened(net, silo)
        for number in range(20):
            net.silo(silo).send(b"up %d" % number)
            net.server.send(silo, b"down %d" % number)
        assert [net.silo(silo).receive(5) for _ in range(20)] == [Delivered(b"down %d" % n) for n in range(20)]
        assert [net.server.receive(5) for _ in range(20)] == [Received(silo, b"up %d" % n) for n in range(20)]
    assert net.server.flush(5)
    assert net.silo(0).flush(5)
    assert net.server.receive(0.1) is None
    assert net.silo(0).receive(0) is None


def test_a_large_and_an_empty_message(network) -> None:
    net = network()
    opened(net)
    large = random.Random(1).randbytes(1_000_000)
    for message in (large, b"", large):
        net.server.send(0, message)
        net.silo(0).send(message)
    assert [net.silo(0).receive(10).payload for _ in range(3)] == [large, b"", large]
    assert [net.server.receive(10).payload for _ in range(3)] == [large, b"", large]


FAULTS: dict[str, Callable[[random.Random], Fault | float | None]] = {
    "drop": lambda chance: Fault.DROP if chance.random() < 0.05 else None,
    "twice": lambda chance: Fault.TWICE if chance.random() < 0.3 else None,
    "swap": lambda chance: Fault.SWAP if chance.random() < 0.1 else None,
    "cut": lambda chance: Fault.CUT if chance.random() < 0.05 else None,
    "delay": lambda chance: 0.01 if chance.random() < 0.2 else None,
    "all": lambda chance: chance.choice([*Fault, 0.005]) if chance.random() < 0.08 else None,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_faults_lose_nothing_double_nothing_and_keep_the_order(network, kind: str) -> None:
    chance, lock = random.Random(7), threading.Lock()
    met: dict[object, int] = defaultdict(int)

    def fault(seen: FrameSeen) -> Fault | float | None:
        with lock:
            fate = FAULTS[kind](chance)
            met[fate] += 1
            return fate

    net = network(3, fault)
    messages = [random.Random(n).randbytes(n * 37 % 3000) for n in range(120)]

    def silo(number: int) -> None:
        end = net.silo(number)
        assert end.receive(10) == Opened("run-1")
        for message in messages:
            end.send(message)

    threads = [threading.Thread(target=silo, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    up = defaultdict(list)
    deadline = time.monotonic() + 60
    while sum(map(len, up.values())) < 3 * len(messages) and time.monotonic() < deadline:
        match net.server.receive(1):
            case Arrived(silo=number):
                for message in messages:
                    net.server.send(number, message)
            case Received(number, payload):
                up[number].append(payload)
            case Lost() as lost:
                pytest.fail(f"a cut is no reason to lose a silo: {lost}")
    for number in range(3):
        assert up[number] == messages
        assert [net.silo(number).receive(10) for _ in messages] == [Delivered(message) for message in messages]
    assert len(met) > 1, "no fault was injected"
    assert net.server.receive(0.2) is None


def test_a_silo_that_is_cut_off_goes_on_unnoticed(network) -> None:
    net = network()
    opened(net)
    for number in range(5):
        net.server.send(0, b"down %d" % number)
        net.silo(0).send(b"up %d" % number)
        net.cut(0)
    assert [net.silo(0).receive(5) for _ in range(5)] == [Delivered(b"down %d" % n) for n in range(5)]
    assert [net.server.receive(5) for _ in range(5)] == [Received(0, b"up %d" % n) for n in range(5)]


def test_a_silo_that_restarts_is_lost_and_arrives(network) -> None:
    net = network()
    opened(net)
    net.stop_silo(0)
    net.server.send(0, b"for the dead")
    net.restart_silo(0)
    assert net.silo(0).receive(5) == Opened("run-1")
    net.server.send(0, b"for the dead too: the server's user does not know yet")
    assert net.server.receive(5) == Lost(0, "started again")
    net.server.send(0, b"for nobody")
    assert net.server.receive(5) == Arrived(0)
    net.server.send(0, b"for the living")
    assert net.silo(0).receive(5) == Delivered(b"for the living")


def test_a_silo_that_stays_away_is_lost_after_the_grace_period_and_may_come_back(network) -> None:
    net = network()
    opened(net)
    hub, net.listening = net.server, None
    net.cut(0)
    start = time.monotonic()
    assert hub.receive(9) == Lost(0, "cut off, and not back within 5 s")
    assert 4 < time.monotonic() - start < 8
    hub.send(0, b"dropped")
    net.silo(0).send(b"belongs to the link that is gone")
    net.listening = hub
    assert hub.receive(5) == Arrived(0)
    net.silo(0).send(b"and so does this: Opened was not taken yet")
    assert net.silo(0).receive(5) == Opened("run-1")
    net.silo(0).send(b"new")
    assert hub.receive(5) == Received(0, b"new")


def test_a_server_that_restarts_is_joined_anew_and_nothing_old_is_sent_to_it(network) -> None:
    net = network(2)
    for silo in (0, 1):
        opened(net, silo)
    net.server.send(0, b"from the old server")
    net.stop_server()
    net.silo(0).send(b"for the old server")
    net.restart_server()
    for silo in (0, 1):
        deadline = time.monotonic() + 5
        while (event := net.silo(silo).receive(1)) != Opened("run-1"):
            assert time.monotonic() < deadline
            assert event in (None, Delivered(b"from the old server"))
    net.silo(0).send(b"for the new server")
    events = [net.server.receive(5) for _ in range(3)]
    assert sorted(events[:2], key=lambda event: event.silo if isinstance(event, Arrived) else 9)[0] == Arrived(0)
    assert Received(0, b"for the new server") in events
    assert not any(isinstance(event, Received) and event.payload.endswith(b"old server") for event in events)


def test_an_answer_that_never_arrives_does_not_make_two_links(network) -> None:
    """The server has opened the link, the silo never heard: both must still agree on where it begins."""
    lost = iter([True, True, True])

    def fault(seen: FrameSeen) -> Fault | None:
        return Fault.CUT if not seen.upwards and seen.number == 0 and next(lost, False) else None

    net = network(1, fault)
    assert net.silo(0).receive(5) == Opened("run-1")
    assert net.server.receive(5) == Arrived(0)
    net.silo(0).send(b"once")
    net.server.send(0, b"once")
    assert net.server.receive(5) == Received(0, b"once")
    assert net.silo(0).receive(5) == Delivered(b"once")
    assert net.server.receive(0.1) is None


def test_the_same_after_a_restart_of_the_server(network) -> None:
    net = network()
    opened(net)
    for _ in range(20):
        net.silo(0).send(b"old")
    cuts = iter([True, True])
    net.fault = lambda seen: Fault.CUT if not seen.upwards and seen.number == 0 and next(cuts, False) else None
    net.restart_server()
    assert net.server.receive(5) == Arrived(0)
    while net.silo(0).receive(5) != Opened("run-1"):
        pass
    net.silo(0).send(b"new")
    assert net.server.receive(5) == Received(0, b"new")


def test_a_silo_waits_while_the_window_is_full_and_the_server_never(network) -> None:
    net = network()
    opened(net)
    start = time.monotonic()
    for _ in range(100):
        net.server.send(0, bytes(5000))
    assert time.monotonic() - start < 1
    sent = []

    def send() -> None:
        for _ in range(100):
            net.silo(0).send(bytes(1000))
            sent.append(1)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    time.sleep(0.5)
    assert 8 <= len(sent) <= 20, "window of 8192 bytes here and as much at the server"
    assert not net.silo(0).flush(0.1)
    for _ in range(100):
        assert net.server.receive(5) == Received(0, bytes(1000))
    thread.join(5)
    assert net.silo(0).flush(5)
    for _ in range(100):
        assert net.silo(0).receive(5) == Delivered(bytes(5000))
    assert net.server.flush(5)


def test_both_ends_may_stop_reading_and_send_without_a_deadlock(network) -> None:
    net = network()
    opened(net)
    for _ in range(50):
        net.server.send(0, bytes(3000))
    done = threading.Event()

    def send() -> None:
        for _ in range(50):
            net.silo(0).send(bytes(3000))
        done.set()

    threading.Thread(target=send, daemon=True).start()
    for _ in range(50):
        assert net.server.receive(5) == Received(0, bytes(3000))
    assert done.wait(5)


def test_flush_waits_for_silos_with_a_link_only(network) -> None:
    net = network(2)
    opened(net, 0)
    opened(net, 1)
    net.silo(1).close()
    assert net.server.receive(5) == Lost(1, "it has left")
    net.server.send(0, b"x")
    net.server.send(1, b"x")
    assert net.server.flush(5)


def test_closing_tells_the_other_side_after_what_was_queued(network) -> None:
    net = network(2)
    opened(net, 0)
    opened(net, 1)
    net.silo(1).send(b"last words")
    net.silo(1).close()
    assert net.server.receive(5) == Received(1, b"last words")
    assert net.server.receive(5) == Lost(1, "it has left")
    net.server.send(0, b"the end")
    net.server.close()
    net.server.close()
    assert net.silo(0).receive(5) == Delivered(b"the end")
    assert net.silo(0).receive(5) == Closed("it has stopped", False)
    net.silo(0).send(b"dropped")
    assert net.silo(0).receive(0.1) is None
    assert net.server.receive(0) is None


def test_a_silo_not_on_the_roster_is_refused_for_good(network) -> None:
    net = network(1)
    with pytest.raises(LinkError, match="refuses silo 7: silo 7 is not on the server's roster") as error:
        net.silo(7).receive(5)
    assert error.value.fatal
    with pytest.raises(LinkError, match="roster"):
        net.silo(7).send(b"x")


def test_no_server_for_too_long_is_an_error_that_says_so(network) -> None:
    net = network(settings=LinkSettings(dial_seconds=0.3, backoff=(0.01, 0.05)))
    net.stop_server()
    with pytest.raises(
        LinkError, match=r"no server could be reached at the server for 0\.3 s: there is no server"
    ) as e:
        net.silo(0).receive(5)
    assert not e.value.fatal


def test_the_patience_begins_anew_with_every_contact(network) -> None:
    net = network(settings=LinkSettings(dial_seconds=0.6, backoff=(0.01, 0.05), grace_seconds=30))
    opened(net)
    time.sleep(0.8)
    hub, net.listening = net.server, None
    net.cut(0)
    time.sleep(0.3)
    net.listening = hub
    net.server.send(0, b"still there")
    assert net.silo(0).receive(5) == Delivered(b"still there")


def test_a_sender_that_waits_is_told_when_the_link_fails(network) -> None:
    net = network(settings=LinkSettings(window_bytes=1024, dial_seconds=0.5, backoff=(0.01, 0.05)))
    opened(net)
    net.stop_server()
    with pytest.raises(LinkError):  # noqa: PT012 - the first few have room
        for _ in range(100):
            net.silo(0).send(bytes(1000))


def test_a_silent_server_is_cut_off_and_dialled_again(network) -> None:
    """Every frame of the server's is lost for a while, though the connection stays."""
    quiet = threading.Event()

    def fault(seen: FrameSeen) -> Fault | None:
        return Fault.DROP if quiet.is_set() and not seen.upwards else None

    net = network(1, fault, replace(QUICK, silence_seconds=0.4, grace_seconds=30))
    opened(net)
    quiet.set()
    net.server.send(0, b"said into the void")
    time.sleep(1.2)
    quiet.clear()
    assert net.silo(0).receive(5) == Delivered(b"said into the void")


def test_a_silent_silo_is_cut_off(network) -> None:
    quiet = threading.Event()

    def fault(seen: FrameSeen) -> Fault | None:
        return Fault.DROP if quiet.is_set() and seen.upwards else None

    net = network(1, fault, replace(QUICK, silence_seconds=0.4, grace_seconds=0.5))
    opened(net)
    quiet.set()
    start = time.monotonic()
    assert net.server.receive(5) == Lost(0, "cut off, and not back within 0.5 s")
    assert 0.8 < time.monotonic() - start < 3
    quiet.clear()
    assert net.server.receive(5) == Arrived(0)
    assert net.silo(0).receive(5) == Opened("run-1")


def test_an_idle_link_costs_next_to_nothing(network) -> None:
    net = network(3, settings=LinkSettings())
    for silo in range(3):
        opened(net, silo)
    before, start = time.process_time(), time.monotonic()
    assert net.server.receive(2.0) is None
    used = (time.process_time() - before) / (time.monotonic() - start)
    assert used < 0.05, f"{used:.1%} of a core while nothing happens"


def test_closing_ends_every_thread(network) -> None:
    before = set(threading.enumerate())
    net = network(3)
    for silo in range(3):
        opened(net, silo)
    net.close()
    deadline = time.monotonic() + 5
    while left := [thread for thread in threading.enumerate() if thread not in before]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert all(thread.daemon for thread in left)
