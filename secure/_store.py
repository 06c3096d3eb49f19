"""Where a journal lives: named byte strings, replaced atomically, in memory or in a folder."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from secure._files import write_atomic
from secure.errors import JournalError

HEAD = "journal.json"
"""The one file that there always is."""

BINDINGS = "bindings"
"""Folder of all others."""


class Store(Protocol):
    """Named byte strings, replaced atomically."""

    def lock(self) -> contextlib.AbstractContextManager[None]: ...

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, data: bytes) -> None: ...

    def bindings(self) -> list[str]: ...

    def where(self, name: str) -> str: ...


class MemoryStore:
    """For simulations and tests."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with self._lock:
            yield

    def read(self, name: str) -> bytes | None:
        return self._files.get(name)

    def write(self, name: str, data: bytes) -> None:
        self._files[name] = data

    def bindings(self) -> list[str]:
        return sorted(name for name in self._files if name != HEAD)

    def where(self, name: str) -> str:
        return f"journal in memory ({name})"


class FolderStore:
    """One file a name, under a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            (folder / BINDINGS).mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        except OSError as error:
            raise JournalError(f"journal folder {folder} cannot be used: {error.strerror}") from None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        try:
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise JournalError(f"journal folder {self._folder} cannot be used: {error.strerror}") from None
        try:
            if os.name == "posix":
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # frees the lock

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalError(f"{self.where(name)} cannot be read: {error.strerror}") from None

    def write(self, name: str, data: bytes) -> None:
        try:
            write_atomic(self._folder / name, data)
        except OSError as error:
            raise JournalError(f"{self.where(name)} cannot be written: {error.strerror}") from None

    def bindings(self) -> list[str]:
        try:
            names = os.listdir(self._folder / BINDINGS)
        except OSError as error:
            raise JournalError(f"{self.where(BINDINGS)} cannot be read: {error.strerror}") from None
        return sorted(f"{BINDINGS}/{name}" for name in names if name.endswith(".json"))

    def where(self, name: str) -> str:
        return str(self._folder / name)
