"""Models by digest. Silos that share a process share one store, so that memory does not grow with their number."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.mixture import MixtureState, apply_aggregate
from fedgmi_fedml.packing import Layout
from secure.types import Aggregate

REMEMBERED = 16
"""Releases whose outcome is remembered: cohorts of one step end beside each other. A few dozen bytes each."""


class StateStore:
    """A small cache of shared models, least recently used first out.

    Args:
        capacity: how many states are kept (each of the size of the models).
    """

    def __init__(self, capacity: int = 4) -> None:
        self._capacity = capacity
        self._states: OrderedDict[bytes, MixtureState] = OrderedDict()
        self._ends: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._states

    def get(self, digest: bytes) -> MixtureState:
        """The state with this digest.

        Raises:
            ModelError: it is not held (the server must send it first).
        """
        try:
            self._states.move_to_end(digest)
        except KeyError:
            raise ModelError(f"models {digest.hex()[:12]} are not held here; the server must send them first") from None
        return self._states[digest]

    def put(self, state: MixtureState) -> MixtureState:
        """Keep a state; the least recently used one goes when there are too many."""
        self._states[state.digest] = state
        self._states.move_to_end(state.digest)
        for digest in list(self._states):
            if len(self._states) <= self._capacity:
                break
            del self._states[digest]
        return state

    def advance(self, start: MixtureState, aggregate: Aggregate, layout: Layout) -> MixtureState:
        """``apply_aggregate``, computed once for all silos that were handed the same release.

        Every silo unpacks the bytes it was sent, so it is their content that tells; hashing it costs a fraction of
        adding it to the models and of the new models' digest.
        """
        key = (start.digest, aggregate.spec.digest(), aggregate.open, _content(aggregate))
        end = self._ends.get(key)
        if end is not None and end in self._states:
            return self.get(end)
        state = self.put(apply_aggregate(start, aggregate, layout))
        self._ends[key] = state.digest
        while len(self._ends) > REMEMBERED:
            self._ends.popitem(last=False)
        return state


def _content(aggregate: Aggregate) -> bytes:
    """SHA-256 over the type and bytes of the released sum."""
    values = np.ascontiguousarray(aggregate.values)
    hasher = hashlib.sha256(values.dtype.str.encode())
    hasher.update(values.view(np.uint8))
    return hasher.digest()
