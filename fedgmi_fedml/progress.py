"""How far a run is: bars for run, phase and silos with the time left on a terminal, plain lines anywhere else.

    with open_progress(silos=12, plan={"warmup": 8, "rounds": 10}) as progress:
        progress.phase("rounds", 10)
        progress.silo(3)        # silo 3 has finished its part of the round
        progress.advance()      # the round is done
        progress.note("silo 5 dropped out")

Nothing here runs in a thread or needs a further package. Times come from a monotonic clock.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TextIO

from fedgmi_fedml.telemetry.logs import wants_colour

__all__ = ["LiveProgress", "PlainProgress", "Progress", "duration", "open_progress"]

Clock = Callable[[], float]


def duration(seconds: float) -> str:
    """Seconds in words: ``0.4 s``, ``12 s``, ``2 min 05 s``, ``1 h 12 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Counts phases, rounds and silos, and shows nothing (``--quiet``, tests). The others show.

    Args:
        silos: how many silos there are, where known.
        plan: rounds of every phase to come, in order, for the time left of the whole run.
        clock: monotonic seconds.
    """

    def __init__(
        self, silos: int | None = None, plan: Mapping[str, int] | None = None, clock: Clock = time.monotonic
    ) -> None:
        self.silos, self.plan = silos, dict(plan or {})
        self.name, self.total, self.done = "", 0, 0
        self._seen: set[int] = set()
        self._asked = silos
        self._recent: deque[float] = deque(maxlen=5)
        self._pace: dict[str, float] = {}
        self._clock = clock
        self._mark = clock()

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """A phase of ``total`` rounds begins; ``done`` of them were done before (resumed runs)."""
        self.name, self.total, self.done = name, total, done
        self._recent.clear()
        self._begin_round()
        self._changed("phase")

    def silo(self, silo: int, of: int | None = None) -> None:
        """Silo ``silo`` has finished its part of this round; ``of``: how many were asked (default: all)."""
        self._seen.add(silo)
        self._asked = of or self._asked
        self._changed("silo")

    def advance(self, text: str = "") -> None:
        """One more round of the phase is done; ``text`` (a figure or two) is shown beside it."""
        self.done += 1
        self._recent.append(self._clock() - self._mark)
        self._pace[self.name] = sum(self._recent) / len(self._recent)
        self._begin_round()
        self._changed("advance", text)

    def note(self, text: str) -> None:
        """A line that stays."""

    def _begin_round(self) -> None:
        self._seen.clear()
        self._asked = self.silos
        self._mark = self._clock()

    def _changed(self, what: str, text: str = "") -> None:
        """Something is to be shown."""

    @property
    def seconds_per_round(self) -> float | None:
        """Mean of the phase's last rounds; in its first round an estimate from the silos that have finished."""
        if self._recent:
            return self._pace[self.name]
        if self._seen and self._asked:
            return (self._clock() - self._mark) * self._asked / len(self._seen)
        return None

    @property
    def seconds_left(self) -> float | None:
        """Of this phase."""
        pace = self.seconds_per_round
        return None if pace is None else pace * max(0, self.total - self.done)

    @property
    def run_seconds_left(self) -> float | None:
        """Of the whole plan: phases not yet seen count at the mean pace of those seen."""
        left = self.seconds_left
        if left is None or self.name not in self.plan:
            return None
        mean = sum(self._pace.values()) / len(self._pace) if self._pace else self.seconds_per_round or 0.0
        coming = list(self.plan)[list(self.plan).index(self.name) + 1 :]
        return left + sum(self.plan[name] * self._pace.get(name, mean) for name in coming)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop showing."""


class PlainProgress(Progress):
    """One line where a phase begins and ends, and at most one every ``every`` seconds in between."""

    def __init__(self, stream: TextIO, every: float = 5.0, **settings: Any) -> None:
        super().__init__(**settings)
        self._stream, self._every = stream, every
        self._last = self._clock()

    def note(self, text: str) -> None:
        """Print ``text`` on a line of its own."""
        _print(self._stream, text)

    def _changed(self, what: str, text: str = "") -> None:
        now = self._clock()
        if what == "phase":
            rounds = f"{self.total} round{'s' if self.total != 1 else ''}"
            done = f", {self.done} done before" if self.done else ""
            self.note(f"{self.name}: {rounds}{done}")
        elif what == "advance" and (self.done == self.total or now - self._last >= self._every):
            parts = [f"{self.name} {self.done}/{self.total}", f"{duration(self.seconds_per_round or 0.0)} a round"]
            if self.done < self.total:
                parts.append(f"about {duration(self.seconds_left or 0.0)} left")
            self.note(", ".join(part for part in [*parts, text] if part))
        else:
            return
        self._last = now


class LiveProgress(Progress):
    """Bars that are redrawn in place. While active, ``sys.stdout`` and ``sys.stderr`` print above them."""

    def __init__(self, stream: TextIO, every: float = 0.1, **settings: Any) -> None:
        super().__init__(**settings)
        self._stream, self._every = stream, every
        self._colour = wants_colour(stream)
        self._drawn = 0
        self._last = float("-inf")
        self._text = ""
        self._lock = threading.RLock()
        self._replaced: list[tuple[str, Any]] = []

    def note(self, text: str) -> None:
        """Print ``text`` above the bars."""
        with self._lock:
            self._erase()
            _print(self._stream, text)
            self._draw()

    def _changed(self, what: str, text: str = "") -> None:
        with self._lock:
            self._text = text if what != "silo" else self._text
            now = self._clock()
            if what == "silo" and now - self._last < self._every:
                return
            self._last = now
            self._erase()
            self._draw()

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _draw(self) -> None:
        if not self.name:
            return
        width = max(20, shutil.get_terminal_size().columns - 1)
        lines = [self._phase_line(width), *self._silo_line(width), *self._run_line(width)]
        self._stream.write("".join(line + "\n" for line in lines))
        self._stream.flush()
        self._drawn = len(lines)

    def _phase_line(self, width: int) -> str:
        left = self.seconds_left
        tail = [f"{self.done}/{self.total}"]
        tail += [f"about {duration(left)} left"] if left is not None and self.done < self.total else []
        return self._line(self.name, self.done / max(1, self.total), [*tail, self._text], width, "36")

    def _silo_line(self, width: int) -> list[str]:
        if not self._asked or self._asked < 2 or self.done >= self.total:
            return []
        count = min(len(self._seen), self._asked)
        return [self._line("silos", count / self._asked, [f"{count}/{self._asked} in this round"], width, "34")]

    def _run_line(self, width: int) -> list[str]:
        if len(self.plan) < 2 or self.name not in self.plan:
            return []
        position = list(self.plan).index(self.name) + 1
        before = sum(self.plan[name] for name in list(self.plan)[: position - 1])
        share = (before + self.done) / max(1, sum(self.plan.values()))
        left = self.run_seconds_left
        tail = [f"phase {position} of {len(self.plan)}"]
        tail += [f"about {duration(left)} left"] if left else []
        return [self._line("run", share, tail, width, "32")]

    def _line(self, label: str, share: float, tail: list[str], width: int, colour: str) -> str:
        """One bar with its label, cut to the terminal's width so that it never wraps."""
        head = f"{label[:12]:12} "
        end = "  " + "  ".join(part for part in tail if part)
        length = max(4, min(32, width - len(head) - 34))  # of the width alone, so that the bars line up
        full = round(min(1.0, max(0.0, share)) * length)
        end = end[: max(0, width - len(head) - length)]
        bar, rest = "━" * full, "─" * (length - full)
        return f"{head}\x1b[{colour}m{bar}\x1b[0m\x1b[2m{rest}\x1b[0m{end}" if self._colour else head + bar + rest + end

    def __enter__(self) -> LiveProgress:
        for name in ("stdout", "stderr"):
            present = getattr(sys, name)
            if present is self._stream or wants_bars(present):
                self._replaced.append((name, present))
                setattr(sys, name, _Above(self, present))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the last state of the bars (nothing after an interruption) and give the streams back."""
        with self._lock:
            self._erase()
            if kind is None:
                self._draw()
            self._drawn = 0
            self._stream.flush()
            for name, present in self._replaced:
                getattr(sys, name).finish()
                setattr(sys, name, present)
            self._replaced = []


class _Above(io.TextIOBase):
    """Stands for a terminal stream while bars are shown: whole lines are printed above them."""

    def __init__(self, live: LiveProgress, stream: Any) -> None:
        self._live, self._stream, self._rest = live, stream, ""

    def write(self, text: str) -> int:
        self._rest += text
        if "\n" in self._rest:
            whole, self._rest = self._rest.rsplit("\n", 1)
            self._print(whole + "\n")
        return len(text)

    def _print(self, text: str) -> None:
        with self._live._lock:
            self._live._erase()
            self._live._stream.flush()
            self._stream.write(text)
            self._stream.flush()
            self._live._draw()

    def finish(self) -> None:
        """Print what has no line end yet."""
        if self._rest:
            self._stream.write(self._rest)
            self._rest = ""

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self._stream.encoding)

    def fileno(self) -> int:
        return int(self._stream.fileno())


def _print(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()


def wants_bars(stream: Any) -> bool:
    """Whether bars can be redrawn on ``stream``: a terminal that is not dumb (NO_COLOR takes colours, not bars)."""
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"


def open_progress(
    stream: TextIO | None = None,
    *,
    silos: int | None = None,
    plan: Mapping[str, int] | None = None,
    quiet: bool = False,
) -> Progress:
    """Bars on a terminal, plain lines elsewhere, nothing when ``quiet``.

    Args:
        stream: where to; default standard error.
        silos: how many silos there are. plan: rounds of every phase, in order.
    """
    where = stream or sys.stderr
    if quiet:
        return Progress(silos, plan)
    if wants_bars(where):
        return LiveProgress(where, silos=silos, plan=plan)
    return PlainProgress(where, silos=silos, plan=plan)
