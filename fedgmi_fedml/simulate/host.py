"""The silos of one process: their data, keys and drivers. Runs in the simulation's own process or in a worker.

A host is told the same things in either case; keys are made inside it and only public ones leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedgmi_fedml.baselines import METHODS, local_only
from fedgmi_fedml.config import Config
from fedgmi_fedml.data import Federation
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.rounds.local import FedGMIWork, Workbench
from fedgmi_fedml.rounds.nonces import beacon_nonce
from fedgmi_fedml.rounds.phases import ORDER, Phases
from fedgmi_fedml.rounds.silo import SiloRun
from fedgmi_fedml.rounds.silo_report import final_report
from fedgmi_fedml.rounds.store import StateStore
from fedgmi_fedml.rounds.update import memory_from_arrays, memory_to_arrays
from secure.api import Credentials
from secure.gate import smallest_cohort
from secure.identity import Identity
from secure.journal import Journal
from secure.policy import Policy
from secure.roster import Roster
from secure.types import Rules


@dataclass(frozen=True)
class Start:
    """One method's run, as a host is told of it.

    Attributes:
        method: a name of ``baselines.METHODS``.
        run_id: names the run.
        roster: the signed roster, or ``None`` with back-end ``none``.
        memories: per silo the arrays of its memory, to resume from.
        now: seconds since 1970, for the roster's dates.
    """

    method: str
    run_id: str
    roster: Roster | None
    memories: dict[int, dict[str, Any]]
    now: float


class SiloHost:
    """Silos ``ids`` (roster ids; silo i holds ``federation.silos[i − 1]``).

    Args:
        config: the run's configuration.
        federation: data of all silos; only those in ``ids`` are kept.
        ids: this host's silos.
        scratch: folder for trained updates that wait for their turn.
    """

    def __init__(self, config: Config, federation: Federation, ids: tuple[int, ...], scratch: Path) -> None:
        torch.set_num_threads(1)
        self.config, self.ids, self.scratch = config, ids, scratch
        self.shape, self.class_names, self.schema = federation.shape, federation.class_names, federation.schema
        self.true_components = len(federation.component_names) or config.fedgmi_args.components
        self.data = {i: federation.silos[i - 1] for i in ids}
        self.names = {i: data.name for i, data in self.data.items()}
        self.errors: list[tuple[int, Exception]] = []
        self._identities: dict[int, Identity] = {}
        self._runs: dict[int, SiloRun] = {}
        self._works: dict[int, FedGMIWork] = {}
        self._reports: dict[int, dict[str, Any]] = {}
        self._models: dict[str, MixtureState] = {}

    def public_keys(self) -> dict[int, bytes]:
        """Make every silo's identity; the private keys stay here."""
        self._identities = {i: Identity.generate() for i in self.ids}
        return {i: identity.public_key for i, identity in self._identities.items()}

    def open(self, start: Start) -> Iterator[tuple[int, bytes]]:
        """Begin a method's run on all silos of this host."""
        method = METHODS[start.method]
        config = method.configure(self.config, self.true_components)
        phases = Phases(config, self.shape, method.parts, self.schema)
        bench = Workbench(phases)
        # a step holds the models that every cohort starts from and those it ends in, side by side
        capacity = 4 + (2 * config.fedgmi_args.candidate_count if "vae" in method.parts else 0)
        store = StateStore(capacity)
        self._runs, self._works, self._reports = {}, {}, {}
        for i, data in self.data.items():
            work = method.work(i, data, bench, method.partition, on_finish=self._finish)
            if i in start.memories:
                work.remember(memory_from_arrays(start.memories[i]))
            self._works[i] = work
            self._runs[i] = SiloRun(
                i, phases, work, store, run_id=start.run_id, class_names=self.class_names,
                credentials=self._credentials(i, start, config), journal=Journal() if start.roster else None,
                spool_dir=self.scratch, nonce=lambda silo=i: beacon_nonce(config, silo),  # type: ignore[misc]
                on_error=lambda error, silo=i: self.errors.append((silo, error)),  # type: ignore[misc]
            )  # fmt: skip
        for i, run in self._runs.items():
            for payload in run.start():
                yield i, payload

    def handle(self, silo: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """Deliver one message to one silo; yields its replies."""
        for reply in self._runs[silo].handle(payload):
            yield silo, reply

    def memories(self) -> dict[int, dict[str, Any]]:
        """What every silo remembers, as arrays: a simulation's checkpoint holds it all."""
        return {i: dict(memory_to_arrays(work.memory)) for i, work in self._works.items()}

    def reports(self) -> dict[int, dict[str, Any]]:
        """Every silo's own report, once its run has finished."""
        return self._reports

    def train_local_only(self) -> dict[int, tuple[int, int]]:
        """The baseline without any federation: right predictions and test samples of every silo."""
        config = METHODS["fedavg"].configure(self.config, self.true_components)
        bench = Workbench(Phases(config, self.shape, ("expert",)))
        return {i: local_only(i, data, bench) for i, data in self.data.items()}

    def _finish(self, work: FedGMIWork, final: MixtureState, best: MixtureState) -> None:
        """Figures under the final and (where another round was better) the best models."""
        self._reports[work.silo] = final_report(work, final, best)
        self.data[work.silo] = work.data  # a table is standardised now

    def _credentials(self, silo: int, start: Start, config: Config) -> Credentials | None:
        if start.roster is None:
            return None
        rules = Rules(**config.fedgmi_args.secure.rules.model_dump())
        policy = Policy.for_roster(
            start.roster, start.now, rules=rules, backends=(config.fedgmi_args.secure.backend,), phases=ORDER,
            max_clip=config.fedgmi_args.secure.clip, min_cohort=smallest_cohort(rules),
        )  # fmt: skip
        return Credentials(self._identities[silo], start.roster, policy)
