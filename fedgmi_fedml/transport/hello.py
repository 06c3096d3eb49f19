"""The first frame each way on every connection: who dials, which link it goes on with, and the server's answer.

Strict msgpack maps of the fields below; of another protocol version only ``version`` is read, so that the difference
can be named whatever else has changed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack

from fedgmi_fedml.transport.link import LinkFault

VERSION = 1
"""Of the link's protocol: hello, answer and frames."""

LARGEST_HELLO = 4096
_BIGGEST = (1 << 63) - 1


@dataclass(frozen=True)
class Hello:
    """What a silo says first.

    Attributes:
        link: 16 random bytes, this silo process.
        token: of the link that it would go on with, as the server gave it; empty: of none.
        received, allowed: how much of the server's string it has, and up to where the server may send.
    """

    version: int
    federation: str
    silo: int
    link: bytes
    token: bytes
    received: int
    allowed: int


@dataclass(frozen=True)
class Answer:
    """What the server answers.

    Attributes:
        run_id: the run's.
        token: 16 random bytes that name this link.
        new: whatever the silo still holds of an earlier link is void.
        received, allowed: as in ``Hello``, of the silo's string.
        refused: why the silo may not take part; empty: it may.
    """

    version: int
    run_id: str
    token: bytes
    new: bool
    received: int
    allowed: int
    refused: str = ""


class OtherVersion(LinkFault):
    """A first frame of another protocol version; ``version`` says which."""

    def __init__(self, version: int) -> None:
        super().__init__(f"speaks version {version} of the link's protocol", fatal=True)
        self.version = version


_First = TypeVar("_First", Hello, Answer)


def encode_first(first: Hello | Answer) -> bytes:
    """First frame → bytes."""
    return bytes(msgpack.packb(dataclasses.asdict(first), use_bin_type=True))


def decode_first(frame: bytes, kind: type[_First]) -> _First:
    """Bytes → first frame.

    Raises:
        OtherVersion: of another protocol version. LinkFault: nothing of ours.
    """
    if len(frame) > LARGEST_HELLO:
        raise LinkFault("no first frame of ours: too large")
    try:
        values: Any = msgpack.unpackb(frame, raw=False)
    except Exception as error:
        raise LinkFault("no first frame of ours") from error
    if not isinstance(values, dict) or not _fits("int", values.get("version")):
        raise LinkFault("no first frame of ours")
    if values["version"] != VERSION:
        raise OtherVersion(values["version"])
    declared = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if values.keys() != declared.keys() or not all(_fits(declared[key], value) for key, value in values.items()):
        raise LinkFault("no first frame of ours: other fields")
    return kind(**values)


def _fits(declared: str, value: object) -> bool:
    if declared == "int":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _BIGGEST
    return type(value).__name__ == declared
