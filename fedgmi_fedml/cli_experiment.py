"""``fedgmi experiment NAME | show NAME | report DIR``: grids of methods, resumed, and drawn up from their JSON."""

from __future__ import annotations

from pathlib import Path

import click

_FOLDER = click.Path(file_okay=False, path_type=Path)
_DONE = click.Path(exists=True, file_okay=False, path_type=Path)


class _RunByDefault(click.Group):
    """What is no command of the group is an experiment to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunByDefault)
def experiment() -> None:
    """Run a grid of data × mixture × method × K × seed, and draw it up.

    \b
    fedgmi experiment NAME [--workers N] [--resume] [--out DIR]    run (or go on with) an experiment
    fedgmi experiment show NAME                                    list its cells
    fedgmi experiment report DIR                                   tables and figures from DIR's JSON

    NAME is a file such as configs/experiments/digits_smoke.yaml, or the name of a shipped one.
    """


@experiment.command()
@click.argument("name")
@click.option("--out", type=_FOLDER, help="The experiment's folder. [default: runs/experiments/NAME]")
@click.option("--resume", is_flag=True, help="Skip the cells that are in --out already.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Cells at a time.")
def run(name: str, out: Path | None, resume: bool, workers: int) -> None:
    """Run the cells of experiment NAME, one JSON each, then write tables and figures.

    Ctrl-C keeps every finished cell; --resume goes on. Each cell takes one core.
    """
    from fedgmi_fedml.experiments.definition import load_experiment
    from fedgmi_fedml.experiments.report import write_experiment_report
    from fedgmi_fedml.experiments.run import run_experiment

    loaded = load_experiment(name)
    folder = out or Path("runs") / "experiments" / loaded.name
    run_experiment(loaded, folder, resume=resume, workers=workers, tell=click.echo)
    click.echo(f"report: {write_experiment_report(folder)}")


@experiment.command()
@click.argument("name")
@click.option("--out", type=_FOLDER, help="Also say which cells are in this folder already.")
def show(name: str, out: Path | None) -> None:
    """Validate experiment NAME in full and list its cells."""
    from fedgmi_fedml.experiments.definition import load_experiment
    from fedgmi_fedml.experiments.store import Store

    loaded = load_experiment(name)
    loaded.check()
    store = None if out is None else Store(out)
    for cell in loaded.cells:
        there = store is not None and store.path(cell).exists()
        click.echo(f"{cell.id}{' (done)' if there else ''}")
    click.echo(f"{loaded.title}: {len(loaded.cells)} cells", err=True)


@experiment.command()
@click.argument("folder", metavar="DIR", type=_DONE)
@click.option("--out", type=_FOLDER, help="Write here. [default: DIR]")
def report(folder: Path, out: Path | None) -> None:
    """Write report.md, tables/*.tex and figures/*.svg from the cells in DIR alone."""
    from fedgmi_fedml.experiments.report import write_experiment_report

    click.echo(f"report: {write_experiment_report(folder, out)}")
