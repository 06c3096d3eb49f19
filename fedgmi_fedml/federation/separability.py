"""How far apart the components are while a run is under way, for the status page: worked out by the server alone.

The estimate decodes and scores samples, so it takes no more than a small share of the run's time: on a slow machine or
with large VAEs it is made in fewer rounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch

from fedgmi_fedml.initialisation import symmetric_kl_matrix
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.models import VaeBank, build_vae
from fedgmi_fedml.rounds.phases import Phases, derive_seed

__all__ = ["Separability"]

log = logging.getLogger(__name__)

SHARE = 0.02
"""Largest part of the run's time that this may take, beyond ``FREE`` seconds."""
FREE = 0.5


class Separability:
    """Figures of the models that the server holds anyway.

    Args:
        phases: the run's.
        clock: seconds, monotonic.
    """

    def __init__(self, phases: Phases, clock: Callable[[], float] = time.monotonic) -> None:
        self._phases, self._clock = phases, clock
        self._began, self._spent, self._failed = clock(), 0.0, False

    def figures(self, state: MixtureState) -> dict[str, Any]:
        """``separability`` of the state's VAEs, nats; nothing without two of them, without time, or after an error."""
        start = self._clock()
        if len(state.vaes) < 2 or self._failed or self._spent > FREE + SHARE * (start - self._began):
            return {}
        try:
            return {"separability": self._matrix(state).tolist()}
        except Exception as error:  # a picture on a page must never cost a run
            self._failed = True
            log.warning("the components' separability is not shown (%s)", type(error).__name__, exc_info=True)
            return {}
        finally:
            self._spent += self._clock() - start

    def _matrix(self, state: MixtureState) -> torch.Tensor:
        phases = self._phases
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # the run's own draws stay as they are
            module = build_vae(phases.config, phases.shape, phases.seed)
            generator = torch.Generator().manual_seed(derive_seed(phases.seed, "divergence"))
            samples = phases.config.fedgmi_args.initialisation.kl_samples
            return symmetric_kl_matrix(VaeBank(module, state.vaes), samples, generator)
