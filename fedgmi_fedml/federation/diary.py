"""A silo's own account of its rounds: the method's work, with a log line and a line of ``rounds.jsonl`` a step."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from fedgmi_fedml.diagnostics import effective_components
from fedgmi_fedml.evaluate import alpha_drift
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.rounds.local import FedGMIWork
from fedgmi_fedml.rounds.phases import CANDIDATES, ROUNDS, WARMUP
from fedgmi_fedml.rounds.update import LocalUpdate
from fedgmi_fedml.rounds.watch import summed
from fedgmi_fedml.rounds.wire import Plan
from fedgmi_fedml.telemetry import Telemetry
from secure.types import Totals

log = logging.getLogger(__name__)


class Diary:
    """Stands between a silo's driver and its work (``rounds.update.LocalWork``), and changes nothing.

    Args:
        work: the method's local work.
        telemetry: for the silo's own eyes.
    """

    def __init__(self, work: FedGMIWork, telemetry: Telemetry) -> None:
        self._work, self._telemetry = work, telemetry
        self._began = time.monotonic()
        self._record: dict[str, Any] = {}
        self._alpha: torch.Tensor | None = None

    def work(self, plan: Plan, state: MixtureState) -> LocalUpdate:
        """See ``LocalWork``."""
        name = "survey" if plan.survey and plan.phase == WARMUP else plan.phase
        log.info("%s %d: working", name, plan.round)
        self._began = time.monotonic()
        update = self._work.work(plan, state)
        spent = time.monotonic() - self._began
        self._record = {"step_seconds": {"train": spent}, **_losses(plan.phase, summed(dict(update.metrics)))}
        log.log(logging.INFO if spent > 1 else logging.DEBUG, "%s %d: ready after %.1f s", name, plan.round, spent)
        return update

    def on_totals(self, plan: Plan, totals: Totals) -> None:
        """See ``LocalWork``."""
        self._work.on_totals(plan, totals)

    def on_release(self, plan: Plan | None, digest: bytes) -> None:
        """See ``LocalWork``; the round is over."""
        self._work.on_release(plan, digest)
        if plan is None or plan.survey:
            return
        # a warm-up round has two steps, a survey and a training, that the drivers number one after the other
        number = plan.round // 2 if plan.phase == WARMUP else plan.round
        head = {"phase": plan.phase, "round": number, "seconds": time.monotonic() - self._began}
        self._telemetry.round({**head, **self._record, **self._own(plan)})
        log.debug("%s %d: the models have moved on", plan.phase, number)

    def finish(self, final: MixtureState, best: MixtureState) -> None:
        """See ``LocalWork``."""
        self._work.finish(final, best)

    def _own(self, plan: Plan) -> dict[str, Any]:
        """Figures of this silo's partition."""
        memory = self._work.memory
        if plan.phase != ROUNDS or memory.assignment is None or not len(memory.assignment):
            return {}
        sizes = torch.bincount(memory.assignment, minlength=self._work.components).double()
        weight = (sizes / sizes.sum()).tolist()
        own: dict[str, Any] = {"component_weight": weight, "effective_components": effective_components(weight)}
        if self._alpha is not None:
            own["alpha_drift"] = float(alpha_drift(self._alpha, memory.alpha))
        self._alpha = memory.alpha
        return own


def _losses(phase: str, record: dict[str, Any]) -> dict[str, Any]:
    """A component that this silo did not train has no loss, and a candidate's is not a component's."""
    for name in ("vae_loss", "expert_loss"):
        if name in record:
            record[name] = [value or None for value in record[name]]
    return {"candidate_loss": record["vae_loss"]} if phase == CANDIDATES and "vae_loss" in record else record
