"""Models by digest. Silos that share a process share one store, so that memory does not grow with their number."""

from __future__ import annotations

from collections import OrderedDict

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.mixture import MixtureState, apply_aggregate
from fedgmi_fedml.packing import Layout
from secure.types import Aggregate


class StateStore:
    """A small cache of shared models, least recently used first out.

    Args:
        capacity: how many states are kept (each of the size of the models).
    """

    def __init__(self, capacity: int = 4) -> None:
        self._capacity = capacity
        self._states: OrderedDict[bytes, MixtureState] = OrderedDict()
        self._last: tuple[bytes, object, MixtureState] | None = None

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
        """``apply_aggregate``, computed once for all silos that were handed the same released bytes."""
        released = aggregate.values.base if aggregate.values.base is not None else aggregate.values
        if self._last is not None:
            digest, seen, end = self._last
            if digest == start.digest and seen is released:
                return end
        end = self.put(apply_aggregate(start, aggregate, layout))
        self._last = (start.digest, released, end)
        return end
