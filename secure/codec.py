"""Strict msgpack for frozen dataclasses: the only thing that ``secure`` puts on a wire.

A message is the msgpack array ``[version, kind, field, field, …]``. Decoding refuses anything else: other versions and
kinds, missing or further fields, other types (``True`` is no integer, ``1`` no float), values outside the declared
range, bytes after the end, and any encoding but the shortest, so that one message has exactly one byte string. Sizes
are limited before msgpack sees the bytes. Fields declare their range in ``dataclasses.field`` metadata::

    @dataclass(frozen=True, repr=False)
    class Advert(Signed, kind=2):
        silo: int = silo_id()
        nonce: bytes = fixed(32)

A ``bulk`` field, always the last one, is megabytes long: it is neither copied nor packed a second time on decoding.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import msgpack
import numpy.typing as npt

from secure.errors import DecodeError, InputError

VERSION = 1
CONTROL_LIMIT = 8 << 20
"""Largest control message in bytes: what 128 silos' bundles need, with room to spare."""

BULK_OVERHEAD = 4096
"""Bytes that the fields in front of a bulk field may take, at most."""

Check = Callable[[Any], bool]
_M = TypeVar("_M", bound="Message")


def _declare(check: Check) -> Any:
    return field(metadata={"check": check})


def fixed(length: int) -> Any:
    """Exactly ``length`` bytes."""
    return _declare(lambda value: type(value) is bytes and len(value) == length)


def blob(most: int) -> Any:
    """At most ``most`` bytes."""
    return _declare(lambda value: type(value) is bytes and len(value) <= most)


def bulk() -> Any:
    """The long tail of a message: bytes or a view of them; its size is limited by ``decode``'s ``limit``."""
    return field(metadata={"check": lambda value: isinstance(value, bytes | bytearray | memoryview), "bulk": True})


def text(most: int) -> Any:
    """A string of at most ``most`` characters."""
    return _declare(lambda value: type(value) is str and len(value) <= most)


def integer(low: int, high: int) -> Any:
    """An integer in ``low`` … ``high``; a Boolean is none."""
    return _declare(_integer(low, high))


def _integer(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def silo_id() -> Any:
    """A roster id, 1 … 65535."""
    return integer(1, 65535)


def flag() -> Any:
    """True or false."""
    return _declare(lambda value: type(value) is bool)


def real() -> Any:
    """A finite 64-bit float."""
    return _declare(lambda value: type(value) is float and math.isfinite(value))


def _many(item: Check, most: int) -> Any:
    return _declare(lambda value: type(value) is tuple and len(value) <= most and all(map(item, value)))


def blobs(most: int, size: int) -> Any:
    """At most ``most`` byte strings of at most ``size`` bytes each."""
    return _many(lambda value: type(value) is bytes and len(value) <= size, most)


def silo_ids(most: int = 128) -> Any:
    """Roster ids, ascending and distinct."""
    ranged = _integer(1, 65535)
    return _declare(
        lambda value: (
            type(value) is tuple
            and len(value) <= most
            and all(map(ranged, value))
            and all(low < high for low, high in pairwise(value))
        )
    )


def flags(most: int) -> Any:
    """At most ``most`` Booleans."""
    return _many(lambda value: type(value) is bool, most)


def reals(most: int) -> Any:
    """At most ``most`` finite floats."""
    return _many(lambda value: type(value) is float and math.isfinite(value), most)


def integers(most: int, low: int, high: int) -> Any:
    """At most ``most`` integers in ``low`` … ``high``."""
    return _many(_integer(low, high), most)


@dataclass(frozen=True, repr=False)
class Message:
    """Base of all messages. The printed form shows the kind only: fields may hold shares or sealed secrets."""

    KIND: ClassVar[int] = 0

    def __init_subclass__(cls, kind: int = 0) -> None:
        cls.KIND = kind

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(_layout(type(self)).checks)} fields hidden>"

    __str__ = __repr__


@dataclass(frozen=True, repr=False)
class Signed(Message):
    """A message whose last field, ``signature``, is its sender's Ed25519 signature over ``body()``."""

    def label(self) -> str:
        """What the signature is bound to besides the body: one label per kind."""
        return f"message/{type(self).__name__.lower()}"

    def body(self) -> bytes:
        """Canonical bytes of every field but the signature."""
        return packed([VERSION, self.KIND, *_values(self)[:-1]])


@dataclass(frozen=True)
class _Layout:
    """Names and checks of a message's fields, in order; whether the last one is bulk."""

    checks: tuple[tuple[str, Check], ...]
    is_bulk: bool


_LAYOUTS: dict[int, _Layout] = {}


def _layout(cls: type[Message]) -> _Layout:
    """Read once per kind."""
    found = _LAYOUTS.get(cls.KIND)
    if found is None:
        declared = fields(cls)
        checks = tuple((item.name, item.metadata["check"]) for item in declared)
        found = _LAYOUTS[cls.KIND] = _Layout(checks, bool(declared) and bool(declared[-1].metadata.get("bulk")))
    return found


def _values(item: Message) -> list[Any]:
    return [getattr(item, name) for name, _ in _layout(type(item)).checks]


def packed(value: Any) -> bytes:
    """Shortest msgpack of a plain value."""
    data: bytes = msgpack.packb(value, use_bin_type=True, strict_types=False)
    return data


def _head(item_values: Sequence[Any], kind: int, length: int) -> bytes:
    """Everything in front of a bulk field's bytes, its own msgpack header included."""
    front = packed([VERSION, kind, *item_values, b""])[:-2]  # without the header of the empty byte string
    if length < 1 << 8:
        return front + b"\xc4" + length.to_bytes(1, "big")
    if length < 1 << 16:
        return front + b"\xc5" + length.to_bytes(2, "big")
    return front + b"\xc6" + length.to_bytes(4, "big")


def encode(item: Message) -> bytes:
    """The bytes of a message.

    Raises:
        InputError: a field is outside its declared range (a bug of ours: nothing malformed ever leaves).
    """
    layout = _layout(type(item))
    for name, check in layout.checks:
        if not check(getattr(item, name)):
            raise InputError(f"{type(item).__name__}.{name} is outside its declared range")
    values = _values(item)
    if layout.is_bulk:
        view = memoryview(values[-1]).cast("B")
        return b"".join([_head(values[:-1], item.KIND, len(view)), view])
    return packed([VERSION, item.KIND, *values])


class BulkWriter:
    """A bulk message whose long field is made piece by piece, and is never held twice.

    The other fields may become known last; only their encoded size must not change.

    Args:
        blank: the message with an empty long field, and stand-ins of the right size where a field is not known yet.
        length: bytes of the long field.
    """

    def __init__(self, blank: Message, length: int) -> None:
        self._length, self._head = length, len(encode(blank)) - 2 + _bulk_header_bytes(length)
        self._out = io.BytesIO()
        self._out.seek(self._head)

    def write(self, piece: npt.NDArray[Any]) -> None:
        """Append the bytes of a contiguous array."""
        self._out.write(piece.data.cast("B"))

    def finish(self, item: _M) -> tuple[bytes, _M]:
        """The encoded message, and the message itself with a view of its long field.

        Args:
            item: the message, its long field empty.

        Raises:
            InputError: its fields, or the bytes written, are not of the announced size (a bug of ours).
        """
        encode(item)  # checks the fields
        head = _head(_values(item)[:-1], item.KIND, self._length)
        if len(head) != self._head or self._out.tell() != self._head + self._length:
            raise InputError(f"{type(item).__name__}: not of the announced size")
        self._out.seek(0)
        self._out.write(head)
        payload = self._out.getvalue()  # shares the buffer: no copy
        last = _layout(type(item)).checks[-1][0]
        return payload, replace(item, **{last: memoryview(payload)[self._head :]})


def _bulk_header_bytes(length: int) -> int:
    return 2 if length < 1 << 8 else 3 if length < 1 << 16 else 5


def decode(payload: bytes, *allowed: type[_M], limit: int = CONTROL_LIMIT) -> _M:
    """Read one message of an allowed kind.

    Args:
        payload: the bytes as they arrived.
        allowed: the kinds that the present state names.
        limit: largest accepted size in bytes.

    Raises:
        DecodeError: not bytes, too long, malformed, another version, a kind not allowed, a field out of range, or not
            the shortest encoding. The text never quotes the payload.
    """
    if not isinstance(payload, bytes):
        raise DecodeError("a message is bytes")
    if len(payload) > limit:
        raise DecodeError(f"message of {len(payload)} bytes exceeds {limit}")
    kind, count, unpacker = _start(payload)
    for cls in allowed:
        if kind == cls.KIND:
            break
    else:
        raise DecodeError(f"message of kind {kind} is not expected now")
    layout = _layout(cls)
    if count != len(layout.checks) + 2:
        raise DecodeError(f"{cls.__name__}: wrong number of fields")
    values = _bulk_values(payload, cls, unpacker) if layout.is_bulk else _plain_values(payload)
    for (name, check), value in zip(layout.checks, values, strict=True):
        if not check(value):
            raise DecodeError(f"{cls.__name__}: field {name} is outside its declared range")
    return cls(*values)


def _start(payload: bytes) -> tuple[int, int, msgpack.Unpacker]:
    """Kind and number of elements, from the first bytes alone."""
    unpacker = msgpack.Unpacker(raw=False, use_list=False, strict_map_key=True, max_buffer_size=0)
    unpacker.feed(payload[:BULK_OVERHEAD])
    try:
        count = unpacker.read_array_header()
        version, kind = unpacker.unpack(), unpacker.unpack()
    except Exception:  # msgpack raises a dozen unrelated types on malformed input
        raise DecodeError("not a message of this protocol") from None
    if type(version) is not int or version != VERSION or type(kind) is not int:
        raise DecodeError("not a message of this protocol's version")
    return kind, count, unpacker


def _plain_values(payload: bytes) -> list[Any]:
    try:
        values = msgpack.unpackb(
            payload, raw=False, use_list=False, strict_map_key=True, max_ext_len=0, max_map_len=0, max_array_len=4096
        )
        same = type(values) is tuple and packed(values) == payload
    except Exception:  # as above; also values that cannot be packed again
        raise DecodeError("not a message of this protocol") from None
    if not same:
        raise DecodeError("message is not in its one canonical encoding")
    return list(values[2:])


def _bulk_values(payload: bytes, cls: type[Message], unpacker: msgpack.Unpacker) -> list[Any]:
    """Fields in front of the bulk field by msgpack; the bulk itself as a view of the payload."""
    try:
        front = [unpacker.unpack() for _ in _layout(cls).checks[:-1]]
    except Exception:
        raise DecodeError(f"{cls.__name__}: malformed") from None
    for width in (1, 2, 4):
        length = len(payload) - unpacker.tell() - 1 - width
        if length >= 0:
            try:
                head = _head(front, cls.KIND, length)
            except Exception:
                raise DecodeError(f"{cls.__name__}: malformed") from None
            if len(head) + length == len(payload) and payload.startswith(head):
                return [*front, memoryview(payload)[len(head) :]]
    raise DecodeError("message is not in its one canonical encoding")


def peek_kind(payload: bytes) -> int:
    """The kind of a message, without reading it.

    Raises:
        DecodeError: no message of ours.
    """
    if not isinstance(payload, bytes):
        raise DecodeError("a message is bytes")
    return _start(payload)[0]
