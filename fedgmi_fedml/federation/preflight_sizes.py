"""Preflight: memory, disk and folders, with estimates that say what they are made of.

P is the number of parameters that travel in a round: all components' VAEs and experts, and the router; 4 bytes each.

    memory of a silo     this process now (interpreter, torch, samples, modules)
                         + 4P · 4   models kept (``StateStore``)
                         + 4P · 6   start, trained, update, quantised, masked, released
                         + 2 · 4p   optimiser of the largest single model, p parameters
                         + 2 · window_bytes of the link
    memory of a server   this process now + 4P · 4 models kept + 4P · 5 sum, mask, release, models in messages
                         + 4p · candidates while they are compared + window_bytes, whatever the number of silos
    (At P = 9.4 million, 4 silos: estimated 1171 and 950 MiB, measured 1099 and 917 MiB at most.)

    disk of a silo       4P · 3 models: best, final, one being replaced; 4P · 2 updates on their way
    disk of a server     4P · 2 best and final; 4P · 3 checkpoints; 4P · K spooled uploads of K silos
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from fedgmi_fedml.errors import RunError
from fedgmi_fedml.federation.preflight import Finding, Node, needed

MIB = 1 << 20
_BYTES = 4
_LITTLE = 64 * MIB
"""Logs, reports and figures, bytes."""

_KEPT, _SILO_WORK, _SERVER_WORK = 4, 6, 5


def folders(node: Node) -> Finding:
    """Can this user write where the run will write? The data may be read-only."""
    places = [node.out]
    if node.kit is not None and node.role == "silo":
        places.append(node.kit.folder / "journal")
    for place in places:
        parent = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
        try:
            if not parent.is_dir():
                raise NotADirectoryError(None, "is no folder")
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            option = "--journal" if place.name == "journal" else "--out"
            raise RunError(
                f"{place}: cannot be written by this user ({error.strerror}); choose another folder ({option}), or "
                "give the user the right to write there"
            ) from None
    return Finding(f"{', '.join(str(place) for place in places)} can be written")


def memory(node: Node) -> Finding:
    """Is there memory for the run?"""
    from fedgmi_fedml.transport.settings import LinkSettings

    bench = needed(node.bench, "models that can be built")
    config = needed(node.config, "a valid configuration")
    vector = _BYTES * bench.phases.rounds_layout.length
    modules = [module for module in (bench.vae, bench.expert) if module is not None]
    largest = _BYTES * max(sum(parameter.numel() for parameter in module.parameters()) for module in modules)
    window = LinkSettings.from_config(config).window_bytes
    if node.role == "server":
        candidate = vector // max(1, config.fedgmi_args.components)
        more = vector * (_KEPT + _SERVER_WORK) + candidate * config.fedgmi_args.candidate_count + window
    else:
        more = vector * (_KEPT + _SILO_WORK) + 2 * largest + 2 * window
    present = resident()
    return _verdict(
        present + more, available() + present, "memory" + _on_top(node), "give this machine or container more"
    )


def disk(node: Node) -> Finding:
    """Is there room for models, uploads and checkpoints?"""
    bench = needed(node.bench, "models that can be built")
    vector = _BYTES * bench.phases.rounds_layout.length
    copies = 2 + 3 + node.silos if node.role == "server" else 3 + 2
    place = next(parent for parent in (node.out, *node.out.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    return _verdict(
        vector * copies + _LITTLE,
        free,
        f"disk at {place}{_on_top(node)}",
        "free some, or choose another folder (--out)",
    )


def _on_top(node: Node) -> str:
    """What the estimates leave out."""
    secure = needed(node.config, "a valid configuration").fedgmi_args.secure
    return "; ciphertexts of the homomorphic back-end come on top" if secure.backend == "homomorphic" else ""


def _verdict(wanted: int, there: int, what: str, remedy: str) -> Finding:
    text = f"about {_shown(wanted)} needed, {_shown(there)} there ({what})"
    if wanted > there:
        return Finding(f"{text}: {remedy}", "fail")
    if wanted > 0.7 * there:
        return Finding(f"{text}: tight; {remedy}", "warn")
    return Finding(text)


def _shown(count: int) -> str:
    """``640 MiB`` or ``12.5 GiB``."""
    return f"{count / MIB:,.0f} MiB" if count < 10 * 1024 * MIB else f"{count / MIB / 1024:,.1f} GiB"


def shared_memory(node: Node) -> Finding:
    """A note: containers often have little of it, and nothing here uses it."""
    try:
        size = shutil.disk_usage("/dev/shm").total  # noqa: S108 - asked for its size only
    except OSError:
        return Finding("this machine has none; nothing here uses it")
    return Finding(f"{_shown(size)} in /dev/shm; nothing here uses it (samples are loaded without worker processes)")


def resident() -> int:
    """Memory that this process holds now, bytes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def available(root: Path = Path("/")) -> int:
    """Memory that may still be taken, bytes: the machine's, or what a container's limit leaves of it.

    Args:
        root: where ``proc`` and ``sys`` lie (tests).
    """
    found = []
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, taken = (_text(root / "sys/fs/cgroup" / name).strip() for name in (limit, used))
        if most.isdigit() and taken.isdigit():
            found.append(max(0, int(most) - int(taken)))
    return min(found) if found else 1 << 62


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
