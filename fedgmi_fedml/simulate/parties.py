"""The people of a simulation: an operator who signs a roster, a server with its key, hosts with their silos."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fedgmi_fedml.config import Config
from fedgmi_fedml.data import Federation
from fedgmi_fedml.simulate.host import SiloHost, Start
from fedgmi_fedml.simulate.worker import WorkerHost
from secure.api import Credentials
from secure.identity import Identity
from secure.roster import Roster, RosterEntry

_DAY = 86_400


class Parties:
    """Hosts and keys of one simulation.

    Args:
        config, federation: what is simulated.
        workers: processes that train silos; 1 uses this process.
        scratch: folder for what waits on disk.
    """

    def __init__(self, config: Config, federation: Federation, workers: int, scratch: Path) -> None:
        self.config = config
        ids = tuple(range(1, len(federation.silos) + 1))
        self.ids = ids
        self.names = {i: federation.silos[i - 1].name for i in ids}
        count = min(workers, len(ids))
        self.hosts: list[Any] = (
            [SiloHost(config, federation, ids, scratch)]
            if count <= 1
            else [WorkerHost(config, ids[k::count], scratch / f"worker-{k}") for k in range(count)]
        )
        self.now = time.time()
        self.server: Credentials | None = None
        self.roster: Roster | None = None
        if config.fedgmi_args.secure.backend != "none":
            self._enrol()

    def _enrol(self) -> None:
        """Silos make their identities, the operator signs the roster. The operator's key is forgotten afterwards."""
        keys = {i: key for host in self.hosts for i, key in self.ask(host, "public_keys").items()}
        operator, server = Identity.generate(), Identity.generate()
        entries = [RosterEntry(i, self.names[i], f"organisation of {self.names[i]}", keys[i]) for i in self.ids]
        self.roster = Roster.issue(
            operator, version=1, issued=int(self.now) - 60, expires=int(self.now) + 365 * _DAY, silos=entries,
            server_key=server.public_key,
        )  # fmt: skip
        self.server = Credentials(server, self.roster, None)

    def start(self, method: str, run_id: str, memories: dict[int, dict[str, Any]] | None = None) -> Start:
        """What hosts are told to begin a method's run."""
        return Start(method, run_id, self.roster, memories or {}, self.now)

    def gather(self, command: str) -> dict[int, Any]:
        """One command to all hosts, their answers by silo."""
        return {i: answer for host in self.hosts for i, answer in self.ask(host, command).items()}

    @staticmethod
    def ask(host: Any, command: str) -> Any:
        """Run a command on a host, wherever it lives."""
        return host.call(command) if isinstance(host, WorkerHost) else getattr(host, command)()

    def close(self) -> None:
        """End all workers."""
        for host in self.hosts:
            if isinstance(host, WorkerHost):
                host.close()
