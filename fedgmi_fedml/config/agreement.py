"""What parties must agree on, as one digest. Everything counts but what is listed here, each with its reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

EXCLUDED = {
    "common_args.using_mlops": "FedML's agents set it when they start a packaged run",
    "common_args.run_name": "a label; the run's id is part of every proposal anyway",
    "data_args.data_path": "a party's own folders",
    "data_args.data_cache_dir": "a party's own folders; FedML's agents append their id",
    "train_args.client_num_in_total": "FedML's agents rewrite it; the roster and every proposal name the silos",
    "train_args.client_num_per_round": "FedML's agents rewrite it; the roster and every proposal name the silos",
    "validation_args.evaluate_oracle": "a simulation's comparison; training does not depend on it",
    "validation_args.evaluate_baselines": "a simulation's comparison; training does not depend on it",
    "device_args": "a party's own hardware; FedML's agents rewrite worker_num",
    "comm_args": "addresses and files of the transport differ from party to party",
    "tracking_args": "what a party writes down, and where",
    "fedgmi_args.on_silo_error": "what the server does when a silo fails; changes no result",
    "fedgmi_args.secure.deadlines": "the server's patience; changes no result and weakens nothing",
}
"""Left out of ``Config.digest``. What only FedML's agents add (run_id, client_id_list, client_id, server_id, log
folders, dynamic_args) never enters a ``Config`` at all."""

CHANGES_RESULTS = {"train_args.client_num_in_total", "train_args.client_num_per_round"}
"""Excluded above only because agents rewrite them; ``Config.run_digest``, which guards a resume, counts them."""


def digest(values: dict[str, Any], excluded: Collection[str]) -> str:
    """Hex SHA-256 of the values without the ``excluded`` dotted keys: canonical JSON behind a label."""
    kept = _without(values, excluded, "")
    canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(b"fedgmi/config/1\0" + canonical.encode()).hexdigest()


def item_digests(values: dict[str, Any], excluded: Collection[str]) -> dict[str, bytes]:
    """Dotted key → first 8 bytes of its value's SHA-256, for every key that counts: two parties that differ find out
    where, without showing each other a value."""
    found: dict[str, bytes] = {}
    _collect(_without(values, excluded, ""), "", found)
    return found


def _collect(values: dict[str, Any], prefix: str, found: dict[str, bytes]) -> None:
    for key, value in sorted(values.items()):
        if isinstance(value, dict) and value:
            _collect(value, f"{prefix}{key}.", found)
        else:
            canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
            found[f"{prefix}{key}"] = hashlib.sha256(canonical.encode()).digest()[:8]


def first_difference(ours: dict[str, bytes], theirs: dict[str, bytes]) -> str | None:
    """The first key whose values differ, or that only one of the two has; ``None`` where all agree."""
    return next((key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)), None)


def _without(values: dict[str, Any], excluded: Collection[str], prefix: str) -> dict[str, Any]:
    kept = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name not in excluded:
            kept[key] = _without(value, excluded, f"{name}.") if isinstance(value, dict) else value
    return kept
