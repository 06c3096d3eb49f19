"""``fedgmi preflight``: every check by name, before a node joins a federation."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgmi_fedml.cli_config import ConfigName, set_option

if TYPE_CHECKING:
    from fedgmi_fedml.federation.preflight import Check

_WIDTH = 100
_COLOURS = {"pass": "32", "warn": "33", "fail": "31", "skip": "2"}
_WORDS = {"pass": "ok", "warn": "warning", "fail": "FAILED", "skip": "skipped"}


@click.command()
@click.option("--kit", type=click.Path(path_type=Path), help="This party's kit, as `fedgmi provision` made it.")
@click.option(
    "--config", type=ConfigName(), metavar="CONFIG",
    help="YAML file, or the name of a shipped configuration. [default: the kit's config.yaml]",
)  # fmt: skip
@set_option()
@click.option("--data", type=click.Path(path_type=Path), help="This silo's own samples.")
@click.option("--simulated-part", "part", type=click.IntRange(min=1), metavar="I", help="As for fedgmi silo.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the run will write. [default: as for the run]")
@click.option("--server", "address", metavar="HOST:PORT", help="Silo: dial this address. [default: the kit's]")
@click.option("--bind", metavar="HOST:PORT", help="Server: listen here. [default: the kit's]")
@click.option("--offline", is_flag=True, help="Leave the network alone: the server need not be up.")
@click.option("--repeatable", is_flag=True, help="As for fedgmi silo: one machine plays all parties.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, without figures of this silo's own data.")
def preflight(as_json: bool, **asked: Any) -> None:
    """Check a node before it joins a federation, as server or silo: the kit says which.

    \b
      fedgmi preflight --kit kits/silo-north --data samples.npz
      fedgmi preflight --kit kits/server

    Each check passes, warns or fails by name. Nothing is sent; besides one handshake with the server (not with
    --offline) nothing leaves this machine. Exit code 2 where a check has failed.
    """
    from fedgmi_fedml.federation.preflight import Request, run_checks

    if asked["kit"] is None and asked["config"] is None:
        raise click.UsageError("give --kit, the folder that the operator sent (or at least --config)")
    asked["overrides"] = tuple(asked["overrides"])
    screen = _Screen(quiet=as_json)
    checks = []
    for check in run_checks(Request(**asked), begun=screen.begun):
        screen.finished(check)
        checks.append(check)
    if as_json:
        click.echo(json.dumps(document(checks), indent=2, ensure_ascii=False))
    else:
        click.echo(verdict(checks))
    if any(check.status == "fail" for check in checks):
        click.get_current_context().exit(2)


def document(checks: list[Check]) -> dict[str, Any]:
    """The checks for programs."""
    return {
        "format": "fedgmi-preflight/1",
        "ready": not any(check.status == "fail" for check in checks),
        "checks": [
            {
                "name": check.name,
                "status": check.status,
                "text": check.finding.text,
                "seconds": round(check.seconds, 3),
            }
            for check in checks
        ],
    }


def verdict(checks: list[Check]) -> str:
    """The last line."""
    counts = {status: sum(check.status == status for check in checks) for status in _WORDS}
    tail = "".join(
        f", {counts[status]} {word}" for status, word in (("warn", "warned"), ("skip", "skipped")) if counts[status]
    )
    if counts["fail"]:
        failed = ", ".join(check.name for check in checks if check.status == "fail")
        return f"\nNot ready: {failed}. {counts['pass']} passed{tail}."
    return f"\nReady: {counts['pass']} checks passed{tail}."


class _Screen:
    """One line a check; while a check runs its name, where that can be taken back."""

    def __init__(self, quiet: bool) -> None:
        from fedgmi_fedml.progress import wants_bars
        from fedgmi_fedml.telemetry.logs import wants_colour

        self._quiet, self._live = quiet, wants_bars(sys.stdout)
        self._colour = wants_colour(sys.stdout)

    def begun(self, name: str) -> None:
        """Show what is being worked on."""
        if self._live and not self._quiet:
            click.echo(f"  …        {name}", nl=False)

    def finished(self, check: Check) -> None:
        """Show what came of it."""
        if self._quiet:
            return
        if self._live:
            click.echo("\r\x1b[K", nl=False)
        word = f"{_WORDS[check.status]:8}"
        if self._colour:
            word = f"\x1b[{_COLOURS[check.status]}m{word}\x1b[0m"
        text = "; ".join(part for part in (check.finding.text, check.finding.local) if part)
        wrapper = textwrap.TextWrapper(_WIDTH - 32, break_on_hyphens=False, break_long_words=False)
        lines = [line for part in text.splitlines() for line in wrapper.wrap(part) or [""]]
        click.echo(f"  {word} {check.name:20} {lines[0] if lines else ''}")
        for line in lines[1:]:
            click.echo(f"{'':32}{line}")
