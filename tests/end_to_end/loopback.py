"""Ports of this machine, and waiting, for tests that start real processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

_Found = TypeVar("_Found")


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def until(
    what: Callable[[], _Found], seconds: float = 30.0, why: Callable[[], str] = lambda: "no more is known"
) -> _Found:
    """The first true value of ``what()``; the test fails where there is none in time, and ``why()`` tells more."""
    limit = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > limit:
            pytest.fail(f"it has not happened: {why()}")
        time.sleep(0.02)
    return found
