"""Files and folders that are either wholly the old or wholly the new, whenever the machine stops.

A file is written beside its place, flushed to the disk and renamed over the old one. A folder cannot be renamed over
another that holds files, so it is replaced in two renames:

    name.new   complete and on the disk   ─▶  name ─▶ name.old,  name.new ─▶ name,  name.old removed

``resolve`` tells a reader which of the three holds the truth after a crash at any of those moments. Every change of
the disk goes through ``_step``, so that a test can stop the process at each.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["json_bytes", "replace_folder", "resolve", "write_bytes", "write_json"]


def _step(name: str) -> None:
    """Called before each change of the disk. Does nothing; tests replace it to stop the process there."""


def json_bytes(value: Any) -> bytes:
    """Readable, deterministic UTF-8 JSON with a final newline. Raises ValueError for NaN and infinity."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _flush_folder(folder: Path) -> None:
    """Make renames and new names in ``folder`` survive a power cut."""
    _step("flush-folder")
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_flushed(path: Path, data: bytes) -> None:
    """Write ``data`` to a new or emptied file and wait until it is on the disk."""
    _step("create")
    with open(path, "wb") as handle:
        half = len(data) // 2
        handle.write(data[:half])
        handle.flush()
        _step("half-written")
        handle.write(data[half:])
        handle.flush()
        _step("flush")
        os.fsync(handle.fileno())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file ``path`` by ``data``, atomically. Makes missing parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write_flushed(beside, data)
        _step("rename")
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace the file ``path`` by ``value`` as JSON, atomically. Raises ValueError for NaN and infinity."""
    write_bytes(path, json_bytes(value))


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


def replace_folder(folder: Path, files: Mapping[str, bytes], last: str) -> None:
    """Replace ``folder`` by one that holds exactly ``files``.

    Args:
        folder: its final place; missing parents are made.
        files: plain file names to contents.
        last: the name that is written after all others; its presence marks a complete folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    settle(folder, last)
    new, old = _beside(folder, "new"), _beside(folder, "old")
    new.mkdir()
    try:
        for name in [*(name for name in files if name != last), last]:
            _write_flushed(new / name, files[name])
        _flush_folder(new)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    _flush_folder(folder.parent)
    if folder.exists():
        _step("rename-old")
        os.rename(folder, old)
    _step("rename-new")
    os.rename(new, folder)
    _flush_folder(folder.parent)
    _step("remove-old")
    shutil.rmtree(old, ignore_errors=True)


def settle(folder: Path, last: str) -> None:
    """Finish or undo a replacement that a crash interrupted; afterwards only ``folder`` itself may be there."""
    new, old = _beside(folder, "new"), _beside(folder, "old")
    if not folder.exists():
        for candidate in (new, old):
            if (candidate / last).exists() and (candidate is old or old.exists()):
                _step("settle")
                os.rename(candidate, folder)
                break
    for rest in (new, old):
        if rest.exists():
            _step("remove-rest")
            shutil.rmtree(rest)


def resolve(folder: Path, last: str) -> Path:
    """Where a reader finds the contents of ``folder`` now. Changes nothing, so that it works on a read-only disk.

    Returns ``folder``, unless a replacement stopped between its two renames: then the complete new folder beside it.
    """
    new, old = _beside(folder, "new"), _beside(folder, "old")
    if folder.exists() or not old.exists():
        return folder
    return new if (new / last).exists() else old
