"""From a file or a shipped name to a ``Config``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from .models import Config


def load_config(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """First cut: replaced by the real reader within minutes; the signature stays."""
    path = Path(path_or_name)
    if not path.is_file():
        path = Path(__file__).resolve().parents[2] / "configs" / f"{path_or_name}.yaml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    for override in overrides:
        keys, value = override.split("=", 1)
        *parents, last = keys.split(".")
        target = data
        for key in parents:
            target = target.setdefault(key, {})
        target[last] = yaml.safe_load(value)
    return Config.model_validate(data)
