"""The store of shared models: a release that many silos were handed is applied once, another never taken for it."""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import Layout
from fedgmi_fedml.rounds import store as module
from fedgmi_fedml.rounds.store import REMEMBERED, StateStore
from secure.types import Aggregate

SIZE = 4


def state(value):
    return MixtureState(vaes=tuple(OrderedDict(w=torch.full((SIZE,), value + j)) for j in range(2)))


@pytest.fixture
def layout():
    return Layout.mixture({"vae": state(0.0).vaes[0]}, 2, clip=8.0)


@pytest.fixture
def applied(monkeypatch):
    """The calls of ``apply_aggregate``."""
    calls, real = [], module.apply_aggregate

    def counted(*args):
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(module, "apply_aggregate", counted)
    return calls


def release(layout, values, opened=(True, True)):
    """What one silo unpacks: equal for all in content, an array of its own in memory."""
    return Aggregate(layout.spec(), np.array(values, dtype=np.float32), opened, (1, 2), (1, 2), {})


def test_silos_that_unpacked_the_same_release_share_one_application(layout, applied):
    store, start = StateStore(), state(0.0)
    ends = [store.advance(start, release(layout, range(2 * SIZE)), layout) for _ in range(5)]
    assert len(applied) == 1
    assert all(end is ends[0] for end in ends)
    assert ends[0].vaes[1]["w"].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_cohorts_of_one_step_do_not_push_each_other_out(layout, applied):
    """Silos of two cohorts hear their releases in turn."""
    store, start = StateStore(), state(0.0)
    for _ in range(3):
        one, two = (store.advance(start, release(layout, [v] * 2 * SIZE), layout) for v in (1.0, 2.0))
    assert len(applied) == 2
    assert (one.vaes[0]["w"][0], two.vaes[0]["w"][0]) == (1.0, 2.0)


def test_whatever_differs_is_applied_anew(layout, applied):
    """Start, one value, the open components, the agreed layout: each alone makes another outcome."""
    store, start = StateStore(16), state(0.0)
    base = release(layout, [1.0] * 2 * SIZE)
    wider = replace(base, spec=replace(layout.spec(), profile="wide"))
    others = [
        (state(1.0), base), (start, release(layout, [1.0] * (2 * SIZE - 1) + [1.5])),
        (start, release(layout, [1.0] * 2 * SIZE, (True, False))), (start, wider),
    ]  # fmt: skip
    digests = {store.advance(begin, aggregate, layout).digest for begin, aggregate in [(start, base), *others]}
    assert len(applied) == 5
    assert len(digests) == 4  # the wider layout ends where the other does, once it has been worked out


def test_an_outcome_that_is_no_longer_held_is_worked_out_again(layout, applied):
    store, start = StateStore(capacity=1), state(0.0)
    first = store.advance(start, release(layout, [1.0] * 2 * SIZE), layout)
    store.put(state(9.0))
    again = store.advance(start, release(layout, [1.0] * 2 * SIZE), layout)
    assert len(applied) == 2
    assert again.digest == first.digest


def test_neither_models_nor_memories_of_releases_pile_up(layout):
    store, start = StateStore(capacity=3), state(0.0)
    ends = [store.advance(start, release(layout, [float(v)] * 2 * SIZE), layout).digest for v in range(3 * REMEMBERED)]
    assert sum(digest in store for digest in ends) == 3
    assert len(store._ends) == REMEMBERED
    with pytest.raises(ModelError, match="not held"):
        store.get(ends[0])
