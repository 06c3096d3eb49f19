"""A silo's policy for a run: the run's own rules, its configuration and its roster, pinned."""

from __future__ import annotations

import dataclasses

from fedgmi_fedml.config import Config
from secure.gate import smallest_cohort
from secure.policy import Policy, weaker_rules
from secure.roster import Roster
from secure.types import Rules

PHASES = ("moments", "candidates", "warmup", "rounds", "evaluate")
"""``rounds.phases.ORDER`` (a test compares), repeated here, where torch is not loaded."""


def policy_for(roster: Roster, config: Config, now: float | None = None) -> Policy:
    """Exactly what a run by ``config`` asks for, and nothing weaker.

    Args:
        now: the moment of consent, seconds since 1970; ``None``: when the roster was issued.

    Raises:
        IdentityError: the roster is not in force.
    """
    secure = config.fedgmi_args.secure
    rules = Rules(**secure.rules.model_dump())
    return Policy.for_roster(
        roster,
        roster.issued if now is None else now,
        rules=rules,
        backends=(secure.backend,),
        min_cohort=smallest_cohort(rules),
        max_clip=secure.clip,
        phases=PHASES,
        config_digest=bytes.fromhex(config.digest()),
    )


def renewed(policy: Policy, roster: Roster, config: Config, now: float) -> tuple[Policy, list[str]]:
    """The policy of a silo that took part before, with a new roster and configuration; its own settings stay.

    Returns:
        The policy, and whatever the configuration asks for that is weaker than the silo's own settings: such a run
        would be refused.

    Raises:
        IdentityError: another operator, an older roster, or one not in force.
    """
    accepted = policy.accept(roster, now)
    wanted = policy_for(roster, config, now)
    conflicts = [f"rules: {text}" for text in weaker_rules(wanted.rules, accepted.rules)]
    if wanted.backends[0] not in accepted.backends:
        conflicts.append(f"back-end {wanted.backends[0]} is not among {', '.join(accepted.backends)}")
    if wanted.max_clip > accepted.max_clip:
        conflicts.append(f"clip {wanted.max_clip:g} is more than max_clip {accepted.max_clip:g}")
    return dataclasses.replace(accepted, config_digest=wanted.config_digest), conflicts
