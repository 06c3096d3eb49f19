"""The README of each kit and of the operator's folder: what its reader has to do next, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedgmi_fedml.provision.registry import Party, Registry
from secure.roster import Roster, iso_time


@dataclass(frozen=True)
class Facts:
    """What a kit's README is made from.

    Attributes:
        party: whose kit; ``until``: last day of its certificate.
        operator_name, operator: who signs the roster, and the fingerprint to compare by telephone.
        server: host:port that silos dial; ``bind`` and ``hosts``: the server's own.
        roster: in force, where this party is in it.
        holds_keys: whether private keys are in the kit.
        unprotected: the configuration's back-end is ``none``.
    """

    party: Party
    federation: str
    operator_name: str
    operator: str
    server: str
    bind: str
    hosts: tuple[str, ...]
    until: str | None
    roster: Roster | None
    holds_keys: bool
    unprotected: bool


_WARNING = """
> **Nothing is protected in this federation** (back-end `none`): the server sees every silo's updates. Measurements
> only; never start it with anybody's data.
"""


def kit_readme(facts: Facts) -> str:
    """README.md of a kit."""
    who = "the server" if facts.party.role == "server" else f"silo {facts.party.silo_id}, **{facts.party.name}**"
    parts = [f"# Federation {facts.federation}: {who}\n", _WARNING if facts.unprotected else ""]
    parts += _server(facts) if facts.party.role == "server" else _silo(facts)
    return "".join(parts)


def _silo(facts: Facts) -> Iterator[str]:
    """A silo's admin: keys, consent, check, start."""
    steps: list[str] = []
    if facts.holds_keys:
        yield (
            "\nThe operator made the private keys in this folder (`identity.pem`, `tls.key`). Move it to the silo's "
            "machine over a channel that nobody else can read, and delete the copies. Whoever holds it can act for the "
            "silo.\n"
        )
    elif facts.party.card is None:
        yield "\nThis silo makes its own private keys; they never leave it. The kit is complete after step 4.\n"
        steps += [
            "On the silo's machine, in the folder above this one: `fedgmi provision request THIS_FOLDER`. It makes "
            "`identity.pem` and `tls.key` (keep them) and the folder `request`.",
            f"Send the folder `request` to the operator ({facts.operator_name}). It holds public keys only.",
            "By telephone: read out the fingerprint that the command printed, so that the operator knows that the "
            "request is yours.",
            "The operator sends this kit again, complete. Copy its files over these: they hold no private keys, "
            "so yours stay. The README that comes with it says how to go on.",
        ]
    else:
        yield (
            "\nAs the operator sends it, this folder holds no private keys: copy its files over those of the silo's "
            "own kit, where `identity.pem` and `tls.key` are. Lost them? Tell the operator at once: the silo then "
            "needs new keys.\n"
        )
    if facts.party.card is not None:
        steps += list(_silo_steps(facts))
    yield "\n## What to do\n" + _numbered(steps) + _silo_hints(facts)


def _silo_steps(facts: Facts) -> Iterator[str]:
    if facts.roster is None:
        yield "Wait: the roster is signed once all silos have sent their requests. Then the operator sends this again."
        return
    if not facts.holds_keys:
        yield (
            f"By telephone: have the operator ({facts.operator_name}) read out the operator's fingerprint. Then "
            "`fedgmi provision accept THIS_FOLDER`: it shows who takes part (roster version "
            f"{facts.roster.version}) and pins it, with the rules of the run, in `policy.json`."
        )
    else:
        yield (
            f"By telephone: compare the operator's fingerprint with the operator ({facts.operator_name}):\n"
            f"   `{facts.operator}`"
        )
    yield (
        "Check everything before joining: `fedgmi preflight --kit THIS_FOLDER --data YOUR_DATA`. It works before the "
        "server is up (`--offline`)."
    )
    yield (
        "Join: `fedgmi silo --kit THIS_FOLDER --data YOUR_DATA`. It waits for the "
        "server, and joins again by itself after a cut."
    )


def _silo_hints(facts: Facts) -> str:
    command = "/path/to/fedgmi silo --kit /srv/fedgmi/kit --data /srv/data"
    firewall = f"The silo dials out to `{facts.server}` (TCP); nothing dials in, no port has to be opened for it."
    return _facts(facts) + f"\n{firewall}\n" + _systemd("silo", command)


def _server(facts: Facts) -> Iterator[str]:
    """The server's admin: place, check, start."""
    yield (
        "\nThe server holds no silo's keys, and neither the authority's nor the operator's: never copy another kit or "
        "the folder `authority` to its machine. Any of these keys in this folder, and the server refuses to start.\n"
    )
    steps: list[str] = []
    if facts.party.card is None:
        steps += [
            "On the server: `fedgmi provision request THIS_FOLDER`, then send the folder `request` to the operator.",
            "The operator sends this kit again, complete; copy its files over these.",
        ]
    elif facts.roster is None:
        steps.append(
            "Wait: the roster is signed once all silos have sent their requests. This kit is written again then."
        )
    else:
        steps += [
            f"Move this folder to the machine that `{facts.server}` leads to; it listens on `{facts.bind}`. "
            "One port for one federation.",
            "Check: `fedgmi preflight --kit THIS_FOLDER`.",
            "Start: `fedgmi server --kit THIS_FOLDER`. It waits for the silos. "
            "Restarted, it goes on after the last whole round.",
        ]
    yield "\n## What to do\n" + _numbered(steps) + _facts(facts)
    command = "/path/to/fedgmi server --kit /srv/fedgmi/kit"
    yield f"\nThe certificate is for: {', '.join(facts.hosts)}.\n" + _systemd("server", command)


def _numbered(steps: list[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(steps, 1)) + "\n"


def _facts(facts: Facts) -> str:
    card = facts.party.card
    rows = [("operator", f"{facts.operator_name}, `{facts.operator}`")]
    if card is not None:
        rows.append(("this party's fingerprint", f"`{card.fingerprint()}`"))
    rows.append(("server", f"`{facts.server}`"))
    if facts.until is not None:
        rows.append(("certificate valid until", facts.until))
    if facts.roster is not None:
        when = iso_time(facts.roster.expires)[:10]
        rows.append(("roster", f"version {facts.roster.version}, {len(facts.roster.silos)} silos, until {when}"))
    table = "".join(f"| {name} | {value} |\n" for name, value in rows)
    listed = facts.roster.silos if facts.roster is not None else ()
    silos = "".join(f"| {e.silo_id} | {e.name} | {e.organisation} | `{e.fingerprint()}` |\n" for e in listed)
    people = f"\n| id | silo | organisation | fingerprint |\n|---|---|---|---|\n{silos}" if silos else ""
    return f"\n## Facts\n| | |\n|---|---|\n{table}{people}"


def _systemd(role: str, command: str) -> str:
    return f"""
## As a service
`/etc/systemd/system/fedgmi-{role}.service`, then `systemctl enable --now fedgmi-{role}`:
```
[Unit]
Description=FedGMI {role}
After=network-online.target
[Service]
User=fedgmi
ExecStart={command}
Restart=on-failure
RestartPreventExitStatus=2 3 4
[Install]
WantedBy=multi-user.target
```
"""


def authority_readme(registry: Registry, operator: str) -> str:
    """README.md of the operator's folder."""
    return f"""# The authority of federation {registry.federation}

**Never copy this folder to the server, nor to any silo.** Whoever holds it decides who takes part: `ca.key` signs TLS
certificates, `operator.pem` signs the roster. Keep it on a machine that is off the network where that is possible, with
a backup; without it no silo can be added, revoked or renewed, and everybody needs a new kit.

Operator's fingerprint, to be read out by telephone to every silo's admin: `{operator}`

| file | what |
|---|---|
| `ca.key`, `ca.pem` | the federation's certificate authority |
| `operator.pem`, `operator.public.json` | the operator's identity |
| `registry.json` | every party with id, public key, certificate; nothing secret |
| `roster.json` | the roster in force |

`fedgmi provision project.yaml` again is always safe: what is still good stays as it is, byte for byte. Private keys
that the operator made lie in the kits only. Delete a kit here once it has been given out: the next run then writes an
update without private keys, to be copied over the kit. A silo that makes its own keys sends a folder `request`: put
it beside this folder as `requests/NAME`, compare the fingerprint by telephone, and run the command again. Revoke a
silo: take it out of the project and add `--revoke NAME`; then give everybody the new roster.
"""
