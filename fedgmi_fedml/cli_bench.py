"""``fedgmi bench``: measurements, each with its target beside it. One line of figures a row, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from fedgmi_fedml.cli_lazy import LazyGroup

F = TypeVar("F", bound=Callable[..., Any])

COMMANDS = {
    "local": ("fedgmi_fedml.cli_bench:local", "One silo's round beside a bare PyTorch loop."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def bench() -> None:
    """Measure speed, memory and bytes on this machine.

    A missed target is said, and is no failure of the command: figures depend on the machine and on what else runs.
    """


def json_option() -> Callable[[F], F]:
    """The option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")


def print_figures(figures: Mapping[str, float | int | bool | str], as_json: bool) -> None:
    """Figures by name; ``*_ok`` says whether a target is met."""
    if as_json:
        click.echo(json.dumps(dict(figures)))
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        click.echo(f"{name:<{width}}  {_shown(value)}")


def _shown(value: float | int | bool | str) -> str:
    if isinstance(value, bool):
        return "met" if value else "MISSED"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@click.command()
@click.option("--quick", is_flag=True, help="Seconds instead of a minute; figures are rough.")
@json_option()
def local(quick: bool, as_json: bool) -> None:
    """One silo's round (target: at most 1.15 × a bare PyTorch loop), its growth with M, and scoring."""
    from fedgmi_fedml.bench_local import bench_local

    print_figures(bench_local(quick), as_json)
