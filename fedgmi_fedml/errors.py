"""Everything that can go wrong in ``fedgmi_fedml`` and is the user's to put right, as one small tree.

    FedgmiError                 one clear message (file, key, value, silo, remedy); ``exit_code`` for the command line
    ├── ConfigError             the configuration cannot be used; ``problems`` lists all of them
    ├── DataError               a data source is missing, unreadable or of the wrong shape
    │   └── RangeError          values outside what the likelihood can describe; names the range found
    ├── ModelError              a model cannot be built, or does not fit the data or its weights
    ├── CheckpointError         saved models or a checkpoint are missing, damaged or of another run
    ├── DeliveryError           a prediction or an export cannot be made from this run
    └── RunError                a run could not go on
        ├── RunEndedEarly       the run stopped itself, with a reason; ``folder`` holds what was reached; exit code 3
        ├── Refused             the other side does not let this party take part; exit code 4
        └── Interrupted         stopped from outside; ``folder`` can be resumed; exit code 130

Errors of ``secure`` have a tree of their own (``secure.errors``). Messages stay on the machine where they are raised.
Whatever leaves a silo goes through ``telemetry`` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeliveryError",
    "FedgmiError",
    "Interrupted",
    "ModelError",
    "RangeError",
    "Refused",
    "RunEndedEarly",
    "RunError",
]


class FedgmiError(Exception):
    """Base of every error a user can put right. ``exit_code`` is what the command line ends with."""

    exit_code = 2


class ConfigError(FedgmiError):
    """The configuration cannot be used.

    Args:
        message: what is wrong, in words; or every problem, a sentence each.
        problems: every single problem, when ``message`` already tells them all.
    """

    def __init__(self, message: str | Sequence[str], problems: Sequence[str] = ()) -> None:
        whole = [message] if isinstance(message, str) else list(message)
        super().__init__("\n".join(whole))
        self.problems = tuple(problems) or tuple(whole)

    @classmethod
    def collected(cls, problems: Sequence[str], source: str) -> ConfigError:
        """All ``problems`` in one message that starts with ``source`` (a file, or other origin)."""
        if len(problems) == 1:
            return cls(f"{source}: {problems[0]}", problems)
        listing = "\n".join(f"  - {problem}" for problem in problems)
        return cls(f"{source}: {len(problems)} problems\n{listing}", problems)


class DataError(FedgmiError):
    """A data source is missing, unreadable or of the wrong shape."""


class RangeError(DataError):
    """Values lie outside what the chosen likelihood can describe; the message names the range found."""


class ModelError(FedgmiError):
    """A model cannot be built, or does not fit the data or its weights."""


class CheckpointError(FedgmiError):
    """Saved models or a checkpoint are missing, damaged or of another run."""


class DeliveryError(FedgmiError):
    """A prediction or an export cannot be made from this run."""


class RunError(FedgmiError):
    """A run could not go on."""


class RunEndedEarly(RunError):  # noqa: N818 - says what happened
    """The run stopped itself before its last round.

    Args:
        reason: why, in words a user can act on.
        folder: the run's folder, or ``None`` where nothing was written.
    """

    exit_code = 3

    def __init__(self, reason: str, folder: Path | None = None) -> None:
        super().__init__(reason)
        self.folder = folder


class Refused(RunError):  # noqa: N818 - says what happened
    """The other side does not let this party take part; the message says why and what to change."""

    exit_code = 4


class Interrupted(RunError):  # noqa: N818 - says what happened
    """The run was stopped from outside (Ctrl-C) and can be resumed.

    Args:
        folder: the run's folder to resume from, or ``None`` where nothing was written yet.
        progress: where it stopped, in words, e.g. ``"after round 3 of 10"``.
        hint: how to go on, in words; empty: as a simulation is resumed.
    """

    exit_code = 130

    def __init__(self, folder: Path | None = None, progress: str = "", hint: str = "") -> None:
        super().__init__("interrupted" + (f" {progress}" if progress else ""))
        self.folder = folder
        self.progress = progress
        self.hint = hint
