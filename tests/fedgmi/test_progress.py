"""Progress: times left, plain lines off a terminal, bars that never wrap or eat other output on one."""

from __future__ import annotations

import io
import re
import sys

import pytest

from fedgmi_fedml.progress import LiveProgress, PlainProgress, Progress, duration, open_progress


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def screen(written: str) -> list[str]:
    """What a terminal shows after these bytes: only line ends, cursor up and erase-below are needed."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[\d*[A-Za-z]|\n|[^\x1b\n]+", written):
        if token == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif token.endswith("A"):
            row -= int(token[2:-1])
        elif token == "\x1b[J":
            lines = [*lines[:row], ""]
        elif not token.startswith("\x1b"):
            lines[row] += token
    return [line for line in lines if line]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.42, "0.4 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (4320, "1 h 12 min")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_time_left_of_phase_and_run() -> None:
    clock = Clock()
    progress = Progress(silos=4, plan={"warmup": 2, "rounds": 10}, clock=clock)
    progress.phase("warmup", 2)
    assert progress.seconds_left is None
    clock.now += 3
    progress.silo(7)
    assert progress.seconds_left == pytest.approx(2 * 12.0)  # a quarter of the silos in 3 s
    clock.now += 3
    progress.advance()
    assert progress.seconds_left == pytest.approx(6.0)
    assert progress.run_seconds_left == pytest.approx(6.0 + 60.0)
    clock.now += 6
    progress.advance()
    progress.phase("rounds", 10)
    clock.now += 2
    progress.advance()
    assert progress.seconds_left == pytest.approx(18.0)
    assert progress.run_seconds_left == pytest.approx(18.0)


def test_a_resumed_phase_counts_from_where_it_was() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.phase("rounds", 10, done=7)
    clock.now += 2
    progress.advance()
    assert (progress.done, progress.seconds_left) == (8, pytest.approx(4.0))


def test_off_a_terminal_there_are_few_plain_lines() -> None:
    clock, out = Clock(), io.StringIO()
    with PlainProgress(out, silos=3, clock=clock) as progress:
        progress.phase("rounds", 10)
        for number in range(10):
            for silo in (1, 2, 3):
                clock.now += 1
                progress.silo(silo)
            progress.advance(f"accuracy 0.{number}")
            if number == 4:
                progress.note("silo 2 dropped out")
    assert "\x1b" not in out.getvalue()
    lines = out.getvalue().splitlines()
    assert lines[0] == "rounds: 10 rounds"
    assert "silo 2 dropped out" in lines
    assert "rounds 2/10, 3.0 s a round, about 24 s left, accuracy 0.1" in lines
    assert lines[-1] == "rounds 10/10, 3.0 s a round, accuracy 0.9"
    assert len(lines) == 7


def test_what_is_chosen_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(open_progress(io.StringIO()), PlainProgress)
    assert isinstance(open_progress(Terminal()), LiveProgress)
    assert type(open_progress(Terminal(), quiet=True)) is Progress
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_progress(Terminal()), PlainProgress)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_bars_are_redrawn_in_place(terminal: Terminal) -> None:
    clock = Clock()
    with LiveProgress(terminal, silos=4, plan={"warmup": 2, "rounds": 10}, clock=clock) as progress:
        progress.phase("rounds", 10)
        for _ in range(3):
            for silo in range(4):
                clock.now += 0.5
                progress.silo(silo)
            progress.advance("loss 1.25")
        shown = screen(terminal.getvalue())
        assert len(shown) == 3
        assert re.fullmatch(r"rounds +━+─+  3/10  about 14 s left  loss 1\.25", shown[0])
        assert "0/4 in this round" in shown[1]
        assert "phase 2 of 2  about 14 s left" in shown[2]
        progress.note("silo 2 dropped out")
        assert screen(terminal.getvalue())[0] == "silo 2 dropped out"
    assert len(screen(terminal.getvalue())) == 4


@pytest.mark.parametrize("columns", ["25", "40", "80", "200"])
def test_lines_never_wrap(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    clock = Clock()
    with LiveProgress(terminal, silos=100, plan={"warmup": 2, "a very long name": 1000}, clock=clock) as progress:
        progress.phase("a very long name", 1000)
        clock.now += 5000
        progress.advance("accuracy 0.987654321 " * 5)
    assert all(len(line) < int(columns) for line in screen(terminal.getvalue()))


def test_no_color_takes_the_colours_and_leaves_the_bars(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for no_color, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        out = Terminal()
        with open_progress(out) as progress:
            progress.phase("rounds", 2)
            progress.advance()
        assert bool(re.search(r"\x1b\[\d+m", out.getvalue())) == coloured
        assert "━" in out.getvalue()


def test_other_output_is_printed_whole_above_the_bars(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with open_progress() as progress:
        progress.phase("rounds", 2)
        print("a warn", end="", file=sys.stderr)
        print("ing\nand another", file=sys.stderr)
        progress.advance()
        print("unfinished", end="", file=sys.stderr)
    assert sys.stderr is terminal
    shown = screen(terminal.getvalue())
    assert shown[:2] == ["a warning", "and another"]
    assert shown[-1] == "unfinished"


def test_an_interruption_takes_the_bars_away_and_gives_the_streams_back(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)

    def interrupted() -> None:
        with open_progress(silos=3) as progress:
            progress.phase("rounds", 2)
            progress.silo(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.stderr is terminal
    assert screen(terminal.getvalue()) == []
