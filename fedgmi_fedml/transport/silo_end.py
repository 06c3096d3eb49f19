"""A silo's end of its link, whatever carries the frames: it dials, says who it is, and dials again after every cut."""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from fedgmi_fedml.transport.api import Closed, Delivered, LinkError, Opened, SiloEvent
from fedgmi_fedml.transport.hello import VERSION, Answer, Hello, OtherVersion, decode_first, encode_first
from fedgmi_fedml.transport.link import LinkFault
from fedgmi_fedml.transport.pipe import Connection, Pipe
from fedgmi_fedml.transport.settings import LinkSettings
from fedgmi_fedml.transport.watch import FAREWELL_SECONDS, FIRST_FRAME_SECONDS, Watch, period_of

log = logging.getLogger(__name__)

_GROWTH = 1.6
"""Each pause between two attempts to dial is so much longer than the one before."""

_REMIND_SECONDS = 60.0
"""How often the same cause of not reaching the server is logged."""


class DialFailed(Exception):  # noqa: N818 - says what happened
    """A connection could not be made or has broken; the text says why.

    Attributes:
        fatal: dialling again cannot help.
    """

    def __init__(self, reason: str, fatal: bool = False) -> None:
        super().__init__(reason)
        self.fatal = fatal


class Line(Protocol):
    """One attempt to connect, and the connection that comes of it."""

    def __iter__(self) -> Iterator[bytes]:
        """The server's frames. Raises ``DialFailed`` where it ends otherwise than by the server's will."""

    def cancel(self) -> None:
        """End it from any thread; iteration stops soon."""

    def close(self) -> None:
        """Give everything back."""


Dial = Callable[[Iterator[bytes]], Line]
"""Starts connecting, without waiting; sends the frames given as it may."""


class _Attempt:
    """One connection from dialling to its end."""

    def __init__(self, hello: bytes, patience: float) -> None:
        self.hello = hello
        self.answered = threading.Event()
        self.pipe: Pipe | None = None
        self.line: Line | None = None
        self.connection = Connection(self._cut)
        self.deadline = time.monotonic() + patience

    def frames(self) -> Iterator[bytes]:
        """The first frame; after the answer whatever there is to say."""
        yield self.hello
        self.answered.wait()
        if self.pipe is not None:
            yield from self.pipe.frames(self.connection)

    def _cut(self) -> None:
        self.answered.set()
        if self.line is not None:
            self.line.cancel()


class SiloEnd:
    """``SiloTransport`` without a carrier.

    Args:
        dial: makes a connection.
        where: names the server in messages, e.g. ``host:port``.
        silo: this silo's id.
        federation: the name that the server must claim too.
        settings: sizes and patience.
    """

    def __init__(self, dial: Dial, where: str, silo: int, federation: str, settings: LinkSettings) -> None:
        self.settings = settings
        self._dial, self._where, self._silo, self._federation = dial, where, silo, federation
        self._events: queue.SimpleQueue[tuple[Pipe, bytes | SiloEvent | LinkError]] = queue.SimpleQueue()
        self._link = os.urandom(16)
        self._token = b""
        self._pipe = self._new_pipe()
        self._fresh = True  # no link has been open yet
        self._seen: Pipe | None = None  # as the events taken so far tell it
        self._attempt: _Attempt | None = None
        self._failure: LinkError | None = None
        self._closing = threading.Event()
        self._contact = time.monotonic()
        self._said, self._said_at = "", 0.0
        self._watch = Watch("fedgmi-link-watch", period_of(settings), self._look)
        self._thread = threading.Thread(target=self._run, name="fedgmi-link", daemon=True)
        self._thread.start()

    def _new_pipe(self) -> Pipe:
        pipe: Pipe
        pipe = Pipe(self.settings, lambda payload: self._events.put((pipe, payload)), self.settings.window_bytes)
        return pipe

    # ---- the link's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Dial until the link has ended for good."""
        try:
            pause = self.settings.backoff[0]
            while not self._closing.is_set() and not self._pipe.ended:
                cause, answered = self._converse()
                if answered:
                    pause = self.settings.backoff[0]
                if self._closing.is_set() or self._pipe.ended:
                    break
                self._complain(cause)
                self._closing.wait(pause * random.uniform(0.5, 1.0))
                pause = min(pause * _GROWTH, self.settings.backoff[1])
        except LinkError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the link's thread failed")
            self._fail(LinkError(f"the link to {self._where} failed unexpectedly ({type(error).__name__})"))
        finally:
            self._watch.stop()
            self._pipe.end()

    def _converse(self) -> tuple[str, bool]:
        """One connection; why it ended, and whether the server had answered."""
        inbox = self._pipe.link.inbox
        token = self._token
        received, allowed = (inbox.received, inbox.allowed) if token else (0, self.settings.window_bytes)
        hello = Hello(VERSION, self._federation, self._silo, self._link, token, received, allowed)
        attempt = self._attempt = _Attempt(encode_first(hello), min(FIRST_FRAME_SECONDS, self.settings.silence_seconds))
        line = attempt.line = self._dial(attempt.frames())
        cause = "the connection was cut"
        try:
            for frame in line:
                if attempt.pipe is None:
                    self._answer(frame, attempt)
                elif not attempt.pipe.feed(attempt.connection, frame):
                    break
        except DialFailed as failed:
            if failed.fatal:
                raise LinkError(str(failed), fatal=True) from failed
            cause = str(failed)
        except LinkFault as fault:
            cause = f"what answers is no server of FedGMI's ({fault})"
        finally:
            self._part(attempt)
        return cause, attempt.pipe is not None

    def _part(self, attempt: _Attempt) -> None:
        """The connection has ended."""
        pipe, self._attempt = attempt.pipe, None
        if pipe is not None:
            self._contact = time.monotonic()
            pipe.detach(attempt.connection)
            if pipe.link.bye is not None:
                pipe.end()
                self._events.put((pipe, Closed(*pipe.link.bye)))
            elif pipe.fault is not None:
                log.debug("the connection was cut: %s", pipe.fault)
                if pipe.fault.fatal:
                    raise LinkError(f"the server at {self._where} broke the link's protocol: {pipe.fault}")
                pipe.fault = None
        attempt.connection.cut()
        if attempt.line is not None:
            attempt.line.close()

    def _answer(self, frame: bytes, attempt: _Attempt) -> None:
        """The server's first frame: go on with the link, or begin one.

        Raises:
            LinkError: it refuses this silo. LinkFault: it is no answer.
        """
        try:
            answer = decode_first(frame, Answer)
        except OtherVersion as other:
            raise LinkError(
                f"the server at {self._where} speaks version {other.version} of the link's protocol, this silo version "
                f"{VERSION}: install the same version of fedgmi-fedml on both", fatal=True,
            ) from other  # fmt: skip
        if answer.refused:
            raise LinkError(f"the server at {self._where} refuses silo {self._silo}: {answer.refused}", fatal=True)
        if self._said:
            log.info("connected to the server at %s", self._where)
            self._said = ""
        if not answer.new and answer.token != self._token:
            raise LinkFault("an answer about another link")
        if answer.new:
            self._begin(answer)
        try:
            self._pipe.attach(attempt.connection, answer.received, answer.allowed)
        except LinkFault:
            self._token = b""  # the two ends have lost each other: begin anew
            raise
        attempt.pipe = self._pipe
        attempt.answered.set()

    def _begin(self, answer: Answer) -> None:
        """A new link: what was under way on an older one is gone."""
        if not self._fresh:
            older, self._pipe = self._pipe, self._new_pipe()
            older.end()
        self._fresh, self._token = False, answer.token
        self._events.put((self._pipe, Opened(answer.run_id)))

    def _complain(self, cause: str) -> None:
        """Say why there is no connection: at once, and then rarely.

        Raises:
            LinkError: this has gone on for too long.
        """
        now = time.monotonic()
        if now - self._contact >= self.settings.dial_seconds:
            raise LinkError(
                f"no server could be reached at {self._where} for {self.settings.dial_seconds:g} s: {cause}. Is the "
                "server running, is the address in this silo's kit right, and may this machine reach it?"
            )
        if cause != self._said or now - self._said_at > _REMIND_SECONDS:
            left = self.settings.dial_seconds - (now - self._contact)
            log.info("no connection to the server at %s: %s; trying again for %.0f s", self._where, cause, left)
            self._said, self._said_at = cause, now

    def _fail(self, error: LinkError) -> None:
        self._failure = error
        self._events.put((self._pipe, error))

    def _look(self) -> None:
        """The watch: a server that does not answer, or has fallen silent, is cut off."""
        attempt, now = self._attempt, time.monotonic()
        if attempt is None:
            return
        if (attempt.pipe is None and now > attempt.deadline) or (attempt.pipe is not None and attempt.pipe.silent(now)):
            attempt.connection.cut()

    # ---- SiloTransport -----------------------------------------------------------------------------------------------

    def receive(self, seconds: float) -> SiloEvent | None:
        """See ``SiloTransport``."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                left = deadline - time.monotonic()
                # Python 3.10's SimpleQueue waits for ever where the timeout is zero
                pipe, item = self._events.get(left > 0, max(0.0, left))
            except queue.Empty:
                return None
            if isinstance(item, LinkError):
                self._events.put((pipe, item))
                raise LinkError(str(item), item.fatal)
            if pipe is not self._pipe:
                continue  # of a link that is gone
            if isinstance(item, bytes):
                pipe.taken(item)
                return Delivered(item)
            if isinstance(item, Opened):
                self._seen = pipe
            return item

    def send(self, payload: bytes) -> None:
        """See ``SiloTransport``. A message for a link that has ended, though the events taken so far do not yet tell,
        is dropped."""
        pipe = self._seen or self._pipe
        while not pipe.queue_when_room(payload, 1.0):
            self._check()
        self._check()

    def _check(self) -> None:
        failure = self._failure
        if failure is not None:
            raise LinkError(str(failure), failure.fatal)

    def flush(self, seconds: float) -> bool:
        """See ``SiloTransport``."""
        return self._pipe.flush(time.monotonic() + seconds)

    def close(self) -> None:
        """See ``SiloTransport``."""
        if self._closing.is_set():
            return
        pipe = self._pipe
        pipe.end_soon("it has left", failed=False)
        self._closing.set()
        pipe.wait_until_over(time.monotonic() + FAREWELL_SECONDS)
        self.vanish()
        self._thread.join(FAREWELL_SECONDS)

    def vanish(self) -> None:
        """End at once and without a word, as a killed process does."""
        self._closing.set()
        self._watch.stop()
        self._pipe.end()
        attempt = self._attempt
        if attempt is not None:
            attempt.connection.cut()
