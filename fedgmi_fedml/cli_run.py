"""``fedgmi simulate | predict | export | report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgmi_fedml.cli_config import config_argument, set_option
from fedgmi_fedml.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedgmi_fedml.summary import Audience

_FOLDER = click.Path(file_okay=False, path_type=Path)
_RUN = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@config_argument(required=False)
@set_option()
@click.option("--out", type=_FOLDER, help="The run's folder. [default: runs/<run_name>, numbered where it exists]")
@click.option("--resume", is_flag=True, help="Go on from the last whole round in --out (CONFIG may be left out).")
@click.option("--workers", type=click.IntRange(min=1), help="Processes that train silos. [default: worker_num]")
def simulate(
    config: str | None, overrides: tuple[str, ...], out: Path | None, resume: bool, workers: int | None
) -> None:
    """Run FedGMI on one machine: all silos, the server, and every message between them.

    CONFIG is a YAML file, or the name of a shipped configuration (fedgmi config names). Ctrl-C leaves a run that
    --resume continues to the same bits.
    """
    from fedgmi_fedml.cli import read_config

    name = config or _config_of(out, resume)
    loaded = read_config(name, overrides)
    folder = out or choose_folder(Path(loaded.tracking_args.output_dir), loaded.common_args.run_name, resume)

    from fedgmi_fedml.report import terminal_summary  # torch: only once the configuration is known to be right
    from fedgmi_fedml.simulate import run_simulation
    from fedgmi_fedml.summary import load_summary

    page = run_simulation(loaded, folder, resume, workers or loaded.device_args.worker_num)
    click.echo(terminal_summary(load_summary(folder)))
    click.echo(f"report: {page}")


@click.command()
@click.argument("run", type=_RUN)
@click.option(
    "--audience",
    type=click.Choice(["simulation", "server", "silo"]),
    help="For whom; a narrower view than the run's own leaves out what that reader may not know. [default: the run's]",
)
def report(run: Path, audience: Audience | None) -> None:
    """Write report.html of the finished run in folder RUN again, from its summary and rounds."""
    from fedgmi_fedml.report import terminal_summary, write_report
    from fedgmi_fedml.summary import load_summary

    page = write_report(run, audience)
    click.echo(terminal_summary(load_summary(run)))
    click.echo(f"report: {page}")


def _config_of(out: Path | None, resume: bool) -> str:
    """The configuration that a run to be resumed wrote beside its results."""
    if not resume:
        raise click.UsageError("CONFIG is missing: a YAML file, or one of the names of `fedgmi config names`")
    if out is None:
        raise click.UsageError("--resume needs CONFIG or --out, to know which run to go on with")
    written = out / "config.yaml"
    if not written.is_file():
        raise RunError(f"{out}: holds no config.yaml, so there is no run to resume; check --out")
    return str(written)


def choose_folder(root: Path, name: str, resume: bool) -> Path:
    """``root/name``, or with a number behind it: the first free one, or the last used one to resume.

    Raises:
        RunError: nothing to resume.
    """
    if Path(name).name != name or name == "..":
        raise ConfigError(f"common_args.run_name: {name!r} cannot name a folder; leave out / and ..")
    used: list[Path] = []
    folder, number = root / name, 1
    while folder.exists() and any(folder.iterdir()):
        used.append(folder)
        number += 1
        folder = root / f"{name}-{number}"
    if not resume:
        return folder
    if not used:
        raise RunError(f"{folder}: nothing to resume there; name the run's folder with --out")
    return used[-1]
