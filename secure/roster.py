"""The roster: who takes part, signed by the operator, whose key never lives on the server.

Whoever revokes or adds a silo issues a roster with a higher version; each silo's admin consents to it
(``policy.Policy.accept``) and the journal refuses older ones (``journal.Journal.note_roster``).
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgpack

from secure._files import write_atomic
from secure.errors import IdentityError
from secure.identity import Identity, fingerprint, is_valid
from secure.keys import KEY_BYTES, frame
from secure.types import SiloId

FORMAT = "fedgmi-roster/1"
_LABEL = "roster"
_MAX_BYTES = 1 << 24


@dataclass(frozen=True)
class RosterEntry:
    """One silo.

    Attributes:
        silo_id: 1 … 65535, also its Shamir abscissa; never given to another silo later.
        name: for people, unique.
        organisation: contributors count by organisation.
        public_key: Ed25519, 32 bytes.
    """

    silo_id: SiloId
    name: str
    organisation: str
    public_key: bytes

    def fingerprint(self) -> str:
        """Readable aloud."""
        return fingerprint(self.public_key)


@dataclass(frozen=True)
class Roster:
    """Signed list of silos. Built with ``Roster.issue``, read with ``Roster.load``.

    Attributes:
        version: 1, 2, … ; higher replaces lower.
        issued, expires: seconds since 1970, UTC.
        silos: ascending by id.
        server_key, operator_key: Ed25519, 32 bytes.
        retired: ids of silos that left; they are not given out again.
        signature: by the operator over ``digest()``.
    """

    version: int
    issued: int
    expires: int
    silos: tuple[RosterEntry, ...]
    server_key: bytes
    operator_key: bytes
    retired: tuple[SiloId, ...] = ()
    signature: bytes = field(default=b"", repr=False)

    @classmethod
    def issue(
        cls,
        operator: Identity,
        *,
        version: int,
        issued: int,
        expires: int,
        silos: Iterable[RosterEntry],
        server_key: bytes,
        retired: Iterable[SiloId] = (),
    ) -> Roster:
        """Sign a new roster with the operator's key.

        Raises:
            IdentityError: lists everything that is wrong with the entries.
        """
        ordered = tuple(sorted(silos, key=lambda entry: entry.silo_id))
        gone = tuple(sorted(set(retired)))
        draft = cls(version, issued, expires, ordered, server_key, operator.public_key, gone)
        problems = draft.problems()
        if problems:
            raise IdentityError("roster: " + "; ".join(problems))
        return dataclasses.replace(draft, signature=operator.sign(_LABEL, draft.digest()))

    def problems(self) -> list[str]:
        """Everything that is wrong with the content, signature aside."""
        found = []
        if self.version < 1:
            found.append("version must be at least 1")
        if self.expires <= self.issued:
            found.append("it expires before it is issued")
        if not self.silos:
            found.append("no silos")
        ids = [entry.silo_id for entry in self.silos]
        if any(not 1 <= silo <= 65535 for silo in ids):
            found.append("silo ids must lie in 1 … 65535")
        if sorted(set(ids)) != ids:
            found.append("silo ids must be distinct and ascending")
        if set(ids) & set(self.retired):
            found.append("the id of a silo that left must not be given out again")
        names = [entry.name.strip().casefold() for entry in self.silos]
        if len(set(names)) != len(names) or not all(names):
            found.append("silo names must be distinct and not empty")
        if not all(entry.organisation.strip() for entry in self.silos):
            found.append("every silo needs an organisation")
        keys = [entry.public_key for entry in self.silos] + [self.server_key, self.operator_key]
        if any(len(key) != KEY_BYTES for key in keys):
            found.append(f"public keys have {KEY_BYTES} bytes")
        if len(set(keys)) != len(keys):
            found.append("silos, server and operator each need a key of their own")
        return found

    @cached_property
    def _digest(self) -> bytes:
        body = [self.version, self.issued, self.expires, self.server_key, self.operator_key, self.retired]
        entries = [[entry.silo_id, entry.name, entry.organisation, entry.public_key] for entry in self.silos]
        packed: bytes = msgpack.packb([body, entries], use_bin_type=True)
        return hashlib.sha256(frame(FORMAT.encode(), packed)).digest()

    def digest(self) -> bytes:
        """32 bytes over everything but the signature; what a silo's admin consents to."""
        return self._digest

    def verify(self, operator_key: bytes) -> None:
        """Check content and signature against the operator's key that this party trusts.

        Raises:
            IdentityError: another operator, a bad signature, or an impossible content.
        """
        if self.operator_key != operator_key:
            raise IdentityError(
                f"roster is signed by another operator ({fingerprint(self.operator_key)}) "
                f"than the trusted one ({fingerprint(operator_key)})"
            )
        problems = self.problems()
        if problems:
            raise IdentityError("roster: " + "; ".join(problems))
        if not is_valid(operator_key, _LABEL, self.digest(), self.signature):
            raise IdentityError("the operator's signature on the roster does not verify")

    def check_current(self, now: float) -> None:
        """Check issue and expiry against a clock that the caller reads (seconds since 1970, UTC).

        Raises:
            IdentityError: not valid yet (a day of clock skew is forgiven), or expired.
        """
        if now < self.issued - 86400:
            raise IdentityError(f"roster version {self.version} is not valid yet; check this machine's clock")
        if now >= self.expires:
            raise IdentityError(
                f"roster version {self.version} expired on {iso_time(self.expires)}; ask the operator for a new one"
            )

    @cached_property
    def _entries(self) -> dict[SiloId, RosterEntry]:
        return {entry.silo_id: entry for entry in self.silos}

    def entry(self, silo: SiloId) -> RosterEntry:
        """Entry of a silo.

        Raises:
            IdentityError: not in the roster.
        """
        try:
            return self._entries[silo]
        except KeyError:
            raise IdentityError(f"silo {silo} is not in roster version {self.version}") from None

    def public_key(self, silo: SiloId) -> bytes:
        """Ed25519 public key of a silo.

        Raises:
            IdentityError: not in the roster.
        """
        return self.entry(silo).public_key

    def silo_of(self, public_key: bytes) -> SiloId:
        """Id of the silo with this key.

        Raises:
            IdentityError: no silo has it.
        """
        for entry in self.silos:
            if entry.public_key == public_key:
                return entry.silo_id
        raise IdentityError(f"no silo of roster version {self.version} has the key {fingerprint(public_key)}")

    def organisations(self, silos: Sequence[SiloId]) -> dict[str, tuple[SiloId, ...]]:
        """Silos by organisation (upper and lower case and outer blanks do not matter), ids ascending.

        Raises:
            IdentityError: a silo is not in the roster.
        """
        grouped: dict[str, list[SiloId]] = {}
        for silo in sorted(silos):
            grouped.setdefault(self.entry(silo).organisation.strip().casefold(), []).append(silo)
        return {name: tuple(members) for name, members in grouped.items()}

    def representatives(self, silos: Sequence[SiloId]) -> tuple[SiloId, ...]:
        """The lowest id of each organisation among ``silos``: counting only these never counts one twice."""
        return tuple(sorted(members[0] for members in self.organisations(silos).values()))

    def to_json(self) -> bytes:
        """The file's form: readable, keys in hexadecimal, times in ISO 8601."""
        return (json.dumps(_document(self), indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> Roster:
        """Undo ``to_json``. Does **not** check the signature: call ``verify``.

        Raises:
            IdentityError: not a roster of this format.
        """
        try:
            if len(data) > _MAX_BYTES:
                raise ValueError("too large")
            return _from_document(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            raise IdentityError(f"not a roster of format {FORMAT}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write atomically, mode 0644: a roster is public among its parties.

        Raises:
            IdentityError: the file cannot be written.
        """
        try:
            write_atomic(Path(path), self.to_json(), mode=0o644)
        except OSError as error:
            raise IdentityError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Roster:
        """Read a file. Does **not** check the signature: call ``verify``.

        Raises:
            IdentityError: missing, or not a roster.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise IdentityError(f"{path} cannot be read: {error.strerror}") from None
        try:
            return cls.from_json(data)
        except IdentityError as error:
            raise IdentityError(f"{path}: {error}") from None


def iso_time(seconds: int) -> str:
    """Seconds since 1970 as ``2031-05-04T03:02:01Z``."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> int:
    """Undo ``iso_time``.

    Raises:
        ValueError: another form.
    """
    parsed = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    return int(parsed.replace(tzinfo=datetime.timezone.utc).timestamp())


def _document(roster: Roster) -> dict[str, object]:
    return {
        "format": FORMAT,
        "version": roster.version,
        "issued": iso_time(roster.issued),
        "expires": iso_time(roster.expires),
        "operator_key": roster.operator_key.hex(),
        "server_key": roster.server_key.hex(),
        "silos": [
            {"id": e.silo_id, "name": e.name, "organisation": e.organisation, "public_key": e.public_key.hex()}
            for e in roster.silos
        ],
        "retired": list(roster.retired),
        "signature": roster.signature.hex(),
    }


def _from_document(document: Mapping[str, object]) -> Roster:
    """Strict: exactly the keys of ``_document``, each of its type."""
    names = {"format", "version", "issued", "expires", "operator_key", "server_key", "silos", "retired", "signature"}
    silos, retired = document["silos"], document["retired"]
    if set(document) != names or document["format"] != FORMAT:
        raise ValueError("unknown form")
    if not isinstance(silos, list) or not isinstance(retired, list):
        raise ValueError("unknown form")
    return Roster(
        version=_whole(document["version"]),
        issued=parse_time(_text(document["issued"])),
        expires=parse_time(_text(document["expires"])),
        silos=tuple(_entry(item) for item in silos),
        server_key=bytes.fromhex(_text(document["server_key"])),
        operator_key=bytes.fromhex(_text(document["operator_key"])),
        retired=tuple(_whole(item) for item in retired),
        signature=bytes.fromhex(_text(document["signature"])),
    )


def _entry(item: Mapping[str, object]) -> RosterEntry:
    if set(item) != {"id", "name", "organisation", "public_key"}:
        raise ValueError("unknown form")
    key = bytes.fromhex(_text(item["public_key"]))
    return RosterEntry(_whole(item["id"]), _text(item["name"]), _text(item["organisation"]), key)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 62:
        raise ValueError("not a whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value
