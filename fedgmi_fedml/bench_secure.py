"""``fedgmi bench secure``: what secure aggregation costs a silo and the server, beside the physical limits.

Times are CPU seconds of whole sessions in one process, medians over repeats. What is compared runs in turns, so that
neighbours on the machine slow down both, and ratios are medians of the ratios of one turn. Neighbours that fill the
memory bus slow down plaintext averaging (memory bound) more than masks (bound by AES in the cache): ratios of the
fastest runs stand beside (``best_…``), and figures of a busy machine are worth little either way.

    silo_seconds              the data plane: check, quantise, mask
    submit_seconds            everything from the weighted vector to the last piece: also key agreement (which is part
                              of control_seconds), authentication and framing (one more pass and one copy)
    floor_seconds             K bare AES-256-CTR expansions and additions through reused buffers, by the faster of the
                              library's plain counter mode and GCM's; floor_ctr_seconds: by the plain one
    copy_seconds              one NumPy copy of the vector
    server_seconds            add, unmask, check, release: from the last share to the release
    intake_seconds            authenticate and spool the uploads as they come in (all of them)
    plaintext_server_seconds  averaging the same float32 uploads, which are in memory already
    control_seconds           a silo's whole protocol around an upload of a few coordinates
    read_seconds              check and decode the release
    upload_bytes              messages with the upload; sent_bytes: everything that a silo sends
    max_abs_error             of the weighted mean, against float64

Back-end ``homomorphic``: silo_seconds are quantise, mask and encrypt; decrypt_seconds the same as read_seconds; the
server adds an upload when it is complete (server_add_seconds, all of them, part of intake_seconds) and has only masks
left to take off (server_seconds); download_bytes are those of the release. Back-end ``none`` has no data plane of its
own: its silo_seconds are its submit_seconds.

Memory is what Python and NumPy hold at most (tracemalloc, in runs of its own), the server's in a process of its own;
pages of the spool file are the system's cache and not counted.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedgmi_fedml.bench_memory import MemoryMeter, RemoteServer
from fedgmi_fedml.bench_session import Federation, Session, Stopwatch, layout, vector_of
from fedgmi_fedml.errors import RunError
from secure.types import Backend, Profile

__all__ = ["Floor", "SecureBench", "bench_secure", "plaintext_mean"]

ENCRYPT_TARGET, DECRYPT_TARGET, ADD_TARGET, UNMASK_TARGET = 0.25, 0.1, 0.01, 0.15
"""CPU seconds for 2^20 parameters: a silo's two, the server's for each silo, and for unmasking."""
ENCRYPTED_BYTES_TARGETS = {"standard": (8.0, 16.0), "compact": (4.1, 8.2)}
"""Upload and download, bytes a parameter."""

SILO_TARGET, SERVER_TARGET, SERVER_DROPS_TARGET = 1.25, 2.5, 5.5
BYTES_TARGET, ERROR_TARGET, SILO_MEMORY_TARGET, SERVER_MEMORY_TARGET = 4.04, 3e-7, 4 << 20, 0.10
CONTROL_TARGETS = ((10, 0.010), (100, 0.120))
"""Up to so many silos, so many seconds."""

_CHUNK, _TINY = 65536, 64
_SPARE = 16  # cryptography < 45 wants 15 more bytes of room than it writes


class Floor:
    """K mask streams of P words, expanded and added, and nothing else: no protocol, no quantiser, no checks.

    Args:
        silos: K streams: K − 1 pairs and the silo's own mask.
        parameters: P.
    """

    def __init__(self, silos: int, parameters: int) -> None:
        self._silos = silos
        self._sum = np.zeros(parameters, dtype=np.uint32)
        self._zeros = memoryview(bytes(4 * _CHUNK))
        self._room = np.empty(4 * _CHUNK + _SPARE, dtype=np.uint8)

    def seconds(self) -> tuple[float, float]:
        """CPU seconds by the faster mode, and by plain counter mode."""
        plain, other = self.run(lambda: modes.CTR(bytes(16))), self.run(lambda: modes.GCM(bytes(12)))
        return min(plain, other), plain

    def run(self, mode: Callable[[], Any]) -> float:
        """CPU seconds in one mode; keys are new every time, as in a session."""
        start = time.process_time()
        streams = [Cipher(algorithms.AES(os.urandom(32)), mode()).encryptor() for _ in range(self._silos)]
        room = self._room.data
        for at in range(0, len(self._sum), _CHUNK):
            chunk = self._sum[at : at + _CHUNK]
            mask = self._room[: chunk.nbytes].view(np.uint32)
            zeros = self._zeros[: chunk.nbytes]
            for stream in streams:
                stream.update_into(zeros, room)
                np.add(chunk, mask, out=chunk)
        return time.process_time() - start


def plaintext_mean(uploads: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """What a server without security does: add up and divide."""
    total = uploads[0].copy()
    for upload in uploads[1:]:
        np.add(total, upload, out=total)
    return np.divide(total, np.float32(len(uploads)), out=total)


def _cpu(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


@dataclass(frozen=True)
class _Turn:
    """One session beside what it is compared with."""

    silo: float
    floor: float
    floor_ctr: float
    copy: float
    submit: float
    read: float
    release: float
    intake: float
    absorb: float
    plaintext: float
    error: float
    upload_bytes: int
    download_bytes: int
    sent_bytes: int


class SecureBench:
    """Sessions of one federation.

    Args:
        backend: which data plane.
        silos, parameters, drops: K, P, D.
        repeats: sessions that are measured, after one that warms up.
        spread: standard deviation of an unweighted update. One epoch of Adam at a learning rate of 0.001 stays well
            below 0.01; a wide one (1.0) takes the quantiser's slower path, which looks for values to clip.
        profile: of the quantiser.
    """

    def __init__(
        self, backend: Backend, silos: int, parameters: int, drops: int, repeats: int, spread: float,
        profile: Profile = "standard",
    ) -> None:  # fmt: skip
        self.silos, self.parameters, self.repeats, self.spread = silos, parameters, repeats, spread
        self.backend: Backend = backend
        self._spec = layout(parameters, profile)
        self._federation = Federation(silos, drops, backend)
        self._drops = self._federation.cohort[1 : drops + 1]  # not the first: both signs of pairwise masks are left

    def _vector(self, silo: int) -> npt.NDArray[np.float32]:
        return vector_of(silo, self.parameters, self.spread)

    def control(self, repeats: int) -> float:
        """CPU seconds a silo of the whole protocol, around an upload of a few coordinates."""
        whole = []
        for _ in range(repeats):
            params, watch = self._federation.params(layout(_TINY)), Stopwatch()
            session = Session(self._federation, params, lambda silo: vector_of(silo, _TINY, 0.01), watch)
            session.up_to_uploads().uploads().to_release()
            whole += [sum(watch.spent[i, s] for s in ("control", "submit", "read")) for i in session.survivors]
        return median(whole)

    def turns(self) -> list[_Turn]:
        """Measured sessions."""
        return [self._turn() for _ in range(self.repeats + 1)][1:]

    def _turn(self) -> _Turn:
        floor, watch = Floor(self.silos, self.parameters), Stopwatch()
        floors: list[tuple[float, float]] = []
        copies: list[float] = []
        source, target = np.ones((2, self.parameters), dtype=np.float32)

        def between() -> None:
            floors.append(floor.seconds())
            copies.append(_cpu(lambda: np.copyto(target, source)))

        session = Session(
            self._federation, self._federation.params(self._spec), self._vector, watch, drops=self._drops,
            between=between,
        )  # fmt: skip
        session.up_to_uploads().uploads()
        uploads = [session.weighted(silo) for silo in session.survivors]
        plain = [_cpu(lambda: plaintext_mean(uploads)) for _ in range(2)]
        session.to_release()
        plain.append(_cpu(lambda: plaintext_mean(uploads)))
        alive, spent = session.survivors, watch.spent
        stage = "submit" if self.backend == "none" else "plane"
        return _Turn(
            silo=median(spent[i, stage] for i in alive), floor=median(low for low, _ in floors),
            floor_ctr=median(ctr for _, ctr in floors), copy=median(copies),
            submit=median(spent[i, "submit"] for i in alive),
            read=median(spent[i, "read"] for i in alive), release=spent[0, "release"], intake=spent[0, "intake"],
            absorb=spent[0, "absorb"], plaintext=median(plain), error=_error(session),
            upload_bytes=max(session.upload_bytes.values()), download_bytes=session.download_bytes,
            sent_bytes=max(session.sent_bytes.values()),
        )  # fmt: skip

    def server_memory(self) -> tuple[int, int]:
        """Most bytes held by the server, in a process of its own: throughout a session, and from the uploads on."""
        params = self._federation.params(self._spec)
        server = RemoteServer(self._federation, params)
        session = Session(self._federation, params, self._vector, Stopwatch(), drops=self._drops, server=server)
        session.up_to_uploads().uploads().to_release()
        return server.close()

    def silo_memory(self) -> int:
        """Most bytes that the first silo takes from its upload to the end, beyond its vector."""
        first, params = self._federation.cohort[0], self._federation.params(self._spec)
        meter = MemoryMeter(first)
        session = Session(self._federation, params, self._vector, meter, drops=self._drops).up_to_uploads()
        tracemalloc.start()
        try:
            session.uploads().to_release()
        finally:
            tracemalloc.stop()
        return meter.peak


def _error(session: Session) -> float:
    """Largest error of the released weighted mean."""
    if session.result is None:
        raise RunError("the measured session has no release")
    truth = np.zeros(len(session.result))
    for silo in session.survivors:
        truth += session.weighted(silo, np.float64)
    return float(np.abs(truth - session.result).max())


def bench_secure(
    backend: Backend = "masked", silos: int = 10, parameters: int = 1 << 20, drops: int = 0,
    repeats: int = 5, compare_silos: int = 100, spread: float = 0.01, profile: Profile = "standard",
) -> dict[str, Any]:  # fmt: skip
    """All figures by name, and the targets that apply: ``targets`` holds (name, value, limit).

    Args:
        backend, silos, parameters, drops, repeats, spread, profile: see ``SecureBench``.
        compare_silos: also the control plane and the server's memory with so many silos; 0 leaves that out.

    Raises:
        RunError: more drops than so many silos survive.
    """
    bench = SecureBench(backend, silos, parameters, drops, repeats, spread, profile)
    control = bench.control(repeats + 1)
    turns = bench.turns()
    silo_memory, server_memory = bench.silo_memory(), bench.server_memory()
    upload = turns[-1].upload_bytes
    figures: dict[str, Any] = {
        "backend": backend, "profile": profile, "silos": silos, "parameters": parameters, "drops": drops,
        "repeats": repeats, **_seconds(turns, control, backend),
        "silo_per_floor": median(turn.silo / turn.floor for turn in turns),
        "silo_per_ctr_floor": median(turn.silo / turn.floor_ctr for turn in turns),
        "server_per_plaintext": median(turn.release / turn.plaintext for turn in turns),
        "best_silo_per_floor": min(turn.silo for turn in turns) / min(turn.floor for turn in turns),
        "best_server_per_plaintext": min(turn.release for turn in turns) / min(turn.plaintext for turn in turns),
        "upload_bytes": upload, "download_bytes": turns[-1].download_bytes, "sent_bytes": turns[-1].sent_bytes,
        "bytes_per_parameter": upload / parameters, "download_per_parameter": turns[-1].download_bytes / parameters,
        "max_abs_error": max(turn.error for turn in turns),
        "peak_memory_bytes": {
            "silo_extra": silo_memory, "server": server_memory[0], "server_from_uploads": server_memory[1],
        },
    }  # fmt: skip
    if compare_silos:
        figures |= _compared(SecureBench(backend, compare_silos, parameters, 0, 1, spread, profile), server_memory)
    if backend == "homomorphic":
        return figures | {"targets": _encrypted_targets(figures, silos, parameters, profile)}
    return figures | {"targets": _targets(figures, silos, drops, compare_silos) if backend == "masked" else []}


def _seconds(turns: list[_Turn], control: float, backend: Backend) -> dict[str, float]:
    """Medians over the turns."""
    seconds = {
        "silo_seconds": median(turn.silo for turn in turns),
        "submit_seconds": median(turn.submit for turn in turns),
        "floor_seconds": median(turn.floor for turn in turns),
        "floor_ctr_seconds": median(turn.floor_ctr for turn in turns),
        "copy_seconds": median(turn.copy for turn in turns),
        "server_seconds": median(turn.release for turn in turns),
        "plaintext_server_seconds": median(turn.plaintext for turn in turns),
        "intake_seconds": median(turn.intake for turn in turns),
        "read_seconds": median(turn.read for turn in turns),
        "control_seconds": control,
    }
    if backend == "homomorphic":
        seconds["decrypt_seconds"] = seconds["read_seconds"]
        seconds["server_add_seconds"] = median(turn.absorb for turn in turns)
    return seconds


def _compared(bench: SecureBench, server_memory: tuple[int, int]) -> dict[str, Any]:
    """The larger cohort's figures."""
    control, server = bench.control(1), bench.server_memory()
    return {
        "compare_silos": bench.silos,
        "compare_control_seconds": control,
        "compare_peak_memory_bytes": {"server": server[0], "server_from_uploads": server[1]},
        "server_memory_growth": abs(server[0] / server_memory[0] - 1.0),
        "server_memory_growth_from_uploads": abs(server[1] / server_memory[1] - 1.0),
    }  # fmt: skip


def _targets(figures: dict[str, Any], silos: int, drops: int, compared: int) -> list[tuple[str, float, float]]:
    """(figure, value, largest value allowed) of every target that applies to this size of cohort."""
    rows = [
        ("silo_seconds / floor_ctr_seconds (bare AES-CTR)", figures["silo_per_ctr_floor"], SILO_TARGET),
        ("server_seconds / plaintext_server_seconds", figures["server_per_plaintext"],
         SERVER_DROPS_TARGET if drops else SERVER_TARGET),
        ("bytes_per_parameter", figures["bytes_per_parameter"], BYTES_TARGET),
        ("max_abs_error", figures["max_abs_error"], ERROR_TARGET),
        ("silo memory beyond input and upload, bytes", figures["peak_memory_bytes"]["silo_extra"], SILO_MEMORY_TARGET),
    ]  # fmt: skip
    for count, key in ((silos, "control_seconds"), (compared, "compare_control_seconds")):
        limit = next((seconds for most, seconds in CONTROL_TARGETS if count <= most), None)
        if count and limit is not None:
            rows.append((f"{key}, {count} silos", figures[key], limit))
    if compared:
        for key, when in (("", "whole session"), ("_from_uploads", "uploads to release")):
            name = f"server memory, {silos} against {compared} silos, {when}"
            rows.append((name, figures[f"server_memory_growth{key}"], SERVER_MEMORY_TARGET))
    return rows


def _encrypted_targets(
    figures: dict[str, Any], silos: int, parameters: int, profile: str
) -> list[tuple[str, float, float]]:
    """As ``_targets``, for back-end ``homomorphic``: seconds scaled to 2^20 parameters."""
    up, down = ENCRYPTED_BYTES_TARGETS[profile]
    scale = (1 << 20) / parameters
    rows = [
        ("silo_seconds (quantise, mask, encrypt) per 2^20 parameters", figures["silo_seconds"] * scale, ENCRYPT_TARGET),
        ("decrypt_seconds per 2^20 parameters", figures["decrypt_seconds"] * scale, DECRYPT_TARGET),
        ("server_add_seconds / silos per 2^20 parameters", figures["server_add_seconds"] * scale / silos, ADD_TARGET),
        ("server_seconds (unmask, release) per 2^20 parameters", figures["server_seconds"] * scale, UNMASK_TARGET),
        ("bytes_per_parameter", figures["bytes_per_parameter"], up),
        ("download_per_parameter", figures["download_per_parameter"], down),
    ]
    return [*rows, ("max_abs_error", figures["max_abs_error"], ERROR_TARGET)] if profile == "standard" else rows
