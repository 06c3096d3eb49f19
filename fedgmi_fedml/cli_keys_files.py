"""What ``fedgmi keys`` does with files: cards into rosters, and any of our files into text for people."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from secure.card import Card
from secure.gate import MAX_SILOS, MIN_SILOS, feasibility_table
from secure.identity import Identity, fingerprint
from secure.policy import Policy
from secure.roster import Roster, RosterEntry, iso_time


class BadInput(click.ClickException):
    """Something that the caller can put right."""

    exit_code = 2


def is_encrypted(path: Path) -> bool:
    """Whether a private key file needs a passphrase."""
    return b"ENCRYPTED" in path.read_bytes()[:64]


def load_card(path: Path, role: str) -> Card:
    """A verified card of this role; anything else is bad input."""
    card = Card.load(path)
    if card.role != role:
        raise BadInput(f"{path} is the card of a {card.role}, not of a {role}")
    return card


def verified_base(path: Path | None, operator: Identity) -> Roster | None:
    """The roster to update, signed by this same operator."""
    if path is None:
        return None
    base = Roster.load(path)
    base.verify(operator.public_key)
    return base


def choose_server_key(path: Path | None, base: Roster | None, replaced: set[str]) -> bytes:
    """The server's key: as before, or from a card that its key before signed too (or that was checked by telephone)."""
    if path is None:
        if base is None:
            raise BadInput("a first roster needs --server")
        return base.server_key
    card = load_card(path, "server")
    if base is not None:
        _check_proof(card, base.server_key, replaced)
    return card.public_key


def _check_proof(card: Card, known_key: bytes, replaced: set[str]) -> None:
    """A key that the roster knows changes only with the old key's signature, or by the operator's explicit word."""
    if known_key not in (card.public_key, card.previous_key) and card.name not in replaced:
        raise BadInput(
            f"the new card of {card.name!r} is not signed with the key that the roster has; check by telephone, "
            f"then add: --replace {card.name!r}"
        )


def merge_entries(
    base: Roster | None, cards: list[Card], removed: set[int], replaced: set[str]
) -> tuple[list[RosterEntry], tuple[int, ...]]:
    """Entries and retired ids of the new roster: silos that stay, silos with a new key, new silos with new ids."""
    stay = {entry.silo_id: entry for entry in base.silos} if base else {}
    retired = set(base.retired) if base else set()
    unknown = removed - set(stay)
    if unknown:
        raise BadInput(f"no such silo to remove: {', '.join(map(str, sorted(unknown)))}")
    for silo in removed:
        del stay[silo]
    names = [card.name for card in cards]
    if len(set(names)) != len(names):
        raise BadInput("two cards have the same name")
    by_name = {entry.name: entry for entry in stay.values()}
    retired |= removed
    following = max([0, *stay, *retired]) + 1
    for card in cards:
        old = by_name.get(card.name)
        if old is None:
            stay[following] = RosterEntry(following, card.name, card.organisation, card.public_key)
            following += 1
            continue
        _check_proof(card, old.public_key, replaced)
        stay[old.silo_id] = RosterEntry(old.silo_id, card.name, card.organisation, card.public_key)
    return list(stay.values()), tuple(sorted(retired))


def table_text(silos: tuple[int, ...]) -> str:
    """What these numbers of silos can afford; a selection of all when none is named."""
    table = feasibility_table(silos) if silos else feasibility_table()
    return (
        f"What K silos can afford ({MIN_SILOS} to {MAX_SILOS}). t = q: shares that rebuild a secret, and signatures "
        "that settle\nthe survivors; colluders: the most without drops; drops: the most with one colluder.\n" + table
    )


def describe(path: Path, passphrase: str | None) -> str:
    """Text for one file, by its kind."""
    start = path.read_bytes()[:4096]
    if start.startswith(b"-----BEGIN"):
        identity = Identity.load(path, passphrase)
        state = "encrypted" if is_encrypted(path) else "not encrypted"
        return f"private key   {state}\nfingerprint   {identity.fingerprint()}"
    kind = _format(path)
    if kind.startswith("fedgmi-public-key/"):
        card = Card.load(path)
        return f"{card.role}   {card.name} ({card.organisation})\nfingerprint   {card.fingerprint()}"
    if kind.startswith("fedgmi-roster/"):
        shown = Roster.load(path)
        shown.verify(shown.operator_key)
        return roster_text(shown)
    return policy_text(Policy.load(path))


def _format(path: Path) -> str:
    """The ``format`` field of a JSON file; empty for anything else (a policy in YAML, say)."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return ""
    return str(document.get("format", "")) if isinstance(document, dict) else ""


def roster_text(shown: Roster) -> str:
    """A roster with everybody's fingerprints, for reading aloud."""
    state = "EXPIRED on" if time.time() >= shown.expires else "valid until"
    lines = [
        f"roster version {shown.version}, {len(shown.silos)} silos, {state} {iso_time(shown.expires)}",
        f"digest        {shown.digest().hex()}",
        f"operator      {fingerprint(shown.operator_key)}",
        f"server        {fingerprint(shown.server_key)}",
    ]
    lines += [f"silo {e.silo_id:>5}    {e.fingerprint()}   {e.name} ({e.organisation})" for e in shown.silos]
    return "\n".join(lines)


def policy_text(policy: Policy) -> str:
    """What a policy pins and demands."""
    rules = policy.rules
    return "\n".join(
        [
            f"policy: roster version {policy.roster_version}, accepted {iso_time(policy.accepted)}",
            f"operator      {fingerprint(policy.operator_key)}",
            f"back-ends     {', '.join(policy.backends)}",
            f"at least      {policy.min_cohort} silos, {rules.min_contributors} contributors, "
            f"{rules.colluders} colluders withstood, size class {rules.min_samples}",
            f"at most       {rules.max_drops} drops, w_max {rules.w_max}, clip {policy.max_clip}",
            f"phases        {' → '.join(policy.phases)}",
        ]
    )
