"""``fedgmi simulate``: data, parties, FedGMI, the methods it is compared with, and a report."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fedgmi_fedml.baselines import METHODS
from fedgmi_fedml.checkpoint import Checkpointer
from fedgmi_fedml.config import Config
from fedgmi_fedml.data import Federation, load_federation
from fedgmi_fedml.errors import Interrupted, RunEndedEarly, RunError
from fedgmi_fedml.progress import Progress, open_progress
from fedgmi_fedml.report import write_report
from fedgmi_fedml.rounds import fedgmi
from fedgmi_fedml.rounds.checkpoints import begin_folder, forget_after, restore, save
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.server import ServerRun
from fedgmi_fedml.rounds.watch import Watch, rounds_to_come
from fedgmi_fedml.rounds.workbench import Workbench
from fedgmi_fedml.simulate.outcome import MethodResult, write_outcome
from fedgmi_fedml.simulate.parties import Parties
from fedgmi_fedml.simulate.pump import Fault, Pump, no_fault
from fedgmi_fedml.simulate.truth import Truth
from fedgmi_fedml.telemetry import Telemetry, open_telemetry

log = logging.getLogger(__name__)


def run_simulation(
    config: Config, out: Path, resume: bool = False, workers: int = 1, *, fault: Fault = no_fault
) -> Path:
    """Run FedGMI and what it is compared with; everything is written below ``out``.

    Args:
        config: validated configuration.
        out: the run's folder; must be empty or absent unless ``resume``.
        resume: go on from the last whole round in ``out``; ends in the same bits as an uninterrupted run.
        workers: processes that train silos; changes nothing but the time.
        fault: what the network does to messages (tests).

    Returns:
        The path of ``report.html``.

    Raises:
        RunError: ``out`` is in use, or holds nothing to resume. RunEndedEarly: no result could be reached.
        Interrupted: Ctrl-C; ``out`` can be resumed.
    """
    began = time.monotonic()
    if resume and (out / "summary.json").exists():
        log.warning("%s has finished already: its results stand", out)
        return write_report(out)
    checkpointer = _checked_folder(config, out, resume)
    torch.set_num_threads(1)
    federation = load_federation(config)
    _check_models(config, federation)
    begin_folder(config, out)  # nothing is written before everything has been checked
    with (
        _scratch() as scratch,
        _progress(config, len(federation.silos)) as progress,
        open_telemetry(out, "simulation", tensorboard=config.tracking_args.enable_tensorboard) as telemetry,
    ):
        parties = Parties(config, federation, workers, scratch)
        simulation = Simulation(config, out, parties, federation, checkpointer, telemetry, progress, fault)
        try:
            results = simulation.run(resume)
        except KeyboardInterrupt:
            telemetry.event("interrupted")
            raise Interrupted(out, simulation.position) from None
        finally:
            parties.close()
        write_outcome(out, federation, results, parties, time.monotonic() - began)
    return write_report(out)


class Simulation:
    """All methods of one run, one after the other, on the same parties.

    Args:
        checkpointer: keeps FedGMI's whole steps; ``None``: nothing is kept, and nothing can be resumed.
    """

    def __init__(
        self, config: Config, out: Path, parties: Parties, federation: Federation, checkpointer: Checkpointer | None,
        telemetry: Telemetry, progress: Progress, fault: Fault = no_fault,
    ) -> None:  # fmt: skip
        self.config, self.out, self.parties, self.federation = config, out, parties, federation
        self._checkpointer, self._telemetry, self._progress, self._fault = checkpointer, telemetry, progress, fault
        self.position = "before the first round"
        self._unsaved: fedgmi.Progress | None = None
        self._truth = Truth(federation)

    def run(self, resume: bool) -> dict[str, MethodResult]:
        """Every method's result, by name."""
        wanted = ["fedgmi", *(m for m in self.config.validation_args.evaluate_baselines if m != "local")]
        if self.config.validation_args.evaluate_oracle and self.federation.component_names:
            wanted.append("oracle")
        results = {name: self.method(name, resume) for name in wanted}
        if "local" in self.config.validation_args.evaluate_baselines:
            self._progress.phase("local only", len(self.parties.hosts))
            results["local"] = MethodResult.local(self.parties.gather("train_local_only"))
        return results

    def method(self, name: str, resume: bool = False) -> MethodResult:
        """One method through the drivers, from its start or from the last whole round.

        Raises:
            RunEndedEarly: no result could be reached.
        """
        method = METHODS[name]
        checkpointer = self._checkpointer if name == "fedgmi" else None
        true_components = len(self.federation.component_names) or self.config.fedgmi_args.components
        config = method.configure(self.config, true_components)
        restored = restore(checkpointer) if resume and checkpointer else None
        if restored:
            forget_after(self.out, restored.progress)
        watch, self._truth = Watch(name, self._telemetry, self._progress), Truth(self.federation)
        script = fedgmi.FedGMI(
            save=self._note if checkpointer else lambda progress: None,
            resume=restored.progress if restored else None,
        )
        run_id = f"{config.common_args.run_name}/{name}"
        with tempfile.TemporaryDirectory(prefix="fedgmi-spool-") as spool:
            phases = Phases(config, self.federation.shape, method.parts, self.federation.schema)
            server = ServerRun(phases, self.parties.ids, run_id, script, self.parties.server, Path(spool), notify=watch)
            watch.server = server
            pump = Pump(
                server,
                self.parties.hosts,
                fault=self._fault,
                after_server=lambda: self._between(watch),
                check=self._check,
            )
            pump.run(self.parties.start(name, run_id, restored.memories if restored else None))
        if script.outcome != "finished":
            raise RunEndedEarly(
                f"{name}: three rounds in a row reached no result; the last whole models are kept", self.out
            )
        return MethodResult(script.progress, self.parties.gather("reports"), watch, dict(server.traffic))

    def _note(self, progress: fedgmi.Progress) -> None:
        self._unsaved = progress
        self.position = f"before {progress.phase} {progress.round}"

    def _between(self, watch: Watch) -> None:
        """Before the first message of the server's next step: write the checkpoint and the round's line."""
        if self._unsaved is None and watch.pending is None:
            return
        mixes = METHODS[watch.method].mixes
        memories = self.parties.gather("memories") if mixes else {}
        watch.flush(self._truth.figures(memories))
        if self._unsaved is not None and self._checkpointer is not None:
            progress, self._unsaved = self._unsaved, None
            save(self._checkpointer, progress, memories)

    def _check(self) -> None:
        """A silo's local work that raised ends a simulation: there is no other hospital to be polite to."""
        for host in self.parties.hosts:
            for silo, error in getattr(host, "errors", ()):
                raise error if isinstance(error, RunError) else RunError(f"silo {silo}: {error}") from error


def _progress(config: Config, silos: int) -> Progress:
    """Bars or lines; nothing where only warnings are wanted."""
    plan, train = rounds_to_come(config, silos), config.train_args
    others: list[str] = [name for name in config.validation_args.evaluate_baselines if name != "local"]
    if config.validation_args.evaluate_oracle:
        others.append("oracle")
    plan |= {f"{name}: rounds": train.comm_round for name in others}
    return open_progress(silos=silos, plan=plan, quiet=not log.isEnabledFor(logging.INFO))


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fedgmi-") as folder:
        yield Path(folder)


def _checked_folder(config: Config, out: Path, resume: bool) -> Checkpointer:
    """The run's checkpoints; the folder is only looked at."""
    checkpointer = Checkpointer(out / "checkpoints", config.run_digest())
    if resume:
        if checkpointer.latest() is None:
            raise RunError(f"{out} holds no whole round to resume from: start without --resume")
    elif out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty: choose another --out, or add --resume to go on with it")
    return checkpointer


def _check_models(config: Config, federation: Federation) -> None:
    """Models can be built for these data, uploads fit their ring, and the data lie within the likelihood's range.

    Raises:
        CapacityError: which upload does not fit.
        ModelError, RangeError: what does not fit, and for which silo.
    """
    phases = Phases(config, federation.shape, schema=federation.schema)
    phases.check_capacity(len(federation.silos))
    bench = Workbench(phases)
    for silo in federation.silos:
        if bench.vae is not None and len(silo.x_train) and not silo.needs_moments:
            bench.vae.check_range(silo.x_train)
