"""Whole models as one message: safetensors bytes, checked against their digest on arrival."""

from __future__ import annotations

from safetensors.torch import load, save

from fedgmi_fedml.mixture import MixtureState, flatten, unflatten
from fedgmi_fedml.rounds.wire import Models, WireError


def encode_models(state: MixtureState) -> Models:
    """Models → message."""
    return Models(state.digest, save({name: tensor.contiguous() for name, tensor in flatten(state).items()}))


def decode_models(message: Models) -> MixtureState:
    """Message → models.

    Raises:
        WireError: unreadable, or not the models that the digest names.
    """
    try:
        tensors = load(message.tensors)
    except Exception as error:
        raise WireError("models that cannot be read") from error
    state = unflatten(tensors)
    if state.digest != message.digest:
        raise WireError("models whose digest is not the announced one")
    return state
