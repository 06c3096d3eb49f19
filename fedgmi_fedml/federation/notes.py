"""What the server's driver notes, as log lines for whoever runs the server; telemetry and progress hear it as well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fedgmi_fedml.rounds.watch import Watch

log = logging.getLogger(__name__)


class Notes:
    """Called with (event, fields), as ``rounds.server`` does.

    Args:
        watch: telemetry and progress.
        names: silos by roster id.
    """

    def __init__(self, watch: Watch, names: Mapping[int, str]) -> None:
        self._watch, self._names = watch, names
        self._seen: set[int] = set()

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Hand it on, and say it in words where people want to know."""
        self._watch(event, fields)
        words = _WORDS.get(event)
        if words is not None:
            level, text = words(self, fields)
            log.log(level, "%s", text)

    def name(self, silo: int) -> str:
        """``silo 3 (clinic-c)``."""
        named = self._names.get(silo)
        return f"silo {silo} ({named})" if named else f"silo {silo}"

    @property
    def ending(self) -> bool:
        """Whether the run is over but for the farewells."""
        return self._watch.server is not None and self._watch.server.phase == "finish"

    def joined(self, silo: int) -> str:
        """Whether for the first time."""
        again, self._seen = silo in self._seen, self._seen | {silo}
        return f"{self.name(silo)} is back" if again else f"{self.name(silo)} has joined"


_Words = Callable[[Notes, dict[str, Any]], tuple[int, str]]


def _failed(notes: Notes, fields: dict[str, Any]) -> tuple[int, str]:
    what = f"its local work of round {fields['round']} failed with {fields['error']}"
    return logging.WARNING, f"{notes.name(fields['silo'])}: {what}; its own log has the whole story"


def _left(notes: Notes, fields: dict[str, Any]) -> tuple[int, str]:
    who = notes.name(fields["silo"])
    return (
        (logging.INFO, f"{who} has taken its leave")
        if notes.ending
        else (logging.WARNING, f"{who} is gone; it may come back")
    )


def _absent(notes: Notes, fields: dict[str, Any]) -> tuple[int, str]:
    names = ", ".join(notes.name(silo) for silo in fields["silos"])
    return logging.WARNING, f"not there: {names}; the run goes on without, and they may still come"


_WORDS: dict[str, _Words] = {
    "joined": lambda notes, fields: (logging.INFO, notes.joined(fields["silo"])),
    "left": _left,
    "refused": lambda notes, fields: (logging.WARNING, f"{notes.name(fields['silo'])} refused: {fields['reason']}"),
    "absent": _absent,
    "silo_failed": _failed,
    "stopped_early": lambda notes, fields: (logging.INFO, "the validation accuracy has ceased to rise: stopping early"),
}
