"""A thread that looks after something every so often, and never keeps a process alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fedgmi_fedml.transport.settings import LinkSettings

log = logging.getLogger(__name__)


class Watch:
    """Calls ``look`` every ``period`` seconds until stopped. What it raises is logged and does not end the watch."""

    def __init__(self, name: str, period: float, look: Callable[[], None]) -> None:
        self._period, self._look = period, look
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            try:
                self._look()
            except Exception:
                log.exception("watching over the links failed; it goes on")

    def stop(self) -> None:
        """End the thread; returns at once."""
        self._stopped.set()


def period_of(settings: LinkSettings) -> float:
    """How often to look, seconds: often enough for these settings, and at most twenty times a second."""
    return max(0.05, min(1.0, settings.silence_seconds / 8, (settings.grace_seconds or 1.0) / 8))


FIRST_FRAME_SECONDS = 20.0
"""A connection that has not said who it is after so long is cut; a server that has not answered, too."""

FAREWELL_SECONDS = 3.0
"""How long a close waits for the other side to have heard of it."""
