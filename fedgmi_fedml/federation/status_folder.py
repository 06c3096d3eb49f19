"""Where a run stands, read from its folder: for runs whose server has ended, was killed, or shows no page."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedgmi_fedml.errors import FedgmiError, RunError
from fedgmi_fedml.federation.status import StatusState, elapsed_of, told
from fedgmi_fedml.federation.status_document import document
from fedgmi_fedml.federation.status_snapshot import Snapshot
from fedgmi_fedml.summary import load_summary

__all__ = ["is_run", "newest_run", "read_folder"]

FILES = ("events.jsonl", "rounds.jsonl", "summary.json")
PATIENCE = 120.0
"""Seconds without a line, and ``PATIENCE_ROUNDS`` rounds' time, after which a run is called stale."""
PATIENCE_ROUNDS = 10


def is_run(folder: Path) -> bool:
    """Whether a run has written anything there."""
    return any((folder / name).is_file() for name in FILES)


def newest_run(root: Path) -> Path | None:
    """The folder below ``root`` (``RUN`` or ``RUN/PARTY``) in which a run wrote last; ``None`` without any.

    Where all parties of a federation work on one machine it is the server's.
    """
    found = [*root.glob("*"), *root.glob("*/*")] if root.is_dir() else []
    runs = [folder for folder in found if folder.is_dir() and is_run(folder)]
    newest = max(runs, key=_touched, default=None)
    if newest is None or newest.parent == root:
        return newest
    beside = newest.parent / "server"
    return beside if beside in runs else newest


def _touched(folder: Path) -> float:
    """When the last line was written, seconds since 1970."""
    return max((folder / name).stat().st_mtime for name in FILES if (folder / name).is_file())


def read_folder(folder: Path, now: float | None = None) -> dict[str, Any]:
    """The run's status document, with the further state ``stale``: no line for long, and no end either.

    Args:
        now: seconds since 1970; default: the clock's.

    Raises:
        RunError: no run there. CheckpointError: a file is damaged.
    """
    if not is_run(folder):
        raise RunError(f"{folder}: no run has written anything there; check --run")
    moment = time.time() if now is None else now
    state = _state(folder, moment)
    found = document(state.snapshot, moment, datetime.fromtimestamp(moment, timezone.utc))
    if not (folder / "run.json").is_file() and all(silo["state"] == "expected" for silo in found["silos"]):
        found["silos"] = []  # a silo's own folder: it hears of no other
    if (folder / "summary.json").is_file():
        return _with_summary(found, folder)
    touched = _touched(folder)
    found["updated"] = datetime.fromtimestamp(touched, timezone.utc).isoformat(timespec="seconds")
    if not state.snapshot.over and moment - touched > _patience(state.snapshot):
        found |= {"state": "stale", "left_seconds": None, "stale_since": found["updated"]}
        found["elapsed_seconds"] = round(touched - state.snapshot.began, 1)
    return found


def _patience(snapshot: Snapshot) -> float:
    paces = [phase.pace for phase in snapshot.phases if phase.pace is not None]
    return max(PATIENCE, PATIENCE_ROUNDS * max(paces, default=0.0))


def _state(folder: Path, now: float) -> StatusState:
    """Everything that the folder's lines say, at the moments they were written."""
    lines = told(folder)
    ends = _touched(folder)
    began = ends - max((elapsed_of(line) for _, line in lines), default=0.0)
    clock = [ends]
    state = _empty(folder, lambda: clock[0])
    for stream, line in lines:
        clock[0] = began + elapsed_of(line)
        state.write(stream, line)
    clock[0] = now
    state.began(began)
    return state


def _empty(folder: Path, clock: Any) -> StatusState:
    """A state with the run's names and settings, as far as its folder has them."""
    from fedgmi_fedml.config import load_config

    silos, run_id = _run_json(folder)
    try:
        config = load_config(str(folder / "config.yaml"))
    except FedgmiError:  # a folder without it, or of another version: the lines still tell most
        start = Snapshot(run_name=folder.name)
        return StatusState(start, clock=clock)
    numbers = silos or list(range(1, config.train_args.client_num_in_total + 1))
    return StatusState.for_run(config, dict.fromkeys(numbers, ""), run_id=run_id, clock=clock)


def _run_json(folder: Path) -> tuple[list[int], str]:
    """Roster ids and run id from a server's ``run.json``; nothing where there is none."""
    try:
        values = json.loads((folder / "run.json").read_bytes())
        return [int(silo) for silo in values["silos"]], str(values["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return [], ""


def _with_summary(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run that has ended: its summary has the last word."""
    summary = load_summary(folder).for_audience("server")
    seconds = summary.wall_seconds
    warnings = [text for text in summary.warnings if text.startswith("the run ended early")]
    return {
        **found,
        "state": summary.status,
        "reason": found["reason"] or (warnings[0].partition(": ")[2] if warnings else ""),
        "stage": "",
        "elapsed_seconds": found["elapsed_seconds"] if seconds is None else round(seconds, 1),
        "left_seconds": None,
        "protection": summary.secure.model_dump(mode="json"),
    }
