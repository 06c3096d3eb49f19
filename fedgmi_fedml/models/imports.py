"""A user's own model by import path, and the checks that every model passes once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.shapes import DataShape

__all__ = ["check_options", "import_factory", "seeded"]


def import_factory(path: str) -> Callable[..., Any]:
    """The callable that ``package.module:factory`` names. Raises ModelError that says which half cannot be found."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ModelError(f"{path!r} is no import path: write package.module:factory")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ModelError(f"{path!r}: module {module_name!r} cannot be imported ({error})") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ModelError(f"{path!r}: module {module_name!r} has no callable {attribute!r}")
    return factory


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Runs ``build`` with torch's global generator at ``seed`` and puts the generator back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def call_factory(path: str, shape: DataShape, options: Mapping[str, Any]) -> nn.Module:
    """Calls a user's ``factory(shape, **options)``; the result must be an ``nn.Module``."""
    try:
        module = import_factory(path)(shape, **options)
    except TypeError as error:
        raise ModelError(f"{path!r} does not accept (shape, {', '.join(options) or 'no options'}): {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{path!r} returned a {type(module).__name__}, not a torch.nn.Module")
    return module


def check_options(model: str, options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raises ModelError that lists the known names for the first unknown option of a built-in model."""
    for name in options:
        if name not in known:
            raise ModelError(f"model {model!r} has no option {name!r}; it has {', '.join(known)}")
