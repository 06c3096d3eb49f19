"""Real processes: killed and restarted at either end, forked, forgotten; and what importing costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import transport_kit as kit

from fedgmi_fedml.transport.api import Arrived, Delivered, Lost, Opened, Received
from fedgmi_fedml.transport.grpc_server import GrpcServer
from fedgmi_fedml.transport.grpc_silo import GrpcSilo

ROOT = Path(__file__).resolve().parents[2]



PARTY = """
import resource, sys, time
from pathlib import Path
from fedgmi_fedml.transport.api import *
from fedgmi_fedml.transport.credentials import TlsFiles
from fedgmi_fedml.transport.settings import LinkSettings
role, folder, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
settings = LinkSettings(
    heartbeat_seconds=0.2, silence_seconds=3, grace_seconds=2, dial_seconds=30, backoff=(0.05, 0.3)
)
def files(party):
    return TlsFiles(folder / "ca.pem", folder / party / "tls.pem", folder / party / "tls.key")
def say(*words):
    print(*words, flush=True)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
def silo(number):
    from fedgmi_fedml.transport.grpc_silo import GrpcSilo
    return GrpcSilo(f"localhost:{port}", files(f"silo-{number}"), silo=number, federation="clinics", settings=settings)
def server(silos=12):
    from fedgmi_fedml.transport.grpc_server import GrpcServer
    return GrpcServer(
        f"127.0.0.1:{port}", files("server"), run_id="run-1", federation="clinics", silos=lambda: range(silos),
        settings=settings,
    )
"""


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory):
    made = kit.Consortium(tmp_path_factory.mktemp("consortium"))
    made.server_files = made.server()
    made.silo_files = {silo: made.silo(silo) for silo in range(12)}
    return made


Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(consortium) -> Iterator[Start]:
    """Starts a process of ours with some lines of its own; kills what is left."""
    made: list[subprocess.Popen] = []

    def party(role: str, port: int, code: str) -> subprocess.Popen:
        command = [sys.executable, "-c", PARTY + code, role, str(consortium.folder), str(port)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        made.append(
            subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        return made[-1]

    yield party
    for process in made:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


@pytest.fixture
def server(consortium) -> Iterator[GrpcServer]:
    """A server in this process."""
    made = GrpcServer(
        "127.0.0.1:0", consortium.server_files, run_id="run-1", federation="clinics", silos=lambda: range(12),
        settings=kit.QUICK,
    )  # fmt: skip
    yield made
    made.close()


def said(process: subprocess.Popen) -> str:
    """The next line that a process prints."""
    return process.stdout.readline().strip()


ECHO_SILO = """
end = silo(int(role))
while True:
    event = end.receive(30)
    if isinstance(event, Opened):
        end.send(b"hello")
    elif isinstance(event, Delivered):
        end.send(event.payload)
    say(type(event).__name__)
    if isinstance(event, Closed) or event is None:
        break
"""

ECHO_SERVER = """
hub = server()
say("listening")
while True:
    event = hub.receive(30)
    if isinstance(event, Received):
        hub.send(event.silo, event.payload)
    say(type(event).__name__)
"""


@pytest.mark.slow
def test_a_killed_silo_is_lost_and_its_next_process_arrives(server, start: Start) -> None:
    process = start("0", server.port, ECHO_SILO)
    other = start("1", server.port, ECHO_SILO)
    first = [server.receive(20) for _ in range(4)]
    assert sorted(map(str, first)) == sorted(
        map(str, [Arrived(0), Arrived(1), Received(0, b"hello"), Received(1, b"hello")])
    )
    process.send_signal(signal.SIGKILL)
    began = time.monotonic()
    again = start("0", server.port, ECHO_SILO)
    assert server.receive(20) == Lost(0, "started again")
    assert time.monotonic() - began < 5
    assert server.receive(20) == Arrived(0)
    assert server.receive(20) == Received(0, b"hello")
    server.send(1, b"undisturbed")
    assert server.receive(20) == Received(1, b"undisturbed")
    again.send_signal(signal.SIGKILL)
    assert server.receive(20) == Lost(0, "cut off, and not back within 5 s")
    assert other.poll() is None
    server.close()
    assert other.wait(10) == 0


@pytest.mark.slow
def test_a_killed_server_is_waited_for_and_joined_anew(consortium, start: Start) -> None:
    port = kit.free_port()
    silos = [
        GrpcSilo(f"localhost:{port}", consortium.silo_files[n], silo=n, federation="clinics", settings=kit.QUICK)
        for n in range(2)
    ]
    try:
        for _ in range(3):
            process = start("server", port, ECHO_SERVER)
            for silo in silos:
                event = silo.receive(20)
                while isinstance(event, Delivered):  # what the last server still echoed
                    event = silo.receive(20)
                assert event == Opened("run-1")
                silo.send(b"x" * 3_000_000)
                assert silo.receive(20) == Delivered(b"x" * 3_000_000)
                silo.send(b"y" * 9_000_000)  # under way as the server dies
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(0.5)
    finally:
        for silo in silos:
            silo.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_process_that_forgets_to_close_ends_all_the_same(server, start: Start, how: str) -> None:
    end = "" if how == "returns" else "raise SystemExit(5)"
    code = 5 if how == "raises" else 0
    silo = start("0", server.port, "end = silo(0)\nprint(end.receive(20))\nsay('bye')\n" + end)
    assert silo.wait(20) == code
    assert server.receive(5) == Arrived(0)
    port = kit.free_port()
    hub = start("server", port, "hub = server()\nsay('listening')\nassert hub.receive(20) == Arrived(3)\n" + end)
    assert said(hub) == "listening"
    other = start("3", port, ECHO_SILO)
    assert hub.wait(20) == code
    assert said(other) == "Opened"
    nobody = start("4", kit.free_port(), "end = silo(4)\ntime.sleep(0.5)\n" + end)
    assert nobody.wait(20) == code


@pytest.mark.slow
def test_forked_workers_do_not_disturb_a_link(server, start: Start) -> None:
    """PyTorch's loaders fork while gRPC's threads run."""
    silo = start("0", server.port, """
import multiprocessing, os
end = silo(0)
assert end.receive(20) == Opened("run-1")
def work(number, queue):
    queue.put(number ** 2)
context = multiprocessing.get_context("fork")
for turn in range(5):
    queue = context.Queue()
    workers = [context.Process(target=work, args=(n, queue)) for n in range(3)]
    for worker in workers: worker.start()
    end.send(b"x" * 2_000_000)
    assert sorted(queue.get(timeout=10) for _ in workers) == [0, 1, 4]
    for worker in workers: worker.join(10)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert end.receive(10) == Delivered(b"next")
assert end.flush(10)
end.close()
""")  # fmt: skip
    assert server.receive(20) == Arrived(0)
    for _ in range(5):
        assert server.receive(20) == Received(0, b"x" * 2_000_000)
        server.send(0, b"next")
    assert server.receive(20) == Lost(0, "it has left")
    assert silo.wait(10) == 0


@pytest.mark.slow
def test_heartbeats_do_not_depend_on_what_the_silo_is_doing(server, start: Start) -> None:
    """A local epoch in pure Python holds the interpreter for longer than the silence that would cut it off."""
    silo = start("0", server.port, """
end = silo(0)
assert end.receive(20) == Opened("run-1")
until = time.monotonic() + 8
while time.monotonic() < until:
    sum(range(1000))
end.send(b"trained")
end.flush(5)
end.close()
""")  # fmt: skip
    assert server.receive(20) == Arrived(0)
    assert server.receive(20) == Received(0, b"trained")
    assert silo.wait(10) == 0


@pytest.mark.slow
def test_one_large_message_to_many_silos_is_kept_once(start: Start) -> None:
    """40 MB to twelve silos: what the server holds beside the message itself is a few frames a silo."""
    port = kit.free_port()
    hub = start("server", port, """
hub = server()
say("listening")
for _ in range(12): assert isinstance(hub.receive(30), Arrived)
large = bytes(40 << 20)
before = peak = resident()
for number in range(12): hub.send(number, large)
while not hub.flush(0.01): peak = max(peak, resident())
say(peak - before)
""")  # fmt: skip
    assert said(hub) == "listening"
    for number in range(12):
        start(str(number), port, """
end = silo(int(role))
assert end.receive(30) == Opened("run-1")
while not isinstance(end.receive(60), Delivered): pass
sys.stdin.readline()
""")  # fmt: skip
    assert int(said(hub)) < 12 * 6


@pytest.mark.slow
def test_a_flood_of_silos_does_not_fill_the_servers_memory(start: Start) -> None:
    """Nobody takes events for a while; 12 silos would send 100 MB each."""
    port = kit.free_port()
    hub = start("server", port, """
hub = server()
say("listening")
for _ in range(12): assert isinstance(hub.receive(30), Arrived)
before = resident()
say("ready")
time.sleep(4)
say(resident() - before)
taken = 0
while taken < 12 * 400:
    assert isinstance(hub.receive(30), Received)
    taken += 1
say("taken")
""")  # fmt: skip
    assert said(hub) == "listening"
    silos = [
        start(
            str(number),
            port,
            """
end = silo(int(role))
assert end.receive(30) == Opened("run-1")
sys.stdin.readline()
for _ in range(400): end.send(bytes(256 << 10))
end.flush(60)
""",
        )
        for number in range(12)
    ]
    assert said(hub) == "ready"
    for silo in silos:
        silo.stdin.write("\n")
        silo.stdin.flush()
    assert int(said(hub)) < 120
    assert said(hub) == "taken"


@pytest.mark.slow
def test_idle_links_cost_next_to_nothing(start: Start) -> None:
    port = kit.free_port()
    hub = start("server", port, """
hub = server()
say("listening")
for _ in range(3): assert isinstance(hub.receive(30), Arrived)
used, began = time.process_time(), time.monotonic()
hub.receive(5)
say((time.process_time() - used) / (time.monotonic() - began))
""")  # fmt: skip
    assert said(hub) == "listening"
    silos = [
        start(
            str(number),
            port,
            """
end = silo(int(role))
assert end.receive(30) == Opened("run-1")
used, began = time.process_time(), time.monotonic()
end.receive(4)
say((time.process_time() - used) / (time.monotonic() - began))
sys.stdin.readline()
""",
        )
        for number in range(3)
    ]
    assert (
        max(float(said(process)) for process in [hub, *silos]) < 0.05
    )  # of a core; heartbeats are 50 × too often here


def test_importing_opens_no_socket_and_brings_no_grpc_where_none_is_needed() -> None:
    code = """
import sys, socket, threading
class NoSocket(socket.socket):
    def __init__(self, *args, **kwargs):
        raise AssertionError("a socket")
socket.socket = NoSocket
import fedgmi_fedml.transport.api, fedgmi_fedml.transport.settings, fedgmi_fedml.transport.credentials
import fedgmi_fedml.transport.handshake, fedgmi_fedml.transport.memory
assert "grpc" not in sys.modules and "torch" not in sys.modules
import fedgmi_fedml.transport.grpc_server, fedgmi_fedml.transport.grpc_silo
assert "google.protobuf" not in sys.modules
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_no_thread_outlives_its_end(server, consortium) -> None:
    before = {thread for thread in threading.enumerate() if thread.is_alive()}
    silo = GrpcSilo(
        f"localhost:{server.port}", consortium.silo_files[0], silo=0, federation="clinics", settings=kit.QUICK
    )
    assert silo.receive(10) == Opened("run-1")
    began = time.monotonic()
    silo.close()
    silo.close()
    assert time.monotonic() - began < 2
    deadline = time.monotonic() + 5
    while left := [thread for thread in threading.enumerate() if thread not in before]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
