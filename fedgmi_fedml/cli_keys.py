"""``fedgmi keys``: identities, public key cards, the signed roster and a silo's consent to it.

    each party     fedgmi keys init      makes its own key pair and a public key card
    operator       fedgmi keys roster    lists the cards in a roster and signs it (never on the server)
    each silo      fedgmi keys accept    pins the roster in the silo's own policy
    anybody        fedgmi keys show      prints fingerprints, rosters, policies, and what K silos can afford
    each party     fedgmi keys rotate    replaces a key and keeps the old file aside

Nothing here imports torch. Bad input ends with exit code 2 and nothing half written.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from fedgmi_fedml.cli_keys_files import (
    BadInput,
    choose_server_key,
    describe,
    is_encrypted,
    load_card,
    merge_entries,
    roster_text,
    table_text,
    verified_base,
)
from secure.card import Card
from secure.errors import IdentityError, SecureError
from secure.identity import PASSPHRASE_VARIABLE, Identity, fingerprint
from secure.journal import Journal
from secure.policy import Policy
from secure.roster import Roster
from secure.types import Rules

_P = ParamSpec("_P")
_R = TypeVar("_R")

KEY_FILE = "identity.pem"
CARD_FILE = "identity.public.json"
_DAY = 86400


def _explained(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn errors of ``secure`` into one line and exit code 2."""

    @functools.wraps(command)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except SecureError as error:
            raise BadInput(str(error)) from None

    return wrapper


def _file(exists: bool = True) -> click.Path:
    return click.Path(exists=exists, dir_okay=False, path_type=Path)


_PASSPHRASE = click.option(
    "--ask-passphrase",
    is_flag=True,
    help=f"Ask for a passphrase on the terminal. Without this, {PASSPHRASE_VARIABLE} is used when it is set.",
)


def _ask(wanted: bool, confirm: bool) -> str | None:
    if not wanted:
        return None
    answer: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm)
    return answer


@click.group()
def keys() -> None:
    """Make and inspect identities, rosters and policies.

    \b
    Order of work:
      1. every silo, the server and the operator:  fedgmi keys init
      2. everybody sends its identity.public.json to the operator, who compares fingerprints by telephone
      3. the operator:                             fedgmi keys roster
      4. every silo's admin, having compared the operator's fingerprint by telephone: fedgmi keys accept
    """


@keys.command()
@click.option("--role", type=click.Choice(["silo", "server", "operator"]), default="silo", show_default=True)
@click.option("--name", required=True, help="Name of this party, unique in the roster.")
@click.option("--organisation", help="Contributors count by organisation. [default: the name]")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("keys"),
    show_default=True,
    help=f"Folder for {KEY_FILE} (private, mode 0600) and {CARD_FILE} (send this one to the operator).",
)
@_PASSPHRASE
@_explained
def init(role: str, name: str, organisation: str | None, out: Path, ask_passphrase: bool) -> None:
    """Make a key pair for a silo, the server or the operator.

    The private key never leaves this machine. The operator's key must not live on the server.
    """
    key_file, card_file = out / KEY_FILE, out / CARD_FILE
    for path in (key_file, card_file):
        if path.exists():
            raise BadInput(f"{path} exists already; use `fedgmi keys rotate` to replace a key")
    identity = Identity.generate()
    card = Card.issue(identity, role, name, organisation or name)  # type: ignore[arg-type]  # click checked the role
    passphrase = _ask(ask_passphrase, confirm=True)
    identity.save(key_file, passphrase)
    try:
        card.save(card_file)
    except IdentityError:
        key_file.unlink()
        raise
    click.echo(f"private key   {key_file}" + ("" if is_encrypted(key_file) else "   (not encrypted)"))
    click.echo(f"public card   {card_file}   (send this to the operator)")
    click.echo(f"fingerprint   {card.fingerprint()}")


@keys.command()
@click.option("--operator", "operator_file", type=_file(), required=True, help="The operator's private key.")
@click.option("--silo", "silo_files", type=_file(), multiple=True, help="Public key card of a silo; repeat.")
@click.option(
    "--server", "server_file", type=_file(), help="Public key card of the server (needed for a first roster)."
)
@click.option("--from", "base_file", type=_file(), help="Roster to update: its silos stay, its version grows by one.")
@click.option("--remove", type=int, multiple=True, metavar="ID", help="Silo to revoke; repeat. Its id is never reused.")
@click.option("--replace", "replaced", multiple=True, metavar="NAME", help="Accept another key without proof; repeat.")
@click.option("--valid-days", type=click.IntRange(1, 3660), default=365, show_default=True)
@click.option("--out", type=_file(exists=False), required=True, help="Where to write the signed roster.")
@_PASSPHRASE
@_explained
def roster(
    operator_file: Path,
    silo_files: tuple[Path, ...],
    server_file: Path | None,
    base_file: Path | None,
    remove: tuple[int, ...],
    replaced: tuple[str, ...],
    valid_days: int,
    out: Path,
    ask_passphrase: bool,
) -> None:
    """Build or update the roster from public key cards, and sign it.

    A silo that rotated its key sends its new card: the card is signed with the key before, too. A silo that lost its
    key needs --replace NAME, after you checked by telephone.
    """
    if base_file is None and out.exists():
        raise BadInput(f"{out} exists already; update it with --from {out}")
    operator = Identity.load(operator_file, _ask(ask_passphrase, confirm=False))
    base = verified_base(base_file, operator)
    cards = [load_card(path, "silo") for path in silo_files]
    server_key = choose_server_key(server_file, base, set(replaced))
    entries, retired = merge_entries(base, cards, set(remove), set(replaced))
    now = int(time.time())
    signed = Roster.issue(
        operator,
        version=base.version + 1 if base else 1,
        issued=now,
        expires=now + valid_days * _DAY,
        silos=entries,
        server_key=server_key,
        retired=retired,
    )
    signed.save(out)
    click.echo(roster_text(signed))
    click.echo(f"\nwritten to {out}; every silo's admin runs: fedgmi keys accept {out.name}")


@keys.command()
@click.argument("roster_file", type=_file())
@click.option(
    "--policy", "policy_file", type=_file(exists=False), required=True, help="This silo's policy; made if new."
)
@click.option(
    "--operator-fingerprint",
    help="The operator's fingerprint, as told by telephone (first time only; asked for on the terminal otherwise).",
)
@click.option(
    "--journal",
    "journal_folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="This silo's journal folder: also refuse rosters older than the highest one seen there.",
)
@click.option("--backend", "backends", multiple=True, default=("masked",), show_default=True, help="New policy only.")
@click.option("--min-cohort", type=int, default=4, show_default=True, help="New policy only: smallest number of silos.")
@click.option("--colluders", type=int, default=Rules.colluders, show_default=True, help="New policy only.")
@click.option("--max-drops", type=int, default=Rules.max_drops, show_default=True, help="New policy only.")
@click.option(
    "--min-contributors", type=int, default=Rules.min_contributors, show_default=True, help="New policy only."
)
@click.option("--yes", is_flag=True, help="Do not ask; for updates of a roster whose operator is trusted already.")
@_explained
def accept(
    roster_file: Path,
    policy_file: Path,
    operator_fingerprint: str | None,
    journal_folder: Path | None,
    yes: bool,
    **settings: Any,
) -> None:
    """Consent to a roster, as this silo's admin: pin it in the silo's policy.

    The other settings of the policy (clip, w_max, phases, digests …) are edited in its file, which is JSON or YAML.
    """
    offered = Roster.load(roster_file)
    now = time.time()
    old = Policy.load(policy_file) if policy_file.exists() else None
    new = _first_policy(offered, now, settings) if old is None else old.accept(offered, now)
    click.echo(roster_text(offered))
    if old is None:
        _confirm_operator(offered, operator_fingerprint)
    elif not yes:
        click.confirm(f"Accept roster version {offered.version}?", abort=True)
    if journal_folder is not None:
        Journal(journal_folder).note_roster(offered.version, offered.digest())
    new.save(policy_file)
    click.echo(f"\nroster version {offered.version} is pinned in {policy_file}")


def _first_policy(offered: Roster, now: float, settings: dict[str, Any]) -> Policy:
    names = {field.name for field in dataclasses.fields(Rules)}
    rules = Rules(**{name: settings[name] for name in names & set(settings)})
    return Policy.for_roster(
        offered, now, rules=rules, backends=tuple(settings["backends"]), min_cohort=settings["min_cohort"]
    )


def _confirm_operator(offered: Roster, told: str | None) -> None:
    """The one moment in which trust enters: the operator's fingerprint, heard from the operator."""
    expected = fingerprint(offered.operator_key)
    if told is None:
        told = click.prompt("Operator's fingerprint, as told by the operator (eight groups)")
    if "-".join(told.lower().replace("-", " ").split()) != expected:
        raise BadInput("this roster is not signed by the operator whose fingerprint you gave; nothing was written")


@keys.command()
@click.argument("files", type=_file(), nargs=-1)
@click.option("--silos", type=click.IntRange(1), multiple=True, help="Print what this many silos can afford; repeat.")
@_PASSPHRASE
@_explained
def show(files: tuple[Path, ...], silos: tuple[int, ...], ask_passphrase: bool) -> None:
    """Print fingerprints of keys and cards, rosters, policies, and the table of feasible settings.

    Without files the table is printed. Give any of: identity.pem, identity.public.json, a roster, a policy.
    """
    passphrase = _ask(ask_passphrase, confirm=False)
    texts = [f"{path}\n{describe(path, passphrase)}" for path in files]
    if silos or not files:
        texts.append(table_text(silos))
    click.echo("\n\n".join(texts))


@keys.command()
@click.argument("key_file", type=_file())
@_PASSPHRASE
@_explained
def rotate(key_file: Path, ask_passphrase: bool) -> None:
    """Replace a key pair; the old private key is kept aside as KEY_FILE.old-….

    The new card is signed with the old key as well, so that the operator sees who changed it. Until the operator's new
    roster is accepted by all silos, runs refuse the new key: rotate between runs.
    """
    card_file = key_file.with_name(CARD_FILE)
    passphrase = _ask(ask_passphrase, confirm=False)
    old, card = Identity.load(key_file, passphrase), Card.load(card_file)
    if card.public_key != old.public_key:
        raise BadInput(f"{card_file} belongs to another key than {key_file}")
    new = Identity.generate()
    new_card = Card.issue(new, card.role, card.name, card.organisation, previous=old)
    aside = key_file.with_name(f"{key_file.name}.old-{old.fingerprint()[:11]}")
    _exchange(key_file, aside, card_file, new, new_card, passphrase)
    click.echo(f"old key       {aside}   (delete it once the new roster is accepted)")
    click.echo(f"public card   {card_file}   (send this to the operator)")
    click.echo(f"fingerprint   {new_card.fingerprint()}")


def _exchange(key_file: Path, aside: Path, card_file: Path, new: Identity, card: Card, passphrase: str | None) -> None:
    """Old key aside, new key and card in place; everything as before when a step fails."""
    try:
        os.link(key_file, aside)
    except OSError as error:
        raise BadInput(f"{aside} cannot be made: {error.strerror}") from None
    try:
        new.save(key_file, passphrase, replace=True)
        card.save(card_file, overwrite=True)
    except IdentityError:
        if aside.samefile(key_file):  # two names of one file: a rename would leave both
            aside.unlink()
        else:
            os.replace(aside, key_file)
        raise
