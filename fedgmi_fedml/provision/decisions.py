"""What is new for each party: decided in memory, so that nothing is written before everything is known to be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from fedgmi_fedml.config.base import suggestion
from fedgmi_fedml.errors import FedgmiError
from fedgmi_fedml.provision import certificates
from fedgmi_fedml.provision.authority import Office
from fedgmi_fedml.provision.certificates import DAY
from fedgmi_fedml.provision.layout import CARD, REQUEST
from fedgmi_fedml.provision.project import Settled, SiloEntry
from fedgmi_fedml.provision.registry import Party
from fedgmi_fedml.provision.request import Request, read_request
from secure.card import Card
from secure.errors import IdentityError
from secure.identity import Identity
from secure.roster import Roster, RosterEntry

REQUESTS = "requests"


class ProvisionError(FedgmiError):
    """The project and what was made before do not go together; nothing was written."""


@dataclass
class Row:
    """What was done for one party.

    Attributes:
        done: in words.
        new_identity, new_tls_key: made here, to go into the kit.
        introduced: a card that nobody vouches for yet.
        superseded: its owner's own keys have replaced those that may lie in the kit.
    """

    party: Party
    done: list[str] = field(default_factory=list)
    new_identity: Identity | None = None
    new_tls_key: ec.EllipticCurvePrivateKey | None = None
    introduced: Card | None = None
    superseded: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether its request has still to come."""
        return self.party.card is None


class Decisions:
    """Decides, in memory, what is new for each party."""

    def __init__(
        self, settled: Settled, out: Path, office: Office, now: float, renew: frozenset[str], rekey: frozenset[str]
    ) -> None:
        self.settled, self.out, self.office, self.now = settled, out, office, now
        self.registry = office.registry
        self.renew, self.rekey = renew, rekey
        self.rows: list[Row] = []
        self.requests: dict[str, Request | None] = {}

    # ---- who takes part ----------------------------------------------------------------------------------------------

    def membership(self, revoke: frozenset[str]) -> tuple[Party, ...]:
        """Bring the register in line with the project; silos leave only when they are named."""
        project, registry = self.settled.project, self.registry
        wanted = {entry.name: entry for entry in project.silos}
        gone = {entry["name"] for entry in registry.revoked}
        revoke -= gone - set(registry.silos) - set(wanted)  # asked again: done before
        self._check_names(revoke, set(wanted))
        revoked = tuple(registry.revoke(name) for name in sorted(revoke))
        if registry.server is None:
            registry.server = Party("server", project.server.name, None)
        if registry.server.name != project.server.name:
            raise ProvisionError(
                f"server.name: the server was called {registry.server.name!r} so far, the project says "
                f"{project.server.name!r}; its name cannot change (its address and names can)"
            )
        for name in wanted:
            if name not in registry.silos:
                registry.silos[name] = Party("silo", name, registry.next_id())
        self.rows = [Row(registry.server), *(Row(party) for party in registry.silos.values())]
        return revoked

    def _check_names(self, revoke: frozenset[str], wanted: set[str]) -> None:
        present = set(self.registry.silos)
        parties = [self.settled.project.server.name, *sorted(present | wanted)]
        for option, names in (("--renew", self.renew), ("--rekey", self.rekey)):
            for name in sorted(names - set(parties)):
                raise ProvisionError(f"{option} {name}: no such party; {suggestion(name, parties)}")
        for name in sorted(revoke - present):
            raise ProvisionError(f"--revoke {name}: no such silo; {suggestion(name, sorted(present))}")
        for name in sorted(revoke & wanted):
            raise ProvisionError(f"--revoke {name}: take it out of {self.settled.source} as well")
        lower = {name.casefold(): name for name in present - revoke}
        for name in sorted(wanted - present):
            if name.casefold() in lower:
                raise ProvisionError(f"{name}: differs from {lower[name.casefold()]} by case only; names cannot change")
        missing = sorted(present - wanted - revoke)
        if missing:
            flags = " ".join(f"--revoke {name}" for name in missing)
            raise ProvisionError(
                f"{self.settled.source}: no longer lists {', '.join(missing)}. To revoke for good add: {flags}. "
                "Otherwise put them back; nothing was written"
            )

    # ---- identities --------------------------------------------------------------------------------------------------

    def identity(self, row: Row) -> None:
        """A party's public key card: as before, from its request, or made here."""
        party = row.party
        request = self._request(party.name)
        self.requests[party.name] = request
        known = party.card
        if request is not None and (known is None or request.card.public_key != known.public_key):
            self._accept(row, request.card)
        elif (known is None and self._source(party) == "make") or (party.name in self.rekey and request is None):
            self._make(row)
        elif party.name in self.rekey:
            raise ProvisionError(
                f"--rekey {party.name}: {self.out / REQUESTS / party.name} still holds the request with the old key; "
                "replace it by the new request"
            )

    def _source(self, party: Party) -> str:
        if party.role == "server":
            return self.settled.project.server.identity
        return self._entry(party).identity

    def _entry(self, party: Party) -> SiloEntry:
        return next(entry for entry in self.settled.project.silos if entry.name == party.name)

    def organisation(self, party: Party) -> str:
        """By which contributors are counted."""
        return self._entry(party).organisation or party.name

    def _request(self, name: str) -> Request | None:
        folder = self.out / REQUESTS / name
        if not folder.is_dir():
            return None
        nested = folder / REQUEST  # the folder itself was put there, and not its files
        inner = nested.is_dir() and not (folder / CARD).exists()
        return read_request(nested if inner else folder, self.registry.federation, name)

    def check_requests(self, revoked: set[str]) -> None:
        """A request under a name that nobody has would wait for ever."""
        names = [row.party.name for row in self.rows]
        folder = self.out / REQUESTS
        for name in sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ():
            if name not in revoked | set(names) and not name.startswith("."):
                raise ProvisionError(
                    f"{folder / name}: no party has this name: {suggestion(name, names)}. Each request lies in a "
                    "folder under its party's name"
                )

    def _accept(self, row: Row, card: Card) -> None:
        party, known = row.party, row.party.card
        if card.role != party.role:
            raise ProvisionError(f"{REQUESTS}/{party.name}: is the request of a {card.role}, not of a {party.role}")
        if known is None or party.name in self.rekey:
            row.introduced = card
            row.done.append("identity accepted" if known is None else "new identity accepted")
        elif card.previous_key == known.public_key:
            row.done.append("identity rotated by its owner")
        else:
            raise ProvisionError(
                f"{REQUESTS}/{party.name}: holds another key ({card.fingerprint()}) than the register "
                f"({known.fingerprint()}), and the old key did not sign it. If the silo lost its key, compare the new "
                f"fingerprint by telephone and add: --rekey {party.name}"
            )
        row.superseded = known is not None
        party.card = card

    def _make(self, row: Row) -> None:
        party = row.party
        if party.card is not None and self._source(party) != "make":
            raise ProvisionError(
                f"--rekey {party.name}: makes its own keys; put its new request into {self.out / REQUESTS / party.name}"
            )
        row.done.append("identity made" if party.card is None else "new identity made")
        row.new_identity = Identity.generate()
        owner = self.organisation(party) if party.role == "silo" else party.name
        party.card = Card.issue(row.new_identity, party.role, party.name, owner)

    def check_keys(self) -> None:
        """No two parties with one key."""
        owners: dict[bytes, str] = {self.office.operator.public_key: "the operator"}
        for row in self.rows:
            if row.party.card is not None:
                other = owners.setdefault(row.party.card.public_key, row.party.name)
                if other != row.party.name:
                    raise ProvisionError(f"{row.party.name}: has the same key as {other}; each needs its own")

    # ---- certificates ------------------------------------------------------------------------------------------------

    def certificate(self, row: Row) -> None:
        """A TLS certificate: the one before where it is still good."""
        party, request = row.party, self.requests[row.party.name]
        if party.card is None:
            return
        old = party.certificate
        key = None if old is None else certificates.certificate_key(old)
        if row.new_identity is not None:
            row.new_tls_key = certificates.new_key()
            key = row.new_tls_key.public_key()
        elif request is not None:
            key = request.tls_key
        if key is None:
            raise ProvisionError(f"{party.name}: the register has its identity but no certificate; add --rekey")
        reason = self._reason(party, key)
        if reason is None:
            return
        is_server = party.role == "server"
        party.certificate = certificates.issue(
            self.office.ca,
            key,
            party.name,
            self._uri(party),
            self.settled.hosts if is_server else (),
            self.now,
            self.settled.project.validity_days,
        )
        row.done.append(f"certificate {reason}")

    def _uri(self, party: Party) -> str:
        federation = self.registry.federation
        return (
            certificates.server_uri(federation)
            if party.silo_id is None
            else certificates.silo_uri(federation, party.silo_id)
        )

    def _reason(self, party: Party, key: ec.EllipticCurvePublicKey) -> str | None:
        """Why a new certificate is needed; ``None`` when the old one is good."""
        old = party.certificate
        if old is None:
            return "issued"
        if not certificates.same_key(certificates.certificate_key(old), key):
            return "issued for its new key"
        if party.name in self.renew:
            return "renewed as asked"
        first, last = certificates.window(old)
        if certificates.is_ending(first, last, self.now):
            return f"renewed ({'ended' if last <= self.now else 'would end'} on {certificates.date(last)})"
        if party.role == "server" and set(certificates.hosts_of(old)) != set(self.settled.hosts):
            return "renewed for other names"
        return None

    # ---- roster ------------------------------------------------------------------------------------------------------

    def roster(self) -> bool:
        """Sign a new roster where its content has changed; whether one was signed.

        The first needs everybody. Later ones do not wait for silos whose requests are still to come: a revocation must
        not have to.
        """
        known, before = [row.party for row in self.rows if row.party.card is not None], self.office.roster
        if self.registry.server is None or self.registry.server.card is None:
            return False
        if before is None and len(known) < len(self.rows):
            return False
        entries = tuple(
            RosterEntry(party.silo_id, party.name, self.organisation(party), party.card.public_key)
            for party in known
            if party.silo_id is not None and party.card is not None
        )
        server_key, retired = self.registry.server.card.public_key, self.registry.retired()
        same = before is not None and (before.silos, before.server_key, before.retired) == (
            entries,
            server_key,
            retired,
        )
        if before is not None and same and not certificates.is_ending(before.issued, before.expires, self.now):
            return False
        issued = int(self.now)
        try:
            self.office.roster = Roster.issue(
                self.office.operator,
                version=before.version + 1 if before else 1,
                issued=issued,
                expires=issued + self.settled.project.validity_days * DAY,
                silos=entries,
                server_key=server_key,
                retired=retired,
            )
        except IdentityError as error:
            raise ProvisionError(f"the roster cannot be signed: {error}") from None
        return True
