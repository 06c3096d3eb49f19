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
    layout = Layout({"vae": start.vaes[0], "expert": start.experts[0]}, components, clip=8.0)
    vector = np.zeros(layout.length, np.float32)
    for j in range(components):
        layout.write_delta(vector, j, "vae", local.vaes[j], start.vaes[j])
        layout.write_delta(vector, j, "expert", local.experts[j], start.experts[j])
    for j in range(components):
        for key, tensor in layout.add(start.experts[j], j, "expert", vector).items():
            assert tensor.shape == local.experts[j][key].shape
            torch.testing.assert_close(tensor, local.experts[j][key], atol=1e-6, rtol=1e-6)
    assert layout.spec().length == layout.length


def test_integer_tensors_stay_local():
    state = OrderedDict(w=torch.ones(2), counter=torch.tensor(7), flag=torch.tensor(True))
    layout = Layout({"expert": state}, 1, 8.0)
    assert layout.length == 2
    moved = layout.add(state, 0, "expert", np.array([1.0, 2.0], np.float32))
    assert moved["w"].tolist() == [2.0, 3.0] and moved["counter"] is state["counter"]


@pytest.mark.parametrize("broken", [{}, {"w": torch.zeros(3)}])
def test_a_missing_or_misshapen_tensor_is_named(broken):
    layout = Layout({"expert": {"w": torch.zeros(2)}}, 1, 8.0)
    with pytest.raises(ModelError, match="'w'.*shape"):
        layout.write_delta(np.zeros(2, np.float32), 0, "expert", broken, {"w": torch.zeros(2)})


def test_schema_digest_changes_with_order_shape_and_clip():
    def digest(example, clip=8.0):
        return Layout({"vae": example}, 2, clip).spec().digest()

    a, b = torch.zeros(2), torch.zeros(3)
    assert digest({"a": a, "b": b}) == digest({"a": a + 1, "b": b})
    others = [digest({"b": b, "a": a}), digest({"a": b, "b": a}), digest({"a": a, "b": b.reshape(1, 3)})]
    assert len({digest({"a": a, "b": b}), digest({"a": a, "b": b}, 4.0), *others}) == 5


def test_bfloat16_is_restored():
    state = {"w": torch.ones(2, dtype=torch.bfloat16)}
    moved = Layout({"vae": state}, 1, 8.0).add(state, 0, "vae", np.ones(2, np.float32))
    assert moved["w"].dtype == torch.bfloat16 and moved["w"].tolist() == [2.0, 2.0]


def test_a_closed_component_keeps_its_parameters():
    start = MixtureState(vaes=states([(2,)], 0, 2))
    layout = Layout({"vae": start.vaes[0]}, 2, 8.0)
    sums = Aggregate(layout.spec(), np.ones(4, np.float32), (True, False), (1, 2), (1, 2), {})
    end = apply_aggregate(start, sums, layout)
    assert torch.equal(end.vaes[0]["t0"], start.vaes[0]["t0"] + 1) and end.vaes[1] is start.vaes[1]
    assert end.digest != start.digest


def test_flatten_round_trip_and_digest():
    state = MixtureState(states([(2,), ()], 0, 11), states([(1, 3)], 1, 11))
    again = unflatten(dict(sorted(flatten(state).items())))
    assert again.digest == state.digest and again.components == 11
    assert MixtureState(state.vaes[::-1], state.experts).digest != state.digest
