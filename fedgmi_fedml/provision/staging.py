"""Many files that change together: first all are written beside their places, then all are moved.

Whatever can fail (a full disk, a missing right) fails while nothing has changed yet. A machine that stops among the
moves leaves a list of them, and the next run finishes it: ``recover``.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

FOLDER = ".staged"
_LIST = "moves.json"

PRIVATE, PUBLIC = 0o600, 0o644


class Stage:
    """Changes below ``root`` that wait for ``commit``."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / FOLDER
        self._moves: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._moves)

    def put(self, target: Path, data: bytes, mode: int = PUBLIC) -> bool:
        """Write a file; whether that changes anything (bytes or mode)."""
        if is_same(target, data, mode):
            return False
        _write(self.reserve(target), data, mode)
        return True

    def reserve(self, target: Path) -> Path:
        """Where somebody else may write what is to be ``target``."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = self.folder / str(len(self._moves))
        self._moves.append((f"{FOLDER}/{staged.name}", str(target.relative_to(self.root))))
        return staged

    def move(self, source: Path, target: Path) -> None:
        """Move a file or folder."""
        self._moves.append((str(source.relative_to(self.root)), str(target.relative_to(self.root))))

    def commit(self) -> None:
        """Make all changes."""
        if not self._moves:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _flush(self.folder)
        unfinished = self.folder / f"{_LIST}.new"
        _write(unfinished, json.dumps(self._moves).encode(), PRIVATE)
        os.replace(unfinished, self.folder / _LIST)  # from here on the change counts as made
        _flush(self.folder)
        recover(self.root)

    def abandon(self) -> None:
        """Forget all changes."""
        if not (self.folder / _LIST).exists():
            shutil.rmtree(self.folder, ignore_errors=True)


def recover(root: Path) -> None:
    """Finish what an interrupted ``commit`` had begun, and remove what never got so far. Raises OSError."""
    folder = root / FOLDER
    if not folder.exists():
        return
    listing = folder / _LIST
    touched = {root}
    for source, target in _read(listing) if listing.exists() else ():
        before, after = root / source, root / target
        if before.exists():  # else it was moved before the interruption
            after.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.replace(before, after)
            touched.add(after.parent)
    for changed in touched:
        _flush(changed)
    shutil.rmtree(folder)


def _read(listing: Path) -> Any:
    return json.loads(listing.read_text(encoding="utf-8"))


def is_same(path: Path, data: bytes, mode: int) -> bool:
    """Whether a file holds exactly this, with this mode."""
    try:
        return path.stat().st_mode & 0o777 == mode and path.read_bytes() == data
    except OSError:
        return False


def _write(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)  # the umask may have taken bits away
        file.write(data)
        file.flush()
        os.fsync(handle)


def _flush(folder: Path) -> None:
    """Make new names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
