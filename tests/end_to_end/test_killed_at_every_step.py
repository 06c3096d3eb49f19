"""Real processes over real sockets, killed with SIGKILL before and after every step of the protocol; two at once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from protocol_steps import IN_TROUBLE, SESSION, SILO_STEPS, of_drivers
from real_processes import ForkedProcesses
from trapped_party import Trap

from fedgmi_fedml.rounds import wire
from secure import messages

QUICK = (
    "comm_args.heartbeat_seconds=0.3", "comm_args.silence_seconds=5", "comm_args.grace_seconds=0.3",
    "comm_args.backoff=[0.05, 0.2]", "fedgmi_args.secure.deadlines.ready=60",
)  # fmt: skip
JOINING, IN_ROUND = SILO_STEPS[: SILO_STEPS.index("Ready")], SILO_STEPS[SILO_STEPS.index("Ready") : -1]
ONE = [Trap(step, when) for step in IN_ROUND for when in ("before", "after")]
TWO = [Trap(step, "before") for step in IN_ROUND]
ROUNDS = 2 * len(ONE + TWO) + 3
"""In one of a case's two rounds silos die, in the next they are missing and start again."""

TEN = (
    "train_args.client_num_in_total=10", "train_args.client_num_per_round=10", f"train_args.comm_round={ROUNDS}",
    "fedgmi_args.secure.rules.max_drops=2", "fedgmi_args.initialisation.cohort_size=10",
)  # fmt: skip
ALL_NEEDED = SILO_STEPS.index("InSession/Receipt")
"""Up to here nobody may be missing: the server repeats the step without whoever is."""

COUNTED = SILO_STEPS.index("InSession/Uploaded")
"""From its arrival on the silo's update counts, whether the silo is there or not."""


class Stage:
    """Ten silos, of which silo 1 keeps every round waiting until the test lets it go on."""

    def __init__(self, processes: ForkedProcesses) -> None:
        self.all, self.hold, self.round = processes, processes.folder / "go", 0
        self.hold.mkdir()

    def let_go(self) -> dict:
        """The present round ends; its line."""
        self.round += 1
        (self.hold / str(self.round - 1)).touch()
        self.all.until(self.all.has_done("rounds", self.round - 1), seconds=60)
        return next(line for line in self.all.rounds() if (line["phase"], line["round"]) == ("rounds", self.round - 1))

    def start(self, silos: tuple[int, ...], trap: Trap | None = None) -> None:
        """These silos start again, and have joined."""
        before = len(self.all.events("joined"))
        for silo in silos:
            self.all.silo(silo, trap=trap)
        self.all.until(lambda: len(self.all.events("joined")) == before + len(silos), seconds=60)

    def killed(self, silos: tuple[int, ...], trap: Trap) -> tuple[int, list[int]]:
        """In the next round these silos die at this step; (attempts, dropped) of that round."""
        self.start(silos, trap)
        self.let_go()  # the round that was planned without them
        line = self.let_go()
        self.see_dead(silos, trap)
        return line["attempts"], line["dropped"]

    def see_dead(self, silos: tuple[int, ...], trap: Trap) -> None:
        for silo in silos:
            assert self.all.running[self.all.name(silo)].wait(30) == -signal.SIGKILL, f"{trap}: silo {silo} lives"
        ended = {name for name, process in self.all.running.items() if process.poll() is not None}
        assert ended == {self.all.name(silo) for silo in silos}, f"{trap}: others have ended, too: {ended}"


def expected(trap: Trap, silos: tuple[int, ...]) -> tuple[int, list[int]]:
    """(attempts, dropped) of the round in which ``silos`` die at a step: what the protocol says."""
    step = SILO_STEPS.index(trap.step) + (trap.when == "after")  # the first of its messages that does not arrive
    if step == SILO_STEPS.index("Ready"):
        return 1, []  # the session begins without them
    if step <= ALL_NEEDED:
        return 2, []
    return 1, list(silos) if step <= COUNTED else []


def test_the_tables_name_every_message() -> None:
    """What the steps are read from is complete: classes and rows are the same."""
    classes = {
        (kind.KIND, name) for name, kind in vars(messages).items()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and 0 < getattr(kind, "KIND", 0) < 32
    }  # fmt: skip
    assert {(number, name) for number, (_, name, _) in SESSION.items()} == classes
    named = {*of_drivers("silo → server"), *of_drivers("server → silo")}
    assert named == set(wire._KINDS)
    assert {name.rpartition("/")[2] for name in IN_TROUBLE} < named | {name for _, name in classes}


def join_all(stage: Stage) -> None:
    """Silos die before and after every step of joining; the others start over or go on, and the run begins."""
    processes = stage.all
    processes.server()
    for i in (1, 2, *range(4, 11)):  # who is told to die as witness is so once the run has begun
        witness = {4: Trap("Witness", "before"), 5: Trap("Witness", "after")}.get(i)
        processes.silo(i, trap=witness, hold=stage.hold if i == 1 else None)
    for step in JOINING[: JOINING.index("Witness")]:
        for when in ("before", "after"):
            trap = Trap(step, when)
            processes.silo(3, trap=trap)
            assert processes.running["silo-003"].wait(60) == -signal.SIGKILL, trap
    processes.silo(3)
    for i in (4, 5):
        assert processes.running[processes.name(i)].wait(60) == -signal.SIGKILL, i
        processes.silo(i)
    processes.until(processes.has_done("warmup", 0))


def kill(stage: Stage, *silos: int) -> None:
    for silo in silos:
        stage.all.running[stage.all.name(silo)].kill()
        stage.all.running[stage.all.name(silo)].wait()


def finish(stage: Stage) -> None:
    """All are there again for the last rounds; two die as they say farewell, one of them unheard."""
    processes = stage.all
    stage.start((3,), Trap("Finished", "before"))
    stage.start((7,), Trap("Finished", "after"))
    while stage.round < ROUNDS:
        line = stage.let_go()
    assert line["complete"], "all are back in the last round"
    codes = processes.wait()
    assert {name for name, code in codes.items() if code} == {"silo-003", "silo-007"}
    for i in (3, 7):  # their reports were written before
        assert processes.silo(i).wait(60) == 0
        assert "has finished already" in processes.said(processes.name(i))
    processes.assert_all_fine()


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_silos_killed_before_and_after_every_step(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each dies in a round of its own, is missed or counted as the protocol says, and comes back for the next."""
    processes = ForkedProcesses(tmp_path, *QUICK, *TEN, silos=10)
    request.addfinalizer(processes.close)
    stage = Stage(processes)
    join_all(stage)
    kill(stage, 3)
    found = {}
    for trap in ONE:
        found[trap, (3,)] = stage.killed((3,), trap)
    kill(stage, 7)
    for trap in TWO:
        found[trap, (3, 7)] = stage.killed((3, 7), trap)
    assert found == {(trap, silos): expected(trap, silos) for trap, silos in found}
    assert {event["silo"] for event in processes.events("left")} <= {3, 4, 5, 7}, "the others were undisturbed"
    finish(stage)
    assert not any(line["failed_sessions"] for line in processes.rounds()), "no round was lost"
