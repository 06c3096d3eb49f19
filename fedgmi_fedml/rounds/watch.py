"""Turns what the server's driver notes into telemetry lines and a progress display."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from fedgmi_fedml.config import Config
from fedgmi_fedml.progress import Progress
from fedgmi_fedml.rounds.server import ServerRun, Traffic
from fedgmi_fedml.telemetry import Telemetry

_LOSSES = ("vae_loss", "expert_loss")


class Watch:
    """One method's run, watched.

    Args:
        method: a name of ``baselines.METHODS``.
        telemetry, progress: where it is shown.
    """

    def __init__(self, method: str, telemetry: Telemetry, progress: Progress) -> None:
        self.method, self._telemetry, self._progress = method, telemetry, progress
        self.history: list[list[bool]] = []
        self.phase_seconds: dict[str, float] = {}
        self.phase_bytes: dict[str, float] = {}
        self.clipped_share, self.sessions, self.aborted, self.partial, self.uploads = 0.0, 0, 0, 0, 0
        self.dropped: set[int] = set()
        self.test_accuracy: float | None = None
        self.pending: dict[str, Any] | None = None
        self.server: ServerRun | None = None
        self._last = time.monotonic()
        self._before = Traffic()

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """A note from the driver."""
        if event == "round":
            self._round(fields)
            return
        if event == "ready":
            self._progress.silo(fields["silo"])
            return
        if event == "phase":
            if not self.phase_seconds:
                self._last = time.monotonic()  # waiting for silos to join is no part of the first round
            label = fields["phase"] if self.method == "fedgmi" else f"{self.method}: {fields['phase']}"
            self._progress.phase(label, fields["total"], fields["done"])
        self._telemetry.event(event, method=self.method, **fields)

    def _round(self, fields: dict[str, Any]) -> None:
        now, metrics, is_open = time.monotonic(), fields["metrics"], fields["open"]
        seconds, self._last = now - self._last, now
        phase = fields["phase"]
        self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds
        self.clipped_share = max(self.clipped_share, fields["clipped_share"])
        self.sessions += fields["attempts"]
        self.aborted += fields["attempts"] - 1 + len(fields["failed"])
        self.partial += not fields["complete"]
        self.dropped |= set(fields["dropped"])
        self.uploads += fields["survivors"] if phase == "rounds" else 0
        record: dict[str, Any] = {"method": self.method, "phase": phase, "round": fields["round"], "seconds": seconds}
        record |= {key: fields[key] for key in ("attempts", "dropped", "complete", "clipped_share")}
        record |= {key: fields[key] for key in ("beta", "surveyed") if key in fields}
        record["failed_sessions"] = len(fields["failed"])
        if len(is_open) == 1 and phase != "candidates":
            record["open"] = is_open[0]
            if phase == "rounds":
                self.history.append(is_open[0])
        record |= summed(metrics) | self._traffic()
        if phase == "candidates":
            record |= {"candidate_loss": fields["candidate_loss"]}
        self.pending = record
        if phase == "evaluate":
            self.test_accuracy = record.get("test_accuracy")
        if phase not in ("evaluate", "moments"):
            self._progress.advance()
        for reason in fields["failed"]:
            self._telemetry.event("aborted", method=self.method, phase=phase, round=fields["round"], reason=reason)

    def restore(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count the rounds that earlier processes of this run have told (lines of ``rounds.jsonl``) as well."""
        for record in records:
            phase = record["phase"]
            for spent, names in ((self.phase_seconds, ("seconds",)), (self.phase_bytes, ("bytes_up", "bytes_down"))):
                spent[phase] = spent.get(phase, 0.0) + sum(record.get(name) or 0 for name in names)
            self.clipped_share = max(self.clipped_share, record.get("clipped_share") or 0.0)
            failed = record.get("failed_sessions", 0)
            self.sessions += record.get("attempts", 0)
            self.aborted += max(record.get("attempts", 1) - 1, 0) + failed
            self.partial += not record.get("complete", True)
            self.dropped |= set(record.get("dropped", ()))
            if phase == "evaluate":
                self.test_accuracy = record.get("test_accuracy")
            if phase == "rounds" and "open" in record:
                self.history.append(list(record["open"]))

    def flush(self, figures: dict[str, Any]) -> None:
        """Write the last round's line, with what else a simulation may know of it."""
        if self.pending is not None:
            self._telemetry.round(self.pending | figures)
            self.pending = None

    def _traffic(self) -> dict[str, int]:
        """Bytes and messages since the last line."""
        if self.server is None:
            return {}
        totals = self.server.traffic.values()
        now = Traffic(sum(t.up for t in totals), sum(t.down for t in totals), sum(t.messages for t in totals))
        before, self._before = self._before, now
        return {
            "bytes_up": now.up - before.up,
            "bytes_down": now.down - before.down,
            "messages": now.messages - before.messages,
        }


def rounds_to_come(config: Config, silos: int) -> dict[str, int]:
    """Rounds of every phase, in order, for the time left."""
    start = config.fedgmi_args.initialisation
    plan = {"candidates": start.draws(config.fedgmi_args.components, silos) * start.candidate_rounds}
    return plan | {"warmup": start.warmup_rounds, "rounds": config.train_args.comm_round}


def summed(metrics: dict[str, float]) -> dict[str, Any]:
    """Securely summed metrics as telemetry fields: losses by component, means over the silos that measured."""
    record: dict[str, Any] = {}
    for loss in _LOSSES:
        named = {int(name.rpartition(".")[2]): value for name, value in metrics.items() if name.startswith(f"{loss}.")}
        if named:
            record[loss] = [named[j] for j in sorted(named)]
    for name, counted in (
        ("validation_accuracy", "validation_silos"),
        ("test_accuracy", "test_silos"),
        ("confidence", "confidence_silos"),
    ):
        if round(metrics.get(counted, 0.0)):
            record[name] = metrics[name] / metrics[counted]
    return record
