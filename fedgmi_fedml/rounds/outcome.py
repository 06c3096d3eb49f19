"""What a run leaves behind, as far as the server knows it: figures, protection, models, pictures, warnings.

A simulation adds what the silos and the truth know; a deployed server has no more than this. Models are written in one
form by all parties, so that ``fedgmi predict`` and ``export`` read any of their folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedgmi_fedml.checkpoint import save_models
from fedgmi_fedml.config import Config
from fedgmi_fedml.diagnostics import collapsed_posteriors, idle_components, indistinguishable_components, posterior_kl
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.models import VaeBank, build_vae
from fedgmi_fedml.rounds.fedgmi import Progress
from fedgmi_fedml.rounds.phases import Phases, derive_seed
from fedgmi_fedml.rounds.server import Traffic
from fedgmi_fedml.rounds.watch import Watch
from fedgmi_fedml.shapes import DataShape
from fedgmi_fedml.summary import RulesSummary, RunSummary, SecureSummary, current_versions
from secure.gate import feasibility
from secure.identity import fingerprint
from secure.roster import Roster
from secure.types import Rules

_DECODED = 24


@dataclass(frozen=True)
class RunEnd:
    """A run's end, seen from the server.

    Attributes:
        phases: the run's, with its configuration.
        silos: how many there are.
        progress: with final and best models.
        watch: what was seen on the way.
        traffic: bytes and messages by phase.
        roster: ``None`` with back-end ``none``.
    """

    phases: Phases
    silos: int
    progress: Progress
    watch: Watch
    traffic: Mapping[str, Traffic]
    roster: Roster | None = None

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return self.phases.config

    @property
    def final(self) -> MixtureState:
        """The models after the last whole step."""
        return self.progress.state

    @property
    def best(self) -> MixtureState:
        """The best models by validation accuracy; the final ones where none was measured."""
        return self.progress.best or self.progress.state

    @cached_property
    def separability(self) -> torch.Tensor | None:
        """Symmetric KL divergence of every two VAEs, (M, M) nats."""
        return torch.tensor(self.progress.separability) if self.progress.separability else None

    def summary(self, seconds: float, **figures: Any) -> RunSummary:
        """The figures that the server may know, and those in ``figures``. No warnings yet."""
        config, watch = self.config, self.watch
        spent: dict[str, float | None] = {**watch.phase_bytes}
        for phase, traffic in self.traffic.items():
            spent[phase] = watch.phase_bytes.get(phase, 0.0) + traffic.up + traffic.down
        return RunSummary(
            run_name=config.common_args.run_name,
            dataset=config.data_args.dataset,
            components=config.fedgmi_args.components,
            silos=self.silos,
            rounds=self.progress.round,
            best_round=self.progress.best_round,
            wall_seconds=seconds,
            phase_seconds=dict(watch.phase_seconds),
            phase_bytes=spent,
            seed=config.common_args.random_seed,
            versions=current_versions(),
            config_digest=config.digest(),
            model_digests={"final": self.final.digest.hex(), "best": self.best.digest.hex()},
            secure=self.protection(),
            **figures,
        )

    def protection(self) -> SecureSummary:
        """The protection that was in force, with what the server saw of it."""
        watch, found = self.watch, protection_in_force(self.phases, self.roster)
        k = min(self.config.train_args.client_num_per_round, self.silos)
        limits = feasibility(k) if found.backend != "none" else None
        history = watch.history[-1] if watch.history else []
        seen = {
            "upload_bytes_per_parameter": self._bytes_per_parameter(),
            "frozen_components": [j for j, is_open in enumerate(history) if not is_open],
            "threshold": limits.threshold if limits else None,
            "quorum": limits.quorum if limits else None,
            "cohort_size": k,
            "clipped_share": watch.clipped_share,
            "sessions": watch.sessions,
            "aborted_sessions": watch.aborted,
            "dropped_silos": len(watch.dropped),
            "partial_rounds": watch.partial,
        }
        return SecureSummary(**found.model_dump() | seen)

    def _bytes_per_parameter(self) -> float | None:
        """Bytes that silos uploaded in the sample-level rounds, by parameter and uploading silo."""
        traffic, parameters = self.traffic.get("rounds"), self.phases.layout("rounds").length
        if traffic is None or not self.watch.uploads or not parameters:
            return None
        return traffic.up / (self.watch.uploads * parameters)

    def model_warnings(self) -> list[str]:
        """What is odd about the components, in words a user can act on."""
        findings = list(idle_components(self.watch.history))
        if self.separability is not None:
            findings += indistinguishable_components(self.separability)
        if self.final.vaes:
            seed = self.config.common_args.random_seed
            module = build_vae(self.config, self.phases.shape, seed)
            generator = torch.Generator().manual_seed(derive_seed(seed, "posterior"))
            findings += collapsed_posteriors(posterior_kl(VaeBank(module, self.final.vaes), generator=generator))
        return [finding.text for finding in findings]

    def protocol_warnings(self) -> list[str]:
        """What is odd about the rounds and their protection."""
        watch, texts = self.watch, []
        if watch.clipped_share > 0.01:
            texts.append(
                f"up to {watch.clipped_share:.0%} of the coordinates were clipped: raise fedgmi_args.secure.clip"
            )
        if watch.partial:
            texts.append(f"{watch.partial} rounds were partial: silos dropped out of them")
        if self.config.fedgmi_args.secure.backend == "none":
            texts.append("secure aggregation was off (backend: none): the server saw every silo's update")
        return texts

    def save_models(self, out: Path, class_names: tuple[str, ...], calibration: Mapping[str, Any]) -> None:
        """``models/best`` and ``models/final``; ``calibration`` is what only silos know, for predictions."""
        rounds = {"best": self.progress.best_round, "final": self.progress.round - 1}
        for which, state in (("best", self.best), ("final", self.final)):
            save_run_models(
                out, which, state, self.config, self.phases.shape, class_names, calibration, rounds[which]
            )  # fmt: skip


def protection_in_force(phases: Phases, roster: Roster | None) -> SecureSummary:
    """What the configuration and the roster say of it: all that a silo knows."""
    secure = phases.config.fedgmi_args.secure
    rules = secure.rules.model_dump()
    return SecureSummary(
        backend=secure.backend,
        parameters=phases.layout("rounds").length,
        rules=RulesSummary(**rules),
        gate=Rules(**rules).gate(),
        clip=secure.clip,
        roster=fingerprint(roster.digest()) if roster else None,
    )


def save_run_models(
    out: Path, which: str, state: MixtureState, config: Config, shape: DataShape, class_names: tuple[str, ...],
    calibration: Mapping[str, Any], number: int | None,
) -> None:  # fmt: skip
    """``out/models/<which>``: safetensors with a manifest that says how to build the modules.

    Args:
        calibration: temperature, offset, shares, moments, where the run fitted them.
        number: the round that ended in these models, where known.
    """
    meta = {
        **calibration,
        "config_digest": config.digest(),
        "class_names": list(class_names),
        "input_shape": list(shape.input_shape),
        "value_range": shape.value_range,
        "components": config.fedgmi_args.components,
        "round": number,
        "digest": state.digest.hex(),
    }
    models = {f"{part}-{j}": model for part, found in state.parts().items() for j, model in enumerate(found)}
    save_models(out / "models" / which, models, meta)


def decoded_samples(config: Config, shape: DataShape, state: MixtureState) -> npt.NDArray[Any] | None:
    """Decoded samples of every component, (M, S, …), for the report; ``None`` without VAEs."""
    if not state.vaes:
        return None
    module = build_vae(config, shape, config.common_args.random_seed)
    generator = torch.Generator().manual_seed(derive_seed(config.common_args.random_seed, "decoded"))
    return np.stack([vae.sample(_DECODED, generator).numpy() for vae in VaeBank(module, state.vaes)])
