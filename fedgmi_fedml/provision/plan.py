"""``fedgmi provision``: from a project and what was made before to kits for everybody.

Nothing that is still good is ever made again: authority, ids, keys and certificates stay, and files whose content is
the same are not touched, so that kits given out earlier remain valid.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedgmi_fedml.provision.authority import FOLDER, open_office, stage_office
from fedgmi_fedml.provision.decisions import REQUESTS, Decisions, ProvisionError, Row
from fedgmi_fedml.provision.kits import KitWriter
from fedgmi_fedml.provision.project import Settled
from fedgmi_fedml.provision.registry import Party
from fedgmi_fedml.provision.staging import Stage, recover
from secure.card import Card
from secure.roster import Roster

REVOKED = "revoked"


@dataclass(frozen=True)
class Outcome:
    """What a run of ``fedgmi provision`` did.

    Attributes:
        rows: the server, then the silos by id.
        revoked: silos that were taken off now.
        roster: in force; ``None`` while requests are awaited.
        roster_is_new: whether it was signed now.
        waiting: silos (or the server) whose request has still to come.
        operator: fingerprint of the operator.
        changed: number of files written or moved.
    """

    rows: tuple[Row, ...]
    revoked: tuple[Party, ...]
    roster: Roster | None
    roster_is_new: bool
    waiting: tuple[str, ...]
    operator: str
    changed: int


def provision(
    settled: Settled,
    out: Path,
    *,
    now: float,
    revoke: Collection[str] = (),
    renew: Collection[str] = (),
    rekey: Collection[str] = (),
    confirm: Callable[[list[Card]], None] = lambda cards: None,
    passphrase: str | None = None,
) -> Outcome:
    """Make or update the kits of a federation below ``out``.

    Args:
        now: seconds since 1970.
        revoke: silos that were taken out of the project: their ids and certificates end with the next roster.
        renew: parties that get a new certificate although theirs is still good.
        rekey: parties whose keys are lost or stolen: other keys are accepted (or made) without the old key's word.
        confirm: shown the cards that nobody vouches for yet, before anything is written; raises to stop.
        passphrase: of the authority's and the operator's private keys.

    Raises:
        FedgmiError, SecureError: what is wrong and what to do; nothing was written then.
    """
    with _locked(out):
        office = open_office(out, settled.project.federation, settled.project.operator, now, passphrase)
        work = Decisions(settled, out, office, now, frozenset(renew), frozenset(rekey))
        revoked = work.membership(frozenset(revoke))
        work.check_requests({party.name for party in revoked})
        for row in work.rows:
            work.identity(row)
        work.check_keys()
        confirm([row.introduced for row in work.rows if row.introduced is not None])
        for row in work.rows:
            work.certificate(row)
        roster_is_new = work.roster()
        changed = _write(work, revoked, passphrase)
    waiting = tuple(row.party.name for row in work.rows if row.is_waiting)
    fingerprint = office.operator.fingerprint()
    return Outcome(tuple(work.rows), revoked, office.roster, roster_is_new, waiting, fingerprint, changed)


def _write(work: Decisions, revoked: tuple[Party, ...], passphrase: str | None) -> int:
    """All files at once; the number of changes."""
    out, office = work.out, work.office
    stage = Stage(out)
    try:
        stage_office(stage, out, office, passphrase)
        writer = KitWriter(stage, out, office, work.settled)
        for row in work.rows:
            row.done += writer.write(row.party, row.new_identity, row.new_tls_key, row.superseded)
        for party in revoked:
            for folder in (Path(party.folder), Path(REQUESTS) / party.name):
                if (out / folder).is_dir():
                    stage.move(out / folder, out / REVOKED / f"{party.folder}-{party.silo_id}" / folder.parts[0])
        changed = len(stage)
        stage.commit()
        (out / FOLDER).chmod(0o700)
        return changed
    except OSError as error:
        where = error.filename or out
        raise ProvisionError(f"{where}: cannot be written ({error.strerror}); run the command again") from None
    finally:
        stage.abandon()


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """One operator at a time; what an interrupted run left is finished first."""
    is_new = not out.exists()
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise ProvisionError(f"{out}: cannot be written ({error.strerror}); choose another --out") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ProvisionError(f"{out}: another fedgmi provision is at work there; wait for it") from None
        try:
            recover(out)
        except OSError as error:
            raise ProvisionError(f"{out}: an interrupted run cannot be finished ({error.strerror})") from None
        yield
    finally:
        os.close(handle)
        if is_new:
            with suppress(OSError):  # it holds something now
                out.rmdir()
