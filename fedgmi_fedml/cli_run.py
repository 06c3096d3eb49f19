"""``fedgmi simulate | predict | export | report``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgmi_fedml.cli_config import config_argument, set_option
from fedgmi_fedml.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedgmi_fedml.deliver import Prediction
    from fedgmi_fedml.summary import Audience

_FOLDER = click.Path(file_okay=False, path_type=Path)
_RUN = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, path_type=Path)
_OUTPUT = click.Path(dir_okay=False, path_type=Path)
_GATING = click.option(
    "--gating",
    type=click.Choice(["mixture", "map"]),
    default="mixture",
    show_default=True,
    help="All experts by responsibility, or the most responsible one only.",
)
_WHICH = click.option(
    "--which", type=click.Choice(["best", "final"]), default="best", show_default=True, help="Which saved models."
)


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


@click.command()
@click.argument("run", type=_RUN)
@click.argument("samples", metavar="FILE", type=_FILE)
@click.option("--silo", metavar="NAME", help="Use this silo's mixture proportions.")
@click.option(
    "--proportions-from",
    type=_FILE,
    help="For a silo that never trained: estimate its proportions from these unlabelled samples. [default: FILE]",
)
@_GATING
@_WHICH
@click.option("--out", type=_OUTPUT, help="Write predictions here, as .csv or .npz. [default: print them as CSV]")
@click.option("--passes", type=click.IntRange(min=1), default=20, show_default=True, help="EM passes of the estimate.")
def predict(
    run: Path, samples: Path, silo: str | None, proportions_from: Path | None, gating: str, which: str,
    out: Path | None, passes: int,
) -> None:  # fmt: skip
    """Personalised predictions for the samples in FILE, by the finished run in folder RUN.

    FILE is an npz, a CSV, an image or a folder of images, as in the run's data source. Without --silo the mixture
    proportions are estimated from unlabelled samples; nothing is trained, and labels are used for the accuracy only.
    """
    from fedgmi_fedml.deliver import predict as predict_samples

    made = predict_samples(
        run, samples, silo=silo, proportions_from=proportions_from, gating=gating, which=which, output=out,
        passes=passes,
    )  # fmt: skip
    if out is None:
        click.echo(_as_csv(made), nl=False)
    shares = ", ".join(f"{share:.3f}" for share in made.alpha)
    notes = [f"{len(made.names)} samples; mixture proportions {shares} ({made.alpha_source})"]
    if made.accuracy is not None:
        notes.append(f"accuracy {made.accuracy:.4f}, from the labels in the file")
    if made.skipped:
        notes.append(f"{len(made.skipped)} unreadable files left out: {', '.join(made.skipped[:3])} …")
    for note in [*notes, *([f"written to {out}"] if out is not None else [])]:
        click.echo(note, err=True)


def _as_csv(prediction: Prediction) -> str:
    """What ``save`` would write."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "predictions.csv"
        prediction.save(file)
        return file.read_text(encoding="utf-8")


@click.command()
@click.argument("run", type=_RUN)
@click.argument("out", type=_FOLDER)
@click.option(
    "--format", type=click.Choice(["safetensors", "onnx"]), default="safetensors", show_default=True,
    help="safetensors: the models and a manifest. onnx: also the whole personalised predictor, checked.",
)  # fmt: skip
@click.option("--silo", metavar="NAME", help="Whose mixture proportions the predictor carries.")
@_GATING
@_WHICH
def export(run: Path, out: Path, format: str, silo: str | None, gating: str, which: str) -> None:
    """Write the models of the finished run in folder RUN into the new folder OUT, for use elsewhere."""
    from fedgmi_fedml.deliver import export as export_models

    for file in export_models(run, out, format=format, which=which, silo=silo, gating=gating):
        click.echo(file)


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
