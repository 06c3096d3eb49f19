"""Silos that vanish, restart or come late, a server that is restarted: the drivers go on, and end in the same bits."""

from __future__ import annotations

import pytest
from net import Net, once, plan

from fedgmi_fedml.rounds.wire import InSession, Plan


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Net(tmp_path_factory.mktemp("whole")).run().state.digest


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


@pytest.mark.parametrize(("colluders", "least"), [(1, 4), (2, 6)])
def test_a_network_that_is_down_spends_no_rounds(tmp_path, colluders, least):
    """All links are lost between two rounds; the silos come back one by one. With two colluders the gate is five, but
    only six silos keep the rules."""
    rules = (f"fedgmi_args.secure.rules.colluders={colluders}", "fedgmi_args.initialisation.cohort_size=6")
    net = Net(tmp_path, rules)
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
    assert [f["survivors"] for f in rounds] == [6, 0, least]
    assert progress.round == 3
    assert progress.state.digest != Net(tmp_path / "undisturbed", rules).run().state.digest


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
