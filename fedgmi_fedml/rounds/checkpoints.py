"""A run's checkpoint: the server's progress, in one atomic folder. A simulation adds every silo's memory: they cannot
part. A deployed server has none to add; each silo keeps its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgmi_fedml import atomic
from fedgmi_fedml.checkpoint import Checkpointer
from fedgmi_fedml.config import Config
from fedgmi_fedml.errors import RunError
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.packing import Part, StateDict
from fedgmi_fedml.rounds.fedgmi import Progress
from fedgmi_fedml.rounds.phases import ORDER
from fedgmi_fedml.telemetry import rewind

_PLAIN = ("phase", "round", "starved", "warmed", "best_accuracy", "best_round", "stale", "evaluated")


@dataclass(frozen=True)
class Restored:
    """Where to go on: the server's progress, and per silo the arrays of its memory."""

    progress: Progress
    memories: dict[int, dict[str, Any]]


def save(checkpointer: Checkpointer, progress: Progress, memories: Mapping[int, Mapping[str, Any]]) -> None:
    """Write one whole step."""
    models: dict[str, StateDict] = {}
    for prefix, states in _groups(progress):
        for number, state in enumerate(states):
            for part, found in state.parts().items():
                models |= {f"{prefix}-{number}-{part}-{j}": model for j, model in enumerate(found)}
    arrays = {
        f"silo-{silo}/{name}": np.ascontiguousarray(value)
        for silo, memory in memories.items()
        for name, value in memory.items()
    }
    plain = {name: getattr(progress, name) for name in _PLAIN}
    checkpointer.save(
        (progress.phase, progress.round), models=models, progress=plain, arrays=arrays,
        state_digest=progress.state.digest.hex(),
    )  # fmt: skip


def restore(checkpointer: Checkpointer) -> Restored | None:
    """The last whole step, or ``None``."""
    saved = checkpointer.latest()
    if saved is None:
        return None
    groups: dict[str, dict[int, dict[Part, dict[int, StateDict]]]] = {}
    for name, model in saved.models.items():
        prefix, number, part, j = name.split("-")
        parts = groups.setdefault(prefix, {}).setdefault(int(number), {})
        parts.setdefault(part, {})[int(j)] = model  # type: ignore[arg-type]
    states = {prefix: tuple(_state(found[n]) for n in sorted(found)) for prefix, found in groups.items()}
    progress = Progress(
        **saved.progress,
        candidates=states.get("candidate", ()),
        state=states.get("state", (MixtureState(),))[0],
        best=states.get("best", (None,))[0],
    )
    memories: dict[int, dict[str, Any]] = {}
    for name, array in saved.arrays.items():
        silo, _, field = name.partition("/")
        memories.setdefault(int(silo.removeprefix("silo-")), {})[field] = array
    return Restored(progress, memories)


def begin_folder(config: Config, out: Path) -> None:
    """The run's folder, with the effective configuration in it.

    Raises:
        RunError: it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(out / "config.yaml", config.to_yaml().encode())
    except OSError as error:
        raise RunError(f"{out}: the run's folder cannot be written ({error.strerror}): choose another --out") from error


def forget_after(out: Path, progress: Progress) -> None:
    """Drop the lines of ``out/rounds.jsonl`` for rounds that are done again: they are not to be told twice."""
    here = (len(ORDER), 0) if progress.evaluated else (ORDER.index(progress.phase), progress.round)

    def keep(line: dict[str, Any]) -> bool:
        return line.get("method") == "fedgmi" and (ORDER.index(line["phase"]), line["round"]) < here

    rewind(out / "rounds.jsonl", keep)


def _groups(progress: Progress) -> list[tuple[str, tuple[MixtureState, ...]]]:
    state = (progress.state,) if progress.state.components else ()
    best = (progress.best,) if progress.best is not None else ()
    return [("candidate", progress.candidates), ("state", state), ("best", best)]


def _state(parts: Mapping[Part, Mapping[int, StateDict]]) -> MixtureState:
    return MixtureState.from_parts({part: [found[j] for j in sorted(found)] for part, found in parts.items()})
