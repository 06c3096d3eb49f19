"""A federation in one process for the tests: a server and silos in threads, over queues, each with its own folder.

One party works at a time (``TURN``), for torch's global random generator is shared by all threads of a process.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from pathlib import Path

import torch

from fedgmi_fedml.config import load_config
from fedgmi_fedml.data import load_federation
from fedgmi_fedml.data.announced import announced
from fedgmi_fedml.federation.server import FederationServer
from fedgmi_fedml.federation.silo import FederationSilo
from fedgmi_fedml.rounds.phases import ORDER
from fedgmi_fedml.telemetry.logs import setup_logging
from fedgmi_fedml.transport.api import Arrived, Closed, Delivered, Lost, Opened, Received
from secure.api import Credentials
from secure.gate import smallest_cohort
from secure.identity import Identity
from secure.journal import Journal
from secure.policy import Policy
from secure.roster import Roster, RosterEntry
from secure.types import Rules

torch.set_num_threads(1)
setup_logging("INFO")

SMALL = (
    "train_args.client_num_in_total=5",
    "train_args.client_num_per_round=5",
    "train_args.comm_round=3",
    "train_args.epochs=1",
    "data_args.silo_mixture.samples_per_silo=60",
    "fedgmi_args.initialisation.candidate_rounds=1",
    "fedgmi_args.initialisation.candidate_epochs=1",
    "fedgmi_args.initialisation.candidates=2",
    "fedgmi_args.initialisation.cohort_size=5",
    "fedgmi_args.initialisation.warmup_rounds=1",
    "fedgmi_args.initialisation.kl_samples=32",
    "validation_args.evaluate_baselines=[]",
    "validation_args.frequency_of_the_test=1",
    "model_args.vae_options={hidden: [16], latent: 2, likelihood: bernoulli}",
    "model_args.model_options={hidden: [16]}",
)


TURN = threading.Lock()


def wait_for(events, seconds):
    """The next event or None; others work meanwhile."""
    TURN.release()
    try:
        return events.get(timeout=seconds)
    except queue.Empty:
        return None
    finally:
        TURN.acquire()


class Killed(BaseException):
    """The process is gone: nobody tidies up."""


class QueueServer:
    """The server's end. ``on_send(silo, payload)`` may raise Killed."""

    def __init__(self, net):
        self.net, self.dead, self.on_send, self.closed = net, False, lambda silo, payload: None, False

    def receive(self, seconds):
        if self.dead:
            raise Killed
        return wait_for(self.net.events, seconds)

    def send(self, silo, payload):
        self.on_send(silo, payload)
        link = self.net.links.get(silo)
        if link is not None and not self.dead:
            link.events.put(Delivered(payload))

    def flush(self, seconds):
        return True

    def close(self):
        if not self.dead:
            self.closed = True
            for link in list(self.net.links.values()):
                link.events.put(Closed("the run is over", False))


class QueueSilo:
    """A silo's end. ``on_send(payload)`` and ``on_receive(event)`` may raise Killed."""

    def __init__(self, net, silo):
        self.net, self.silo, self.events, self.dead = net, silo, queue.Queue(), False
        self.on_send = self.on_receive = lambda message: None

    def receive(self, seconds):
        if self.dead:
            raise Killed
        event = wait_for(self.events, seconds)
        if event is not None:
            self.on_receive(event)
        return event

    def send(self, payload):
        self.on_send(payload)
        if not self.dead:
            self.net.events.put(Received(self.silo, payload))

    def flush(self, seconds):
        return True

    def close(self):
        if self.net.links.get(self.silo) is self:
            del self.net.links[self.silo]
            self.net.events.put(Lost(self.silo, "closed"))


class QueueNet:
    """Links by silo; each of the silo's transports is a new process of it."""

    def __init__(self, run_id):
        self.run_id, self.links, self.events = run_id, {}, queue.Queue()
        self.server = QueueServer(self)

    def silo(self, silo):
        link = self.links[silo] = QueueSilo(self, silo)
        self.events.put(Arrived(silo))
        link.events.put(Opened(self.run_id))
        return link

    def restart_server(self):
        self.server.dead = True
        self.events = queue.Queue()
        self.server = QueueServer(self)
        for silo, link in self.links.items():
            self.events.put(Arrived(silo))
            link.events.put(Opened(self.run_id))
        return self.server


class Kits:
    """Keys of everybody, as an operator would have handed them out."""

    def __init__(self, config, silos, folder):
        self.config, self.folder, now = config, folder, int(time.time())
        self.masked = config.fedgmi_args.secure.backend != "none"
        self.identities = {i: Identity.generate() for i in silos}
        operator, self.server_identity = Identity.generate(), Identity.generate()
        entries = [RosterEntry(i, f"clinic-{i}", f"house {i}", key.public_key) for i, key in self.identities.items()]
        self.roster = Roster.issue(
            operator, version=1, issued=now - 60, expires=now + 86_400, silos=entries,
            server_key=self.server_identity.public_key,
        )  # fmt: skip

    def server(self):
        return Credentials(self.server_identity, self.roster) if self.masked else None

    def silo(self, i):
        if not self.masked:
            return None, None
        secure = self.config.fedgmi_args.secure
        rules = Rules(**secure.rules.model_dump())
        policy = Policy.for_roster(
            self.roster, time.time(), rules=rules, backends=(secure.backend,), phases=ORDER, max_clip=secure.clip,
            min_cohort=smallest_cohort(rules),
        )  # fmt: skip
        return Credentials(self.identities[i], self.roster, policy), Journal(self.folder / f"silo-{i}" / "journal")


class Federation:
    """Five silos and a server on digits; ``start`` puts each into a thread, ``join`` collects how they ended."""

    def __init__(self, folder: Path, *changes: str, config="digits", silos=5):
        self.folder, self.run_id = folder, "digits/fedgmi"
        self.changes = (*SMALL, *changes)
        self.config = load_config(config, self.changes)
        self.ids = tuple(range(1, silos + 1))
        self.kits, self.net = Kits(self.config, self.ids, folder), QueueNet(self.run_id)
        self.announced = announced(self.config)
        self.ends: dict[object, object] = {}
        self.threads: dict[object, threading.Thread] = {}

    def server(self, transport=None, **options):
        return FederationServer(
            self.config, self.folder / "server", transport or self.net.server, run_id=self.run_id,
            credentials=self.kits.server(), announced=self.announced, **options,
        )  # fmt: skip

    def silo(self, i, config=None):
        config = config or self.config
        data = load_federation(config, only={i - 1}).silos[i - 1]
        data.name = f"clinic-{i}"
        credentials, journal = self.kits.silo(i)
        return FederationSilo(
            config, data, self.folder / f"silo-{i}", self.net.silo(i), silo=i, credentials=credentials,
            journal=journal, announced=self.announced,
        )  # fmt: skip

    def start(self, who, process):
        def work():
            try:
                with TURN:
                    self.ends[who] = process.run()
            except BaseException as error:  # looked at by the test
                self.ends[who] = error

        self.threads[who] = threading.Thread(target=work, name=str(who), daemon=True)
        self.threads[who].start()
        return process

    def start_all(self, but=()):
        processes = {i: self.silo(i) for i in self.ids if i not in but}
        self.start("server", self.server())
        for i, process in processes.items():
            self.start(i, process)
        return processes

    def join(self, *who, seconds=120):
        limit = time.monotonic() + seconds
        for name in who or tuple(self.threads):
            self.threads[name].join(max(0.0, limit - time.monotonic()))
            assert not self.threads[name].is_alive(), f"{name} is still at work"
        return self.ends

    def summary(self, who="server"):
        return json.loads((self.folder / who / "summary.json").read_text())

    def rounds(self, who="server"):
        return [json.loads(line) for line in (self.folder / who / "rounds.jsonl").read_text().splitlines()]
