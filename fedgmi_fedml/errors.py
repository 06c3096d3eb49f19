"""Everything that can go wrong in ``fedgmi_fedml`` and is the user's to put right, as one small tree.

    FedgmiError              one clear message (file, key, value, silo, remedy); the command line exits with ``exit_code``
    ├── ConfigError          the configuration cannot be used; ``problems`` lists all of them
    ├── DataError            a data source is missing, unreadable or of the wrong shape or range
    ├── ModelError           a model cannot be built, or does not fit the data or its weights
    ├── CheckpointError      saved models or a checkpoint are missing, damaged or of another run
    └── DeliveryError        a prediction or an export cannot be made from this run

Messages stay on the machine where they are raised. Whatever leaves a silo goes through ``telemetry`` instead.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["CheckpointError", "ConfigError", "DataError", "DeliveryError", "FedgmiError", "ModelError"]


class FedgmiError(Exception):
    """Base of every error a user can put right. ``exit_code`` is what the command line ends with."""

    exit_code = 2


class ConfigError(FedgmiError):
    """The configuration cannot be used.

    Args:
        message: what is wrong, in words.
        problems: every single problem, when there are several.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class DataError(FedgmiError):
    """A data source is missing, unreadable or of the wrong shape or range."""


class ModelError(FedgmiError):
    """A model cannot be built, or does not fit the data or its weights."""


class CheckpointError(FedgmiError):
    """Saved models or a checkpoint are missing, damaged or of another run."""


class DeliveryError(FedgmiError):
    """A prediction or an export cannot be made from this run."""
