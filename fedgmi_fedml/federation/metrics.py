"""A snapshot in Prometheus' text format (version 0.0.4). Labels take few values: silos, phases, components, states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedgmi_fedml.federation.status_snapshot import PRESENT, Snapshot
from fedgmi_fedml.federation.status_words import RUN_STATES, SILO_STATES
from fedgmi_fedml.version import __version__

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_PAIRS = 16
"""Components up to which every pair's separability has a line of its own."""

Sample = tuple[Mapping[str, object], float | int | None]


def exposition(snapshot: Snapshot, now: float) -> str:
    """All metrics, each with its HELP and TYPE; unknown values are left out.

    Args:
        now: the present moment on the snapshot's clock, seconds.
    """
    lines: list[str] = []
    for name, kind, text, samples in [*_run(snapshot, now), *_silos(snapshot, now), *_work(snapshot), *_sums(snapshot)]:
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            lines += [f"# HELP fedgmi_{name} {text}", f"# TYPE fedgmi_{name} {kind}"]
            lines += [f"fedgmi_{name}{_labels(labels)} {_number(value)}" for labels, value in known]
    return "\n".join(lines) + "\n"


_Metric = tuple[str, str, str, Iterable[Sample]]


def _run(snapshot: Snapshot, now: float) -> list[_Metric]:
    names = {"version": __version__, "federation": snapshot.federation, "run": snapshot.run_id or snapshot.run_name}
    present = snapshot.phase_status(snapshot.phase)
    states = [({"state": state}, int(snapshot.state == state)) for state in RUN_STATES if state != "stale"]
    silent = None if snapshot.over else now - snapshot.rounded if snapshot.rounded else None
    backend = {"backend": snapshot.protection.backend or "unknown"}
    return [
        ("info", "gauge", "Names of the run; always 1.", [(names, 1)]),
        ("protection_info", "gauge", "Back-end of secure aggregation; always 1.", [(backend, 1)]),
        ("run_state", "gauge", "1 for the state the run is in.", states),
        ("elapsed_seconds", "gauge", "Seconds since the run began, earlier server processes counted in.",
         [({}, (snapshot.ended or now) - snapshot.began)]),
        ("left_seconds", "gauge", "Estimated seconds to the end.", [({}, snapshot.seconds_left(now))]),
        ("phase_rounds_left", "gauge", "Rounds of the present phase still to do.",
         [({"phase": present.name}, (present.total or present.done) - present.done)] if present else []),
        ("last_round_age_seconds", "gauge", "Seconds since the last round ended.", [({}, silent)]),
    ]  # fmt: skip


def _silos(snapshot: Snapshot, now: float) -> list[_Metric]:
    silos = snapshot.silos
    counted = [({"state": state}, sum(silo.state == state for silo in silos)) for state in SILO_STATES]
    ages = [({"silo": silo.id}, None if silo.seen is None else max(0.0, now - silo.seen)) for silo in silos]
    return [
        ("silos", "gauge", "Silos by state.", counted),
        ("silo_in", "gauge", "1 while the silo takes part.",
         [({"silo": silo.id}, int(silo.state in PRESENT)) for silo in silos]),
        ("silo_ready", "gauge", "1 once the silo has finished its local work of this round.",
         [({"silo": silo.id}, int(silo.ready)) for silo in silos]),
        ("silo_seen_age_seconds", "gauge", "Seconds since something arrived from the silo.", ages),
        ("silo_dropped_rounds_total", "counter", "Rounds in whose sum the silo is missing though it was asked.",
         [({"silo": silo.id}, silo.dropped) for silo in silos]),
        ("silo_failures_total", "counter", "Times that the silo's local work raised an error.",
         [({"silo": silo.id}, silo.failures) for silo in silos]),
    ]  # fmt: skip


def _work(snapshot: Snapshot) -> list[_Metric]:
    phases = snapshot.phases
    traffic = [
        ({"phase": phase.name, "direction": way}, value)
        for phase in phases
        for way, value in (("up", phase.bytes_up), ("down", phase.bytes_down))
    ]
    last = next((phase.last for phase in phases if phase.name == snapshot.phase), None) or {}
    return [
        ("rounds_total", "counter", "Rounds done, by phase.", [({"phase": p.name}, p.done) for p in phases]),
        ("rounds_planned", "gauge", "Rounds planned, by phase.", [({"phase": p.name}, p.total) for p in phases]),
        ("phase_seconds_total", "counter", "Wall time of the rounds, by phase.",
         [({"phase": p.name}, p.seconds) for p in phases]),
        ("last_round_seconds", "gauge", "Wall time of the last round.", [({}, last.get("seconds"))]),
        ("bytes_total", "counter", "Bytes between the server and all silos; up is towards the server.", traffic),
        ("messages_total", "counter", "Messages between the server and all silos.",
         [({"phase": p.name}, p.messages) for p in phases]),
        ("sessions_total", "counter", "Secure sessions begun.", [({}, snapshot.sessions)]),
        ("aborted_sessions_total", "counter", "Secure sessions that were discarded, with nothing revealed.",
         [({}, snapshot.aborted)]),
        ("partial_rounds_total", "counter", "Rounds that went on without a silo of their cohort.",
         [({}, snapshot.partial)]),
        ("clipped_share", "gauge", "Largest upper bound on the share of clipped coordinates, 0 to 1.",
         [({}, snapshot.protection.clipped_share)]),
    ]  # fmt: skip


def _sums(snapshot: Snapshot) -> list[_Metric]:
    def scalar(name: str) -> Any:
        return snapshot.latest.get(name, (None,))[0]

    def vector(name: str, label: str = "component") -> list[Sample]:
        return [({label: index}, value) for index, value in enumerate(scalar(name) or ())]

    matrix = snapshot.separability
    pairs = [(j, k) for j in range(len(matrix)) for k in range(j + 1, len(matrix)) if len(matrix) <= MOST_PAIRS]
    return [
        ("validation_accuracy", "gauge", "Personalised accuracy, securely averaged over silos, 0 to 1.",
         [({}, scalar("validation_accuracy"))]),
        ("best_validation_accuracy", "gauge", "Best so far.", [({}, snapshot.best[0] if snapshot.best else None)]),
        ("test_accuracy", "gauge", "Personalised accuracy on test parts, securely averaged over silos, 0 to 1.",
         [({}, scalar("test_accuracy"))]),
        ("confidence", "gauge", "Mean largest responsibility, securely averaged over silos, 0 to 1.",
         [({}, scalar("confidence"))]),
        ("vae_loss_nats", "gauge", "Negative ELBO a sample, securely averaged.", vector("vae_loss")),
        ("expert_loss_nats", "gauge", "Cross-entropy a sample, securely averaged.", vector("expert_loss")),
        ("candidate_loss_nats", "gauge", "Negative ELBO a sample of each cohort's candidate.",
         vector("candidate_loss", "cohort")),
        ("component_open", "gauge", "1 where the component's gate was open in the last sum.",
         [({"component": j}, int(is_open)) for j, is_open in enumerate(snapshot.is_open)]),
        ("separability_nats", "gauge", "Symmetric KL divergence of two components' VAEs.",
         [({"component": j, "other": k}, matrix[j][k]) for j, k in pairs]),
    ]  # fmt: skip


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
