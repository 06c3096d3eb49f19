"""One process of ``fedgmi bench federation``: a real server or silo over the real transport, training left out.

    python -m fedgmi_fedml.bench_federation_party server KIT OUT
    python -m fedgmi_fedml.bench_federation_party silo KIT OUT SAMPLES

Kits, links, sessions, masks, checkpoints and digests are those of a deployment. Only the local work is none: a silo's
update is drawn once and offered again in every round. The server ends with one JSON line of figures.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedgmi_fedml.config import load_config
from fedgmi_fedml.data import load_silo
from fedgmi_fedml.data.announced import announced
from fedgmi_fedml.federation.server import FederationServer
from fedgmi_fedml.federation.silo import FederationSilo
from fedgmi_fedml.federation.start import credentials, tls_files
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.provision.kit import Kit, load_kit
from fedgmi_fedml.rounds.nonces import beacon_nonce
from fedgmi_fedml.rounds.phases import EVALUATE, ROUNDS, Phases
from fedgmi_fedml.rounds.silo import SiloRun
from fedgmi_fedml.rounds.store import StateStore
from fedgmi_fedml.rounds.update import LocalUpdate
from fedgmi_fedml.rounds.wire import Plan
from fedgmi_fedml.telemetry import Telemetry
from fedgmi_fedml.transport.grpc_server import GrpcServer
from fedgmi_fedml.transport.grpc_silo import GrpcSilo
from fedgmi_fedml.transport.settings import LinkSettings
from secure.journal import Journal
from secure.types import Totals

PARTS = ("expert",)
_SAMPLES = 1000.0


class NoWork:
    """See ``rounds.update.LocalWork``: the same update in every round."""

    def __init__(self, silo: int, phases: Phases) -> None:
        self._phases = phases
        generator = np.random.default_rng(silo)
        self._vector = generator.standard_normal(phases.layout(ROUNDS).length, dtype=np.float32) * np.float32(0.01)

    def work(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """Nothing is trained."""
        spec = self._phases.spec(plan.phase)
        vector = None if plan.phase == EVALUATE else self._vector
        return LocalUpdate((_SAMPLES,) * spec.components, vector, (), {item.name: 0.0 for item in spec.metrics})

    def on_totals(self, plan: Plan, totals: Totals) -> None:
        """Nothing to learn."""

    def on_release(self, plan: Plan | None, digest: bytes) -> None:
        """Nothing to remember."""

    def finish(self, final: MixtureState, best: MixtureState) -> None:
        """Nothing to report."""


class _Server(FederationServer):
    """Says when the first round began, and ends without a report."""

    first_round = 0.0

    def _handle(self, run: Any, event: Any) -> Any:
        found = super()._handle(run, event)
        if not self.first_round and run.phase == ROUNDS:
            self.first_round = time.monotonic()
        return found

    def _end(self, script: Any, run: Any, watch: Any, seconds: float) -> Any:
        self.transport.flush(10.0)
        self.transport.close()


class _Silo(FederationSilo):
    """Works without working."""

    def _begin(self, run_id: str, telemetry: Telemetry) -> None:
        spool = self.out / "spool"
        spool.mkdir(exist_ok=True)
        self._run_id = run_id
        self._run = SiloRun(
            self.silo, self.phases, NoWork(self.silo, self.phases), StateStore(2), run_id=run_id,
            class_names=self.announced.class_names, credentials=self.credentials, journal=self.journal,
            spool_dir=spool, nonce=lambda: beacon_nonce(self.config, self.silo),
        )  # fmt: skip

    def _end(self, telemetry: Telemetry) -> Any:
        return None


def serve(kit: Kit, out: Path) -> dict[str, Any]:
    """Serve the run; returns the moment of round 1, seconds by round, and this process's largest size in bytes."""
    config = load_config(kit.config)
    known = announced(config)
    transport = GrpcServer(
        kit.bind or "127.0.0.1:0", tls_files(kit), run_id="bench", federation=kit.federation,
        silos=lambda: [entry.silo_id for entry in kit.roster().silos], settings=LinkSettings.from_config(config),
    )  # fmt: skip
    server = _Server(config, out, transport, run_id="bench", credentials=credentials(config, kit), announced=known)
    server.phases = Phases(config, known.shape, PARTS)
    server.run()
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["phase"] == ROUNDS]
    return {
        "first_round": server.first_round,
        "seconds": [line["seconds"] for line in rounds],
        "bytes_up": [line["bytes_up"] for line in rounds],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def take_part(kit: Kit, out: Path, samples: str) -> None:
    """A silo of the run."""
    config = load_config(kit.config)
    known, silo = announced(config), kit.silo_id or 0
    data = load_silo(config, samples, kit.name)
    transport = GrpcSilo(
        kit.server_address, tls_files(kit), silo=silo, federation=kit.federation,
        settings=LinkSettings.from_config(config),
    )  # fmt: skip
    party = _Silo(
        config, data, out, transport, silo=silo, credentials=credentials(config, kit), journal=Journal(out / "journal"),
        announced=known,
    )  # fmt: skip
    party.phases = Phases(config, known.shape, PARTS)
    party.run()


def main() -> None:
    """See the module's text."""
    role, kit, out = sys.argv[1], load_kit(sys.argv[2]), Path(sys.argv[3])
    if role == "server":
        print(json.dumps(serve(kit, out)), flush=True)
    else:
        take_part(kit, out, sys.argv[4])


if __name__ == "__main__":
    main()
