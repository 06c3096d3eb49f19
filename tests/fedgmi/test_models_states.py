"""State dicts in and out: names, shapes, dtypes, prefixes, counters."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models import Bank, DataShape, export_state, load_state, make_expert, make_vae, parameter_count

torch.set_num_threads(1)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_round_trip_keeps_every_bit_and_copies() -> None:
    source, target = net(), net()
    source(torch.rand(5, 2))  # moves the running statistics
    state = export_state(source)
    load_state(target, state)
    assert all(torch.equal(value, export_state(target)[name]) for name, value in state.items())
    state["0.weight"].zero_()
    assert all(bool(module[0].weight.detach().any()) for module in (source, target))


def test_counters_stay_local_and_start_at_zero() -> None:
    module = net()
    module(torch.rand(5, 2))
    assert "1.num_batches_tracked" not in export_state(module)
    assert {"1.running_mean", "1.running_var"} <= set(export_state(module))
    load_state(module, {**export_state(module), "1.num_batches_tracked": torch.tensor(7)})
    assert int(module[1].num_batches_tracked) == 0


def test_module_prefix_is_ignored() -> None:
    module = net()
    state = OrderedDict((f"module.module.{name}", value + 1) for name, value in export_state(module).items())
    load_state(module, state)
    assert torch.equal(module[0].bias, state["module.module.0.bias"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_is_restored(dtype: torch.dtype) -> None:
    module = net().to(dtype)
    state = export_state(module)
    assert {value.dtype for value in state.values()} == {torch.float32}
    load_state(module, state)
    assert module[0].weight.dtype == dtype


def test_errors_name_the_tensor_and_both_shapes() -> None:
    module, state = net(), export_state(net())
    with pytest.raises(ModelError, match=r"no tensor '0\.bias' \(3,\)"):
        load_state(module, {name: value for name, value in state.items() if name != "0.bias"})
    with pytest.raises(ModelError, match=r"'0\.bias'.*\(4,\).*\(3,\)"):
        load_state(module, {**state, "0.bias": torch.zeros(4)})
    with pytest.raises(ModelError, match=r"'2\.weight'"):
        load_state(module, {**state, "2.weight": torch.zeros(4)})


def test_bank_loads_one_state_at_a_time() -> None:
    shape = DataShape((3,), 2)
    vae = make_vae("mlp", {"hidden": [2], "latent": 1}, shape, 0)
    states = [export_state(make_vae("mlp", {"hidden": [2], "latent": 1}, shape, seed)) for seed in range(3)]
    bank = Bank(vae, states)
    assert len(bank) == 3
    seen = [export_state(model)["encoder.0.weight"] for model in bank]
    assert all(torch.equal(ours, state["encoder.0.weight"]) for ours, state in zip(seen, states, strict=True))
    assert bank[1] is vae
    assert torch.equal(export_state(vae)["encoder.0.weight"], seen[1])


def test_parameter_count_includes_float_buffers_only() -> None:
    assert parameter_count(net()) == 2 * 3 + 3 + 4 * 3


def test_exported_tensors_have_the_ordinary_layout() -> None:
    state = export_state(make_expert("cnn", {}, DataShape((3, 8, 8), 2), 0))
    assert all(value.is_contiguous() for value in state.values())
