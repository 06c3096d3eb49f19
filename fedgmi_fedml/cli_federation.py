"""``fedgmi server`` and ``fedgmi silo``: the processes of a federation over a network."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgmi_fedml.cli_config import ConfigName, set_option

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config
    from fedgmi_fedml.data import SiloData
    from fedgmi_fedml.data.announced import Announced
    from fedgmi_fedml.federation.outcome import Outcome
    from fedgmi_fedml.federation.status import StatusState
    from fedgmi_fedml.provision.kit import Kit

log = logging.getLogger(__name__)

_FOLDER = click.Path(file_okay=False, path_type=Path)
_CONFIG = click.option(
    "--config", type=ConfigName(), metavar="CONFIG",
    help="YAML file, or the name of a shipped configuration. [default: the kit's config.yaml]",
)  # fmt: skip
_KIT = click.option(
    "--kit", "kit_folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True,
    help="This party's kit, as `fedgmi provision` made it.",
)  # fmt: skip
_REPEATABLE = click.option(
    "--repeatable", is_flag=True,
    help="One machine plays all parties, in the bits of `fedgmi simulate`: allow cohorts drawn from the seed "
    "(cohort_nonces: seed), compute in one thread. To be given to every party, and never in a deployment.",
)  # fmt: skip


@click.command()
@_KIT
@_CONFIG
@set_option()
@click.option("--out", type=_FOLDER, help="The run's folder. [default: <output_dir>/<run_name>/server]")
@click.option("--bind", metavar="HOST:PORT", help="Listen here. [default: the kit's]")
@click.option("--run-id", metavar="ID", help="Name of the run on all parties. [default: <run_name>/<random>]")
@_REPEATABLE
def server(
    kit_folder: Path, config: str | None, overrides: tuple[str, ...], out: Path | None, bind: str | None,
    run_id: str | None, repeatable: bool,
) -> None:  # fmt: skip
    """Serve a federation: wait for its silos, lead them through the rounds, keep the shared models.

    \b
      fedgmi server --kit kits/server

    The server holds no data, and of every update it sees sums only. Silos dial in; nothing dials out. Stopped or
    killed at any moment, it goes on from the last whole round when the same command is given again; silos wait for
    it meanwhile. --out receives summary.json, report.html, models/, server.log.
    """
    from fedgmi_fedml.provision.kit import load_kit

    kit = load_kit(kit_folder)
    loaded = _read(kit, config, overrides, "server", repeatable)
    folder = out or Path(loaded.tracking_args.output_dir) / loaded.common_args.run_name / "server"

    from fedgmi_fedml.federation.folder import finished_summary

    if finished_summary(folder):
        _stood(folder)
        return
    _compute(repeatable)
    with _interruptible():
        outcome = _serve(loaded, kit, folder, bind or kit.bind or "", run_id, repeatable)
    _show(outcome)


def _serve(config: Config, kit: Kit, out: Path, bind: str, run_id: str | None, repeatable: bool) -> Outcome:
    """Open the port and run; torch is imported here, once everything cheap has been checked."""
    from fedgmi_fedml.data.announced import announced
    from fedgmi_fedml.federation.server import FederationServer
    from fedgmi_fedml.federation.start import credentials, tls_files
    from fedgmi_fedml.federation.state import open_state
    from fedgmi_fedml.transport.grpc_server import GrpcServer
    from fedgmi_fedml.transport.settings import LinkSettings

    state, known = open_state(out, config, run_id), announced(config, pooled=repeatable)
    silos = tuple(entry.silo_id for entry in kit.roster().silos)
    transport = GrpcServer(
        bind, tls_files(kit), run_id=state.run_id, federation=kit.federation, silos=lambda: silos,
        settings=LinkSettings.from_config(config),
    )  # fmt: skip
    log.info("listening on %s for silos of %s, which dial %s", bind, kit.federation, kit.server_address)
    with _status(config, kit, out, state.run_id) as status:
        return FederationServer(
            config, out, transport, run_id=state.run_id, credentials=credentials(config, kit), announced=known,
            status=status,
        ).run()  # fmt: skip


@contextlib.contextmanager
def _status(config: Config, kit: Kit, out: Path, run_id: str) -> Iterator[StatusState | None]:
    """The status page, where the configuration wants one."""
    tracking = config.tracking_args
    if tracking.status_port is None:
        yield None
        return
    from fedgmi_fedml.federation.server import seconds_before
    from fedgmi_fedml.federation.status import StatusState
    from fedgmi_fedml.federation.status_page import open_status_page
    from fedgmi_fedml.rounds.watch import rounds_to_come

    roster = kit.roster()
    names = {entry.silo_id: entry.name for entry in roster.silos}
    state = StatusState.for_run(
        config, names, run_id=run_id, federation=kit.federation,
        roster=None if config.fedgmi_args.secure.backend == "none" else roster.digest(),
        plan=rounds_to_come(config, len(names)), elapsed=seconds_before(out),
    )  # fmt: skip
    with open_status_page(state, tracking.status_bind, tracking.status_port, out / "status.token") as page:
        log.info(
            "status page: %s (its token lies in %s; or: fedgmi status --run %s)", page.url, out / "status.token", out
        )
        yield state


@click.command()
@_KIT
@_CONFIG
@set_option()
@click.option(
    "--data", type=click.Path(exists=True, path_type=Path),
    help="This silo's own samples: npz, CSV or image folder, as data_args.dataset says.",
)  # fmt: skip
@click.option(
    "--simulated-part", type=click.IntRange(min=1), metavar="I",
    help="Instead of own data: part I of the simulated federation that the configuration describes.",
)  # fmt: skip
@click.option("--out", type=_FOLDER, help="This silo's own folder. [default: <output_dir>/<run_name>/<silo's name>]")
@click.option("--server", "address", metavar="HOST:PORT", help="Dial this address. [default: the kit's]")
@click.option(
    "--journal", type=_FOLDER, help="What this silo must never do twice, over all runs. [default: KIT/journal]"
)
@_REPEATABLE
def silo(
    kit_folder: Path, config: str | None, overrides: tuple[str, ...], data: Path | None, simulated_part: int | None,
    out: Path | None, address: str | None, journal: Path | None, repeatable: bool,
) -> None:  # fmt: skip
    """Take part in a federation with this silo's own data, which never leave this machine.

    \b
      fedgmi silo --kit kits/clinic-a --data samples.npz

    The silo dials the server, and dials again whenever the line is cut; it needs no open port. Killed or stopped at
    any moment, it rejoins the run when the same command is given again. --out receives this silo's own report:
    summary.json, report.html, models/ (for `fedgmi predict` and `export`), silo.log.
    """
    from fedgmi_fedml.provision.kit import load_kit

    if (data is None) == (simulated_part is None):
        raise click.UsageError("give either --data PATH, this silo's own samples, or --simulated-part I")
    kit = load_kit(kit_folder)
    loaded = _read(kit, config, overrides, "silo", repeatable)
    folder = out or Path(loaded.tracking_args.output_dir) / loaded.common_args.run_name / kit.name

    from fedgmi_fedml.federation.folder import finished_summary

    if finished_summary(folder):
        _stood(folder)
        return
    _compute(repeatable)
    with _interruptible():
        from fedgmi_fedml.data.announced import announced

        known = announced(loaded, pooled=repeatable)
        samples = _samples(loaded, kit, data, simulated_part)
        outcome = _take_part(loaded, kit, samples, known, folder, address or kit.server_address, journal)
    _show(outcome)


def _samples(config: Config, kit: Kit, data: Path | None, part: int | None) -> SiloData:
    """This silo's samples, under its name."""
    from fedgmi_fedml.data import load_federation, load_silo

    if part is None:
        return load_silo(config, data, name=kit.name)
    if part > config.train_args.client_num_in_total:
        raise click.UsageError(
            f"--simulated-part {part}: the configuration deals its samples to {config.train_args.client_num_in_total} "
            "silos (train_args.client_num_in_total)"
        )
    samples = load_federation(config, only={part - 1}).silos[part - 1]
    samples.name = kit.name
    return samples


def _take_part(
    config: Config, kit: Kit, samples: SiloData, known: Announced, out: Path, address: str, journal: Path | None
) -> Outcome:
    """Dial the server and run."""
    known.check(samples)
    from fedgmi_fedml.federation.folder import locked
    from fedgmi_fedml.federation.silo import FederationSilo
    from fedgmi_fedml.federation.start import credentials, tls_files
    from fedgmi_fedml.transport.grpc_silo import GrpcSilo
    from fedgmi_fedml.transport.settings import LinkSettings
    from secure.journal import Journal

    own, number = credentials(config, kit), kit.silo_id or 0
    with contextlib.ExitStack() as stack:
        memory = None
        if own is not None:
            place = journal or kit.folder / "journal"
            stack.enter_context(locked(place, "in-use"))  # two processes of one silo would send each other away
            memory = Journal(place)
            memory.note_roster(own.roster.version, own.roster.digest())
        transport = GrpcSilo(
            address, tls_files(kit), silo=number, federation=kit.federation, settings=LinkSettings.from_config(config)
        )
        log.info("%s dials %s", kit.name, address)
        return FederationSilo(
            config, samples, out, transport, silo=number, credentials=own, journal=memory, announced=known
        ).run()


# ---- both ------------------------------------------------------------------------------------------------------------


def _read(kit: Kit, config: str | None, overrides: tuple[str, ...], role: str, repeatable: bool) -> Config:
    """The configuration, fit for a deployment, and the kit, in force."""
    from fedgmi_fedml.cli import read_config
    from fedgmi_fedml.federation.start import check_kit, check_settings

    loaded = read_config(config or str(kit.config), overrides)
    check_settings(loaded, repeatable)
    check_kit(kit, role)
    for warning in kit.ending(time.time()):
        log.warning("%s", warning)
    return loaded


def _compute(repeatable: bool) -> None:
    """Sums in one order, where bits are to be compared."""
    if repeatable:
        import torch

        torch.set_num_threads(1)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a process in the same good order as Ctrl-C."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stood(folder: Path) -> None:
    click.echo(f"{folder}: the run has finished already, and its results stand; for a new run choose another --out")


def _show(outcome: Outcome) -> None:
    """The figures, and where the rest lies; exit code 3 through RunEndedEarly."""
    from fedgmi_fedml.errors import RunEndedEarly
    from fedgmi_fedml.report import terminal_summary
    from fedgmi_fedml.summary import load_summary

    if outcome.status == "stood":
        _stood(outcome.folder)
        return
    if outcome.report is not None:
        click.echo(terminal_summary(load_summary(outcome.folder)))
        click.echo(f"report: {outcome.report}")
    if outcome.status == "failed":
        kept = "; the last whole models are kept" if outcome.report is not None else ""
        raise RunEndedEarly(f"{outcome.reason}{kept}", outcome.folder)
