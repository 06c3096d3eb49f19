"""How patient and how large a link is, and where the configuration says so (``comm_args``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from fedgmi_fedml.config.base import suggestion
from fedgmi_fedml.config.models import Config
from fedgmi_fedml.errors import ConfigError
from fedgmi_fedml.transport.link import LARGEST_CHUNK

_OF_FEDML = {
    "grpc_ipconfig_path", "mqtt_config_path", "s3_config_path", "trpc_master_config_path", "comm_host", "comm_port",
    "customized_training_mqtt_config", "customized_training_s3_config", "customized_training_web3_config",
    "customized_training_thetastore_config", "is_mobile",
}  # fmt: skip
"""Keys that FedML's own transports read from the same section; none of our business."""

_LEAST = {
    "chunk_bytes": (1024, LARGEST_CHUNK),
    "window_bytes": (1024, 1 << 30),
    "heartbeat_seconds": (0.01, 3600.0),
    "silence_seconds": (0.02, 86_400.0),
    "grace_seconds": (0.0, 86_400.0),
    "dial_seconds": (0.0, 30 * 86_400.0),
}
"""Key → least and largest value."""


@dataclass(frozen=True)
class LinkSettings:
    """Sizes and patience of one end of a link. The two ends need not have the same.

    Attributes:
        chunk_bytes: largest piece of a message that travels at once, bytes.
        window_bytes: how much may be under way unacknowledged, and how much may wait here unread, bytes; a single
            message may be larger.
        heartbeat_seconds: this end says something at least so often, whatever else the process is doing.
        silence_seconds: a connection on which nothing was heard for so long is cut (and dialled again).
        grace_seconds: server: a silo that is cut off keeps its link for so long.
        dial_seconds: silo: give up when no server could be reached for so long.
        backoff: silo: first and longest pause between two attempts to dial, seconds; jitter takes up to half of it off.
        proxy: silo: HTTP proxy to the server, ``host:port`` or ``http://user:password@host:port``. Proxies that the
            environment names are never used, and none at all to this machine itself.
    """

    chunk_bytes: int = 1 << 19
    window_bytes: int = 16 << 20
    heartbeat_seconds: float = 10.0
    silence_seconds: float = 45.0
    grace_seconds: float = 60.0
    dial_seconds: float = 600.0
    backoff: tuple[float, float] = (0.5, 30.0)
    proxy: str | None = None

    def __post_init__(self) -> None:
        problems = dict(self._problems())
        if problems:
            raise ValueError("; ".join(f"{key} {problem}" for key, problem in problems.items()))

    def _problems(self) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with its value)."""
        for key, (low, high) in _LEAST.items():
            value = getattr(self, key)
            kind = "a whole number" if isinstance(low, int) else "a number"
            if not _is_number(value, whole=isinstance(low, int)) or not low <= value <= high:
                yield key, f"must be {kind} from {_shown(low)} to {_shown(high)}, is {value!r}"
        if not _is_pair(self.backoff):
            yield "backoff", f"must be [first, longest], seconds with 0 < first ≤ longest ≤ 3600, is {self.backoff!r}"
        if self.proxy is not None and not _is_proxy(self.proxy):
            yield "proxy", "must be host:port or http://host:port (its value is not shown: it may hold a password)"
        beat, silence = self.heartbeat_seconds, self.silence_seconds
        if _is_number(silence) and _is_number(beat) and silence < 2 * beat:
            yield "silence_seconds", f"must be at least twice heartbeat_seconds ({beat:g}), is {silence:g}"

    @classmethod
    def from_config(cls, config: Config) -> LinkSettings:
        """The settings that ``comm_args`` gives, defaults elsewhere.

        Raises:
            ConfigError: an unknown key or a value that cannot be; every one is named.
        """
        given: dict[str, Any] = dict(config.comm_args.model_extra or {})
        names = [field.name for field in fields(cls)]
        problems = [
            f'comm_args: unknown key "{key}": {suggestion(key, names)}'
            for key in given
            if key not in names and key not in _OF_FEDML
        ]
        values = {key: _plain(given[key]) for key in names if key in given}
        trial = object.__new__(cls)  # checked below, key by key
        for field in fields(cls):
            object.__setattr__(trial, field.name, values.get(field.name, field.default))
        problems += [f"comm_args.{key} {problem}" for key, problem in trial._problems()]
        if problems:
            raise ConfigError(problems)
        return cls(**values)


def _shown(bound: float) -> str:
    """A bound without an exponent."""
    return str(int(bound)) if bound == int(bound) else str(bound)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_number(value: object, whole: bool = False) -> bool:
    kinds = (int,) if whole else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]


def _is_pair(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2 or not all(_is_number(part) for part in value):
        return False
    return bool(0 < value[0] <= value[1] <= 3600)


def _is_proxy(value: object) -> bool:
    if not isinstance(value, str):
        return False
    address = value.removeprefix("http://").rstrip("/")
    if "://" in address:
        return False
    place = address.rpartition("@")[2]
    host, colon, port = place.rpartition(":")
    return bool(host and colon and "/" not in place and port.isdigit() and 0 < int(port) < 65536)
