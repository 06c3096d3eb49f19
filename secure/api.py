"""The one door into ``secure``: sessions of a silo and of the server, sans I/O.

Bytes go in, events come out; nothing here opens a socket, starts a thread or reads a clock. The caller delivers
``Send`` events, and says when a deadline has passed.

    silo                                              server
    ────                                              ──────
    s = open_silo(params, contribution, …)            s = open_server(params, …)
    deliver(s.start())                                deliver(s.start())
    for event in s.handle(payload): …                 for event in s.handle(silo, payload): …
      TotalsKnown → s.submit(vector, metrics)           SessionReleased / SessionSurveyed / SessionAbortedEvent
      SessionReleased / SessionAbortedEvent           s.deadline() when the step's time is up

Everything an outsider needs is importable from here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from secure.codec import BULK_OVERHEAD, decode, encode
from secure.credentials import Credentials
from secure.errors import DecodeError, InputError
from secure.events import Event, Send, SessionAbortedEvent, SessionReleased, SessionSurveyed, TotalsKnown
from secure.fixedpoint import check_capacity, dequantise_into, segments
from secure.journal import Journal
from secure.keys import RandomBytes
from secure.masking import MaskedServer, MaskedSilo
from secure.messages import Sum
from secure.plain import PlainServer, PlainSilo
from secure.protocol.agreement import check_session
from secure.protocol.plane import SiloPlane
from secure.protocol.release import byte_view, check_contribution
from secure.protocol.server import ControlServer
from secure.protocol.silo import ControlSilo
from secure.types import Aggregate, Contribution, SessionParams, SiloId, Totals, VectorSpec

__all__ = [
    "Aggregate",
    "Contribution",
    "Credentials",
    "Event",
    "Send",
    "ServerSession",
    "SessionAbortedEvent",
    "SessionParams",
    "SessionReleased",
    "SessionSurveyed",
    "SiloSession",
    "Totals",
    "TotalsKnown",
    "check_backend",
    "check_capacity",
    "decode_aggregate",
    "dequantise",
    "encode_aggregate",
    "open_server",
    "open_silo",
]


class SiloSession(Protocol):
    """One silo's side of one session."""

    def start(self) -> Iterable[Event]:
        """First messages, if this side speaks first."""

    def handle(self, payload: bytes) -> Iterable[Event]:
        """Take one message from the server. A refused message yields an abort (with its reason), never an exception."""

    def submit(self, vector: npt.NDArray[np.float32], metrics: Mapping[str, float]) -> Iterable[Event]:
        """Upload the weighted delta, once. Lazy: pieces are made as the iterator is drained.

        Args:
            vector: float32, C-contiguous, shape (spec.length,), already multiplied by ``Totals.share`` per component.
            metrics: exactly the names of ``spec.metrics``.

        Raises:
            InputError: NaN, infinity, wrong dtype, shape or names (before anything is masked).
        """

    def deadline(self) -> Iterable[Event]:
        """This step's time is up: abort and erase."""

    @property
    def done(self) -> bool:
        """Whether a terminal event was emitted."""


class ServerSession(Protocol):
    """The server's side of one session."""

    def start(self) -> Iterable[Event]:
        """First messages (the proposal)."""

    def handle(self, sender: SiloId, payload: bytes) -> Iterable[Event]:
        """Take one message. Garbage, duplicates and late messages are ignored and counted, never fatal.

        Large answers are made while the result is iterated over: do so, event by event, before the next call.
        """

    def deadline(self) -> Iterable[Event]:
        """This step's time is up: go on without the missing silos where that is allowed, else abort."""

    def lost(self, silo: SiloId) -> Iterable[Event]:
        """The transport says that this silo is gone: count it as missing for the rest of the session."""

    @property
    def waiting_for(self) -> tuple[SiloId, ...]:
        """Silos whose message the present step still awaits."""

    @property
    def state(self) -> str:
        """The step in progress; ``"uploads"`` while silos upload."""

    @property
    def totals_out(self) -> bool:
        """Whether the silos may know the totals: a repeat from the same starting models then needs the same cohort, or
        one that leaves out at least c + 2 silos."""

    @property
    def voids(self) -> tuple[bytes, ...]:
        """Signed "no share released, state erased" of an aborted session, for ``open_server`` of its repeat."""

    @property
    def done(self) -> bool:
        """Whether a terminal event was emitted."""


def open_silo(
    silo: SiloId,
    expected: SessionParams,
    contribution: Contribution,
    *,
    credentials: Credentials | None = None,
    journal: Journal | None = None,
    random: RandomBytes = os.urandom,
) -> SiloSession:
    """A silo's side of a session.

    Args:
        silo: own roster id.
        expected: what the proposal must say. Its cohort is the drawn one: the proposal's may be smaller; its attempt is
            a lower bound; everything else, rules included, must be equal.
        contribution: this silo's part of the totals.
        credentials, journal: required by every back-end but ``none``.
        random: source of secrets; injected so that tests can replay.

    Raises:
        InputError: contribution and layout do not fit, or credentials are missing.
        CapacityError: the layout does not fit the ring.
    """
    if expected.backend == "none":
        return PlainSilo(silo, expected, contribution, credentials.policy if credentials else None)
    check_backend(expected.backend)
    if credentials is None or credentials.policy is None or journal is None:
        raise InputError(f"a silo's {expected.backend} session needs an identity, a roster, a policy and a journal")
    check_contribution(expected, contribution)
    check_session(expected)
    plane_of: Callable[[SessionParams], SiloPlane] = MaskedSilo
    arithmetic = ""
    if expected.backend == "homomorphic":
        plane_of, arithmetic = _homomorphic().silo_plane(expected)
    return ControlSilo(silo, expected, contribution, credentials, journal, plane_of, random, arithmetic)


def open_server(
    params: SessionParams,
    *,
    credentials: Credentials | None = None,
    spool_dir: Path | None = None,
    random: RandomBytes = os.urandom,
    voids: Sequence[bytes] = (),
) -> ServerSession:
    """The server's side of a session.

    Args:
        params: the proposal.
        credentials: identity with the roster's server key, and the roster; required by every back-end but ``none``.
        spool_dir: where uploads wait until they are complete; ``None``: the system's directory for temporary files.
        random: source of secrets.
        voids: ``ServerSession.voids`` of an earlier session from the same starting models, if this one repeats it.

    Raises:
        InputError: infeasible rules, or credentials are missing.
        CapacityError: the layout does not fit the ring.
    """
    if params.backend == "none":
        return PlainServer(params, spool_dir, credentials.roster if credentials else None)
    check_backend(params.backend)
    if credentials is None:
        raise InputError(f"the server's {params.backend} session needs an identity and a roster")
    if credentials.identity.public_key != credentials.roster.server_key:
        raise InputError("the roster names another server key than this identity's")
    if credentials.roster.digest() != params.roster_digest:
        raise InputError("the parameters name another roster")
    check_session(params)
    plane = _homomorphic().server_plane(params) if params.backend == "homomorphic" else MaskedServer(params)
    return ControlServer(params, credentials, plane, spool_dir, random, voids)


def check_backend(backend: str) -> None:
    """Whether this party can run a back-end at all; call it at start, before anything is promised to anybody.

    Raises:
        InputError: there is no such back-end.
        HomomorphicUnavailable: this party's TenSEAL is missing, or cannot do what is needed; says what to install.
    """
    if backend not in ("none", "masked", "homomorphic"):
        raise InputError(f"back-end {backend!r} is not available")
    if backend == "homomorphic":
        _homomorphic().check_available()


def _homomorphic() -> Any:
    """The homomorphic data plane, looked for only where it is wanted: TenSEAL is an optional part."""
    return importlib.import_module("secure.homomorphic.plane")


def encode_aggregate(aggregate: Aggregate) -> bytes:
    """A released aggregate as bytes, for silos that were not in the cohort; read with ``decode_aggregate``.

    Raises:
        InputError: this party cannot read it.
    """
    _readable(aggregate)
    values: npt.NDArray[Any] = np.ascontiguousarray(aggregate.values)
    names = [item.name for item in aggregate.spec.metrics]
    return encode(
        Sum(
            spec=aggregate.spec.digest(),
            dtype=_dtype(values),
            open=aggregate.open,
            cohort=aggregate.cohort,
            survivors=aggregate.survivors,
            metrics=tuple(float(aggregate.metrics[name]) for name in names),
            clipped_share=float(aggregate.clipped_share),
            values=byte_view(values.astype(_dtype(values), copy=False)),
        )
    )


def _readable(aggregate: Aggregate) -> None:
    if aggregate.is_sealed:
        raise InputError("this sum is sealed: the server of a homomorphic session cannot read it, its silos can")


def _dtype(values: npt.NDArray[Any]) -> str:
    return "<i4" if values.dtype.kind == "i" else "<f4"


def decode_aggregate(data: bytes, spec: VectorSpec) -> Aggregate:
    """Undo ``encode_aggregate``; the values are a read-only view of ``data``.

    Raises:
        DecodeError: no aggregate, or one of another layout.
    """
    message = decode(data, Sum, limit=4 * spec.length + BULK_OVERHEAD)
    fits = message.spec == spec.digest() and memoryview(message.values).nbytes == 4 * spec.length
    fits = fits and len(message.open) == spec.components and len(message.metrics) == len(spec.metrics)
    if not fits or message.dtype not in ("<i4", "<f4"):
        raise DecodeError("aggregate of another layout")
    values = np.frombuffer(message.values, dtype=message.dtype)
    values.flags.writeable = False
    return Aggregate(
        spec=spec,
        values=values,
        open=message.open,
        cohort=message.cohort,
        survivors=message.survivors,
        metrics={item.name: value for item, value in zip(spec.metrics, message.metrics, strict=True)},
        clipped_share=message.clipped_share,
    )


def dequantise(aggregate: Aggregate) -> npt.NDArray[np.float32]:
    """The sum in the parameters' unit: float32, shape (spec.length,), a new array.

    Raises:
        InputError: this party cannot read it.
    """
    _readable(aggregate)
    out = np.empty(aggregate.spec.length, dtype=np.float32)
    if aggregate.values.dtype.kind == "f":
        out[:] = aggregate.values
        return out
    values = np.asarray(aggregate.values, dtype=np.int32)
    for part in segments(aggregate.spec, (1.0,) * aggregate.spec.components):
        dequantise_into(values[part.start : part.stop], part.scale, out[part.start : part.stop])
    return out
