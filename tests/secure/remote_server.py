"""The server's session in a process of its own, whose memory a test may read."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

from harness import Send

SERVER_PROCESS = """
import struct, sys
sys.path.insert(0, {tests!r}); sys.path.insert(0, {root!r})
from harness import Replay, SERVER, World
from secure.api import Send, open_server
from secure.types import Rules
from search_spec import SPEC

world = World(range(1, 8), rules=Rules(max_drops=1), backends=("masked", "none"))
server = open_server(world.params(spec=SPEC, backend={backend!r}), credentials=world.credentials(SERVER),
                     random=Replay("child"))
inward, outward = sys.stdin.buffer, sys.stdout.buffer

def answer(events):
    for event in events:
        to, payload = (event.to, event.payload) if isinstance(event, Send) else (0, type(event).__name__.encode())
        outward.write(struct.pack("<HI", to, len(payload)) + payload)
    outward.write(struct.pack("<HI", 65535, 0))
    outward.flush()

answer(server.start())
while True:
    head = inward.read(6)
    if len(head) < 6:
        break
    sender, size = struct.unpack("<HI", head)
    answer(server.handle(sender, inward.read(size)))
"""


class RemoteServer:
    """The server's session in a process of its own, whose memory the test may read."""

    done = False

    def __init__(self, backend, spec, folder):
        (folder / "search_spec.py").write_text(
            "from secure.types import Block, StatisticSpec, VectorSpec\n" + f"SPEC = {spec!r}\n"
        )
        here = Path(__file__).parent
        code = SERVER_PROCESS.format(tests=str(here), root=str(here.parents[1]), backend=backend)
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def _answers(self):
        while True:
            to, size = struct.unpack("<HI", self.process.stdout.read(6))
            payload = self.process.stdout.read(size)
            if to == 65535:
                return
            if to:
                yield Send(payload, to)
            else:
                self.done = True

    def start(self):
        return list(self._answers())

    def handle(self, sender, payload):
        self.process.stdin.write(struct.pack("<HI", sender, len(payload)) + payload)
        self.process.stdin.flush()
        return list(self._answers())

    def memory(self):
        """Every writable mapping of the process, read from outside."""
        parts = []
        with open(f"/proc/{self.process.pid}/maps") as maps, open(f"/proc/{self.process.pid}/mem", "rb", 0) as memory:
            for line in maps:
                place, rights, *rest = line.split()
                start, stop = (int(part, 16) for part in place.split("-"))
                if "w" not in rights or (rest and rest[-1] in ("[vvar]", "[vsyscall]")):
                    continue
                try:
                    memory.seek(start)
                    parts.append(memory.read(stop - start))
                except OSError:
                    continue
        return b"\x00".join(parts)

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()
