"""A silo's local policy: what it insists on, whatever the server proposes.

``Policy.check`` lists every problem of a proposal at once. The file is JSON or YAML (YAML where PyYAML is installed).
A new roster takes effect only once the silo's admin accepted it: ``accept`` pins its digest in the policy.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secure._files import write_atomic
from secure.errors import IdentityError, PolicyRefusal
from secure.gate import MAX_SILOS, MIN_SILOS, infeasible
from secure.identity import fingerprint
from secure.roster import Roster, iso_time, parse_time
from secure.types import Rules, SessionParams

FORMAT = "fedgmi-policy/1"
BACKENDS = ("none", "masked", "homomorphic")
DEFAULT_PHASES = ("candidates", "warmup", "rounds", "evaluate")


@dataclass(frozen=True)
class Policy:
    """What one silo accepts. Everything is at least as strict as a proposal must be.

    Attributes:
        operator_key: Ed25519 key that rosters must be signed with, 32 bytes.
        roster_version, roster_digest: the one roster that the admin consented to.
        accepted: when, seconds since 1970; for the record.
        rules: colluders, drops, contributors, classes, w_max, verified sums.
        backends: data planes that may be used.
        min_cohort: smallest K.
        max_clip: largest clip of any block.
        phases: the schedule, in order; other phases, and going back, are refused.
        config_digest: pinned configuration, or ``None`` for any.
        schemas: pinned schema digest by phase; phases not named may use any.
    """

    operator_key: bytes
    roster_version: int
    roster_digest: bytes
    accepted: int = 0
    rules: Rules = field(default_factory=Rules)
    backends: tuple[str, ...] = ("masked",)
    min_cohort: int = 4
    max_clip: float = 8.0
    phases: tuple[str, ...] = DEFAULT_PHASES
    config_digest: bytes | None = None
    schemas: Mapping[str, bytes] = field(default_factory=dict)

    def phase_index(self, phase: str) -> int:
        """Place of a phase in the schedule, from 0, for the journal's counter.

        Raises:
            PolicyRefusal: not in the schedule.
        """
        if phase not in self.phases:
            raise PolicyRefusal(f"phase {phase!r} is not in this silo's schedule: {', '.join(self.phases)}")
        return self.phases.index(phase)

    def check(self, params: SessionParams) -> list[str]:
        """Every way in which a proposal asks for less than this policy; empty when it may be signed."""
        return [
            *self._check_cohort(params),
            *weaker_rules(params.rules, self.rules),
            *infeasible(len(params.cohort), params.rules),
            *self._check_digests(params),
            *self._check_layout(params),
        ]

    def _check_cohort(self, params: SessionParams) -> list[str]:
        problems = []
        if params.backend not in self.backends:
            problems.append(f"back-end {params.backend!r} is not allowed here ({', '.join(self.backends)})")
        if len(params.cohort) < self.min_cohort:
            problems.append(f"cohort of {len(params.cohort)} silos is smaller than {self.min_cohort}")
        if list(params.cohort) != sorted(set(params.cohort)):
            problems.append("cohort is not ascending and distinct")
        if params.phase not in self.phases:
            problems.append(f"phase {params.phase!r} is not in the schedule ({', '.join(self.phases)})")
        if min(params.round, params.attempt, params.group) < 0:
            problems.append("round, attempt and group must not be negative")
        return problems

    def _check_digests(self, params: SessionParams) -> list[str]:
        problems = []
        if params.roster_digest != self.roster_digest:
            problems.append(f"roster differs from version {self.roster_version}, the one accepted here")
        if self.config_digest is not None and params.config_digest != self.config_digest:
            problems.append("configuration differs from the one pinned here")
        pinned = self.schemas.get(params.phase)
        if pinned is not None and params.spec.digest() != pinned:
            problems.append(f"schema of phase {params.phase!r} differs from the one pinned here")
        if len(params.start_digest) != 32 or len(params.config_digest) != 32:
            problems.append("digests of starting models and configuration must have 32 bytes")
        return problems

    def _check_layout(self, params: SessionParams) -> list[str]:
        wide = [block.name for block in params.spec.blocks if not 0 < block.clip <= self.max_clip]
        if not wide:
            return []
        more = f" and {len(wide) - 1} more" if len(wide) > 1 else ""
        return [f"clip of block {wide[0]}{more} exceeds {self.max_clip}"]

    def check_roster(self, roster: Roster, now: float) -> None:
        """Check that a roster is the accepted one, signed by the trusted operator, and in force.

        Args:
            now: seconds since 1970, UTC, read by the caller.

        Raises:
            IdentityError: says which of these fails.
        """
        roster.verify(self.operator_key)
        roster.check_current(now)
        if roster.digest() != self.roster_digest:
            raise IdentityError(
                f"roster version {roster.version} was not accepted here (version {self.roster_version} was); "
                "review it, then run: fedgmi keys accept"
            )

    def accept(self, roster: Roster, now: float) -> Policy:
        """The admin's consent: a policy that pins ``roster``. Save it to make the consent last.

        Raises:
            IdentityError: other operator, bad signature, expired, or an older version than the accepted one.
        """
        roster.verify(self.operator_key)
        roster.check_current(now)
        same = roster.version == self.roster_version
        if roster.version < self.roster_version or (same and roster.digest() != self.roster_digest):
            raise IdentityError(f"roster version {roster.version} does not follow version {self.roster_version}")
        return dataclasses.replace(
            self, roster_version=roster.version, roster_digest=roster.digest(), accepted=int(now)
        )

    @classmethod
    def for_roster(cls, roster: Roster, now: float, **settings: Any) -> Policy:
        """First consent: trust the roster's operator key (compare its fingerprint by voice first) and pin the roster.

        Raises:
            IdentityError: bad signature, expired, or impossible settings.
        """
        roster.verify(roster.operator_key)
        roster.check_current(now)
        policy = cls(roster.operator_key, roster.version, roster.digest(), int(now), **settings)
        return cls.from_mapping(policy.to_mapping())

    def to_mapping(self) -> dict[str, Any]:
        """The file's form, plain values only."""
        return {
            "format": FORMAT,
            "operator_key": self.operator_key.hex(),
            "operator_fingerprint": fingerprint(self.operator_key),
            "roster": {
                "version": self.roster_version,
                "digest": self.roster_digest.hex(),
                "accepted": iso_time(self.accepted),
            },
            "rules": dataclasses.asdict(self.rules),
            "backends": list(self.backends),
            "min_cohort": self.min_cohort,
            "max_clip": self.max_clip,
            "phases": list(self.phases),
            "config_digest": None if self.config_digest is None else self.config_digest.hex(),
            "schemas": {phase: digest.hex() for phase, digest in sorted(self.schemas.items())},
        }

    @classmethod
    def from_mapping(cls, document: Any) -> Policy:
        """Undo ``to_mapping``; keys left out take their defaults.

        Raises:
            IdentityError: lists every problem at once.
        """
        return _Reader(document).policy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write atomically, mode 0600, as JSON (which is YAML too).

        Raises:
            IdentityError: the file cannot be written.
        """
        try:
            write_atomic(Path(path), (json.dumps(self.to_mapping(), indent=2) + "\n").encode())
        except OSError as error:
            raise IdentityError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a JSON or YAML file.

        Raises:
            IdentityError: missing, unreadable, or lists every problem at once.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise IdentityError(f"{path} cannot be read") from None
        try:
            return cls.from_mapping(_parse(text))
        except IdentityError as error:
            raise IdentityError(f"{path}: {error}") from None


def weaker_rules(proposed: Rules, demanded: Rules) -> list[str]:
    """Every field of ``proposed`` that is less strict than ``demanded``."""
    problems = []
    for name in ("colluders", "min_contributors", "min_samples"):
        if getattr(proposed, name) < getattr(demanded, name):
            problems.append(f"{name} {getattr(proposed, name)} is less than {getattr(demanded, name)}")
    for name in ("max_drops", "w_max"):
        if not getattr(proposed, name) <= getattr(demanded, name):  # also catches NaN
            problems.append(f"{name} {getattr(proposed, name)} is more than {getattr(demanded, name)}")
    if demanded.verified_sums and not proposed.verified_sums:
        problems.append("verified sums are demanded")
    return problems


def _parse(text: str) -> Any:
    """JSON, or else YAML when PyYAML is there (it is no dependency of this package)."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise IdentityError("not JSON, and PyYAML is not installed to read it as YAML") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise IdentityError("neither JSON nor YAML") from None


class _Reader:
    """Turns a parsed policy file into a ``Policy``, collecting every problem on the way."""

    def __init__(self, document: Any) -> None:
        self.problems: list[str] = []
        self.document = document if isinstance(document, dict) else {}
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            self.problems.append(f"not a policy of format {FORMAT}")

    def policy(self) -> Policy:
        known = {
            "format", "operator_key", "operator_fingerprint", "roster", "rules", "backends", "min_cohort", "max_clip",
            "phases", "config_digest", "schemas",
        }  # fmt: skip
        self.problems += [f"unknown setting {key!r}" for key in self.document if key not in known]
        roster = self.get("roster", dict, {})
        pinned = self.document.get("config_digest")
        result = Policy(
            operator_key=self.digest("operator_key", self.document.get("operator_key")),
            roster_version=self.typed("roster.version", roster.get("version"), int, 0),
            roster_digest=self.digest("roster.digest", roster.get("digest")),
            accepted=self.time(roster.get("accepted")),
            rules=self.rules(),
            backends=self.names("backends", ("masked",)),
            min_cohort=self.get("min_cohort", int, 4),
            max_clip=self.get("max_clip", float, 8.0),
            phases=self.names("phases", DEFAULT_PHASES),
            config_digest=None if pinned is None else self.digest("config_digest", pinned),
            schemas={str(k): self.digest(f"schemas.{k}", v) for k, v in self.get("schemas", dict, {}).items()},
        )
        self.sanity(result)
        if self.problems:
            raise IdentityError("; ".join(self.problems))
        return result

    def typed(self, name: str, value: Any, kind: type, default: Any) -> Any:
        allowed = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            self.problems.append(f"{name} must be a {kind.__name__}")
            return default
        return kind(value)

    def get(self, name: str, kind: type, default: Any) -> Any:
        return self.typed(name, self.document.get(name, default), kind, default)

    def digest(self, name: str, value: Any) -> bytes:
        try:
            data = bytes.fromhex(value)
        except (TypeError, ValueError):
            data = b""
        if len(data) != 32:
            self.problems.append(f"{name} must be 64 hexadecimal digits")
        return data

    def time(self, value: Any) -> int:
        try:
            return 0 if value is None else parse_time(value)
        except (TypeError, ValueError):
            self.problems.append("roster.accepted must look like 2031-05-04T03:02:01Z")
            return 0

    def names(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self.document.get(name, list(default))
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            self.problems.append(f"{name} must be a list of names")
            return default
        if len(set(value)) != len(value):
            self.problems.append(f"{name} names one twice")
        return tuple(value)

    def rules(self) -> Rules:
        given, defaults = self.get("rules", dict, {}), dataclasses.asdict(Rules())
        self.problems += [f"unknown setting 'rules.{key}'" for key in given if key not in defaults]
        merged = {
            name: self.typed(f"rules.{name}", given.get(name, default), type(default), default)
            for name, default in defaults.items()
        }
        return Rules(**merged)

    def sanity(self, policy: Policy) -> None:
        self.problems += [f"unknown back-end {name!r}" for name in policy.backends if name not in BACKENDS]
        if not MIN_SILOS <= policy.min_cohort <= MAX_SILOS:
            self.problems.append(f"min_cohort must lie in {MIN_SILOS} … {MAX_SILOS}")
        else:
            self.problems += infeasible(policy.min_cohort, policy.rules)
        if not (math.isfinite(policy.max_clip) and policy.max_clip > 0):
            self.problems.append("max_clip must be a positive finite number")
