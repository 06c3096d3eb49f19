"""Experts by name and by import path: shapes, seeds, clear errors."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models import DataShape, build_expert, build_vae, export_state, make_expert

torch.set_num_threads(1)


@pytest.mark.parametrize("sides", [(1, 1, 1), (1, 8, 8), (3, 5, 9)])
def test_cnn_fits_any_image(sides: tuple[int, int, int]) -> None:
    expert = make_expert("cnn", {"channels": [2, 3, 4, 5], "hidden": 6}, DataShape(sides, 4), 0)
    assert expert(torch.rand(3, *sides)).shape == (3, 4)


def test_mlp_takes_tables_and_images() -> None:
    assert make_expert("mlp", {"hidden": []}, DataShape((5,), 2, "real"), 0)(torch.rand(3, 5)).shape == (3, 2)
    assert make_expert("mlp", {}, DataShape((1, 4, 4), 3), 0)(torch.rand(2, 1, 4, 4)).shape == (2, 3)


@pytest.mark.parametrize("name", ["resnet18_gn", "resnet18_bn"])
def test_resnet_for_small_grey_images(name: str) -> None:
    expert = make_expert(name, {}, DataShape((1, 8, 8), 4), 0).eval()
    with torch.no_grad():
        assert expert(torch.rand(2, 1, 8, 8)).shape == (2, 4)
    kinds = {type(layer) for layer in expert.modules()}
    assert (nn.BatchNorm2d in kinds) == (name == "resnet18_bn")
    assert (nn.GroupNorm in kinds) == (name == "resnet18_gn")
    assert expert.conv1.stride == (1, 1)


def test_resnet_keeps_its_stem_for_large_images() -> None:
    expert = make_expert("resnet18_gn", {"groups": 16}, DataShape((1, 64, 64), 2), 0)
    assert (expert.conv1.in_channels, expert.conv1.stride) == (1, (2, 2))
    assert isinstance(expert.maxpool, nn.MaxPool2d)


def test_weights_come_from_the_seed_alone() -> None:
    shape = DataShape((1, 8, 8), 4)
    torch.manual_seed(9)
    first = export_state(make_expert("cnn", {}, shape, 1))
    torch.manual_seed(10)
    again, other = export_state(make_expert("cnn", {}, shape, 1)), export_state(make_expert("cnn", {}, shape, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


@pytest.mark.parametrize(
    ("name", "options", "shape", "match"),
    [
        ("vit", {}, DataShape((1, 8, 8), 4), "mlp, cnn, resnet18_gn, resnet18_bn"),
        ("mlp", {"depth": 3}, DataShape((4,), 4), "no option 'depth'"),
        ("cnn", {}, DataShape((4,), 4), "use model: mlp"),
        ("resnet18_bn", {}, DataShape((4,), 4), "use model: mlp"),
        ("resnet18_gn", {"groups": 7}, DataShape((1, 8, 8), 4), "divide 64"),
    ],
)
def test_settings_that_cannot_work(name: str, options: dict[str, object], shape: DataShape, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        make_expert(name, options, shape, 0)


def test_own_expert_is_checked_for_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_experts")
    module.flat = lambda shape, outputs: nn.Sequential(nn.Flatten(1), nn.Linear(shape.size, outputs))  # type: ignore[attr-defined]
    module.rgb = lambda shape: nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(1))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_experts", module)
    shape = DataShape((1, 4, 4), 4)
    assert make_expert("own_experts:flat", {"outputs": 4}, shape, 0)(torch.rand(2, 1, 4, 4)).shape == (2, 4)
    with pytest.raises(ModelError, match=r"\(2, 3\).*\(2, 4\)"):
        make_expert("own_experts:flat", {"outputs": 3}, shape, 0)
    with pytest.raises(ModelError, match=r"own_experts:rgb.*\(1, 4, 4\)"):
        make_expert("own_experts:rgb", {}, shape, 0)
    with pytest.raises(ModelError, match="does not accept"):
        make_expert("own_experts:flat", {"outs": 3}, shape, 0)


def test_models_from_a_configuration() -> None:
    args = types.SimpleNamespace(model="mlp", model_options={"hidden": [3]}, vae="mlp", vae_options={"latent": 2})
    config, shape = types.SimpleNamespace(model_args=args), DataShape((4,), 4)
    assert build_expert(config, shape, 0)(torch.rand(2, 4)).shape == (2, 4)
    assert build_vae(config, shape, 0).latent == 2
