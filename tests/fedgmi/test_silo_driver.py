"""A silo's driver refuses what a lying server sends: steered cohorts, foreign nonces, garbage."""

import numpy as np
import pytest

from fedgmi_fedml.config import load_config
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.silo import SiloRun
from fedgmi_fedml.rounds.store import StateStore
from fedgmi_fedml.rounds.update import LocalUpdate
from fedgmi_fedml.rounds.wire import Beacon, Commitments, Plan, Ready, Reveal, decode, encode
from fedgmi_fedml.shapes import DataShape
from secure.beacon import commitment

NONCES = {silo: bytes([silo]) * 32 for silo in range(1, 9)}


class Work:
    """Counts how often it is asked to train."""

    def __init__(self):
        self.trained = 0

    def work(self, plan, state):
        self.trained += 1
        return LocalUpdate((1.0,), np.zeros(1, np.float32))


@pytest.fixture
def silo(tmp_path):
    changes = ["train_args.client_num_in_total=8", "train_args.client_num_per_round=5"]
    config = load_config("digits", [*changes, "fedgmi_args.secure.backend=none"])
    phases = Phases(config, DataShape((1, 8, 8), 10))
    run = SiloRun(
        3, phases, Work(), StateStore(), run_id="r", class_names=("0",), credentials=None, journal=None,
        spool_dir=tmp_path, nonce=lambda: NONCES[3],
    )  # fmt: skip
    list(run.start())
    run.state = run.store.put(MixtureState(experts=phases.initial_experts()))
    return run


def told(silo, *messages):
    return [decode(reply) for message in messages for reply in silo.handle(encode(message))]


def agree(silo):
    commitments = Commitments({s: commitment(s, nonce) for s, nonce in NONCES.items()})
    replies = told(silo, commitments, Beacon(NONCES))
    assert replies == [Reveal(3, NONCES[3])]
    return tuple(sorted(NONCES))


def plan_for(silo, cohort, number=0):
    return Plan("rounds", number, 0, 0, cohort, silo.state.digest)


def test_the_drawn_cohort_and_parts_of_it_are_worked_for(silo):
    silos = agree(silo)
    number = next(r for r in range(50) if 3 in silo.phases.round_cohort(r, silo._beacon, silos))
    drawn = silo.phases.round_cohort(number, silo._beacon, silos)
    assert told(silo, plan_for(silo, drawn, number)) == [Ready(3, "rounds", number, 0, 0)]
    less = tuple(s for s in drawn if s == 3 or s != drawn[0])
    assert told(silo, plan_for(silo, less, number)) == [Ready(3, "rounds", number, 0, 0)]
    assert silo.work.trained == 1, "an update already made is used again"


def test_a_cohort_of_the_servers_choice_is_not(silo):
    silos = agree(silo)
    number = next(r for r in range(50) if 3 in silo.phases.round_cohort(r, silo._beacon, silos))
    drawn = silo.phases.round_cohort(number, silo._beacon, silos)
    other = next(s for s in silos if s not in drawn)
    for cohort in ((*drawn[:-1], other), silos, (1, 2, 4, 5, 6)):
        assert told(silo, plan_for(silo, tuple(sorted(cohort)), number)) == []
    assert silo.work.trained == 0


def test_no_plan_before_the_beacon(silo):
    assert told(silo, plan_for(silo, (1, 2, 3, 4, 5))) == []


@pytest.mark.parametrize("change", ["missing", "other", "own"])
def test_a_beacon_that_does_not_open_the_commitments_is_none(silo, change):
    nonces = dict(NONCES)
    if change == "missing":
        del nonces[8]
    else:
        nonces[3 if change == "own" else 8] = b"x" * 32
    commitments = Commitments({s: commitment(s, nonce) for s, nonce in NONCES.items()})
    told(silo, commitments, Beacon(nonces))
    assert silo._beacon == b""


def test_the_nonce_is_shown_only_when_the_own_commitment_is_among_them(silo):
    assert told(silo, Commitments({s: commitment(s, NONCES[s]) for s in (1, 2, 4)})) == []


def test_garbage_changes_nothing(silo):
    for payload in (b"", b"\x00", b"garbage", encode(Reveal(1, b"n"))):
        assert list(silo.handle(payload)) == []
