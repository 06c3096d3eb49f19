"""A silo dies or falls silent before and after every message of a round: the others go on, and it comes back."""

from __future__ import annotations

import pytest
from federation_harness import Federation, Killed

from fedgmi_fedml.rounds.wire import InSession, Plan, Ready, decode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

ROUND = ("rounds", 1)
MESSAGES = 9
"""At least so many a silo sends in one round: ready, and the steps of its session (a test counts them)."""

SILOS = ("train_args.client_num_in_total=6", "train_args.client_num_per_round=6", "train_args.comm_round=5")


def of_round(message) -> bool:
    """Whether a silo's message belongs to the round's first attempt."""
    return isinstance(message, (Ready, InSession)) and (message.phase, message.round) == ROUND and message.attempt == 0


class Trap:
    """Ends a silo's process at its message number ``number`` of the round: ``before`` it leaves, or ``after``."""

    def __init__(self, process, number, when, silently=False):
        self.process, self.number, self.when, self.silently, self.seen = process, number, when, silently, 0
        transport = process.transport
        self.send = transport.send
        transport.send = self

    def __call__(self, payload):
        if not of_round(decode(payload)):
            self.send(payload)
            return
        self.seen += 1
        if self.seen - 1 != self.number:
            self.send(payload)
            return
        if self.when == "after":
            self.send(payload)
        self.process.transport.dead = True
        if self.silently:  # the line is there, but nobody speaks: no one tells the server
            self.process.transport.close = lambda: None
        raise Killed


def finish(federation, dead):
    """Restart the dead, and see everybody finish with the same models."""
    federation.join(*dead)
    assert all(isinstance(federation.ends[i], Killed) for i in dead), federation.ends
    for i in dead:
        federation.start(i, federation.silo(i))
    federation.join()
    ends = {who: getattr(end, "status", end) for who, end in federation.ends.items()}
    assert set(ends.values()) == {"finished"}, ends
    digests = {str(federation.summary(f"silo-{i}")["model_digests"]) for i in federation.ids}
    assert digests == {str(federation.summary()["model_digests"])}
    lines = {(line["phase"], line["round"]): line for line in federation.rounds()}
    assert lines["rounds", 4]["complete"], "all are back in the last round"
    assert not any(line["failed_sessions"] for line in lines.values()), "no round was lost"
    return lines


def test_how_many_messages_a_silo_sends_in_a_round(tmp_path):
    federation = Federation(tmp_path, *SILOS, silos=6)
    traps = [Trap(process, -1, "never") for process in federation.start_all().values()]
    federation.join()
    assert min(trap.seen for trap in traps) >= MESSAGES


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(MESSAGES))
def test_killed_at_every_message(tmp_path, number, when):
    federation = Federation(tmp_path, *SILOS, silos=6)
    federation.start_all(but=(3,))
    process = federation.silo(3)
    Trap(process, number, when)
    federation.start(3, process)
    finish(federation, (3,))


@pytest.mark.parametrize("number", [0, 2, 4, 6, 8])
def test_silent_from_a_message_on(tmp_path, number):
    """Its process hangs, its line stays: deadlines take the place of the transport's word."""
    quick = ("fedgmi_args.secure.deadlines.ready=2", "fedgmi_args.secure.deadlines.step=1")
    federation = Federation(tmp_path, *SILOS, *quick, "fedgmi_args.secure.deadlines.upload=1", silos=6)
    federation.start_all(but=(3,))
    process = federation.silo(3)
    Trap(process, number, "before", silently=True)
    federation.start(3, process)
    finish(federation, (3,))


@pytest.mark.parametrize("number", [0, 1, 3, 5, 7])
def test_two_killed_at_once(tmp_path, number):
    """One more than may drop: the round is repeated with whom the rules allow."""
    more = ("train_args.client_num_in_total=9", "train_args.client_num_per_round=9", "train_args.comm_round=5")
    federation = Federation(tmp_path, *more, "data_args.silo_mixture.samples_per_silo=40", silos=9)
    federation.start_all(but=(3, 7))
    for i in (3, 7):
        process = federation.silo(i)
        Trap(process, number, "before")
        federation.start(i, process)
    finish(federation, (3, 7))


def test_a_silo_that_comes_late(tmp_path):
    """It is not there when the run begins, and takes part from the next round on."""
    federation = Federation(tmp_path, *SILOS, "fedgmi_args.secure.deadlines.join=1", silos=6)
    waiting = federation.net.server
    federation.start_all(but=(3,))
    seen = []

    def on_send(silo, payload):
        message = decode(payload)
        if isinstance(message, Plan) and (message.phase, message.round) == ("rounds", 0) and not seen:
            seen.append(1)
            federation.start(3, federation.silo(3))

    waiting.on_send = on_send
    federation.join()
    federation.join()  # silo 3's thread, too
    assert {getattr(end, "status", end) for end in federation.ends.values()} == {"finished"}
    assert federation.rounds()[-1]["complete"]
    assert federation.summary("silo-3")["model_digests"] == federation.summary()["model_digests"]
