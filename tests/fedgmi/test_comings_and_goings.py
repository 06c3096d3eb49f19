"""Silos that vanish, restart or come late, a server that is restarted: the drivers go on, and end in the same bits."""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path

import pytest

from fedgmi_fedml.config import load_config
from fedgmi_fedml.data import load_federation
from fedgmi_fedml.rounds import fedgmi
from fedgmi_fedml.rounds.agreement import Agreement, witness, witnessed_by
from fedgmi_fedml.rounds.local import FedGMIWork
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.server import ServerRun
from fedgmi_fedml.rounds.silo import SiloRun
from fedgmi_fedml.rounds.store import StateStore
from fedgmi_fedml.rounds.wire import Again, Agreed, Finish, InSession, Join, Plan, decode, encode
from fedgmi_fedml.rounds.workbench import Workbench
from fedgmi_fedml.simulate.host import Start
from fedgmi_fedml.simulate.parties import Parties
from secure.errors import PolicyRefusal
from secure.identity import Identity
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Net(tmp_path_factory.mktemp("whole")).run().state.digest


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


@pytest.mark.parametrize("phase", ["warmup", "rounds"])
def test_a_silo_that_dies_is_missed_for_a_round_and_comes_back(tmp_path, phase):
    net = Net(tmp_path)
    second = once(plan("rounds", 2), lambda: None)

    def look(silo, message):
        if plan(phase, 1)(silo, message) and not net.down:
            net.kill(6)
        if net.down and isinstance(message, Plan) and (message.phase, message.round) == ("rounds", 2):
            net.revive(6)
        second(silo, message)

    net.on_message = look
    progress = net.run()
    assert net.script.outcome == "finished"
    assert progress.round == 3
    rounds = [f for event, f in net.notes if event == "round" and f["phase"] == "rounds"]
    assert [f["survivors"] for f in rounds][0 if phase == "warmup" else 1] == 5
    assert any(event == "left" and f["silo"] == 6 for event, f in net.notes)
    evaluated = [f for event, f in net.notes if event == "round" and f["phase"] == "evaluate"]
    assert evaluated[0]["survivors"] == 6, "it takes part again"
    assert net.runs[6].finished is not None
    assert net.runs[6].finished.final_digest == progress.state.digest
    assert progress.state.digest in net.runs[6].store


def test_a_silo_that_comes_late_takes_the_witnessed_beacon(tmp_path):
    net = Net(tmp_path, down=(4,))
    net.on_message = once(plan("rounds", 0), lambda: net.revive(4))
    net.run()
    assert net.script.outcome == "finished"
    assert net.agreements[-1].members == (1, 2, 3, 5, 6)
    assert net.runs[4]._beacon == net.server.beacon
    survivors = [f["survivors"] for event, f in net.notes if event == "round" and f["phase"] == "rounds"]
    assert survivors == [5, 6, 6]


def test_a_beacon_that_too_few_have_witnessed_is_not_taken_over(tmp_path):
    net = Net(tmp_path)
    net.run()
    agreed = net.agreements[-1]
    signatures = dict(agreed.witnesses)
    assert len(signatures) == 6
    assert witnessed_by(net.parties.roster, RUN, agreed.beacon, agreed.members, signatures) == net.parties.ids
    liar = Identity.generate()
    forged = {i: witness(liar, RUN, b"x" * 32, agreed.members) for i in agreed.members}
    for beacon, members, witnesses in (
        (b"x" * 32, agreed.members, signatures), (b"x" * 32, agreed.members, forged),
        (agreed.beacon, agreed.members[1:], signatures), (agreed.beacon, agreed.members, {1: signatures[1]}),
        (agreed.beacon, agreed.members, {}),
    ):  # fmt: skip
        net.journals[2] = Journal()
        net.down = {2}
        net.boot(2)
        silo = net.runs[2]
        assert list(silo.handle(encode(Agreed(beacon, members, dict(witnesses))))) == []
        assert silo._beacon == b""
    net.journals[2].note_beacon(RUN, b"y" * 32)
    list(silo.handle(encode(Agreed(agreed.beacon, agreed.members, signatures))))
    assert silo._beacon == b"", "one beacon a run, whatever the server shows later"
    with pytest.raises(PolicyRefusal):
        net.journals[2].note_beacon(RUN, agreed.beacon)


@pytest.mark.parametrize("moment", ["plan", "session", "ready"])
def test_a_restarted_server_ends_in_the_same_models(tmp_path, undisturbed, moment):
    net = Net(tmp_path)
    when = {
        "plan": plan("rounds", 1, silo=6),
        "ready": plan("warmup", 3, silo=6),
        "session": lambda to, m: isinstance(m, InSession) and (m.phase, m.round, to) == ("rounds", 1, 5),
    }[moment]
    net.on_message = once(when, net.restart_server)
    progress = net.run()
    assert net.script.outcome == "finished"
    assert progress.state.digest == undisturbed
    assert all(run.finished and run.finished.final_digest == undisturbed for run in net.runs.values())


def test_a_server_restarted_amid_the_uploads_repeats_the_round_with_the_same_silos(tmp_path, undisturbed):
    """Totals are out by then: silos would refuse another cohort from the same models."""
    net = Net(tmp_path)

    def look(to, message):
        if isinstance(message, InSession) and (message.phase, message.round) == ("rounds", 1) and to == 4:
            session = net.server._steps[0]._session
            if session is not None and session.state == "uploads" and not net.server.first_attempt:
                net.restart_server()
                exposed = net.server.agreement.exposed
                assert exposed[message_start(net)] == (net.parties.ids,)

    def message_start(net):
        return net.saved[-1].state.digest

    net.on_message = look
    progress = net.run()
    assert net.server.first_attempt == 16
    assert progress.state.digest == undisturbed


def test_a_silo_that_vanishes_before_it_reveals_makes_the_others_start_over(tmp_path):
    net = Net(tmp_path)
    net.on_message = once(lambda to, m: type(m).__name__ == "Commitments" and to == 1, lambda: net.kill(3))
    net.run()
    assert any(isinstance(message, Again) for _, message in net.heard)
    assert net.agreements[-1].members == (1, 2, 4, 5, 6)
    assert net.script.outcome == "finished"


def test_a_silo_reveals_a_few_times_only(tmp_path):
    net = Net(tmp_path)
    silo = net.runs[1]
    shown = 0
    for _ in range(6):
        replies = [decode(r) for r in silo.handle(encode(Again("vanished")))]
        assert [type(r) for r in replies] == [Join]
        commitments = {1: replies[0].nonce_commitment, 2: b"c" * 32}
        from fedgmi_fedml.rounds.wire import Commitments

        shown += len(list(silo.handle(encode(Commitments(commitments)))))
    assert shown == 3


@pytest.mark.parametrize("policy", ["continue", "stop"])
def test_a_silo_that_raises(tmp_path, policy):
    net = Net(tmp_path, (f"fedgmi_args.on_silo_error={policy}",))

    def fail(given, state, work=net.works[3].work):
        if given.phase == "rounds" and given.round == 1:
            raise MemoryError("not for the server: /secret/path")
        return work(given, state)

    net.works[3].work = fail
    net.run()
    failed = [f for event, f in net.notes if event == "silo_failed"]
    assert failed == [{"silo": 3, "round": 1, "error": "MemoryError"}]
    finish = net.runs[1].finished
    if policy == "continue":
        assert net.script.outcome == "finished"
        assert not finish.failed
    else:
        assert net.script.outcome == "failed"
        assert finish.failed
        assert finish.reason == "silo 3 failed in rounds 1: MemoryError"
        assert net.script.progress.state.digest == finish.final_digest, "the last whole models are kept"
    assert "secret" not in repr(net.notes)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("package_version", "0.0.9", "package version differs from the server's: 0.0.9 here"),
        ("wire_version", 1, "wire version"),
        ("backend", "none", "back-end"),
        ("input_shape", (3, 8, 8), "input shape differs from the server's: (3, 8, 8) here, (1, 8, 8) there"),
        ("class_names", ("a",), "number of classes differs from the server's: 1 here, 10 there"),
        ("class_names", tuple("abcdefghij"), "list of classes"),
        ("models_schema", b"x" * 32, "model schema"),
    ],
)
def test_whoever_differs_is_told_the_first_difference(tmp_path, field, value, named):
    net = Net(tmp_path, down=(2,))
    (join,) = net.runs[2].start()
    from dataclasses import replace

    changed = replace(decode(join), **{field: value})
    out = [decode(o.payload) for o in net.server.handle(2, encode(changed)) if o.to == 2]
    assert [type(m) for m in out] == [Finish]
    assert out[0].failed
    assert named in out[0].reason


def test_the_differing_setting_is_named(tmp_path):
    net = Net(tmp_path, down=(2,))
    other = load_config("digits", [*SMALL, "train_args.epochs=7"])
    from dataclasses import replace

    (join,) = net.runs[2].start()
    changed = replace(decode(join), config_digest=other.digest(), config_items=other.item_digests())
    (out,) = [decode(o.payload) for o in net.server.handle(2, encode(changed)) if o.to == 2]
    assert "train_args.epochs" in out.reason


def test_a_join_of_another_wire_format_is_answered(tmp_path):
    import msgpack

    net = Net(tmp_path, down=(2,))
    (out,) = [o for o in net.server.handle(2, msgpack.packb(["Join", 2, 1, "0.0.1"])) if o.to == 2]
    assert "wire version 2" in decode(out.payload).reason


def test_a_network_that_is_down_spends_no_rounds(tmp_path, undisturbed):
    """All links are lost between two rounds; the silos come back one by one."""
    net = Net(tmp_path)
    deadline, lost = net.server.deadline, []

    def look(to, message):
        if plan("rounds", 1)(to, message) and not lost:
            lost.extend(net.parties.ids)
            for silo in net.parties.ids:
                net.kill(silo)

    def time_is_up():
        if net.down and net.server.stage == "waiting for silos":
            net.revive(min(net.down))
            return []
        return deadline()

    net.on_message, net.server.deadline = look, time_is_up
    progress = net.run()
    assert net.script.outcome == "finished"
    rounds = [f for event, f in net.notes if event == "round" and f["phase"] == "rounds"]
    assert [f["survivors"] for f in rounds] == [6, 0, 4]
    assert progress.round == 3
    assert progress.state.digest != undisturbed


def test_a_candidate_that_no_cohort_trained_is_not_chosen(tmp_path):
    """One left as it began is unlike all others, and greedy selection would take it."""
    net = Net(tmp_path, ("fedgmi_args.initialisation.candidates=4",))

    def look(to, message):
        if isinstance(message, Plan) and message.phase == "candidates" and to == 1:
            if message.round == 1:
                for silo in (3, 4, 5):
                    net.kill(silo)
            elif message.round == 2:
                for silo in sorted(net.down):
                    net.revive(silo)

    net.on_message = look
    net.run()
    (selected,) = [f for event, f in net.notes if event == "selected"]
    assert selected["candidates"] == 2
    assert net.script.outcome == "finished"
