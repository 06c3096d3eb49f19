"""Preflight: configuration, kit, dates, consent, rules and clock. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path

from fedgmi_fedml.config import Config, load_config
from fedgmi_fedml.config.agreement import first_difference
from fedgmi_fedml.errors import RunError
from fedgmi_fedml.federation.preflight import Finding, Node, needed
from fedgmi_fedml.federation.start import check_settings
from secure.api import check_backend
from secure.gate import infeasible
from secure.policy import weaker_rules
from secure.roster import iso_time
from secure.types import Rules

_LATE = 300.0
"""So far a clock may lag behind the signing of the roster before it is told, seconds."""


def kit(node: Node) -> Finding:
    """Is the kit whole, private, and does everything in it belong together?"""
    from fedgmi_fedml.provision.kit import load_kit
    from fedgmi_fedml.provision.layout import read_kit_file

    folder = needed(node.request.kit, "a kit (--kit)")
    node.notes["role"] = read_kit_file(folder).role
    node.kit = found = load_kit(folder)
    who = "the server" if found.silo_id is None else f"silo {found.silo_id}"
    return Finding(f"{found.name}, {who} of {found.federation}; fingerprint {found.identity().fingerprint()}")


def configuration(node: Node) -> Finding:
    """Is it valid, and is it the one in the kit?"""
    name = node.request.config
    if name is None:
        name = str(needed(node.kit, "a configuration (--config), or a kit that is whole").config)
    node.config = config = load_config(name, node.request.overrides)
    if node.kit is not None and (node.request.config is not None or node.request.overrides):
        other = first_difference(config.item_digests(), load_config(node.kit.config).item_digests())
        if other is not None:
            return Finding(
                f"valid, but not the one that all parties agreed on: it differs from the kit's config.yaml in {other}; "
                "leave out --config and --set, or have the operator send everybody new kits",
                "fail",
            )
    return Finding(f"valid; every party must have the digest {config.digest()}")


def settings(node: Node) -> Finding:
    """Settings that a federation over a network cannot have, transport and back-end included."""
    from fedgmi_fedml.transport.settings import LinkSettings

    config = _config(node)
    check_settings(config, node.request.repeatable)
    links = LinkSettings.from_config(config)
    check_backend(config.fedgmi_args.secure.backend)
    if config.fedgmi_args.secure.backend == "none":
        return Finding("back-end none: NOTHING is protected; never with anybody's data", "warn")
    proxy = ", through the proxy" if links.proxy else ""
    return Finding(f"back-end {config.fedgmi_args.secure.backend}, transport {config.comm_args.backend}{proxy}")


def _config(node: Node) -> Config:
    return needed(node.config, "a valid configuration")


def certificate_dates(node: Node) -> Finding:
    """Is the certificate in force, and for how long?"""
    found = needed(node.kit, "a kit that is whole")
    problems = found.certificate_dates(node.now)
    if problems:
        return Finding("; ".join(problems), "fail")
    last = found.window()[1]
    ending = [text for text in found.ending(node.now) if text.startswith("tls.pem")]
    if ending:
        return Finding("; ".join(ending), "warn")
    return Finding(f"in force until {iso_time(int(last))}, {(last - node.now) / 86_400:.0f} days")


def roster(node: Node) -> Finding:
    """Is the roster in force, and is it the one that this silo accepted?"""
    found = needed(node.kit, "a kit that is whole")
    problems = found.roster_dates(node.now)
    if problems:
        return Finding("; ".join(problems), "fail")
    ending = [text for text in found.ending(node.now) if text.startswith("roster.json")]
    if ending:
        return Finding("; ".join(ending), "warn")
    held = found.roster()
    return Finding(f"version {held.version}, {len(held.silos)} silos, in force until {iso_time(held.expires)}")


def policy(node: Node) -> Finding:
    """Would this silo's own policy sign what the configuration proposes?"""
    held = needed(needed(node.kit, "a kit that is whole").policy(), "a silo's kit")
    config = _config(node)
    secure = config.fedgmi_args.secure
    problems = weaker_rules(Rules(**secure.rules.model_dump()), held.rules)
    if secure.backend not in held.backends:
        problems.append(f"back-end {secure.backend} is not allowed ({', '.join(held.backends)})")
    if secure.clip > held.max_clip:
        problems.append(f"clip {secure.clip:g} is more than max_clip {held.max_clip:g}")
    smallest = min(config.train_args.client_num_per_round, config.fedgmi_args.initialisation.cohort_size)
    if smallest < held.min_cohort:
        problems.append(f"cohorts of {smallest} silos are smaller than min_cohort {held.min_cohort}")
    if held.config_digest is not None and held.config_digest.hex() != config.digest():
        problems.append(
            "the configuration is not the one that was accepted here (or fedgmi was upgraded since and reads it anew)"
        )
    if problems:
        return Finding(
            f"policy.json would refuse the run: {'; '.join(problems)}. Agree with the operator on another "
            f"configuration, or review and accept this one: fedgmi provision accept {node.request.kit}",
            "fail",
        )
    return Finding("accepts this roster and configuration")


def rules(node: Node) -> Finding:
    """Can so many silos keep the rules?"""
    config = _config(node)
    asked = Rules(**config.fedgmi_args.secure.rules.model_dump())
    total, per_round = node.silos, min(node.silos, config.train_args.client_num_per_round)
    problems = infeasible(per_round, asked)
    if node.kit is not None and config.fedgmi_args.secure.backend != "none":
        held = node.kit.roster()
        organisations = len(held.organisations([entry.silo_id for entry in held.silos]))
        if organisations < asked.gate():
            problems.append(f"{organisations} organisations never reach the gate of {asked.gate()}")
    if problems:
        return Finding("; ".join(problems) + "; change fedgmi_args.secure.rules, or add silos", "fail")
    announced = config.train_args.client_num_in_total
    if total != announced:
        return Finding(
            f"the roster lists {total} silos, train_args.client_num_in_total says {announced}: the roster counts",
            "warn",
        )
    gate = f"a component's sum needs {asked.gate()} holders"
    return Finding(f"{per_round} of {total} silos a round; {gate}; {asked.max_drops} may vanish")


def foreign_keys(node: Node) -> Finding:
    """Private keys of others within reach: in the kit they were refused already, here beside it."""
    found = needed(node.kit, "a kit that is whole")
    beside = found.folder.resolve().parent
    near = [str(Path(path).relative_to(beside)) for path in sorted(beside.glob("authority/*.key"))]
    near += [
        str(path.relative_to(beside))
        for path in sorted(beside.glob("*/identity.pem"))
        if path.parent != found.folder.resolve()
    ]
    if near:
        return Finding(
            f"private keys of others lie beside the kit ({', '.join(near[:3])}{', …' if len(near) > 3 else ''}): move "
            "the kit to a machine of its own; all parties on one machine protect nothing from each other",
            "warn",
        )
    return Finding("none in the kit, none beside it")


def clock(node: Node) -> Finding:
    """Whether the time is plausible. TLS does not tell the server's time: certificate and roster are all there is."""
    found = needed(node.kit, "a kit that is whole: its dates are what a clock is held against")
    first, last = found.window()
    shown = f"this machine says {iso_time(int(node.now))}"
    if not first <= node.now <= last:
        raise RunError(f"{shown}, outside the certificate's window {iso_time(int(first))} … {iso_time(int(last))}")
    behind = found.roster().issued - node.now
    if behind > _LATE:
        return Finding(f"{shown}, but the roster was signed {behind / 3600:.1f} h later: set the clock right", "warn")
    return Finding(f"{shown}: within certificate and roster (the server's time cannot be asked for; hours do no harm)")
