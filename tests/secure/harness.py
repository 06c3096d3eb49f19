"""In-memory driver: K silo sessions and a server session over links that tests may cut, repeat, delay or alter.

    world = World(range(1, 11))
    run = Drive(world, world.params())
    run.on_send = drop(Uploaded, silo=3)
    run.go()
    run.server_outcome, run.outcome[3], run.totals[3]

A hook is called for every message as ``hook(sender, receiver, payload)`` (0 is the server) and returns the payloads to
deliver instead: ``[]`` drops it, ``[payload, payload]`` repeats it. When no message is under way, the server's deadline
passes; when the server has ended, the silos' deadlines do.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import replace

import numpy as np

from secure.api import (
    Contribution,
    Credentials,
    Send,
    SessionAbortedEvent,
    SessionReleased,
    SessionSurveyed,
    TotalsKnown,
    open_server,
    open_silo,
)
from secure.codec import decode, encode, peek_kind
from secure.gate import infeasible
from secure.identity import Identity
from secure.journal import Journal
from secure.messages import Abort, Piece
from secure.policy import Policy
from secure.roster import Roster, RosterEntry
from secure.types import Block, MetricSpec, Rules, SessionParams, StatisticSpec, VectorSpec

SERVER = 0
NOW = 1_900_000_000

SPEC = VectorSpec(
    components=2,
    blocks=(Block("vae.0", 700, 8.0, 0), Block("vae.1", 500, 8.0, 1), Block("expert.1", 333, 1.0, 1)),
    metrics=(MetricSpec("loss", 1e6, 1e-3), MetricSpec("hits.1", 1e4, 1.0, 1)),
    statistics=(StatisticSpec("mean.0", 100.0, 1e-6), StatisticSpec("mean.1", 100.0, 1e-6)),
)


class Replay:
    """A source of randomness that tests can repeat; every party has its own."""

    def __init__(self, *seed: object) -> None:
        self._key, self._count = repr(seed).encode(), 0

    def __call__(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            self._count += 1
            out += hashlib.sha256(self._key + self._count.to_bytes(8, "big")).digest()
        return out[:size]


class World:
    """Identities, roster, policies and journals of a federation, which outlive sessions."""

    def __init__(self, silos=range(1, 7), *, rules=None, organisations=None, seed=0, **policy):
        self.silos, self.seed, self.rules = tuple(silos), seed, rules or Rules()
        self.organisations = {silo: (organisations or {}).get(silo, f"org {silo}") for silo in self.silos}
        self.identities = {silo: Identity.generate(Replay(seed, "identity", silo)) for silo in self.silos}
        self.server_identity = Identity.generate(Replay(seed, "server"))
        self.operator = Identity.generate(Replay(seed, "operator"))
        self.roster = Roster.issue(
            self.operator,
            version=1,
            issued=NOW - 1000,
            expires=NOW + 10**8,
            silos=[
                RosterEntry(silo, f"silo {silo}", self.organisations[silo], self.identities[silo].public_key)
                for silo in self.silos
            ],
            server_key=self.server_identity.public_key,
        )
        smallest = next(k for k in range(3, 129) if not infeasible(k, self.rules))
        settings = {"rules": self.rules, "min_cohort": smallest, **policy}
        self.policy = Policy.for_roster(self.roster, NOW, **settings)
        self.journals = {silo: Journal() for silo in self.silos}

    def credentials(self, silo):
        """A silo's, or with 0 the server's."""
        if silo == SERVER:
            return Credentials(self.server_identity, self.roster)
        return Credentials(self.identities[silo], self.roster, self.policy)

    def params(self, **changes):
        """Session parameters of this federation."""
        settings = {
            "run_id": "run",
            "phase": "rounds",
            "round": 0,
            "attempt": 0,
            "backend": "masked",
            "cohort": self.silos,
            "spec": SPEC,
            "start_digest": b"s" * 32,
            "config_digest": b"c" * 32,
            "roster_digest": self.roster.digest(),
            "rules": self.rules,
            "piece_bytes": 1024,
        }
        return SessionParams(**{**settings, **changes})


def inputs(params, seed=0, scale=0.05):
    """Samples, statistics, vectors and metrics of every silo; all hold every component."""
    draw = np.random.default_rng(seed)
    samples, statistics, vectors, metrics = {}, {}, {}, {}
    for silo in params.cohort:
        samples[silo] = tuple(float(n) for n in draw.integers(20, 400, params.spec.components))
        statistics[silo] = tuple(float(x) for x in draw.normal(0, 20, len(params.spec.statistics)))
        vectors[silo] = draw.normal(0, scale, params.spec.length).astype(np.float32)
        metrics[silo] = {m.name: float(draw.uniform(-1, 1) * min(m.bound, 1000)) for m in params.spec.metrics}
    return samples, statistics, vectors, metrics


class Drive:
    """One session, driven to its end."""

    def __init__(self, world, params, *, data=None, expected=None, spool_dir=None, seed=0, voids=(), journals=None):
        self.world, self.params = world, params
        self.samples, self.statistics, self.vectors, self.metrics = data or inputs(params, seed)
        self.server = open_server(
            params,
            credentials=world.credentials(SERVER),
            spool_dir=spool_dir,
            random=Replay(seed, "server", params.attempt),
            voids=voids,
        )
        journals = journals or world.journals
        self.silos = {
            silo: open_silo(
                silo,
                (expected or {}).get(silo, params),
                Contribution(self.samples[silo], self.statistics[silo]),
                credentials=world.credentials(silo),
                journal=journals[silo],
                random=Replay(seed, "silo", silo, params.round, params.attempt),
            )
            for silo in params.cohort
        }
        self.on_send = lambda sender, receiver, payload: [payload]
        self.pick = None  # pick(queue) -> index of the next delivery
        self.queue, self.uploads = deque(), {}
        self.outcome, self.totals, self.server_outcome = {}, {}, None
        self.sent = []  # (sender, receiver, payload), as sent, before the hook
        self.dead, self.deadlines = set(), 0

    def send(self, sender, receiver, payload):
        """Put a message on its link."""
        self.sent.append((sender, receiver, payload))
        if sender in self.dead or receiver in self.dead:
            return
        for item in self.on_send(sender, receiver, payload):
            self.queue.append((sender, receiver, item))

    def from_server(self, events):
        """Take events of the server's session."""
        for event in events:
            if isinstance(event, Send):
                self.send(SERVER, event.to, event.payload)
            else:
                assert self.server_outcome is None, "two terminal events"
                self.server_outcome = event

    def from_silo(self, silo, events):
        """Take events of a silo's session; uploads are drained one message at a time."""
        for event in events:
            if isinstance(event, Send):
                self.send(silo, SERVER, event.payload)
            elif isinstance(event, TotalsKnown):
                self.totals[silo] = event.totals
                if any(event.totals.open) and not self.params.survey:
                    events_left = self.silos[silo].submit(self.vectors[silo], self.metrics[silo])
                    self.uploads[silo] = iter(events_left)
            else:
                assert silo not in self.outcome, "two terminal events"
                self.outcome[silo] = event

    def step(self):
        """Deliver one message or upload one piece; False when nothing is under way."""
        if self.queue:
            index = self.pick(self.queue) if self.pick else 0
            sender, receiver, payload = self.queue[index]
            del self.queue[index]
            if sender in self.dead or receiver in self.dead:
                return True
            if receiver == SERVER:
                self.from_server(self.server.handle(sender, payload))
            else:
                self.from_silo(receiver, self.silos[receiver].handle(payload))
            return True
        for silo in list(self.uploads):
            event = next(self.uploads[silo], None)
            if event is None or silo in self.dead:
                del self.uploads[silo]
            else:
                self.from_silo(silo, [event])
            return True
        return False

    def settle(self, limit=100_000):
        """Until nothing is under way."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError("messages never cease")

    def go(self, deadlines=20):
        """From the proposal to terminal events everywhere."""
        self.from_server(self.server.start())
        self.settle()
        while not self.server.done and self.deadlines < deadlines:
            self.deadlines += 1
            self.from_server(self.server.deadline())
            self.settle()
        assert self.server.done, "the server hangs"
        for silo, session in self.silos.items():
            if not session.done and silo not in self.dead:
                self.from_silo(silo, session.deadline())
        self.settle()
        return self

    def kill(self, silo):
        """A silo's process dies: nothing comes from it or reaches it any more."""
        self.dead.add(silo)
        self.uploads.pop(silo, None)

    @property
    def aggregate(self):
        """The released aggregate."""
        assert isinstance(self.server_outcome, SessionReleased), self.server_outcome
        return self.server_outcome.aggregate

    def bytes_of(self, kind, silo=None):
        """Payloads of one kind, in the order in which they were sent."""
        return [
            payload for sender, _, payload in self.sent if peek_kind(payload) == kind.KIND and silo in (None, sender)
        ]


def _matches(kind, silo, sender, receiver, payload):
    return peek_kind(payload) == kind.KIND and silo in (None, sender, receiver)


def drop(kind, silo=None):
    """Hook: messages of a kind from or to a silo never arrive."""
    return lambda s, r, payload: [] if _matches(kind, silo, s, r, payload) else [payload]


def duplicate(kind, silo=None):
    """Hook: they arrive twice."""
    return lambda s, r, payload: [payload] * (2 if _matches(kind, silo, s, r, payload) else 1)


def tamper(kind, change, silo=None, sign=None):
    """Hook: ``change(message)`` replaces them; ``sign`` (an ``Identity``) signs the altered message anew."""

    def hook(sender, receiver, payload):
        if not _matches(kind, silo, sender, receiver, payload):
            return [payload]
        message = change(decode(payload, kind))
        if sign is not None:
            message = replace(message, signature=sign.sign(message.label(), message.body()))
        return [encode(message)]

    return hook


def chain(*hooks):
    """Hook: one after the other."""

    def hook(sender, receiver, payload):
        payloads = [payload]
        for one in hooks:
            payloads = [new for old in payloads for new in one(sender, receiver, old)]
        return payloads

    return hook


def die_before(run, kind, silo):
    """Hook: the silo's process dies when it is about to send its first message of a kind."""

    def hook(sender, receiver, payload):
        if sender == silo and peek_kind(payload) == kind.KIND:
            run.kill(silo)
            return []
        return [payload]

    return hook


def die_after(run, kind, silo):
    """Hook: the silo's process dies right after its first message of a kind left."""
    seen = []

    def hook(sender, receiver, payload):
        if sender == silo and seen:
            run.kill(silo)
            return []
        if sender == silo and peek_kind(payload) == kind.KIND:
            seen.append(True)
        return [payload]

    return hook


__all__ = [
    "NOW",
    "SERVER",
    "SPEC",
    "Abort",
    "Drive",
    "Piece",
    "Replay",
    "SessionAbortedEvent",
    "SessionReleased",
    "SessionSurveyed",
    "World",
    "chain",
    "die_after",
    "die_before",
    "drop",
    "duplicate",
    "inputs",
    "tamper",
]
