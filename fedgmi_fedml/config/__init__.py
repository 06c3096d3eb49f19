"""Configuration: the only reader of YAML.

``load_config(path_or_name, overrides)`` returns a frozen, fully validated ``Config``; everything wrong with a file is
told in one ``ConfigError``.
"""

from __future__ import annotations

from fedgmi_fedml.config.load import config_folder, config_names, find_config, load_config, parse_config
from fedgmi_fedml.config.models import Config

__all__ = ["Config", "config_folder", "config_names", "find_config", "load_config", "parse_config"]
