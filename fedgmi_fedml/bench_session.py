"""Whole sessions in memory, every party's work metered: what ``fedgmi bench secure`` and ``bench peers`` measure on.

A *stage* is what a party was doing:

    silo:    control (every message it takes), submit (from the weighted vector to the last piece; part of it is plane:
             check, quantise and mask, without keys, authentication and framing), read (the release)
    server:  control, intake (authenticate and spool pieces), release (last share in, masks off, release out)
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.errors import RunError
from secure.api import (
    Contribution,
    Credentials,
    Send,
    SessionAbortedEvent,
    SessionReleased,
    TotalsKnown,
    dequantise,
    open_server,
    open_silo,
)
from secure.errors import SecureError
from secure.gate import check_feasible
from secure.identity import Identity
from secure.journal import Journal
from secure.policy import Policy
from secure.roster import Roster, RosterEntry
from secure.types import Backend, Block, MetricSpec, Profile, Rules, SessionParams, StatisticSpec, Totals, VectorSpec

__all__ = ["COMPONENTS", "Federation", "Session", "Stopwatch", "layout", "vector_of"]

COMPONENTS = 2
_TENSORS = 8
_CLIP = 8.0
_NOW = 1_900_000_000
_R = TypeVar("_R")
Vector = npt.NDArray[np.float32]


def layout(parameters: int, profile: Profile = "standard") -> VectorSpec:
    """Two components of eight tensors each (the last takes what is left), metrics and statistics as in a real round."""
    edges = np.linspace(0, parameters, COMPONENTS * _TENSORS + 1).astype(int)
    blocks = tuple(
        Block(f"part.{index // _TENSORS}/tensor.{index}", int(stop - start), _CLIP, index // _TENSORS)
        for index, (start, stop) in enumerate(pairwise(edges))
    )
    metrics = tuple(MetricSpec(f"loss.{j}", 1e6, 1e-6, j) for j in range(COMPONENTS))
    statistics = tuple(StatisticSpec(f"mean.{j}", 1e5, 1e-6) for j in range(COMPONENTS))
    return VectorSpec(COMPONENTS, blocks, metrics, statistics, profile)


def vector_of(silo: int, parameters: int, spread: float) -> Vector:
    """One silo's unweighted update, the same whenever it is asked for: float32, normal with this standard deviation."""
    draw: Vector = np.random.default_rng(silo).standard_normal(parameters, dtype=np.float32)
    draw *= np.float32(spread)
    return draw


class Federation:
    """Silos 1 … K with identities, roster, policies and journals, and parameters of as many sessions as wanted.

    Args:
        silos: K.
        drops: silos that may vanish.
        backend: which data plane.

    Raises:
        RunError: the rules do not allow so many drops.
    """

    def __init__(self, silos: int, drops: int, backend: Backend) -> None:
        self.cohort = tuple(range(1, silos + 1))
        self.rules, self.backend = Rules(max_drops=max(1, drops)), backend
        try:
            check_feasible(silos, self.rules)
        except SecureError as error:
            raise RunError(f"{silos} silos with {drops} drops: {error}") from None
        self._keys = {silo: Identity.generate() for silo in self.cohort}
        self._server, operator = Identity.generate(), Identity.generate()
        entries = [RosterEntry(i, f"silo {i}", f"organisation {i}", key.public_key) for i, key in self._keys.items()]
        self._roster = Roster.issue(
            operator, version=1, issued=_NOW - 60, expires=_NOW + 10**8, silos=entries,
            server_key=self._server.public_key,
        )  # fmt: skip
        settings: dict[str, Any] = {"rules": self.rules, "min_cohort": silos, "backends": (backend,)}
        self._policy = Policy.for_roster(self._roster, _NOW, **settings)
        self._journals = {silo: Journal() for silo in self.cohort}
        self._rounds = 0

    def params(self, spec: VectorSpec) -> SessionParams:
        """Of a session that has not been yet."""
        self._rounds += 1
        start = hashlib.sha256(f"start {self._rounds}".encode()).digest()
        digest = bytes(32) if self.backend == "none" else self._roster.digest()
        return SessionParams(
            "bench", "rounds", self._rounds, 0, self.backend, self.cohort, spec, start, bytes(32), digest, self.rules
        )

    def server_credentials(self) -> Credentials | None:
        """The server's."""
        return None if self.backend == "none" else Credentials(self._server, self._roster)

    def open_silo(self, silo: int, params: SessionParams) -> Any:
        """A silo's session; size classes and statistics differ by silo."""
        credentials = None if self.backend == "none" else Credentials(self._keys[silo], self._roster, self._policy)
        held = Contribution((100.0 + silo, 200.0 - silo), (1.0 * silo, 2.0))
        return open_silo(silo, params, held, credentials=credentials, journal=self._journals[silo])


class Stopwatch:
    """CPU seconds by (party, stage); the server is party 0. Counts every thread, so that none can hide work."""

    times = True
    """Whether it is seconds that are measured."""

    def __init__(self) -> None:
        self.spent: dict[tuple[int, str], float] = defaultdict(float)

    def around(self, party: int, action: Callable[[], _R], stage_of: Callable[[_R], str]) -> _R:
        """Run an action; its result says which stage it was."""
        start = time.process_time()
        result = action()
        seconds = time.process_time() - start
        self.spent[party, stage_of(result)] += seconds
        return result


class Session:
    """One session, driven to its release.

    Args:
        federation: who takes part.
        params: of the session.
        vector: a silo's unweighted update.
        meter: sees every party's work.
        drops: silos that vanish after their shares went out and before they upload.
        server: another server than one in this process.
        between: called before every upload, outside of all meters.
    """

    def __init__(
        self, federation: Federation, params: SessionParams, vector: Callable[[int], Vector], meter: Stopwatch, *,
        drops: Sequence[int] = (), server: Any = None, between: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._params, self._vector, self._between = params, vector, between
        self.meter, self._drops = meter, tuple(drops)
        self._server = server or open_server(params, credentials=federation.server_credentials())
        self._meter_absorb()
        self._silos = {silo: federation.open_silo(silo, params) for silo in params.cohort}
        self._down: deque[Send] = deque()
        self._totals: dict[int, Totals] = {}
        self._uploading = False
        self.upload_bytes: dict[int, int] = defaultdict(int)
        self.sent_bytes: dict[int, int] = defaultdict(int)
        self.download_bytes = 0
        self.result: Vector | None = None

    @property
    def survivors(self) -> tuple[int, ...]:
        """Silos that upload."""
        return tuple(silo for silo in self._params.cohort if silo not in self._drops)

    def share(self, silo: int) -> tuple[float, ...]:
        """A silo's weight of each component."""
        return self._totals[silo].share

    def weighted(self, silo: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
        """A silo's update, weighted: what it submits, or with float64 what it means."""
        vector = self._vector(silo).astype(dtype, copy=False)
        start = 0
        for block in self._params.spec.blocks:
            vector[start : start + block.length] *= dtype(self.share(silo)[block.component])
            start += block.length
        return vector

    def up_to_uploads(self) -> Session:
        """Proposal, keys, shares, totals."""
        self._from_server(self.meter.around(0, lambda: list(self._server.start()), self._server_stage))
        self._settle()
        return self

    def uploads(self) -> Session:
        """Every survivor's upload, one after the other."""
        getattr(self._server, "mark", int)()  # a server that measures its memory wants to know
        for silo in self.survivors:
            vector = self.weighted(silo)
            self._between()
            self._upload(silo, vector)
        return self

    def to_release(self) -> Session:
        """The server hears who is gone; consistency, unmasking, release."""
        for silo in self._drops:
            del self._silos[silo]
            self._from_server(
                self.meter.around(0, lambda gone=silo: list(self._server.lost(gone)), self._server_stage)  # type: ignore[misc]
            )
        self._settle()
        if self.result is None:
            raise RunError("the measured session did not reach a release")
        return self

    def _open_plane(self, silo: int) -> None:
        """Put the meter between a silo's session and its data plane, whose own time is otherwise not to be seen."""
        plane, spent = getattr(self._silos[silo], "_plane", None), self.meter.spent
        if plane is None or not self.meter.times:
            return
        check, pieces = plane.check, plane.pieces

        def timed_check(*arguments: Any) -> Any:
            start = time.process_time()
            result = check(*arguments)
            spent[silo, "plane"] += time.process_time() - start
            return result

        def timed_pieces(*arguments: Any) -> Iterator[Any]:
            start = time.process_time()
            for piece in pieces(*arguments):
                spent[silo, "plane"] += time.process_time() - start
                yield piece
                start = time.process_time()
            spent[silo, "plane"] += time.process_time() - start

        plane.check, plane.pieces = timed_check, timed_pieces

    def _meter_absorb(self) -> None:
        """Note how much of the intake is adding up, where a data plane adds as uploads come."""
        plane, spent = getattr(self._server, "_plane", None), self.meter.spent
        if plane is None or not self.meter.times:
            return
        absorb = plane.absorb

        def timed(*arguments: Any) -> None:
            start = time.process_time()
            absorb(*arguments)
            spent[0, "absorb"] += time.process_time() - start

        plane.absorb = timed

    def _upload(self, silo: int, vector: Vector) -> None:
        self._open_plane(silo)
        metrics = {item.name: 1.0 for item in self._params.spec.metrics}
        self._uploading = True
        made = self.meter.around(silo, lambda: iter(self._silos[silo].submit(vector, metrics)), lambda _: "submit")
        while True:
            event = self.meter.around(silo, lambda: next(made, None), lambda _: "submit")
            if event is None:
                break
            self.upload_bytes[silo] += len(event.payload)
            self._from_silo(silo, [event])
        self._uploading = False

    def _settle(self) -> None:
        while self._down:
            message = self._down.popleft()
            silo = message.to
            if silo not in self._silos:
                continue
            session = self._silos[silo]
            self.download_bytes = max(self.download_bytes, len(message.payload))
            events = self.meter.around(silo, lambda: list(session.handle(message.payload)), _silo_stage)  # noqa: B023
            self._from_silo(silo, events)

    def _server_stage(self, events: Iterable[Any]) -> str:
        if any(isinstance(event, SessionReleased) for event in events):
            return "release"
        return "intake" if self._uploading else "control"

    def _from_silo(self, silo: int, events: Iterable[Any]) -> None:
        for event in events:
            if isinstance(event, Send):
                payload = event.payload
                self.sent_bytes[silo] += len(payload)
                answer = self.meter.around(
                    0,
                    lambda: list(self._server.handle(silo, payload)),  # noqa: B023
                    self._server_stage,
                )
                self._from_server(answer)
            elif isinstance(event, TotalsKnown):
                self._totals[silo] = event.totals
            elif isinstance(event, SessionReleased) and self.result is None:
                self.result = dequantise(event.aggregate)
            elif isinstance(event, SessionAbortedEvent):
                raise RunError(f"the measured session was aborted: {event.reason}")

    def _from_server(self, events: Iterable[Any]) -> None:
        for event in events:
            if isinstance(event, Send):
                self._down.append(event)
            elif isinstance(event, SessionAbortedEvent):
                raise RunError(f"the measured session was aborted: {event.reason}")


def _silo_stage(events: Iterable[Any]) -> str:
    return "read" if any(isinstance(event, SessionReleased) for event in events) else "control"
