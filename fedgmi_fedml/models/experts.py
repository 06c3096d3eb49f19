"""Experts: one classifier per component. MLP, small CNN, ResNet-18, or a user's own by import path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models.imports import call_factory, check_options, seeded
from fedgmi_fedml.models.vaes import dense
from fedgmi_fedml.shapes import DataShape

__all__ = ["build_expert", "build_router", "make_expert"]


def _mlp(shape: DataShape, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Flattened sample → hidden layers → logits."""
    return nn.Sequential(nn.Flatten(1), *dense((shape.size, *hidden, shape.classes)))


def _cnn(shape: DataShape, channels: Sequence[int] = (16, 32), hidden: int = 128) -> nn.Module:
    """3 × 3 convolutions, each followed by 2 × 2 max pooling while the image is large enough, then a dense layer."""
    if not shape.is_image:
        raise ModelError("expert cnn needs images; use model: mlp for tables")
    planes, height, width = shape.input_shape
    layers: list[nn.Module] = []
    for wide in channels:
        layers += [nn.Conv2d(planes, wide, 3, padding=1), nn.ReLU(inplace=True)]
        if min(height, width) >= 2:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        planes = wide
    return nn.Sequential(*layers, nn.Flatten(1), *dense((planes * height * width, hidden, shape.classes)))


def _resnet18(shape: DataShape, norm: Callable[[int], nn.Module]) -> nn.Module:
    """torchvision's ResNet-18 for any channel count; below 64 pixels with a 3 × 3 stem and no first pooling."""
    if not shape.is_image:
        raise ModelError("expert resnet18 needs images; use model: mlp for tables")
    # Imported here: torchvision takes a second to load, and most experts do without.
    from torchvision.models import resnet18

    network = resnet18(weights=None, num_classes=shape.classes, norm_layer=norm)
    planes, height, width = shape.input_shape
    if min(height, width) < 64:
        network.conv1 = nn.Conv2d(planes, 64, 3, stride=1, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif planes != 3:
        network.conv1 = nn.Conv2d(planes, 64, 7, stride=2, padding=3, bias=False)
    return network


def _resnet18_gn(shape: DataShape, groups: int = 32) -> nn.Module:
    """ResNet-18 with GroupNorm: no running statistics, hence nothing that differs between silos."""
    if groups < 1 or 64 % groups:
        raise ModelError(f"groups must divide 64, not {groups}")
    return _resnet18(shape, lambda width: nn.GroupNorm(groups, width))


def _resnet18_bn(shape: DataShape) -> nn.Module:
    """ResNet-18 with BatchNorm; running means and variances are averaged like parameters."""
    return _resnet18(shape, nn.BatchNorm2d)


_FACTORIES: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "mlp": (_mlp, ("hidden",)),
    "cnn": (_cnn, ("channels", "hidden")),
    "resnet18_gn": (_resnet18_gn, ("groups",)),
    "resnet18_bn": (_resnet18_bn, ()),
}


def _construct(name: str, options: Mapping[str, Any], shape: DataShape) -> nn.Module:
    """The module itself, unchecked and with whatever random state is current."""
    if ":" in name:
        return call_factory(name, shape, options)
    if name not in _FACTORIES:
        raise ModelError(f"no expert is called {name!r}: use {', '.join(_FACTORIES)} or package.module:factory")
    factory, known = _FACTORIES[name]
    check_options(name, options, known)
    # Channels last: a CPU trains the small CNN a quarter faster so. Exported states have the ordinary layout.
    return factory(shape, **options).to(memory_format=torch.channels_last)


def check_expert(module: nn.Module, shape: DataShape, name: str) -> nn.Module:
    """One dry pass in evaluation mode. Raises ModelError when the logits are not (B, classes)."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            logits = module(torch.zeros(2, *shape.input_shape))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise ModelError(f"expert {name!r} fails on samples of shape {shape.input_shape}: {error}") from error
    finally:
        module.train(training)
    got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if got != (2, shape.classes):
        raise ModelError(f"expert {name!r} gives {got} for two samples, the data needs logits (2, {shape.classes})")
    return module


def make_expert(name: str, options: Mapping[str, Any], shape: DataShape, seed: int) -> nn.Module:
    """An expert by name (``mlp``, ``cnn``, ``resnet18_gn``, ``resnet18_bn``) or import path, seeded.

    Raises ModelError for unknown names or options, and when the model does not fit the data's shape.
    """
    return check_expert(seeded(lambda: _construct(name, options, shape), seed), shape, name)


def build_expert(config: Any, shape: DataShape, seed: int) -> nn.Module:
    """The expert that ``config.model_args.model`` and ``model_options`` name; see ``make_expert``."""
    return make_expert(config.model_args.model, dict(config.model_args.model_options or {}), shape, seed)


def build_router(config: Any, shape: DataShape, seed: int) -> nn.Module:
    """The classifier of samples into components, logits (B, M), as ``config.fedgmi_args.affinity`` names it."""
    args = config.fedgmi_args
    kind = replace(shape, classes=args.components)
    if args.affinity.router_model == "expert":
        return build_expert(config, kind, seed)
    return make_expert("mlp", {}, kind, seed)
