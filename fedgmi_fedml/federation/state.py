"""``run.json``: what a server must know of its run after a restart, beside the checkpoints.

{format, run_id, starts, silos, configuration, agreement}
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgmi_fedml import atomic
from fedgmi_fedml.config import Config
from fedgmi_fedml.config.agreement import CHANGES_RESULTS, EXCLUDED, first_difference, item_digests
from fedgmi_fedml.errors import CheckpointError, RunError
from fedgmi_fedml.federation.folder import check_unused, read_bytes
from fedgmi_fedml.rounds.agreement import Agreement

FORMAT = "fedgmi-run/1"
FILE = "run.json"
ATTEMPTS_A_START = 16
"""Every server process numbers its attempts from here on, above all those of the processes before it."""


@dataclass(frozen=True)
class RunState:
    """A server's run, as it lies on the disk.

    Attributes:
        run_id: names the run on all parties.
        starts: server processes that have begun to work on it, this one included once ``begun``.
        silos: roster ids.
        configuration: every setting, as plain values.
        agreement: what the silos agreed on (``Agreement.to_bytes``), base64; empty before.
    """

    run_id: str
    starts: int = 0
    silos: tuple[int, ...] = ()
    configuration: Mapping[str, Any] = field(default_factory=dict)
    agreement: str = ""

    @property
    def first_attempt(self) -> int:
        """Where this process, the last of ``starts``, numbers its attempts from."""
        return ATTEMPTS_A_START * max(0, self.starts - 1)

    @property
    def agreed(self) -> Agreement | None:
        """What the silos agreed on, or ``None``. Raises CheckpointError when it is damaged."""
        return Agreement.from_bytes(base64.b64decode(self.agreement)) if self.agreement else None

    def begun(self, config: Config, silos: tuple[int, ...]) -> RunState:
        """One more process works on it."""
        return replace(self, starts=self.starts + 1, silos=silos, configuration=config.model_dump(mode="json"))

    def with_agreement(self, agreement: Agreement) -> RunState:
        """The same, once the silos have agreed on more."""
        return replace(self, agreement=base64.b64encode(agreement.to_bytes()).decode())

    def save(self, out: Path) -> None:
        """Write ``out/run.json`` atomically.

        Raises:
            CheckpointError: the disk is full or not writable.
        """
        try:
            atomic.write_json(out / FILE, {"format": FORMAT, **asdict(self), "silos": list(self.silos)})
        except OSError as error:
            raise CheckpointError(f"{out / FILE} cannot be written: {error.strerror}") from error


def load_state(out: Path) -> RunState | None:
    """What ``out/run.json`` says, or ``None`` without one. Raises CheckpointError when it is damaged."""
    path = out / FILE
    data = read_bytes(path, "the run's state")
    if data is None:
        return None
    try:
        values = json.loads(data)
        if values.pop("format") != FORMAT:
            raise ValueError("another format")
        return RunState(**{**values, "silos": tuple(values["silos"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: restore it, or begin a new run with another --out") from error


def open_state(out: Path, config: Config, run_id: str | None) -> RunState:
    """The run to go on with in ``out``, or a new one. Nothing is written.

    Args:
        run_id: the name asked for; ``None``: the one that is there, or a new one.

    Raises:
        RunError: the folder belongs to something else; names the first difference.
    """
    found = load_state(out)
    if found is None:
        check_unused(out)
        return RunState(run_id or _new_id(config))
    if run_id not in (None, found.run_id):
        raise RunError(
            f"{out} holds run {found.run_id!r}, not {run_id!r}: leave --run-id out to go on with it, or choose another "
            "--out"
        )
    difference = _difference(config, found.configuration)
    if difference:
        raise RunError(
            f"{out} holds run {found.run_id!r} of another configuration: {difference}. Go on with the configuration "
            "that it began with, or choose another --out"
        )
    return found


def _difference(config: Config, theirs: Mapping[str, Any]) -> str:
    """The first setting that changes results and is not what the run began with, in words."""
    ours, excluded = config.model_dump(mode="json"), set(EXCLUDED) - CHANGES_RESULTS
    key = first_difference(item_digests(ours, excluded), item_digests(dict(theirs), excluded))
    return f"{key} is {_value(ours, key)}, it began with {_value(theirs, key)}" if key else ""


def _value(values: Mapping[str, Any], key: str) -> str:
    value: Any = values
    for step in key.split("."):
        value = value.get(step, "(not set)") if isinstance(value, Mapping) else "(not set)"
    return json.dumps(value)


def _new_id(config: Config) -> str:
    """``<run_name>/<8 hex digits of chance>``: two runs of one name never share an id."""
    return f"{config.common_args.run_name}/{secrets.token_hex(4)}"
