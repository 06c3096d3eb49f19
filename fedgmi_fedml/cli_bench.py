"""``fedgmi bench``: measurements, each with its target beside it. One line of figures a row, or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from fedgmi_fedml.cli_config import config_argument, set_option
from fedgmi_fedml.cli_lazy import LazyGroup

F = TypeVar("F", bound=Callable[..., Any])

COMMANDS = {
    "local": ("fedgmi_fedml.cli_bench:local", "One silo's round beside a bare PyTorch loop."),
    "secure": ("fedgmi_fedml.cli_bench:secure", "Secure aggregation beside its physical limits."),
    "overhead": ("fedgmi_fedml.cli_bench:overhead", "What security adds to a whole simulation."),
    "federation": ("fedgmi_fedml.cli_bench:federation", "Masked rounds over mutual TLS beside FedML's plaintext ones."),
    "peers": ("fedgmi_fedml.cli_bench:peers", "Flower's SecAgg+ on the same vectors."),
    "quality": ("fedgmi_fedml.cli_bench:quality", "How well mixtures are found, setting by setting."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def bench() -> None:
    """Measure speed, memory and bytes on this machine.

    A missed target is said, and is no failure of the command: figures depend on the machine and on what else runs.
    """


def json_option() -> Callable[[F], F]:
    """The option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")


def print_figures(figures: Mapping[str, Any], as_json: bool) -> None:
    """Figures by name (those of a nested mapping as ``name.inner``); ``*_ok`` says whether a target is met.

    ``targets``, rows of (figure, value, bound) with a fourth entry, whether the value must not be larger, make a table
    of their own.
    """
    targets = [judged(*row) for row in figures.get("targets", ())]
    if as_json:
        click.echo(json.dumps({**figures, "targets": targets} if "targets" in figures else dict(figures)))
        return
    flat = dict(_flattened({name: value for name, value in figures.items() if name != "targets"}))
    width = max(map(len, [*flat, *(row["figure"] for row in targets)]))
    for name, value in flat.items():
        click.echo(f"{name:<{width}}  {_shown(value)}")
    for row in targets:
        click.echo(f"{row['figure']:<{width}}  {_shown(row['value'])} {row['target']}: {_shown(row['met'])}")


def judged(figure: str, value: float | None, bound: float, at_most: bool = True) -> dict[str, Any]:
    """One target as it is printed: what is not known is not met."""
    met = value is not None and (value <= bound if at_most else value >= bound)
    return {"figure": figure, "value": value, "target": f"{'≤' if at_most else '≥'} {bound:.4g}", "met": met}


def _flattened(figures: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "met" if value else "MISSED"
    return f"{value:.4g}" if isinstance(value, float) else "unknown" if value is None else str(value)


def _one_thread() -> None:
    """Before NumPy is imported: no library may use a second core."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


@click.command()
@click.option("--quick", is_flag=True, help="Seconds instead of a minute; figures are rough.")
@json_option()
def local(quick: bool, as_json: bool) -> None:
    """One silo's round (target: at most 1.15 × a bare PyTorch loop), its growth with M, and scoring."""
    from fedgmi_fedml.bench_local import bench_local

    print_figures(bench_local(quick), as_json)


_SIZES = (
    click.option("--silos", type=click.IntRange(3, 128), default=10, show_default=True, help="K."),
    click.option("--parameters", type=click.IntRange(min=1), default=1 << 20, show_default=True, help="P."),
    click.option("--drops", type=click.IntRange(min=0), default=0, show_default=True, help="Silos that vanish."),
    click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Measured sessions."),
)


def _sized(command: F) -> F:
    """The options that say how large a session is."""
    for option in reversed(_SIZES):
        command = option(command)
    return command


@click.command()
@click.option("--backend", type=click.Choice(["masked", "homomorphic", "none"]), default="masked", show_default=True)
@click.option(
    "--profile", type=click.Choice(["standard", "compact"]), default="standard", show_default=True,
    help="Rounding: 2^29 steps a clip, or 2^18, two of which fit one slot of a ciphertext.",
)  # fmt: skip
@_sized
@click.option(
    "--compare-silos", type=click.IntRange(0, 128), default=100, show_default=True,
    help="Also control plane and server memory with so many silos (a minute or two); 0: leave out.",
)  # fmt: skip
@click.option(
    "--spread", type=float, default=0.01, show_default=True,
    help="Standard deviation of an update; a wide one (1.0) meets the clip and takes the quantiser's slower path.",
)  # fmt: skip
@json_option()
def secure(
    backend: Literal["masked", "homomorphic", "none"], profile: Literal["standard", "compact"], silos: int,
    parameters: int, drops: int, repeats: int, compare_silos: int, spread: float, as_json: bool,
) -> None:  # fmt: skip
    """Time, bytes, error and memory of secure aggregation for K silos, P parameters and D drops.

    CPU seconds of one thread, medians. floor_seconds is the physical limit: K bare AES-CTR expansions and additions.
    """
    _one_thread()
    from fedgmi_fedml.bench_secure import bench_secure

    print_figures(bench_secure(backend, silos, parameters, drops, repeats, compare_silos, spread, profile), as_json)


@click.command()
@click.option("--parameters", default="1048576,10485760", show_default=True, metavar="P,P", help="Sizes of the model.")
@click.option("--silos", type=click.IntRange(3, 128), default=3, show_default=True, help="K.")
@click.option("--rounds", type=click.IntRange(min=3), default=8, show_default=True, help="Rounds of each federation.")
@click.option("--turns", type=click.IntRange(min=1), default=3, show_default=True, help="Federations of each kind.")
@click.option(
    "--compare-silos", type=click.IntRange(min=0), default=12, show_default=True,
    help="Also the server's size with so many silos; 0 leaves that out.",
)  # fmt: skip
@click.option("--no-stock", is_flag=True, help="Leave FedML's stock federation out.")
@json_option()
def federation(
    parameters: str, silos: int, rounds: int, turns: int, compare_silos: int, no_stock: bool, as_json: bool
) -> None:
    """Rounds of real processes over loopback, without training: ours masked, FedML's stock in the clear.

    Minutes; needs FedML for the comparison (targets: no longer than stock, start within 1.5 imports of torch).
    """
    from fedgmi_fedml.bench_federation import bench_federation

    print_figures(
        bench_federation(_counts(parameters, "--parameters"), silos, rounds, turns, compare_silos, not no_stock),
        as_json,
    )


def _counts(text: str, option: str) -> list[int]:
    """Whole numbers with commas between.

    Raises:
        click.BadParameter: anything else.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers such as 1,5", param_hint=option) from None


@click.command()
@click.option("--python", metavar="PATH", help="Python of an environment with Flower. [default: this one]")
@_sized
@json_option()
def peers(python: str | None, silos: int, parameters: int, drops: int, repeats: int, as_json: bool) -> None:
    """Flower's SecAgg+ functions on the same vectors in the same order, and its figures over ours.

    Flower needs other versions of NumPy and protobuf, hence an environment of its own (python -m venv ENV, then
    ENV/bin/pip install flwr). Without Flower the comparison is skipped, with the reason.
    """
    _one_thread()
    from fedgmi_fedml.bench_peers import bench_peers

    print_figures(bench_peers(python or sys.executable, silos, parameters, drops, repeats), as_json)


@click.command()
@config_argument()
@click.option("--epochs", default="1,5", show_default=True, metavar="N,N", help="Numbers of local epochs.")
@click.option("--pairs", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each back-end.")
@set_option()
@json_option()
def overhead(config: str, epochs: str, pairs: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Masked against none: wall and CPU time of the same simulation (targets 1.25 at one epoch, 1.06 at five)."""
    _one_thread()
    from fedgmi_fedml.bench_overhead import bench_overhead

    print_figures(bench_overhead(config, _counts(epochs, "--epochs"), pairs, overrides), as_json)


@click.command()
@click.option("--setting", "settings", multiple=True, help="Only this one; may be given many times. [default: all]")
@click.option("--seeds", type=click.IntRange(min=1), help="Runs of each. [default: one, five for dominant4]")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that train.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Keep the runs here.")
@set_option()
@json_option()
def quality(
    settings: tuple[str, ...], seeds: int | None, workers: int, out: Path | None, overrides: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """The table of quality on real MNIST: error of the proportions, partition and personalised accuracy, targets.

    Needs mnist.npz in $FEDGMI_DATA; hours on two cores for the whole table. With --json one line a setting.
    """
    from fedgmi_fedml.bench_quality import bench_quality

    for row in bench_quality(settings, seeds, workers, overrides, out):
        stretch = [judged(*one) for one in row.pop("stretch")]
        print_figures(row | ({"stretch": stretch} if as_json else {}), as_json)
        for one in () if as_json else stretch:
            click.echo(f"stretch: {one['figure']} {one['target']}: {_shown(one['met'])}")
        if not as_json:
            click.echo()
