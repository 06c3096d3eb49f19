"""What a silo remembers beyond one round, so that no restart and no repeat makes it say two things.

* Counter: (phase, round, attempt) of a run only ever grows. A session that was started is never started again: a
  restarted silo has dropped out of its round. The cohort's number (``group``) does not count: a silo belongs to one
  cohort of a round.
* One release per starting point: (phase, starting digest) is bound to one survivor set before the silo signs it.
  Training is seeded, so two releases that differ by one silo would show its update; that holds for another run from the
  same starting models just as well, hence bindings know no run.
* Across phases, sets bound to one starting digest must not isolate a few silos: every cell that they cut the silos into
  has none or at least c + 2 members, so any combination of the released sums covers that many.
* Roster: the highest version seen.

On disk: a folder (0700) with ``journal.json`` and one file a starting digest in ``bindings/``, each checksummed,
written whole or not at all. Nothing is kept in memory between calls, and each call holds a lock, so two processes on
one folder cannot contradict each other. A damaged file is an error, never an empty journal. Rolling back the whole
folder is not detected (see the promise).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secure._store import BINDINGS, HEAD, FolderStore, MemoryStore, Store
from secure.errors import InputError, JournalError, PolicyRefusal
from secure.types import SiloId

FORMAT = "fedgmi-journal/1"


class Journal:
    """A silo's long memory.

    Args:
        path: folder, made when missing; ``None`` keeps everything in memory (simulation).

    Raises:
        JournalError: the folder cannot be used, or a file in it is damaged or missing.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._store: Store = MemoryStore() if path is None else FolderStore(Path(path))
        with self._store.lock():
            if self._store.read(HEAD) is None:
                if self._store.bindings():
                    raise self._damaged(HEAD, "is missing although bindings exist")
                self._write(HEAD, {"runs": {}, "roster": {"version": 0, "digest": ""}, "bindings": 0})
            for name in self._complete(self._head()):
                self._read(name)

    def __repr__(self) -> str:
        return f"<Journal {self._store.where(HEAD)}>"

    def begin(self, run_id: str, phase_index: int, round: int, attempt: int, group: int = 0) -> None:
        """Start a session: durable before this returns.

        Args:
            phase_index: place of the phase in the schedule (``Policy.phase_index``).
            group: recorded only.

        Raises:
            PolicyRefusal: this or a later (phase, round, attempt) of the run was started already.
            JournalError: damaged or not writable.
        """
        with self._store.lock():
            head = self._head()
            step = [phase_index, round, attempt]
            last = head["runs"].get(run_id)
            if last is not None and step <= last[:3]:
                raise PolicyRefusal(
                    f"session (phase {phase_index}, round {round}, attempt {attempt}) does not follow the last one "
                    f"started here (phase {last[0]}, round {last[1]}, attempt {last[2]}); "
                    "a restarted silo waits for the next"
                )
            head["runs"][run_id] = [*step, group]
            head["bindings"] = len(self._complete(head))
            self._write(HEAD, head)

    def last(self, run_id: str) -> tuple[int, int, int] | None:
        """(phase index, round, attempt) last started in a run, or ``None``."""
        with self._store.lock():
            step = self._head()["runs"].get(run_id)
        return None if step is None else (step[0], step[1], step[2])

    def bind(
        self,
        phase: str,
        start_digest: bytes,
        survivors: Sequence[SiloId],
        session: bytes,
        *,
        colluders: int = 1,
        cohort: Sequence[SiloId] = (),
    ) -> None:
        """Bind (phase, starting digest) to a survivor set: call before signing it. Idempotent.

        The cohort is bound too: weights are shares of its totals, so two sums over the same survivors of two cohorts
        differ by a factor, which shows the weight of whoever is in only one of them.

        Raises:
            PolicyRefusal: another set or cohort is bound, or sets of several phases would isolate fewer than c + 2.
            JournalError: damaged or not writable.
        """
        members = sorted(survivors)
        with self._store.lock():
            name, record = self._binding(start_digest)
            live = {key: item for key, item in record["phases"].items() if item["sessions"]}
            bound = live.get(phase)
            if bound is not None and (bound["survivors"], bound["cohort"]) != (members, sorted(cohort)):
                raise PolicyRefusal(
                    f"phase {phase!r} was released (or may have been) from these starting models with other survivors "
                    "or another cohort; start from other models or another seed"
                )
            if bound is None:
                others = [item["survivors"] for item in live.values()]
                _check_isolation([*others, members], colluders)
                bound = {"survivors": members, "cohort": sorted(cohort), "sessions": {}}
            bound["sessions"].setdefault(session.hex(), "bound")
            record["phases"][phase] = bound
            self._write(name, record)

    def bound(self, phase: str, start_digest: bytes) -> tuple[SiloId, ...] | None:
        """Survivor set bound to (phase, starting digest), or ``None``."""
        with self._store.lock():
            item = self._binding(start_digest)[1]["phases"].get(phase)
        return tuple(item["survivors"]) if item is not None and item["sessions"] else None

    def mark_released(self, phase: str, start_digest: bytes, session: bytes) -> None:
        """Note, before the shares leave, that this session's shares were released: it can never be void again.

        Raises:
            PolicyRefusal: the session is not bound (``bind`` comes first).
            JournalError: damaged or not writable.
        """
        with self._store.lock():
            name, record = self._binding(start_digest)
            item = record["phases"].get(phase)
            if item is None or session.hex() not in item["sessions"]:
                raise PolicyRefusal("shares of a session that is not bound to its survivors must not leave")
            item["sessions"][session.hex()] = "released"
            self._write(name, record)

    def void(self, session: bytes) -> None:
        """Forget a session's binding, on a certificate that the caller checked (``gate.void_quorum`` signatures).

        A set that another session is bound to as well stays bound. Unknown sessions are ignored.

        Raises:
            PolicyRefusal: this silo released its shares in that session.
            JournalError: damaged or not writable.
        """
        key = session.hex()
        with self._store.lock():
            for name in self._store.bindings():
                record = self._read(name)
                touched = [item for item in record["phases"].values() if key in item["sessions"]]
                if any(item["sessions"][key] == "released" for item in touched):
                    raise PolicyRefusal("this silo released its shares in that session; it cannot be void")
                for item in touched:
                    del item["sessions"][key]
                if touched:
                    self._write(name, record)

    def note_roster(self, version: int, digest: bytes) -> None:
        """Remember the highest roster version.

        Raises:
            PolicyRefusal: older than the highest seen, or the same version with another content.
            JournalError: damaged or not writable.
        """
        with self._store.lock():
            head = self._head()
            seen = head["roster"]
            if version < seen["version"]:
                raise PolicyRefusal(f"roster version {version} is older than version {seen['version']}, seen before")
            if version == seen["version"] and seen["digest"] != digest.hex():
                raise PolicyRefusal(f"another roster of version {version} was seen before; the operator must explain")
            if version > seen["version"]:
                head["roster"] = {"version": version, "digest": digest.hex()}
                self._write(HEAD, head)

    def note_beacon(self, run_id: str, beacon: bytes) -> None:
        """Take part in one beacon of a run, ever: call before witnessing it. Idempotent.

        Raises:
            PolicyRefusal: another beacon was witnessed here for this run.
            JournalError: damaged or not writable.
        """
        with self._store.lock():
            head = self._head()
            known = head.setdefault("beacons", {})
            if known.setdefault(run_id, beacon.hex()) != beacon.hex():
                raise PolicyRefusal("another beacon of this run was agreed on before; start a new run")
            self._write(HEAD, head)

    def roster_version(self) -> int:
        """Highest roster version seen; 0 for none."""
        with self._store.lock():
            return int(self._head()["roster"]["version"])

    def _head(self) -> dict[str, Any]:
        return self._read(HEAD)

    def _complete(self, head: dict[str, Any]) -> list[str]:
        """Names of the bindings, of which none is ever deleted: fewer than the head counted means lost files."""
        names = self._store.bindings()
        if len(names) < head["bindings"]:
            raise self._damaged(BINDINGS, "has lost files")
        return names

    def _binding(self, start_digest: bytes) -> tuple[str, dict[str, Any]]:
        if len(start_digest) != 32:
            raise InputError("a digest of starting models has 32 bytes")
        name = f"{BINDINGS}/{start_digest.hex()}.json"
        if self._store.read(name) is None:
            return name, {"start": start_digest.hex(), "phases": {}}
        record = self._read(name)
        if record["start"] != start_digest.hex():
            raise self._damaged(name, "belongs to other starting models")
        return name, record

    def _read(self, name: str) -> dict[str, Any]:
        data = self._store.read(name)
        if data is None:
            raise self._damaged(name, "is missing")
        try:
            document = json.loads(data)
            body: dict[str, Any] = document["body"]
            good = document["format"] == FORMAT and document["sha256"] == _checksum(body)
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            raise self._damaged(name, "is damaged")
        return body

    def _write(self, name: str, body: dict[str, Any]) -> None:
        document = {"format": FORMAT, "sha256": _checksum(body), "body": body}
        self._store.write(name, json.dumps(document).encode())

    def _damaged(self, name: str, what: str) -> JournalError:
        return JournalError(
            f"{self._store.where(name)} {what}; restore the journal folder from a backup, or, if no run will ever "
            "continue from models trained so far, move the folder away and start with other models"
        )


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _check_isolation(sets: Sequence[Sequence[SiloId]], colluders: int) -> None:
    """Every cell of the sets' Venn diagram has no member or at least c + 2.

    Any linear combination of the released sums covers whole cells, so it never covers fewer silos than the smallest.
    """
    smallest = colluders + 2
    cells: dict[tuple[bool, ...], int] = {}
    lookup = [frozenset(members) for members in sets]
    for silo in frozenset().union(*lookup):
        key = tuple(silo in members for members in lookup)
        cells[key] = cells.get(key, 0) + 1
    if any(size < smallest for size in cells.values()):
        raise PolicyRefusal(
            "together with survivor sets released from these starting models before, this one would isolate fewer "
            f"than {smallest} silos"
        )
