"""``fedgmi provision``: the operator's kits for everybody, and a silo's part in them. Nothing here imports torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fedgmi_fedml.provision.decisions import Row
    from fedgmi_fedml.provision.plan import Outcome
    from secure.card import Card
    from secure.policy import Policy
    from secure.roster import Roster

_FOLDER = click.Path(file_okay=False, path_type=Path)
_KIT = click.Path(exists=True, file_okay=False, path_type=Path)


class _WithDefault(click.Group):
    """``fedgmi provision project.yaml`` is ``fedgmi provision kits project.yaml``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["kits", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WithDefault, no_args_is_help=True)
def provision() -> None:
    """Make kits for a federation over a network.

    \b
    operator    fedgmi provision example           a project file to begin with
    operator    fedgmi provision project.yaml      kits for server and silos; again after any change
    silo        fedgmi provision request KIT       makes its own keys, and what to send to the operator
    silo        fedgmi provision accept KIT        reviews who takes part, and consents
    everybody   fedgmi preflight --kit KIT         checks everything before joining
    """


@provision.command()
@click.argument("project", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PROJECT.YAML")
@click.option("--out", type=_FOLDER, help="Folder of all kits. [default: kits, beside the project]")
@click.option("--revoke", multiple=True, metavar="NAME", help="Silo taken out of the project, for good; repeat.")
@click.option("--renew", multiple=True, metavar="NAME", help="Give this party a new certificate now; repeat.")
@click.option("--rekey", multiple=True, metavar="NAME", help="This party's keys are lost or stolen; repeat.")
@click.option("--yes", is_flag=True, help="The fingerprints of new requests have been compared by telephone.")
@click.option(
    "--ask-passphrase", is_flag=True, help="Ask for the passphrase of authority and operator on the terminal."
)
def kits(
    project: Path,
    out: Path | None,
    revoke: tuple[str, ...],
    renew: tuple[str, ...],
    rekey: tuple[str, ...],
    yes: bool,
    ask_passphrase: bool,
) -> None:
    """Write a kit for the server and one for each silo (the default command).

    Again after any change of PROJECT.YAML: what is still good stays, byte for byte. FEDGMI_KEY_PASSPHRASE encrypts the
    authority's and the operator's keys, where it is set.
    """
    from fedgmi_fedml.provision.plan import provision as make
    from fedgmi_fedml.provision.project import read_project

    settled = read_project(project)
    folder = out or project.parent / "kits"
    outcome = make(
        settled,
        folder,
        now=time.time(),
        revoke=revoke,
        renew=renew,
        rekey=rekey,
        confirm=lambda cards: _compare(cards, yes),
        passphrase=_passphrase(ask_passphrase, confirm=not (folder / "authority").exists()),
    )
    click.echo(outcome_text(outcome, folder))
    for warning in settled.warnings:
        click.echo(f"note: {warning}", err=True)


def _passphrase(wanted: bool, confirm: bool) -> str | None:
    import os

    from secure.identity import PASSPHRASE_VARIABLE

    if wanted:
        answer: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm)
        return answer
    return os.environ.get(PASSPHRASE_VARIABLE) or None


def _compare(cards: Sequence[Card], yes: bool) -> None:
    """The moment in which a silo's own key gets its name: somebody has to have heard it."""
    if not cards:
        return
    listing = "\n".join(f"  {card.name:<20} {card.fingerprint()}" for card in cards)
    click.echo(f"Requests with keys that nobody vouches for yet:\n{listing}", err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("compare these fingerprints with each party by telephone, then repeat with --yes")
    click.confirm("Did each party read out exactly this fingerprint to you by telephone?", abort=True, err=True)


def outcome_text(outcome: Outcome, out: Path) -> str:
    """The table of what was done, and what comes next."""
    from fedgmi_fedml.provision import certificates

    rows = [("party", "id", "certificate until", "done")]
    for row in outcome.rows:
        certificate = row.party.certificate
        until = "–" if certificate is None else certificates.date(certificates.window(certificate)[1])
        rows.append((row.party.name, str(row.party.silo_id or "–"), until, _done(row)))
    for party in outcome.revoked:
        rows.append((party.name, str(party.silo_id), "–", "revoked"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    lines.insert(1, "─" * min(100, max(map(len, lines))))
    lines += ["", f"operator   {outcome.operator}   (read this out to every silo's admin)"]
    return "\n".join([*lines, _roster_line(outcome), *_next(outcome, out)])


def _done(row: Row) -> str:
    if row.is_waiting:
        return "; ".join(["waiting for its request", *row.done])
    return "; ".join(row.done) or "unchanged"


def _roster_line(outcome: Outcome) -> str:
    if outcome.roster is None:
        return "roster     none yet: it is signed once everybody's request is here"
    state = "new" if outcome.roster_is_new else "unchanged"
    return f"roster     version {outcome.roster.version}, {len(outcome.roster.silos)} silos, {state}"


def _next(outcome: Outcome, out: Path) -> list[str]:
    lines = []
    if outcome.waiting:
        lines.append(
            f"waiting    {', '.join(outcome.waiting)}: each sends the folder `request` of its kit; put it into "
            f"{out / 'requests'}/NAME and run this command again"
        )
    again = [row.party.name for row in outcome.rows if row.done and "kit written" not in row.done]
    if again:
        lines.append(f"next       send their kits again to: {', '.join(again)} (each README.md says what to do)")
    if not outcome.changed:
        return [*lines, "nothing had to be changed"]
    return [*lines, f"written    {out}; {out / 'authority'} must never be on the server"]


@provision.command()
def example() -> None:
    """Print a project file to begin with."""
    from fedgmi_fedml.provision.example import EXAMPLE

    click.echo(EXAMPLE, nl=False)


@provision.command()
@click.argument("kit", type=_KIT)
@click.option("--ask-passphrase", is_flag=True, help="Ask for a passphrase for the identity on the terminal.")
def request(kit: Path, ask_passphrase: bool) -> None:
    """As a silo: make this kit's private keys here, and the folder KIT/request to send to the operator.

    Nothing private leaves this machine. Keys that are there already are kept.
    """
    from fedgmi_fedml.provision.request import make_request

    passphrase = _passphrase(ask_passphrase, confirm=not (kit / "identity.pem").exists()) if ask_passphrase else None
    made = make_request(kit, passphrase)
    click.echo(f"send to the operator   {kit / 'request'}   (public keys only)")
    click.echo(f"then read out          {made.card.fingerprint()}")
    click.echo("private, stay here     identity.pem, tls.key")


@provision.command()
@click.argument("kit", type=_KIT)
@click.option(
    "--operator-fingerprint", help="As the operator told it by telephone; asked for on the terminal otherwise."
)
@click.option("--yes", is_flag=True, help="Do not ask; for an operator who is trusted already.")
def accept(kit: Path, operator_fingerprint: str | None, yes: bool) -> None:
    """As a silo: review who takes part and under which rules, and pin it in the kit's policy.json.

    A policy that is there already keeps its own settings, stricter ones above all.
    """
    from fedgmi_fedml.config import load_config
    from fedgmi_fedml.provision.consent import policy_for, renewed
    from fedgmi_fedml.provision.layout import CONFIG, POLICY, ROSTER, KitError, read_kit_file
    from secure.policy import Policy
    from secure.roster import Roster

    if read_kit_file(kit).role != "silo":
        raise KitError(str(kit), ["is the server's kit; silos consent, the server does not"])
    if not (kit / ROSTER).exists():
        raise KitError(str(kit), [f"lacks {ROSTER}: the operator sends it once all requests are there"])
    roster, config, now = Roster.load(kit / ROSTER), load_config(kit / CONFIG), time.time()
    old = Policy.load(kit / POLICY) if (kit / POLICY).exists() else None
    new, conflicts = (policy_for(roster, config, now), []) if old is None else renewed(old, roster, config, now)
    _review(roster, new, conflicts)
    _consent(roster, old is not None, operator_fingerprint, yes)
    new.save(kit / POLICY)
    click.echo(f"\nroster version {roster.version} is pinned in {kit / POLICY}; next: fedgmi preflight --kit {kit}")


def _review(roster: Roster, policy: Policy, conflicts: list[str]) -> None:
    from fedgmi_fedml.cli_keys_files import policy_text, roster_text

    digest = policy.config_digest.hex() if policy.config_digest else "any"
    click.echo(f"{roster_text(roster)}\n\n{policy_text(policy)}\nconfiguration {digest}")
    for text in conflicts:
        click.echo(
            f"note: the configuration asks for less than this policy ({text}): such a run is refused here", err=True
        )


def _consent(roster: Roster, known: bool, told: str | None, yes: bool) -> None:
    """The operator's fingerprint, heard from the operator; later a yes."""
    from secure.identity import fingerprint

    if known and told is None:
        if not yes:
            click.confirm(f"Accept roster version {roster.version} and this configuration?", abort=True)
        return
    if told is None:
        told = click.prompt("Operator's fingerprint, as told by the operator by telephone (eight groups)")
    if "-".join(str(told).lower().replace("-", " ").split()) != fingerprint(roster.operator_key):
        raise click.UsageError(
            "this roster is not signed by the operator whose fingerprint you gave; nothing was written"
        )
