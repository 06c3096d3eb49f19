"""What a silo remembers between rounds, on its own disk: one safetensors file, replaced whole, marked with its run."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.numpy

from fedgmi_fedml import atomic
from fedgmi_fedml.errors import CheckpointError
from fedgmi_fedml.federation.folder import read_bytes
from fedgmi_fedml.rounds.update import Memory, memory_from_arrays, memory_to_arrays

FILE = "memory.safetensors"
FORMAT = "fedgmi-memory/1"


def save_memory(out: Path, run_id: str, memory: Memory) -> None:
    """Write ``out/memory.safetensors`` atomically.

    Raises:
        CheckpointError: the disk is full or not writable; the old file stays.
    """
    data = safetensors.numpy.save(dict(memory_to_arrays(memory)), {"format": FORMAT, "run_id": run_id})
    try:
        atomic.write_bytes(out / FILE, data)
    except OSError as error:
        raise CheckpointError(f"{out / FILE} cannot be written: {error.strerror}") from error


def load_memory(out: Path) -> tuple[str, Memory] | None:
    """The run's id and the memory, or ``None`` where none was saved. Raises CheckpointError when it is damaged."""
    path = out / FILE
    data = read_bytes(path, "the silo's memory")
    if data is None:
        return None
    try:
        # the header of a safetensors file: its length in 8 bytes, then JSON; the library shows it for paths only
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if head["format"] != FORMAT:
            raise ValueError("another format")
        return str(head["run_id"]), memory_from_arrays(safetensors.numpy.load(data))
    except Exception as error:
        raise CheckpointError(
            f"{path} is damaged: restore it, or remove it to go on with the mixture estimated anew"
        ) from error
