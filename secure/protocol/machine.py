"""What every session has in common: one terminal event, refusals as aborts on a silo, as counters on the server."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from secure.codec import Message, encode
from secure.errors import BlameError, DecodeError, InputError, PolicyRefusal, ProtocolError, SecureError
from secure.events import Event, Send, SessionAbortedEvent
from secure.keys import _Secretive
from secure.messages import Abort
from secure.types import SessionParams, SiloId

_T = TypeVar("_T")

UNSAID = "this silo cannot take part; its own log says why"


def culprits_of(error: BaseException) -> tuple[SiloId, ...]:
    """Whom an error convicts."""
    return (error.culprit,) if isinstance(error, BlameError) else ()


def need(value: _T | None) -> _T:
    """A part of the state that this step cannot be without.

    Raises:
        ProtocolError: the session has ended in the meantime.
    """
    if value is None:
        raise ProtocolError("this session's state was erased")
    return value


def _mark(payload: bytes) -> bytes:
    """Recognises a repeated message. Of long ones only the front counts: taking another for a repeat ignores it."""
    return hashlib.sha256(len(payload).to_bytes(8, "big") + payload[: 1 << 16]).digest()


class SiloMachine(_Secretive, ABC):
    """A silo's session: refuses every message that its state does not name, and then ends.

    A message that was taken already and comes again, byte for byte, is ignored and counted in ``ignored``.
    """

    def __init__(self) -> None:
        self._done = False
        self._taken: set[bytes] = set()
        self.ignored = 0

    @property
    def done(self) -> bool:
        """Whether a terminal event was emitted."""
        return self._done

    def start(self) -> Iterable[Event]:
        """Nothing: the server speaks first."""
        return ()

    def handle(self, payload: bytes) -> Iterable[Event]:
        """Take one message. A refused one ends the session with an abort event; nothing is ever raised."""
        if self._done:
            self.ignored += 1
            return ()
        try:
            if not isinstance(payload, bytes):
                raise DecodeError("a message is bytes")
            mark = _mark(payload)
            if mark in self._taken:
                self.ignored += 1
                return ()
            events = list(self._take(payload))
            self._taken.add(mark)
            return events
        except SecureError as error:
            return self._end(str(error), culprits_of(error), _sayable(error))
        except Exception as error:  # a bug of ours must not leave secrets in a live session
            return self._end(f"internal error ({type(error).__name__})", (), UNSAID)

    def deadline(self) -> Iterable[Event]:
        """This step's time is up: abort and erase."""
        if self._done:
            return ()
        return self._end("this step's time is up", (), "this step's time was up on a silo")

    def _end(self, reason: str, culprits: tuple[SiloId, ...], said: str | None) -> list[Event]:
        """Erase, tell the server (unless it told us), and emit the terminal event."""
        events: list[Event] = [] if said is None else [Send(encode(Abort(said[:512], tuple(sorted(set(culprits))))))]
        events += self._last_words()
        self._finish()
        return [*events, SessionAbortedEvent(reason, culprits)]

    def _told_to_abort(self, message: Abort) -> list[Event]:
        return self._end(f"the server ended the session: {message.reason}", message.culprits, None)

    def _finish(self) -> None:
        self._done = True
        self._erase()

    def _last_words(self) -> list[Event]:
        """Messages that an abort still sends, before erasing."""
        return []

    @abstractmethod
    def _take(self, payload: bytes) -> Iterable[Event]:
        """Take one message in the present state."""

    @abstractmethod
    def _erase(self) -> None:
        """Drop every secret."""


def _sayable(error: SecureError) -> str:
    """What the server is told: reasons that come from its own messages, never a silo's paths, data or settings."""
    return str(error) if isinstance(error, ProtocolError | PolicyRefusal) else UNSAID


class ServerMachine(ABC):
    """The server's session: garbage is ignored and counted, missing silos are waited for until the deadline."""

    def __init__(self, params: SessionParams) -> None:
        self.params = params
        self._done = False
        self._gone: set[SiloId] = set()
        self.ignored = 0
        self.complaints: list[tuple[SiloId, str]] = []

    @property
    def done(self) -> bool:
        """Whether a terminal event was emitted."""
        return self._done

    @property
    def voids(self) -> tuple[bytes, ...]:
        """None, unless a data plane with secrets says otherwise."""
        return ()

    @property
    def totals_out(self) -> bool:
        """Whether silos may know the totals: then a repeat needs the same cohort, or c + 2 silos fewer."""
        return False

    @property
    def alive(self) -> tuple[SiloId, ...]:
        """Silos of the cohort that are not counted as missing."""
        return tuple(silo for silo in self.params.cohort if silo not in self._gone)

    def handle(self, sender: SiloId, payload: bytes) -> Iterable[Event]:
        """Take one message; refused ones are counted in ``ignored`` and noted in ``complaints``.

        The state has moved on when this returns; large answers are made only as they are asked for.
        """
        if sender not in self.params.cohort:
            return self._refuse(sender, "is not in the cohort")
        if self._done:
            return self._afterwards(sender, payload)
        try:
            return self._take(sender, payload)
        except ProtocolError as error:
            return self._refuse(sender, str(error))
        except InputError as error:  # the disk is full, say: our own trouble
            return self._stop(str(error), ())

    def _refuse(self, sender: SiloId, reason: str) -> list[Event]:
        self.ignored += 1
        if len(self.complaints) < 1000:
            self.complaints.append((sender, reason))
        return []

    def _afterwards(self, sender: SiloId, payload: bytes) -> list[Event]:
        """A message after the end."""
        del payload
        return self._refuse(sender, "the session has ended")

    def lost(self, silo: SiloId) -> Iterable[Event]:
        """Count a silo as missing for the rest of the session."""
        if self._done or silo not in self.params.cohort or silo in self._gone:
            return ()
        self._gone.add(silo)
        return self._went(silo)

    def _to_all(self, item: Message | bytes, silos: Sequence[SiloId] | None = None) -> list[Event]:
        """One message, the same bytes object, to every silo still there."""
        payload = item if isinstance(item, bytes) else encode(item)
        return [Send(payload, silo) for silo in (self.alive if silos is None else silos)]

    def _relay(self, make: Callable[[SiloId], Message], silos: Sequence[SiloId]) -> Iterator[Event]:
        """A message of its own for each silo, made when it is asked for."""
        try:
            for silo in silos:
                if not self._done:
                    yield Send(encode(make(silo)), silo)
        except InputError as error:
            yield from self._stop(str(error), ())

    def _stop(self, reason: str, culprits: Iterable[SiloId]) -> list[Event]:
        """Abort: tell every silo, keep nothing."""
        blamed = tuple(sorted(set(culprits)))
        events = self._to_all(Abort(reason[:512], blamed))
        self._finish()
        return [*events, SessionAbortedEvent(reason, blamed)]

    def _finish(self) -> None:
        self._done = True
        self._erase()

    @abstractmethod
    def _take(self, sender: SiloId, payload: bytes) -> Iterable[Event]:
        """Take one message in the present state."""

    @abstractmethod
    def _went(self, silo: SiloId) -> Iterable[Event]:
        """A silo has just been counted as missing."""

    @abstractmethod
    def _erase(self) -> None:
        """Drop buffers and files."""
