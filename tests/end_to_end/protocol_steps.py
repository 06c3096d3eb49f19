"""The steps of the protocol, read from its own tables: a message that is added there is tested without further ado.

A step is named after its message: ``Join`` of the drivers' (``rounds.wire``), ``InSession/Advert`` of a session's
(``secure.messages``).
"""

from __future__ import annotations

import re

from fedgmi_fedml.rounds import wire
from secure import messages
from secure.codec import peek_kind

_ROW = re.compile(r"^\s*(\d|any)\s+(\d+)\s+(\w+)\s+(silo → server|server → silo|server → all|both)\s", re.MULTILINE)
SESSION = {int(kind): (step, name, way) for step, kind, name, way in _ROW.findall(messages.__doc__ or "")}
"""Kind → (step, message, direction)."""

IN_TROUBLE = {"Failed", "Again", "InSession/Abort", "InSession/Void"}
"""Said only after something else has gone wrong."""


def of_drivers(way: str) -> list[str]:
    """Messages of ``rounds.wire`` that go this way, by its docstring."""
    line = next(line for line in (wire.__doc__ or "").splitlines() if line.strip().startswith(way))
    return line.split(way)[1].replace(" ", "").split(",")


def of_session(*ways: str) -> list[str]:
    """Messages of a session that go one of these ways, in the protocol's order."""
    return [f"InSession/{name}" for step, name, way in SESSION.values() if way in ways and step != "any"]


def _steps(drivers: str, *session: str) -> tuple[str, ...]:
    named: list[str] = []
    for name in of_drivers(drivers):
        named += of_session(*session) if name == "InSession" else [name]
    return tuple(name for name in named if name not in IN_TROUBLE)


SILO_STEPS = _steps("silo → server", "silo → server")
SERVER_STEPS = _steps("server → silo", "server → silo", "server → all")


def step_of(payload: bytes) -> tuple[str, str, int]:
    """(step, phase, round) of a driver's message; phase and round are empty and 0 where it names none."""
    message = wire.decode(payload)
    name = type(message).__name__
    if isinstance(message, wire.InSession):
        kind = peek_kind(message.payload)
        name += f"/{SESSION[kind][1]}"
    return name, getattr(message, "phase", ""), getattr(message, "round", 0)
