"""``summary.json``: the figures of one run, as a model that the run fills and everything else reads.

What is not known is ``null``. Numbers are finite: NaN and infinity become ``null`` when the model is made. Each field
says who may hold it: the server's file never has a figure that the promise of ``secure`` does not allow it.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedgmi_fedml import atomic
from fedgmi_fedml.errors import CheckpointError

__all__ = ["Audience", "RulesSummary", "RunSummary", "SecureSummary", "current_versions", "load_summary"]

Audience = Literal["server", "silo", "simulation"]
"""Who reads: ``server`` is anything that leaves a silo or that the server holds; ``silo`` a silo's own disk;
``simulation`` one machine that plays all parties and knows the truth."""


def _finite(value: Any) -> Any:
    """NaN and infinity to ``None``, NumPy and torch scalars and arrays to plain numbers and lists, at any depth."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


Number = Annotated[float | None, BeforeValidator(_finite)]
Count = Annotated[int | None, BeforeValidator(_finite)]
Matrix = Annotated[list[list[float | None]] | None, BeforeValidator(_finite)]
ByName = Annotated[dict[str, float | None], BeforeValidator(_finite)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class RulesSummary(_Strict):
    """The rules in force (``secure.types.Rules``)."""

    colluders: int
    max_drops: int
    min_contributors: int
    min_samples: int
    w_max: float
    verified_sums: bool = False


class SecureSummary(_Strict):
    """The protection that was actually in force.

    ``gate`` is the number of holders that opens a component; ``threshold`` t of the secret sharing; ``quorum`` q of
    the consistency step; ``cohort_size`` K; ``clip`` in the unit of the parameters; ``clipped_share`` the largest
    share of clipped coordinates of any round; ``roster`` a fingerprint that can be read aloud.
    """

    backend: Literal["none", "masked", "homomorphic"] | None = None
    upload_bytes_per_parameter: Number = None
    parameters: Count = None
    frozen_components: list[int] = Field(default_factory=list)
    rules: RulesSummary | None = None
    gate: Count = None
    threshold: Count = None
    quorum: Count = None
    cohort_size: Count = None
    clip: Number = None
    clipped_share: Number = None
    roster: str | None = None
    sessions: Count = None
    aborted_sessions: Count = None
    dropped_silos: Count = None
    partial_rounds: Count = None


_OWN = (
    "expert_accuracy", "specialisation_gap", "effective_components", "misassignment_rate", "samples_used",
    "samples_skipped",
)  # fmt: skip
_TRUTH = ("alpha_mae", "partition_accuracy", "oracle_accuracy")
_HIDDEN: dict[Audience, tuple[str, ...]] = {"server": _OWN + _TRUTH, "silo": _TRUTH, "simulation": ()}


class RunSummary(_Strict):
    """One run in figures. Accuracies and shares are fractions in [0, 1]; times are seconds; sizes are bytes.

    Attributes:
        alpha_mae: mean absolute error of the mixture proportions after the best matching of components.
        partition_accuracy: share of samples put into their true component, after the same matching.
        expert_accuracy: expert (row) × component (column), test accuracy; components are the true ones in a
            simulation, the silo's own parts on a silo.
        specialisation_gap: mean matched minus mean mismatched entry of ``expert_accuracy``.
        personalised_accuracy: mean over silos of each silo's own test accuracy.
        pooled_accuracy: accuracy over all silos' test samples together, by method (``fedgmi``, ``fedavg``, …).
        oracle_accuracy: pooled accuracy of experts trained on the true components.
        effective_components: exp of the entropy of the pooled proportions.
        rounds: sample-level rounds done; ``best_round`` the one whose models are kept as ``best``.
        phase_seconds, phase_bytes: by phase; bytes are uploads plus downloads of all silos.
        warnings: in words a user can act on.
    """

    view: Audience = "simulation"
    silo: str | None = None
    run_name: str | None = None
    dataset: str | None = None
    status: Literal["finished", "stopped_early", "interrupted", "failed"] = "finished"
    components: Count = None
    silos: Count = None
    alpha_mae: Number = None
    partition_accuracy: Number = None
    expert_accuracy: Matrix = None
    specialisation_gap: Number = None
    personalised_accuracy: Number = None
    pooled_accuracy: ByName = Field(default_factory=dict)
    oracle_accuracy: Number = None
    effective_components: Number = None
    misassignment_rate: Number = None
    samples_used: Count = None
    samples_skipped: Count = None
    rounds: Count = None
    best_round: Count = None
    wall_seconds: Number = None
    phase_seconds: ByName = Field(default_factory=dict)
    phase_bytes: ByName = Field(default_factory=dict)
    secure: SecureSummary = Field(default_factory=SecureSummary)
    seed: Count = None
    versions: dict[str, str] = Field(default_factory=dict)
    config_digest: str | None = None
    model_digests: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)

    def for_audience(self, audience: Audience) -> RunSummary:
        """A copy without the figures that ``audience`` must not hold. A server never learns the pooled accuracy of
        an oracle either: it needs the true components."""
        hidden: dict[str, Any] = dict.fromkeys(_HIDDEN[audience])
        if audience != "simulation":
            hidden["pooled_accuracy"] = {k: v for k, v in self.pooled_accuracy.items() if k != "oracle"}
        return self.model_copy(update={**hidden, "view": audience})

    def save(self, run_dir: Path) -> Path:
        """Write ``run_dir/summary.json`` atomically, for its own ``view`` only. Returns the path."""
        path = Path(run_dir) / "summary.json"
        atomic.write_json(path, self.for_audience(self.view).model_dump(mode="json"))
        return path


def load_summary(run_dir: Path) -> RunSummary:
    """Read ``run_dir/summary.json``. Raises CheckpointError that names the file and what to do."""
    path = Path(run_dir) / "summary.json"
    try:
        return RunSummary.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist: the run has not ended yet (resume it with --resume).") from None
    except (OSError, ValidationError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise CheckpointError(f"{path} cannot be read ({reason}): restore it or repeat the run.") from error


def current_versions() -> dict[str, str]:
    """Versions of what computes, by package; what is not installed is left out. Imports none of them."""
    packages = ("fedgmi-fedml", "torch", "torchvision", "numpy", "scikit-learn", "cryptography", "fedml", "tenseal")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
