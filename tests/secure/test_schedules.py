"""Random schedules of drops, duplicates, reorderings, replays, delays, deaths and deadlines over repeated attempts.

Whatever happens: no wrong sum, no hang, every session terminal within a bound on events, and all sums ever released
from one starting point are of one survivor set of one cohort.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from adversarial import row
from harness import SERVER, Drive, SessionReleased, World
from test_properties import never_wrong, values_of

from secure.codec import peek_kind
from secure.messages import Release
from secure.types import Block, MetricSpec, Rules, StatisticSpec, VectorSpec

SPEC = VectorSpec(
    2,
    (Block("a", 300, 8.0, 0), Block("b", 301, 1.0, 1)),
    (MetricSpec("loss", 1e4, 1e-3), MetricSpec("hits", 1e4, 1.0, 1)),
    (StatisticSpec("mean", 100.0, 1e-6),),
)
EVENTS = 6_000
"""Most events of one attempt: far above what any schedule needs."""


def run_checks_sums(run):
    """Without tags a release is as good as its transport: silos notice at the next round's digest of the models."""
    return run.params.rules.verified_sums


class Chaos:
    """One attempt under a schedule: every choice comes from ``draw``."""

    def __init__(self, run, draw, old, rates):
        self.run, self.draw, self.old, self.rates = run, draw, old, rates
        self.held = []
        run.on_send = self.send

    def send(self, sender, receiver, payload):
        """Drop, repeat, hold back, or slip in an old message."""
        kinds = ("drop", "twice", "hold", "replay", "flip")
        what = self.draw.choices((*kinds, "pass"), [*(self.rates[kind] for kind in kinds), 1.0])[0]
        if what == "drop":
            return []
        if what == "twice":
            return [payload, payload]
        if what == "hold":
            self.held.append((sender, receiver, payload))
            return []
        if what == "replay" and self.old:
            self.run.queue.append(self.draw.choice(self.old))
        if what == "flip" and (peek_kind(payload) != Release.KIND or run_checks_sums(self.run)):
            place = self.draw.randrange(len(payload))
            return [payload[:place] + bytes([payload[place] ^ (1 << self.draw.randrange(8))]) + payload[place + 1 :]]
        return [payload]

    def step(self):
        """One event: a delivery, a piece, a late message, a death, a deadline."""
        run, draw = self.run, self.draw
        dice = draw.random()
        silos = [silo for silo in run.params.cohort if silo not in run.dead]
        if dice < self.rates["death"] and silos:
            run.kill(draw.choice(silos))
        elif dice < self.rates["death"] + self.rates["lost"] and silos:
            run.from_server(run.server.lost(draw.choice(silos)))
        elif dice < self.rates["death"] + self.rates["lost"] + self.rates["early deadline"]:
            self.deadline(draw.choice([SERVER, *silos]))
        elif self.held and (dice < 0.2 or not run.queue):
            run.queue.append(self.held.pop(draw.randrange(len(self.held))))
        elif run.uploads and dice < 0.6:
            self.upload()
        elif not run.step():
            return False
        return True

    def pick(self, queue):
        """Any link's first message; rarely one that overtakes others on its own link."""
        place = self.draw.randrange(len(queue))
        if self.draw.random() < self.rates["overtake"]:
            return place
        link = queue[place][:2]
        return next(index for index, item in enumerate(queue) if item[:2] == link)

    def upload(self):
        run = self.run
        silo = self.draw.choice(sorted(run.uploads))
        event = next(run.uploads[silo], None)
        if event is None:
            del run.uploads[silo]
        else:
            run.from_silo(silo, [event])

    def deadline(self, who):
        run = self.run
        if who == SERVER:
            run.from_server(run.server.deadline())
        else:
            run.from_silo(who, run.silos[who].deadline())

    def play(self):
        run = self.run
        run.pick = self.pick
        run.from_server(run.server.start())
        for _ in range(EVENTS):
            if self.step():
                continue
            if not run.server.done:
                run.deadlines += 1
                assert run.deadlines < 20, "the server hangs"
                run.from_server(run.server.deadline())
                continue
            waiting = [s for s, session in run.silos.items() if not session.done and s not in run.dead]
            if not waiting:
                return
            for silo in waiting:
                run.from_silo(silo, run.silos[silo].deadline())
        raise AssertionError("the session does not end")


CALM = {"drop": 0.0, "twice": 0.02, "hold": 0.0, "replay": 0.0, "flip": 0.0, "death": 0.0, "lost": 0.0,
        "early deadline": 0.0, "overtake": 0.0}  # fmt: skip


def rates_of(draw):
    """From reorderings only to everything at once."""
    rates = dict(CALM)
    for name in draw.sample(sorted(rates), draw.randrange(5)):
        rates[name] = draw.choice((0.001, 0.004, 0.015))
    return rates


def schedule(seed):
    """Up to three attempts at one round; returns how many sums were released."""
    draw = random.Random(seed)
    silos = draw.randint(4, 7)
    rules = Rules(max_drops=draw.randint(0, 1), min_contributors=3, verified_sums=draw.random() < 0.3)
    rules = rules if silos > 4 else replace(rules, max_drops=1)
    world = World(range(1, silos + 1), rules=rules)
    data = values_of(SPEC, world.silos, seed, extreme=draw.random() < 0.3)
    data = ({silo: tuple(max(n, 60.0) for n in held) for silo, held in data[0].items()}, *data[1:])
    if draw.random() < 0.2:
        data[0][1] = (0.0, 5.0)
    params, old, voids, sums = world.params(spec=SPEC), [], (), set()
    cohort = world.silos
    for attempt in range(draw.randint(1, 3)):
        now = replace(params, attempt=attempt, cohort=cohort)
        run = Drive(world, now, expected=dict.fromkeys(cohort, params), data=data, seed=(seed, attempt), voids=voids)
        Chaos(run, draw, old, rates_of(draw)).play()
        if never_wrong(run):
            released = [
                e.aggregate for e in (run.server_outcome, *run.outcome.values()) if isinstance(e, SessionReleased)
            ]
            sums |= {(aggregate.cohort, aggregate.survivors, aggregate.values.tobytes()) for aggregate in released}
        old, voids = draw.sample(run.sent, min(40, len(run.sent))), run.server.voids
        if draw.random() < 0.4 and len(cohort) > world.policy.min_cohort:
            out = draw.choice(cohort)
            cohort = tuple(silo for silo in cohort if silo != out)
    assert len(sums) <= 1, "two different sums were released from one starting point"
    return len(sums)


@row("schedules")
def test_some_schedules():
    outcomes = [schedule(seed) for seed in range(16)]
    assert 6 < sum(outcomes) < 16  # both ends are reached: sums and aborts


@row("schedules")
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(10))
def test_a_thousand_schedules(block):
    outcomes = [schedule(seed) for seed in range(1000 + 100 * block, 1100 + 100 * block)]
    assert 30 < sum(outcomes) < 100
