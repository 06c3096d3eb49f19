"""FedGMI: mixture-of-experts federated learning whose every aggregation is secure.

Importing this package imports neither torch nor FedML, starts no thread and opens no socket: each public name is
fetched when it is first asked for (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedgmi_fedml.version import WIRE_VERSION, __version__

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config, load_config
    from fedgmi_fedml.data import Federation, SiloData, load_federation

# Public name -> the module that has it.
_HOMES = {
    "Config": "fedgmi_fedml.config",
    "Federation": "fedgmi_fedml.data",
    "SiloData": "fedgmi_fedml.data",
    "load_config": "fedgmi_fedml.config",
    "load_federation": "fedgmi_fedml.data",
}

__all__ = ["WIRE_VERSION", "Config", "Federation", "SiloData", "__version__", "load_config", "load_federation"]


def __getattr__(name: str) -> object:
    """Import the home of a public name, once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted(__all__)
