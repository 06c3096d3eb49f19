"""Configuration: the only reader of YAML.

``load_config(path_or_name, overrides)`` returns a frozen, fully validated ``Config``; everything wrong with a file is
told in one ``ConfigError``.
"""

from __future__ import annotations

from .load import load_config
from .models import Config

__all__ = ["Config", "load_config"]
