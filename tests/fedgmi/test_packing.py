"""State dicts ↔ flat vector: exact, ordered, refusing what does not fit."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.mixture import MixtureState, apply_aggregate, flatten, unflatten
from fedgmi_fedml.packing import Layout
from secure.types import Aggregate

SHAPES = st.lists(st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple), min_size=1, max_size=5)


def states(shapes, seed, count):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        OrderedDict((f"t{i}", torch.randn(shape, generator=generator)) for i, shape in enumerate(shapes))
        for _ in range(count)
    )


@settings(max_examples=30, deadline=None)
@given(SHAPES, SHAPES, st.integers(1, 3), st.integers(0, 99))
def test_delta_then_add_gives_the_local_state(vae_shapes, expert_shapes, components, seed):
    """Any shapes, 0-d and empty ones included: start + (local − start) is local, to rounding, for every component."""
    start = MixtureState(states(vae_shapes, seed, components), states(expert_shapes, seed + 1, components))
    local = MixtureState(states(vae_shapes, seed + 2, components), states(expert_shapes, seed + 3, components))
    layout = Layout.mixture({"vae": start.vaes[0], "expert": start.experts[0]}, components, clip=8.0)
    vector = np.zeros(layout.length, np.float32)
    for j in range(components):
        layout.write_delta(vector, "vae", j, local.vaes[j], start.vaes[j])
        layout.write_delta(vector, "expert", j, local.experts[j], start.experts[j])
    for j in range(components):
        for key, tensor in layout.add(start.experts[j], "expert", j, vector).items():
            assert tensor.shape == local.experts[j][key].shape
            torch.testing.assert_close(tensor, local.experts[j][key], atol=1e-6, rtol=1e-6)
    assert layout.spec().length == layout.length


def test_integer_tensors_stay_local():
    state = OrderedDict(w=torch.ones(2), counter=torch.tensor(7), flag=torch.tensor(True))
    layout = Layout.mixture({"expert": state}, 1, 8.0)
    assert layout.length == 2
    moved = layout.add(state, "expert", 0, np.array([1.0, 2.0], np.float32))
    assert moved["w"].tolist() == [2.0, 3.0]
    assert moved["counter"] is state["counter"]


@pytest.mark.parametrize("broken", [{}, {"w": torch.zeros(3)}])
def test_a_missing_or_misshapen_tensor_is_named(broken):
    layout = Layout.mixture({"expert": {"w": torch.zeros(2)}}, 1, 8.0)
    with pytest.raises(ModelError, match="'w'.*shape"):
        layout.write_delta(np.zeros(2, np.float32), "expert", 0, broken, {"w": torch.zeros(2)})


def test_schema_digest_changes_with_order_shape_and_clip():
    def digest(example, clip=8.0):
        return Layout.mixture({"vae": example}, 2, clip).spec().digest()

    a, b = torch.zeros(2), torch.zeros(3)
    assert digest({"a": a, "b": b}) == digest({"a": a + 1, "b": b})
    others = [digest({"b": b, "a": a}), digest({"a": b, "b": a}), digest({"a": a, "b": b.reshape(1, 3)})]
    assert len({digest({"a": a, "b": b}), digest({"a": a, "b": b}, 4.0), *others}) == 5


def test_bfloat16_is_restored():
    state = {"w": torch.ones(2, dtype=torch.bfloat16)}
    moved = Layout.mixture({"vae": state}, 1, 8.0).add(state, "vae", 0, np.ones(2, np.float32))
    assert moved["w"].dtype == torch.bfloat16
    assert moved["w"].tolist() == [2.0, 2.0]


def test_a_closed_component_keeps_its_parameters():
    start = MixtureState(vaes=states([(2,)], 0, 2))
    layout = Layout.mixture({"vae": start.vaes[0]}, 2, 8.0)
    sums = Aggregate(layout.spec(), np.ones(4, np.float32), (True, False), (1, 2), (1, 2), {})
    end = apply_aggregate(start, sums, layout)
    assert torch.equal(end.vaes[0]["t0"], start.vaes[0]["t0"] + 1)
    assert end.vaes[1] is start.vaes[1]
    assert end.digest != start.digest


def test_flatten_round_trip_and_digest():
    state = MixtureState(states([(2,), ()], 0, 11), states([(1, 3)], 1, 11))
    again = unflatten(dict(sorted(flatten(state).items())))
    assert again.digest == state.digest
    assert again.components == 11
    assert MixtureState(state.vaes[::-1], state.experts).digest != state.digest


def test_the_router_is_one_more_component_behind_the_mixture():
    """Runs of different lengths: M of VAE and expert, then one of the router, each in its own gate's stretch."""
    start = MixtureState(states([(2,)], 0, 2), states([(1, 3)], 1, 2), states([(4,), ()], 2, 1))
    layout = Layout.mixture(
        {"vae": start.vaes[0], "expert": start.experts[0]}, 2, 8.0, common={"router": start.router[0]}
    )
    assert [(r.name, r.component, r.start, r.stop) for r in layout.runs] == [
        ("vae.0", 0, 0, 2), ("expert.0", 0, 2, 5), ("vae.1", 1, 5, 7), ("expert.1", 1, 7, 10), ("router.0", 2, 10, 15),
    ]  # fmt: skip
    assert (layout.components, layout.length, layout.parts) == (3, 15, ("vae", "expert", "router"))
    vector = np.arange(15, dtype=np.float32)
    assert [layout.component(vector, j).tolist()[0::4] for j in range(3)] == [[0, 4], [5, 9], [10, 14]]
    assert [block.component for block in layout.spec().blocks] == [0, 0, 1, 1, 2, 2]
    sums = Aggregate(layout.spec(), np.ones(15, np.float32), (True, False, True), (1, 2), (1, 2), {})
    end = apply_aggregate(start, sums, layout)
    assert torch.equal(end.router[0]["t1"], start.router[0]["t1"] + 1)
    assert torch.equal(end.experts[0]["t0"], start.experts[0]["t0"] + 1)
    assert end.experts[1] is start.experts[1]
    again = unflatten(flatten(end))
    assert again.digest == end.digest != MixtureState(end.vaes, end.experts).digest
    assert again.components == 2


@settings(max_examples=30, deadline=None)
@given(SHAPES, SHAPES, SHAPES, st.integers(1, 3), st.integers(0, 99))
def test_a_released_sum_of_one_silo_is_that_silo(vae_shapes, expert_shapes, router_shapes, components, seed):
    """Any shapes: start + (local − start), written run by run and applied whole, is local for every model."""
    shapes = (vae_shapes, expert_shapes, router_shapes)
    counts = (components, components, 1)
    start, local = (
        MixtureState(*(states(s, seed + 9 * at + i, n) for i, (s, n) in enumerate(zip(shapes, counts, strict=True))))
        for at in range(2)
    )
    examples = {part: models[0] for part, models in start.parts().items()}
    common = {"router": examples.pop("router")}
    layout = Layout.mixture(examples, components, 8.0, common)
    vector = np.zeros(layout.length, np.float32)
    for part, models in local.parts().items():
        for index, model in enumerate(models):
            layout.write_delta(vector, part, index, model, start.parts()[part][index])
    everything = (True,) * layout.components
    end = apply_aggregate(start, Aggregate(layout.spec(), vector, everything, (1,), (1,), {}), layout)
    for part, models in local.parts().items():
        for ours, theirs in zip(end.parts()[part], models, strict=True):
            assert all(torch.allclose(ours[k], theirs[k], atol=1e-5) for k in theirs)
    assert sum(len(layout.component(vector, j)) for j in range(layout.components)) == layout.length


@pytest.mark.parametrize("components", [(1,), (0, 2), (0, 1, 0)])
def test_components_ascend_without_a_gap(components):
    with pytest.raises(ValueError, match="ascend"):
        Layout([(j, "vae", {"w": torch.zeros(1)}) for j in components], 8.0)
