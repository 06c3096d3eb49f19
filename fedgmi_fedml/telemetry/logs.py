"""Logging for people: one handler, colours only on a terminal, and no payload in any line."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

__all__ = ["log_to_file", "setup_logging", "wants_colour"]

_ROOTS = ("fedgmi_fedml", "secure")
_COLOURS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31", logging.DEBUG: "2"}
_LONGEST = 2000


def wants_colour(stream: Any) -> bool:
    """Whether to colour what is written to ``stream``: a terminal, and neither NO_COLOR nor a dumb one."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(stream, "isatty", lambda: False)())


def _shown(value: Any) -> Any:
    """What a log line shows of one argument: sizes and types of anything that could be a payload, never its content."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    if hasattr(value, "shape") and hasattr(value, "dtype") and getattr(value, "ndim", 1) > 0:
        return f"<{type(value).__name__} {tuple(value.shape)} {value.dtype}>"
    if isinstance(value, (dict, set, frozenset)) or (isinstance(value, (list, tuple)) and len(value) > 16):
        return f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, (list, tuple)):
        return (
            type(value)(_shown(item) for item in value) if type(value) in (list, tuple) else f"<{type(value).__name__}>"
        )
    return value


class _NoPayloads(logging.Filter):
    """Replaces payloads among a record's arguments before they become text."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_shown(value) for value in record.args)
        elif isinstance(record.args, dict):  # logging unwraps a single dict, whether or not the text names its keys
            named = "%(" in str(record.msg)
            shown = {key: _shown(value) for key, value in record.args.items()}
            record.args = shown if named else (_shown(record.args),)
        return True


class _Lines(logging.Formatter):
    """``12:03:04 warning  text``; a traceback only where the level is DEBUG."""

    def __init__(self, verbose: bool, times: str = "%H:%M:%S") -> None:
        super().__init__("%(message)s", times)
        self._verbose = verbose

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]} … ({len(text)} characters)"
        if record.exc_info and record.exc_info[0] is not None:
            text += f" ({record.exc_info[0].__name__})"
            if self._verbose:
                text += "\n" + self.formatException(record.exc_info)
        return f"{self.formatTime(record, self.datefmt)} {record.levelname.lower():8} {text}"


class _ToPresentStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever ``sys.stderr`` is now: progress bars and test runners replace it while they are active."""

    def __init__(self, stream: TextIO | None) -> None:
        logging.Handler.__init__(self)
        self._fixed = stream

    @property
    def stream(self) -> Any:
        return self._fixed or sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        self._fixed = value

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = _COLOURS.get(record.levelno)
        return f"\x1b[{colour}m{text}\x1b[0m" if colour and wants_colour(self.stream) else text


def setup_logging(level: str | int = "INFO", stream: TextIO | None = None) -> logging.Handler:
    """Send the log of ``fedgmi_fedml`` and ``secure`` to ``stream`` (default: standard error). May be called again.

    Args:
        level: ``DEBUG``, ``INFO``, ``WARNING`` or ``ERROR``. Tracebacks are shown at ``DEBUG`` only.
        stream: anything with ``write``; colours only when it is a terminal and NO_COLOR is unset.

    Returns the handler. Other libraries' loggers are left alone. Raises ValueError for an unknown level.
    """
    handler = _ToPresentStderr(stream)
    number = logging.getLevelName(level.upper()) if isinstance(level, str) else level
    if not isinstance(number, int):
        raise ValueError(f"unknown log level {level!r}; use DEBUG, INFO, WARNING or ERROR")
    handler.setFormatter(_Lines(verbose=number <= logging.DEBUG))
    handler.addFilter(_NoPayloads())
    for name in _ROOTS:
        logger = logging.getLogger(name)
        for old in [old for old in logger.handlers if isinstance(old, _ToPresentStderr)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(number)
        logger.propagate = False
    return handler


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also append the log to ``path``, with dates and every traceback: the whole story, for the machine it lies on.

    Raises:
        OSError: the file cannot be written.
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Lines(verbose=True, times="%Y-%m-%d %H:%M:%S"))
    handler.addFilter(_NoPayloads())
    loggers = [logging.getLogger(name) for name in _ROOTS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()
