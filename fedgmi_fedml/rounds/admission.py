"""Who takes part in a run: joins, the beacon from committed nonces, and silos that come late or come back.

joins ──all, or time is up──▶ commitments out ──every nonce revealed──▶ agreed ──▶ witnessed; open for latecomers
  ▲                                  │
  └───────── a silo vanished ────────┘      (fresh nonces; at most ``MAX_GATHERS`` times)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from fedgmi_fedml.config.agreement import first_difference
from fedgmi_fedml.errors import RunError
from fedgmi_fedml.rounds.agreement import Agreement, witnessed_by
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.wire import Again, Agreed, Beacon, Commitments, Finish, Join, Message, Reveal, Witness
from fedgmi_fedml.version import WIRE_VERSION, __version__
from secure.api import Credentials
from secure.beacon import commitment, from_reveals

MAX_GATHERS = 3
"""Beacons that silos begin in one run: a server that pretends losses to draw again has no more tries."""


@dataclass
class Wait:
    """What a script waits for: ``ready`` says whether it may go on, ``seconds`` how long at most."""

    ready: Callable[[], bool]
    stage: Callable[[], str]
    seconds: Callable[[], float]


Script = Generator[Wait, bool, None]


@dataclass(eq=False)
class Admission:
    """The server's book of who takes part.

    Args:
        phases, silos, run_id, credentials: the run's (``ServerRun``).
        class_names: the agreed classes in order; ``None``: as the first silo to join says.
        send, notify: the run's.
        keep: told of every change of the agreement, before anything that rests on it is sent.
        agreement: of an earlier server process, to go on with.
    """

    phases: Phases
    silos: tuple[int, ...]
    run_id: str
    credentials: Credentials | None
    class_names: tuple[str, ...] | None
    send: Callable[[int, Message], None]
    notify: Callable[[str, dict[str, Any]], None]
    keep: Callable[[Agreement], None]
    agreement: Agreement | None = None
    present: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._joined: dict[int, Join] = {}
        self._commitments: dict[int, bytes] = {}
        self._nonces: dict[int, bytes] = {}
        self._vanished: set[int] = set()

    @property
    def available(self) -> tuple[int, ...]:
        """Silos that take part and are there, ascending."""
        return tuple(sorted(self.present)) if self.agreement else ()

    def gather(self, join_seconds: float, step_seconds: float) -> Script:
        """Wait for the silos to join, and agree on the beacon if there is none yet, with witnesses for latecomers.

        Raises:
            RunError: no beacon can be agreed on.
        """
        for _ in range(MAX_GATHERS):
            timed_out = yield Wait(lambda: len(self.present) == len(self.silos), lambda: "join", lambda: join_seconds)
            if timed_out:
                self.notify("absent", {"silos": [s for s in self.silos if s not in self.present]})
            if self.agreement or (yield from self._agree(step_seconds)):
                yield from self._be_witnessed(step_seconds)
                return
        raise RunError(
            f"silos {sorted(self._vanished)} joined and vanished before the cohorts were drawn, {MAX_GATHERS} times: "
            "start the run again, without them if need be"
        )

    def _agree(self, seconds: float) -> Generator[Wait, bool, bool]:
        """Commitments out, nonces in; whether everybody revealed."""
        self._nonces, self._vanished = {}, set()
        self._commitments = {s: self._joined[s].nonce_commitment for s in sorted(self.present)}
        if not self._commitments:
            raise RunError("no silo joined in time: start the silos, and the run again")
        for silo in self._commitments:
            self.send(silo, Commitments(dict(self._commitments)))
        yield Wait(
            lambda: bool(self._vanished) or set(self._nonces) == set(self._commitments),
            lambda: "beacon",
            lambda: seconds,
        )
        missing = self._vanished or set(self._commitments) - set(self._nonces)
        if missing:  # a beacon from a part of the commitments could be steered by withholding
            self._start_over(missing)
            return False
        reveals = {silo: (self._commitments[silo], nonce) for silo, nonce in sorted(self._nonces.items())}
        nonces = dict(sorted(self._nonces.items()))
        self._change(Agreement(from_reveals(reveals, self.run_id.encode()), nonces))
        for silo in nonces:
            self.send(silo, Beacon(nonces))
        return True

    def _be_witnessed(self, seconds: float) -> Script:
        """Wait until a silo that knows nothing of the beacon would take it.

        Raises:
            RunError: too few silos still hold what they revealed.
        """
        timed_out = yield Wait(lambda: self._is_witnessed, lambda: "witnesses", lambda: seconds)
        if timed_out:
            raise RunError(
                "too few silos witness the beacon that draws the cohorts, perhaps since they were started again just "
                "then: start a new run, with another --out"
            )

    @property
    def _is_witnessed(self) -> bool:
        """Whether more than c silos have signed the beacon: silos take it on their word."""
        if self.credentials is None or self.agreement is None:
            return self.agreement is not None
        return len(self.agreement.witnesses) > self.phases.config.fedgmi_args.secure.rules.colluders

    def _start_over(self, missing: set[int]) -> None:
        self.notify("absent", {"silos": sorted(missing)})
        self._vanished = missing
        self.present -= missing
        for silo in sorted(self.present):
            self.send(silo, Again("a silo vanished before it had revealed its nonce"))
        self._commitments, self._nonces = {}, {}
        self.present, self._joined = set(), {}

    def take(self, silo: int, message: Join | Reveal | Witness) -> None:
        """One message about membership."""
        match message:
            case Join():
                self._join(silo, message)
            case Reveal(nonce=nonce):
                if len(nonce) == 32 and commitment(silo, nonce) == self._commitments.get(silo):
                    self._nonces[silo] = nonce
            case Witness(signature=signature):
                self._witness(silo, signature)

    def lost(self, silo: int) -> None:
        """The silo is gone, for now."""
        self.present.discard(silo)
        if self.agreement is None:
            self._joined.pop(silo, None)
            if silo in self._commitments:
                self._vanished.add(silo)

    def note_exposed(self, exposed: dict[bytes, tuple[tuple[int, ...], ...]]) -> None:
        """Cohorts whose totals are out, for the disk."""
        if self.agreement is not None:
            self._change(replace(self.agreement, exposed=exposed))

    def refuse(self, silo: int, reason: str) -> None:
        """Turn a silo away, and tell it why."""
        self.notify("refused", {"silo": silo, "reason": reason})
        self.present.discard(silo)
        self.send(silo, Finish(reason, b"", b"", failed=True))

    def _change(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.keep(agreement)

    def _join(self, silo: int, join: Join) -> None:
        """Admit a silo whose announcement agrees with the server's in every field; name the first difference else."""
        if silo not in self.silos:
            self.refuse(silo, "the silo is not on this run's roster")
            return
        difference = self._difference(join)
        if difference:
            self.refuse(silo, difference)
            return
        if self.agreement:
            self._tell(silo, self.agreement)
        elif silo in self._commitments and join.nonce_commitment != self._commitments[silo]:
            self._vanished.add(silo)  # restarted after it had committed: its nonce is gone
        self._joined[silo] = join
        self.class_names = self.class_names or join.class_names
        self.present.add(silo)
        self.notify("joined", {"silo": silo})

    def _difference(self, join: Join) -> str | None:
        """The first thing in which a silo's announcement differs from the server's, in words."""
        phases, config = self.phases, self.phases.config
        if config.digest() != join.config_digest:
            key = first_difference(config.item_digests(), join.config_items) or "a setting"
        else:
            key = ""
        checks: tuple[tuple[str, object, object], ...] = (
            ("wire version", join.wire_version, WIRE_VERSION),
            ("package version", join.package_version, __version__),
            ("back-end", join.backend, config.fedgmi_args.secure.backend),
            (f"configuration ({key})", join.config_digest, config.digest()),
            ("input shape", tuple(join.input_shape), tuple(phases.shape.input_shape)),
            ("number of classes", len(join.class_names), phases.shape.classes),
            ("list of classes", join.class_names, self.class_names or join.class_names),
            ("model schema", join.models_schema, phases.schema_digest()),
        )
        for what, theirs, ours in checks:
            if theirs != ours:
                shown = f": {theirs} here, {ours} there" if isinstance(ours, int | tuple) or "version" in what else ""
                return f"{what} differs from the server's{shown}"
        return None

    def _tell(self, silo: int, agreed: Agreement) -> None:
        """The run's beacon for a silo that joins later or again: on its witnesses' word, or else on that of the nonces
        (a server that was killed just after all had been revealed may have no witnesses yet)."""
        if self._is_witnessed:
            self.send(silo, Agreed(agreed.beacon, agreed.members, dict(agreed.witnesses)))
        else:
            self.send(silo, Beacon(dict(agreed.nonces)))

    def _witness(self, silo: int, signature: bytes) -> None:
        agreed, before = self.agreement, self._is_witnessed
        if agreed is None or self.credentials is None or silo in agreed.witnesses:
            return
        signatures = {silo: signature}
        if witnessed_by(self.credentials.roster, self.run_id, agreed.beacon, agreed.members, signatures):
            self._change(replace(agreed, witnesses={**agreed.witnesses, **signatures}))
            if self._is_witnessed and not before:
                for waiting in sorted(self.present - set(self.agreement.witnesses)):
                    self._tell(waiting, self.agreement)
