"""A party's folder of one run: whose it is, whether it has finished, and that one process at a time works in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fedgmi_fedml.errors import CheckpointError, RunError
from fedgmi_fedml.summary import RunSummary, load_summary

_OURS = {
    "config.yaml", "events.jsonl", "rounds.jsonl", "server.log", "silo.log", "tensorboard", "spool", "lock",
    "status.token", "status.url",
}  # fmt: skip
"""What a process may have left that was killed before its run had a name."""


def finished_summary(out: Path) -> RunSummary | None:
    """The summary of a run that has ended well in ``out``; ``None`` where there is still something to do.

    Raises:
        CheckpointError: there is a summary, but it cannot be read.
    """
    if not (out / "summary.json").exists():
        return None
    summary = load_summary(out)
    return None if summary.status == "failed" else summary


def check_unused(out: Path) -> None:
    """``out`` may become the folder of a new run.

    Raises:
        RunError: it holds something else.
    """
    strangers = sorted(
        path.name for path in (out.iterdir() if out.is_dir() else ()) if path.name not in _OURS and path.name[0] != "."
    )
    if strangers or (out.exists() and not out.is_dir()):
        shown = f" (it holds {', '.join(strangers[:3])})" if strangers else ""
        raise RunError(f"{out} is not empty and holds no run of this party{shown}: choose another --out")


@contextlib.contextmanager
def locked(out: Path, name: str = "lock") -> Iterator[None]:
    """Work in ``out`` alone; the system frees the lock when the process ends, however it ends.

    Args:
        name: of the file in ``out`` that is locked.

    Raises:
        RunError: another process works there, or the folder cannot be made.
    """
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(out / name, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RunError(
            f"{out}: the folder cannot be made or written ({error.strerror}): choose another place"
        ) from error
    try:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"{out}: another fedgmi process works with this folder; wait until it has ended, or choose another"
                ) from None
        yield
    finally:
        os.close(descriptor)


def read_bytes(path: Path, what: str) -> bytes | None:
    """A file's bytes, ``None`` where there is none. Raises CheckpointError naming it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: {what} cannot be read ({error.strerror}): make it readable") from error
