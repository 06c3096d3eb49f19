"""What the drivers of a server and a silo say to each other: frozen messages, strict msgpack, nothing else.

    silo → server        Join, Reveal, Witness, Ready, InSession, Failed, Finished
    server → silo        Commitments, Beacon, Agreed, Again, Models, Plan, InSession, Released, Finish

Session messages of ``secure`` travel inside ``InSession`` and mean nothing to this module. Nothing here carries a
count, a proportion, a label or a path.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args

import msgpack

from fedgmi_fedml.errors import RunError

MAX_BYTES = 1 << 31
"""Largest message taken, in bytes. Transports chunk; this only stops absurd allocations."""


class WireError(RunError):
    """Bytes that are no message of ours."""


@dataclass(frozen=True)
class Join:
    """A silo asks to take part, or to take part again. Everything that must agree between parties is in it, as digests
    or versions; ``config_items`` are the configuration's digests key by key."""

    silo: int
    wire_version: int
    package_version: str
    backend: str
    config_digest: str
    config_items: dict[str, bytes]
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    models_schema: bytes
    nonce_commitment: bytes


@dataclass(frozen=True)
class Commitments:
    """All silos' commitments to their nonces; only when it holds these does a silo reveal its own."""

    commitments: dict[int, bytes]


@dataclass(frozen=True)
class Reveal:
    """The nonce behind this silo's commitment."""

    silo: int
    nonce: bytes


@dataclass(frozen=True)
class Beacon:
    """All revealed nonces; every party derives the same beacon, from which all cohorts are drawn."""

    nonces: dict[int, bytes]


@dataclass(frozen=True)
class Witness:
    """This silo's signature over the beacon that its nonce is in (``rounds.agreement``)."""

    silo: int
    signature: bytes


@dataclass(frozen=True)
class Agreed:
    """The run's beacon, for a silo that comes later or again: who is in it, and who witnessed it."""

    beacon: bytes
    members: tuple[int, ...]
    witnesses: dict[int, bytes]


@dataclass(frozen=True)
class Again:
    """A silo vanished before it had revealed its nonce: everybody starts over with ``Join`` and a fresh nonce."""

    reason: str


@dataclass(frozen=True)
class Models:
    """Whole models, for a silo that does not hold them: safetensors bytes of ``flatten(state)``."""

    digest: bytes
    tensors: bytes


@dataclass(frozen=True)
class Plan:
    """One step that a cohort works on together.

    Attributes:
        phase: a name of ``rounds.phases``.
        round, attempt, group: see ``secure.SessionParams``.
        cohort: the silos drawn for it, ascending.
        start_digest: digest of the models it starts from.
        survey: the session ends with the totals; nothing is trained or uploaded.
        beta: sharpness of the warm-up (phase ``warmup``), else 0.
    """

    phase: str
    round: int
    attempt: int
    group: int
    cohort: tuple[int, ...]
    start_digest: bytes
    survey: bool = False
    beta: float = 0.0


@dataclass(frozen=True)
class Ready:
    """The silo has finished its local work for this plan."""

    silo: int
    phase: str
    round: int
    attempt: int
    group: int


@dataclass(frozen=True)
class InSession:
    """One message of the secure session of (phase, round, attempt, group)."""

    phase: str
    round: int
    attempt: int
    group: int
    payload: bytes


@dataclass(frozen=True)
class Released:
    """A released sum, for silos that were not in the cohort."""

    phase: str
    round: int
    start_digest: bytes
    end_digest: bytes
    aggregate: bytes


@dataclass(frozen=True)
class Failed:
    """The silo's local work raised. Only the kind of error leaves the silo; its own log has the story."""

    silo: int
    phase: str
    round: int
    error_class: str


@dataclass(frozen=True)
class Finish:
    """The run is over. ``reason`` is for people."""

    reason: str
    final_digest: bytes
    best_digest: bytes
    failed: bool = False


@dataclass(frozen=True)
class Finished:
    """The silo has written its report and leaves."""

    silo: int


Message = (
    Join | Commitments | Reveal | Beacon | Witness | Agreed | Again | Models | Plan | Ready | InSession | Released
    | Failed | Finish | Finished
)  # fmt: skip
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """Message → bytes."""
    fields = [getattr(message, field.name) for field in dataclasses.fields(message)]
    return bytes(msgpack.packb([type(message).__name__, *fields], use_bin_type=True))


def decode(payload: bytes) -> Message:
    """Bytes → message.

    Raises:
        WireError: not one of ours: unknown kind, wrong number or type of fields, or too large.
    """
    if len(payload) > MAX_BYTES:
        raise WireError(f"a message of {len(payload)} bytes is larger than the limit of {MAX_BYTES}")
    try:
        kind, *values = msgpack.unpackb(payload, raw=False, use_list=False, strict_map_key=False)
        cls = _KINDS[kind]
    except Exception as error:
        raise WireError("bytes that are no message of FedGMI") from error
    fields = dataclasses.fields(cls)
    if len(values) != len(fields):
        raise WireError(f"{kind}: {len(values)} fields instead of {len(fields)}")
    for field, value in zip(fields, values, strict=True):
        if not _fits(str(field.type), value):
            raise WireError(f"{kind}.{field.name}: not of type {field.type}")
    return cls(*values)  # type: ignore[no-any-return]


def looks_like_join(payload: bytes) -> bool:
    """Whether bytes that could not be decoded are the ``Join`` of another wire version, which deserves an answer."""
    return b"\xa4Join" in payload[:8]


def _fits(declared: str, value: object) -> bool:
    """Whether ``value`` has the type that the field declares."""
    match declared:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
        case "float":
            return isinstance(value, float)
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case "bytes":
            return isinstance(value, bytes)
        case "dict[str, bytes]":
            return isinstance(value, dict) and all(_fits("str", k) and _fits("bytes", v) for k, v in value.items())
        case "dict[int, bytes]":
            return isinstance(value, dict) and all(_fits("int", k) and _fits("bytes", v) for k, v in value.items())
    if declared.startswith("tuple[") and declared.endswith(", ...]"):
        item = declared[len("tuple[") : -len(", ...]")]
        return isinstance(value, tuple) and all(_fits(item, v) for v in value)
    return False
