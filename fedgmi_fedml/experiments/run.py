"""Run the cells of an experiment that are not there yet, some at a time, each in a process of its own.

A cell is the unit of work: its JSON appears when it has ended, and an interrupted one leaves nothing. A cell that fails
is told and the others go on; it has no JSON, so ``--resume`` tries it again.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedgmi_fedml.errors import FedgmiError, Interrupted, RunEndedEarly
from fedgmi_fedml.experiments.cell import run_cell
from fedgmi_fedml.experiments.definition import Cell, Experiment
from fedgmi_fedml.experiments.store import Store

__all__ = ["run_experiment"]

log = logging.getLogger(__name__)

Tell = Callable[[str], None]


def run_experiment(
    experiment: Experiment, out: Path, *, resume: bool = False, workers: int = 1, tell: Tell = lambda line: None
) -> Store:
    """Run what is not there yet.

    Args:
        experiment: with every configuration checked before the first cell is run.
        out: the experiment's folder; must hold no cells unless ``resume``.
        resume: skip the cells that are there.
        workers: cells at a time; each needs one core and, as a rule, less than 2 GiB.
        tell: told one line a cell.

    Raises:
        ConfigError, RunError: before anything is run.
        RunEndedEarly: some cells failed; all others are there. Interrupted: Ctrl-C; the finished cells are there.
    """
    experiment.check()
    store = Store(out)
    missing = store.begin(experiment, resume)
    total, failures = len(experiment.cells), []
    done = total - len(missing)
    if done:
        tell(f"{done} of {total} cells are there already")
    try:
        for cell, record, reason in _results(missing, workers):
            if record is None:
                failures.append(f"{cell.id}: {reason}")
                tell(f"FAILED {cell.id}: {reason}")
                continue
            store.save(experiment.name, cell, record)
            done += 1
            tell(f"[{done}/{total}] {cell.id}: {_line(record)}")
    except KeyboardInterrupt:
        hint = f"resumable: fedgmi experiment {experiment.name} --resume --out {out}"
        raise Interrupted(out, f"after {done} of {total} cells", hint) from None
    if failures:
        raise RunEndedEarly(f"{len(failures)} of {total} cells failed (--resume tries them again): {failures[0]}", out)
    return store


def _line(record: dict[str, Any]) -> str:
    """A cell's main figures in a line."""
    if record["status"] != "finished":
        return f"{record['status']}: {record.get('reason', '')}"
    shown = [
        f"{name} {record[key]:.3f}"
        for key, name in (
            ("personalised_accuracy", "accuracy"), ("alpha_mae", "α error"), ("alpha_spearman", "Spearman"),
            ("specialisation_gap", "gap"),
        )
        if record.get(key) is not None
    ]  # fmt: skip
    return f"{', '.join(shown)} ({record['wall_seconds']:.0f} s)"


# ---- processes -------------------------------------------------------------------------------------------------------

Result = tuple[Cell, "dict[str, Any] | None", str]


@dataclass
class _Worker:
    """A process that runs one cell."""

    cell: Cell
    process: Any
    connection: Connection

    def result(self) -> Result:
        """Its record, or why there is none."""
        try:
            record, reason = self.connection.recv()
        except (EOFError, OSError):
            record, reason = None, "its process died (out of memory?)"
        self.process.join()
        return self.cell, record, reason


def _results(cells: list[Cell], workers: int) -> Iterator[Result]:
    """Every cell's result, as it comes; processes are ended when the caller has had enough."""
    waiting, running = list(reversed(cells)), {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                worker = _begin(waiting.pop())
                running[worker.connection] = worker
            for connection in wait(list(running)):
                yield running.pop(connection).result()  # type: ignore[index]
    finally:
        for worker in running.values():
            worker.process.terminate()
            worker.process.join()


def _begin(cell: Cell) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(cell, theirs), name=cell.id, daemon=True)
    process.start()
    theirs.close()
    return _Worker(cell, process, ours)


def _work(cell: Cell, connection: Connection) -> None:
    """The life of a cell's process. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("fedgmi_fedml").setLevel(logging.ERROR)
    try:
        connection.send((run_cell(cell), ""))
    except FedgmiError as error:
        connection.send((None, str(error)))
    except Exception as error:  # one cell's bug is no reason to lose a night's other cells
        log.exception("cell %s", cell.id)
        connection.send((None, f"{type(error).__name__}: {error}"))
