"""Six silos and a server wired by hand: the drivers, and whoever is to vanish, restart or come late."""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path

from fedgmi_fedml.config import load_config
from fedgmi_fedml.data import load_federation
from fedgmi_fedml.rounds import fedgmi
from fedgmi_fedml.rounds.agreement import Agreement
from fedgmi_fedml.rounds.local import FedGMIWork
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.server import ServerRun
from fedgmi_fedml.rounds.silo import SiloRun
from fedgmi_fedml.rounds.store import StateStore
from fedgmi_fedml.rounds.wire import Plan, decode
from fedgmi_fedml.rounds.workbench import Workbench
from fedgmi_fedml.simulate.host import Start
from fedgmi_fedml.simulate.parties import Parties
from secure.journal import Journal

SMALL = [
    "train_args.client_num_in_total=6", "train_args.client_num_per_round=6", "train_args.comm_round=3",
    "train_args.epochs=1", "fedgmi_args.initialisation.candidate_rounds=1", "validation_args.evaluate_baselines=[]",
    "fedgmi_args.initialisation.candidate_epochs=1", "fedgmi_args.initialisation.warmup_rounds=2",
    "fedgmi_args.initialisation.cohort_size=5", "fedgmi_args.initialisation.candidates=2",
    "model_args.vae_options={hidden: [16], latent: 2, likelihood: bernoulli}",
]  # fmt: skip
RUN = "digits/fedgmi"


class Net:
    """Six silos and a server, wired by hand: whoever is ``down`` hears and says nothing."""

    def __init__(self, folder: Path, changes: tuple[str, ...] = (), down: tuple[int, ...] = ()):
        self.config = load_config("digits", [*SMALL, *changes])
        self.folder, self.federation = folder, load_federation(self.config)
        self.parties = Parties(self.config, self.federation, 1, folder)
        self.host = self.parties.hosts[0]
        self.phases = Phases(self.config, self.federation.shape)
        self.journals = {i: Journal() for i in self.parties.ids}
        self.works: dict[int, FedGMIWork] = {}
        self.runs: dict[int, SiloRun] = {}
        self.down, self.queue, self.notes, self.saved = set(down), deque(), [], []
        self.agreements: list[Agreement] = []
        self.heard: list[tuple[int, object]] = []
        self.on_message = lambda silo, message: None
        self.start_server()
        for i in self.parties.ids:
            self.boot(i)

    def start_server(self, resume=None, agreed=None, first_attempt=0):
        self.script = fedgmi.FedGMI(save=self.saved.append, resume=resume)
        self.server = ServerRun(
            self.phases, self.parties.ids, RUN, self.script, self.parties.server, self.folder,
            notify=lambda event, fields: self.notes.append((event, fields)), agreed=agreed,
            keep=self.agreements.append, first_attempt=first_attempt,
        )  # fmt: skip
        self.queue.extend(self.server.start())

    def boot(self, silo: int):
        """A silo process starts (again): nothing but its journal, memory and data is left."""
        old = self.works.get(silo)
        work = FedGMIWork(silo, self.federation.silos[silo - 1], Workbench(self.phases))
        if old is not None:
            work.remember(old.memory)
        start = Start("fedgmi", RUN, self.parties.roster, {}, self.parties.now)
        self.works[silo] = work
        self.runs[silo] = SiloRun(
            silo, self.phases, work, StateStore(8), run_id=RUN, class_names=self.federation.class_names,
            credentials=self.host._credentials(silo, start, self.config), journal=self.journals[silo],
            spool_dir=self.folder / str(silo), nonce=lambda: hashlib.sha256(b"n%d" % silo).digest(),
        )  # fmt: skip
        if silo not in self.down:
            self.up(silo, self.runs[silo].start())

    def up(self, silo, replies):
        for payload in replies:
            if silo not in self.down:
                self.queue.extend(self.server.handle(silo, payload))

    def kill(self, silo):
        self.down.add(silo)
        self.queue.extend(self.server.lost(silo))

    def revive(self, silo):
        self.down.discard(silo)
        self.boot(silo)

    def restart_server(self):
        """Killed: what was on its way is gone; what it had saved is not. Silos notice a new server and join again."""
        self.queue.clear()
        self.start_server(self.saved[-1], Agreement.from_bytes(self.agreements[-1].to_bytes()), first_attempt=16)
        for silo in self.parties.ids:
            if silo not in self.down:
                self.up(silo, self.runs[silo].start())

    def run(self):
        for _ in range(100_000):
            if self.server.finished:
                return self.script.progress
            if not self.queue:
                self.queue.extend(self.server.deadline())
                continue
            out = self.queue.popleft()
            if out.to in self.down:
                continue
            message = decode(out.payload)
            self.heard.append((out.to, message))
            self.on_message(out.to, message)
            if out.to not in self.down:
                self.up(out.to, self.runs[out.to].handle(out.payload))
        raise AssertionError("the run does not end")


def once(condition, action):
    """Do something at the first message that fulfils a condition."""
    done = []

    def look(silo, message):
        if not done and condition(silo, message):
            done.append(True)
            action()

    return look


def plan(phase, number, silo=1):
    return lambda to, message: isinstance(message, Plan) and to == silo and (message.phase, message.round) == (
        phase, number,
    )  # fmt: skip
