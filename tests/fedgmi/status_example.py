"""A made-up but plausible federation in the middle of a run, for the tests of the status page (and to look at it)."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedgmi_fedml.federation.status import StatusState
from fedgmi_fedml.federation.status_snapshot import SiloStatus, Snapshot
from fedgmi_fedml.summary import RulesSummary, SecureSummary
from fedgmi_fedml.telemetry import Telemetry

NAMES = ("Aalborg", "Bergen", "Coimbra", "Dundee", "Espoo", "Ferrara", "Ghent", "Heraklion")
PROTECTION = SecureSummary(
    backend="masked",
    rules=RulesSummary(colluders=1, max_drops=1, min_contributors=4, min_samples=8, w_max=0.5),
    gate=4,
    threshold=6,
    quorum=6,
    cohort_size=8,
    clip=8.0,
    roster="copper-lamp-042 river-tin-517",
)


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def blank(silos: int = 8, clock: Callable[[], float] | None = None, components: int = 2) -> StatusState:
    """A state before anything has happened."""
    start = Snapshot(
        federation="north-sea-imaging",
        run_name="digits",
        run_id="digits/5f2c90aa",
        dataset="digits",
        components=components,
        silos=tuple(SiloStatus(i + 1, NAMES[i % len(NAMES)]) for i in range(silos)),
        protection=PROTECTION,
    )
    plan = {"candidates": 4, "warmup": 8, "rounds": 10}
    return StatusState(start, plan, clock=clock or Clock())


def feed(state: StatusState, clock: Clock, rounds: int = 6, silos: int = 8, components: int = 2) -> Telemetry:
    """Everything up to sample-level round ``rounds``: one silo lost, one failed, one dropped, one turned away."""
    telemetry = Telemetry([(state, "server")], strict=True, clock=clock)
    telemetry.event("started", backend="masked")
    for silo in range(1, silos + 1):
        state.silo(silo, "connected")
        if silo != silos:
            telemetry.event("joined", silo=silo)
    telemetry.event("refused", silo=silos, reason="configuration (fedgmi_args.components) differs from the server's")
    costs = {"bytes_up": 247_000 * silos, "bytes_down": 494_000 * silos, "messages": 6 * silos, "attempts": 1}
    telemetry.event("phase", phase="candidates", total=4, done=0)
    for number in range(4):
        clock.now += 3.1
        losses = [52 - 5 * number + j for j in range(3)]
        telemetry.round({"phase": "candidates", "round": number, "candidate_loss": losses, "seconds": 3.1, **costs})
    telemetry.event("selected", candidates=6, chosen=[1, 4][:components])
    telemetry.event("phase", phase="warmup", total=8, done=0)
    for number in range(8):
        clock.now += 2.4
        losses = [32 - 1.1 * number + 2 * j / (1 + number) for j in range(components)]
        record = {"phase": "warmup", "round": number, "vae_loss": losses, "beta": 1 + 2.0 * number, "seconds": 2.4}
        telemetry.round({**record, "open": [True] * components, "complete": True, **costs})
    telemetry.event("phase", phase="rounds", total=10, done=0)
    for number in range(rounds):
        _one_round(telemetry, clock, number, components, costs)
    state.silo(3, "lost", "no sign of life for 45 s")
    telemetry.event("left", silo=3)
    telemetry.event("silo_failed", silo=5, round=rounds, error="OutOfMemoryError")
    for silo in (1, 2, 4):
        state.seen(silo)
        state.notify("ready", {"silo": silo})
    state.stage(f"rounds {rounds}: training 0")
    clock.now += 1.7
    return telemetry


def _one_round(telemetry: Telemetry, clock: Clock, number: int, components: int, costs: dict[str, int]) -> None:
    rise = 1 - math.exp(-(number + 1) / 3)
    clock.now += 4.9
    apart = [[0.0 if j == k else 3.0 + 9 * rise + j + k for k in range(components)] for j in range(components)]
    dropped = [3] if number == 4 else []
    telemetry.round(
        {
            "phase": "rounds",
            "round": number,
            "vae_loss": [23.5 - 2 * rise + 0.3 * j for j in range(components)],
            "expert_loss": [1.9 - 1.5 * rise + 0.1 * j for j in range(components)],
            "validation_accuracy": 0.52 + 0.4 * rise,
            "test_accuracy": 0.51 + 0.4 * rise,
            "confidence": 0.7 + 0.25 * rise,
            "separability": apart,
            "open": [True] * (components - 1) + [number != 0],
            "dropped": dropped,
            "complete": not dropped,
            "clipped_share": 0.0,
            "seconds": 4.9,
            **costs,
        }
    )
    if number == 2:
        telemetry.event("aborted", phase="rounds", round=number, reason="silo 7 sent no masked upload in time")
