"""Models and progress on disk: safetensors and a manifest with digests, replaced atomically.

    models/final/   vae-0.safetensors, expert-0.safetensors, …, manifest.json        save_models, load_models
    checkpoints/    000007-rounds-0003/  the same, and progress.json, arrays         Checkpointer

The bytes depend on the content alone (no times, no machine names), so two equal runs leave equal files. A file that is
missing, cut short or altered is one ``CheckpointError`` that names it and says what to do.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import safetensors.torch
import torch

from fedgmi_fedml import atomic
from fedgmi_fedml.errors import CheckpointError

__all__ = ["Checkpoint", "Checkpointer", "StateDict", "load_models", "read_manifest", "save_models"]

StateDict = OrderedDict[str, torch.Tensor]

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_PROGRESS = "progress.json"
_ARRAYS = "arrays.safetensors"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def _versions() -> dict[str, str]:
    """Versions of what wrote the files, for people who read the manifest."""
    return {"torch": str(torch.__version__), "numpy": np.__version__, "safetensors": safetensors.__version__}


def _tensor_bytes(state: Mapping[str, torch.Tensor]) -> bytes:
    """One state dict as safetensors. Views and shared storage are copied, any device is brought to the CPU."""
    return safetensors.torch.save({key: value.detach().cpu().contiguous().clone() for key, value in state.items()})


def _describe(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Key, shape and dtype of every tensor, in the state dict's own order (safetensors keeps none)."""
    return [
        {"key": key, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        for key, value in state.items()
    ]


def _pack(
    states: Mapping[str, Mapping[str, torch.Tensor]], extra: Mapping[str, bytes], header: Mapping[str, Any]
) -> dict[str, bytes]:
    """All files of one folder, the manifest included, as bytes. Raises ValueError for names unfit for a file."""
    files: dict[str, bytes] = {}
    entries: dict[str, dict[str, Any]] = {}
    for name, state in states.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"model name {name!r} must be lower-case letters, digits, '-' and '_'")
        data = _tensor_bytes(state)
        files[f"{name}.safetensors"] = data
        entries[f"{name}.safetensors"] = {**_seal(data), "tensors": _describe(state)}
    for name, data in extra.items():
        files[name] = data
        entries[name] = _seal(data)
    manifest = {**header, "format_version": FORMAT_VERSION, "files": entries, "versions": _versions()}
    return {**files, MANIFEST: atomic.json_bytes(manifest)}


def _seal(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def save_models(directory: Path, states: Mapping[str, Mapping[str, torch.Tensor]], meta: Mapping[str, Any]) -> None:
    """Replace ``directory`` by these models.

    Args:
        directory: e.g. ``RUN/models/final``.
        states: model name (``vae-0``, ``expert-0``: becomes the file's name) to state dict, any dtype and device.
        meta: JSON-able facts that readers need: config digest, shape of the data, class names, temperature …

    Raises:
        CheckpointError: the disk is full or not writable; the old folder is untouched.
        ValueError: a name unfit for a file, or ``meta`` with NaN or infinity.
    """
    files = _pack(states, {}, {"format": "fedgmi-models", "meta": dict(meta)})
    try:
        atomic.replace_folder(Path(directory), files, last=MANIFEST)
    except OSError as error:
        raise CheckpointError(f"models could not be written to {directory}: {error.strerror or error}") from error


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} {what}. Restore it from a copy, or use the run's other models (best or final) or repeat the run."
    )


def read_manifest(directory: Path, kind: str = "fedgmi-models") -> dict[str, Any]:
    """The manifest of a folder of models, without reading the models. Raises CheckpointError."""
    path = Path(directory) / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist: no complete models were saved there.") from None
    except (OSError, ValueError) as error:
        raise _damaged(path, f"cannot be read ({type(error).__name__})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != kind:
        raise _damaged(path, f"is no manifest of the kind {kind}")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {manifest.get('format_version')}, this program reads {FORMAT_VERSION}: "
            "use the version of fedgmi that wrote it."
        )
    return manifest


def _read_checked(path: Path, entry: Mapping[str, Any]) -> bytes:
    """A file's bytes, checked against its length and digest in the manifest."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    if len(data) != entry["bytes"]:
        raise _damaged(path, f"is cut short or overlong: {len(data)} bytes, the manifest says {entry['bytes']}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise _damaged(path, "is damaged: its SHA-256 digest differs from the manifest's")
    return data


def _read_states(directory: Path, manifest: Mapping[str, Any]) -> dict[str, StateDict]:
    """All models of a folder, keys in the order in which they were saved."""
    states: dict[str, StateDict] = {}
    for file, entry in manifest["files"].items():
        if "tensors" not in entry:
            continue
        tensors = safetensors.torch.load(_read_checked(directory / file, entry))
        if [[*tensors[t["key"]].shape] if t["key"] in tensors else None for t in entry["tensors"]] != [
            t["shape"] for t in entry["tensors"]
        ]:
            raise _damaged(directory / file, "does not hold the tensors that the manifest names")
        states[file.removesuffix(".safetensors")] = OrderedDict((t["key"], tensors[t["key"]]) for t in entry["tensors"])
    return states


def load_models(directory: Path) -> tuple[dict[str, StateDict], dict[str, Any]]:
    """Read what ``save_models`` wrote: state dicts by model name (CPU, saved dtype and key order), and ``meta``.

    Raises:
        CheckpointError: a file is missing, damaged or of an unknown format; the message names it and the remedy.
    """
    place = atomic.resolve(Path(directory), MANIFEST)
    manifest = read_manifest(place)
    return _read_states(place, manifest), dict(manifest["meta"])


@dataclass(frozen=True)
class Checkpoint:
    """One whole round as it was saved.

    Attributes:
        phase, round: which round; ``state_digest``: hex digest of the models it goes with (may be empty).
        models: state dicts by name; ``progress``: JSON-able; ``arrays``: NumPy arrays by name.
        path: where it lies.
    """

    phase: str
    round: int
    state_digest: str
    models: dict[str, StateDict]
    progress: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    path: Path = field(compare=False)


class Checkpointer:
    """The last whole rounds of one party, newest last.

    Args:
        directory: e.g. ``RUN/checkpoints`` or ``RUN/checkpoints/silo-3``; made at the first save.
        config_digest: hex digest of the run's agreed configuration; a checkpoint of another run is refused.
        keep: how many rounds stay on the disk (two: the server's and a silo's newest may differ by one round).
    """

    def __init__(self, directory: Path, config_digest: str = "", keep: int = 2) -> None:
        if keep < 1:
            raise ValueError("keep must be at least 1")
        self.directory = Path(directory)
        self.config_digest = config_digest
        self.keep = keep

    def _folders(self) -> list[Path]:
        """Complete checkpoints, oldest first. Hidden names are unfinished work and never count."""
        if not self.directory.is_dir():
            return []
        found = [path for path in self.directory.iterdir() if re.fullmatch(r"\d{6}-.+-\d{4,}", path.name)]
        return sorted(found)

    def save(
        self,
        key: tuple[str, int],
        *,
        models: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
        progress: Mapping[str, Any] | None = None,
        arrays: Mapping[str, npt.NDArray[Any]] | None = None,
        state_digest: str = "",
    ) -> Path:
        """Add the round ``key`` = (phase, round) and drop the oldest beyond ``keep``. Returns its folder.

        Args:
            models: state dicts by name. progress: JSON-able. arrays: numeric or boolean NumPy arrays by name.
            state_digest: hex digest of the starting models that this state goes with, for ``find``.

        Raises:
            CheckpointError: the disk is full or not writable; what was there stays.
        """
        phase, number = key
        if not _NAME.fullmatch(phase):
            raise ValueError(f"phase {phase!r} must be lower-case letters, digits, '-' and '_'")
        folders = self._folders()
        following = int(folders[-1].name[:6]) + 1 if folders else 1
        header = {"format": "fedgmi-checkpoint", "phase": phase, "round": int(number), "state_digest": state_digest}
        header |= {"config_digest": self.config_digest, "array_order": _describe(arrays or {})}
        extra = {_PROGRESS: atomic.json_bytes(dict(progress or {})), _ARRAYS: _array_bytes(arrays or {})}
        folder = self.directory / f"{following:06d}-{phase}-{number:04d}"
        try:
            atomic.replace_folder(folder, _pack(models or {}, extra, header), last=MANIFEST)
            self._prune()
        except OSError as error:
            raise CheckpointError(f"no checkpoint in {self.directory}: {error.strerror or error}") from error
        return folder

    def _prune(self) -> None:
        """Remove rounds beyond ``keep``: renamed out of sight first, so that a half-removed one never counts."""
        for folder in self._folders()[: -self.keep]:
            atomic._step("hide-old")
            hidden = folder.rename(folder.with_name(f".{folder.name}.gone"))
            atomic._step("remove-old")
            shutil.rmtree(hidden, ignore_errors=True)
        for rest in (*self.directory.glob(".*.gone"), *self.directory.glob(".*.new")):
            shutil.rmtree(rest, ignore_errors=True)

    def _newest_first(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for folder in reversed(self._folders()):
            try:
                manifest = read_manifest(folder, "fedgmi-checkpoint")
            except CheckpointError as error:
                raise self._unusable(folder, str(error)) from error
            if manifest["config_digest"] != self.config_digest:
                raise CheckpointError(
                    f"{folder} belongs to a run with another configuration "
                    f"({manifest['config_digest'][:12] or 'none'}, this one is {self.config_digest[:12] or 'none'}): "
                    "resume with the configuration it was made with, or choose another output folder."
                )
            yield folder, manifest

    def _unusable(self, folder: Path, reason: str) -> CheckpointError:
        before = [path.name for path in self._folders() if path < folder]
        remedy = f"to go on from {before[-1]}" if before else "to begin again"
        return CheckpointError(f"{reason.split('. Restore')[0]}. Remove {folder} {remedy}.")

    def latest(self) -> Checkpoint | None:
        """The newest whole round, or ``None`` when there is none. Raises CheckpointError when it is damaged."""
        for folder, manifest in self._newest_first():
            return self._read(folder, manifest)
        return None

    def find(self, state_digest: str) -> Checkpoint | None:
        """The newest round saved with this ``state_digest``, or ``None``. Raises CheckpointError when damaged."""
        for folder, manifest in self._newest_first():
            if manifest["state_digest"] == state_digest:
                return self._read(folder, manifest)
        return None

    def _read(self, folder: Path, manifest: Mapping[str, Any]) -> Checkpoint:
        try:
            files = manifest["files"]
            progress = json.loads(_read_checked(folder / _PROGRESS, files[_PROGRESS]))
            loaded = safetensors.numpy.load(_read_checked(folder / _ARRAYS, files[_ARRAYS]))
            models = _read_states(folder, manifest)
        except CheckpointError as error:
            raise self._unusable(folder, str(error)) from error
        arrays = {entry["key"]: loaded[entry["key"]] for entry in manifest["array_order"]}
        return Checkpoint(
            manifest["phase"], manifest["round"], manifest["state_digest"], models, progress, arrays, folder
        )


def _array_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Arrays as safetensors. Raises ValueError for text or objects (put those into ``progress``)."""
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"array {name!r} has dtype {array.dtype}; only numbers and booleans can be saved")
    return safetensors.numpy.save({name: np.array(array, order="C") for name, array in arrays.items()})
