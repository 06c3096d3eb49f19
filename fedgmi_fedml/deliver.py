"""What a finished run is for: personalised predictions for new samples, and the models for use elsewhere.

    predict(run, "new.npz", silo="clinic-3")     that silo's mixture proportions
    predict(run, "new.npz")                      proportions from the new samples themselves: a silo that never trained

Nothing is trained here, and labels never enter: the proportions of an unknown silo come from a few EM passes over
unlabelled samples with the models fixed (algorithm.md, "Personalised prediction").
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedgmi_fedml import atomic
from fedgmi_fedml.affinity import (
    Evidence,
    affinities,
    em_proportions,
    log_proportions,
    responsibilities,
    router_term,
    score_matrix,
)
from fedgmi_fedml.checkpoint import StateDict, load_models
from fedgmi_fedml.config import Config, load_config
from fedgmi_fedml.data import Samples, TableMoments, load_samples
from fedgmi_fedml.errors import CheckpointError, DeliveryError
from fedgmi_fedml.local_training import expert_predictions
from fedgmi_fedml.models import Vae, build_expert, build_router, build_vae, load_state
from fedgmi_fedml.onnx_export import export_onnx
from fedgmi_fedml.personalise import GATINGS, expert_probabilities, gate_weights, mix
from fedgmi_fedml.prediction import Prediction
from fedgmi_fedml.shapes import DataShape

__all__ = ["FORMATS", "WHICH", "Delivery", "Prediction", "export", "load_run", "predict"]

WHICH = ("best", "final")
FORMATS = ("safetensors", "onnx")
_SEED = 0x5EED  # importance samples of the iwae score: the same file gives the same prediction


@dataclass(frozen=True)
class Delivery:
    """A finished run's models, ready to score and predict.

    Attributes:
        run_dir, which: where they come from; ``best`` or ``final``.
        temperature, offset: of the affinity; offset (M,) nats or ``None``.
        moments: of a table's columns, ``None`` for images.
        meta: the manifest's.
        router, shares: the classifier of samples into components and the prior it was trained under, (M,); or ``None``.
    """

    run_dir: Path
    which: str
    config: Config
    shape: DataShape
    class_names: tuple[str, ...]
    vaes: tuple[Vae, ...]
    experts: tuple[nn.Module, ...]
    temperature: float
    offset: torch.Tensor | None
    moments: TableMoments | None
    meta: Mapping[str, Any]
    router: nn.Module | None = None
    shares: torch.Tensor | None = None

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """ℓ of every sample under every VAE, (B, M) nats. Raises RangeError for values outside the likelihood."""
        self.vaes[0].check_range(x)
        settings = self.config.fedgmi_args.affinity
        generator = torch.Generator().manual_seed(_SEED) if settings.score == "iwae" else None
        return score_matrix(self.vaes, x, settings.score, generator=generator, samples=settings.iwae_samples)

    def evidence(self, x: torch.Tensor) -> Evidence:
        """Losses and, where the run has a router, its term. Raises RangeError as ``scores`` does."""
        losses = self.scores(x)
        if self.router is None:
            return Evidence(losses)
        voices, weight = expert_predictions(self.router, None, x), self.config.fedgmi_args.affinity.router_weight
        return Evidence(losses, router_term(voices, self.shares, weight))

    def affinities(self, evidence: Evidence, alpha: torch.Tensor) -> torch.Tensor:
        """a_j(x), (B, M) nats, for a silo with proportions ``alpha``."""
        return affinities(evidence.losses, log_proportions(alpha), self.temperature, self.offset, evidence.extra)

    def proportions(self, evidence: Evidence, passes: int) -> torch.Tensor:
        """α of unlabelled samples, (M,), by EM with the models fixed."""
        return em_proportions(evidence.losses, passes, self.temperature, self.offset, extra=evidence.extra)


def load_run(run_dir: Path, which: str = "best") -> Delivery:
    """Build a finished run's models from ``config.yaml`` and ``models/{best,final}``.

    Raises:
        CheckpointError: files are missing or damaged. DeliveryError: ``which`` is neither, or the models lack what
        prediction needs. ConfigError, ModelError: the configuration no longer fits the models.
    """
    run_dir = Path(run_dir)
    if which not in WHICH:
        raise DeliveryError(f"--which must be best or final, not {which!r}")
    if not (run_dir / "config.yaml").is_file():
        raise CheckpointError(f"{run_dir} is no run's folder: it holds no config.yaml.")
    config = load_config(run_dir / "config.yaml")
    states, meta = load_models(run_dir / "models" / which)
    shape = DataShape(tuple(meta["input_shape"]), len(meta["class_names"]), meta["value_range"])
    seed = config.common_args.random_seed
    vaes, experts = [], []
    for j in range(config.fedgmi_args.components):
        vaes.append(_filled(build_vae(config, shape, seed), states, f"vae-{j}", run_dir))
        experts.append(_filled(build_expert(config, shape, seed), states, f"expert-{j}", run_dir))
    router = None
    if config.fedgmi_args.affinity.router and config.fedgmi_args.components > 1:
        router = _filled(build_router(config, shape, seed), states, "router-0", run_dir)
    temperature, offset = _calibration(config, meta, run_dir / "models" / which)
    moments = TableMoments.from_dict(meta["moments"]) if meta.get("moments") else None
    return Delivery(
        run_dir, which, config, shape, tuple(meta["class_names"]), tuple(vaes), tuple(experts),
        temperature, offset, moments, meta, router, _shares(meta),
    )  # fmt: skip


def _shares(meta: Mapping[str, Any]) -> torch.Tensor | None:
    """The router's prior as it was kept with the models."""
    kept = meta.get("shares")
    return None if kept is None else torch.tensor(kept, dtype=torch.float64)


def _filled(module: Any, states: Mapping[str, StateDict], name: str, run_dir: Path) -> Any:
    if name not in states:
        raise CheckpointError(
            f"{run_dir} holds no model {name}: its configuration and its models do not belong together."
        )
    load_state(module, states[name])
    return module.eval()


def _calibration(config: Config, meta: Mapping[str, Any], place: Path) -> tuple[float, torch.Tensor | None]:
    """Temperature and offset of the affinity: fitted ones are kept with the models."""
    settings = config.fedgmi_args.affinity
    temperature = meta.get("temperature", settings.temperature)
    offset = meta.get("offset")
    if not isinstance(temperature, (int, float)) or (settings.offset and offset is None):
        missing = "offset" if isinstance(temperature, (int, float)) else "temperature"
        raise DeliveryError(f"{place}: the run fitted the affinity's {missing}, but it was not kept with the models.")
    return float(temperature), torch.tensor(offset, dtype=torch.float64) if settings.offset else None


def predict(
    run_dir: Path,
    input_path: Path,
    *,
    silo: str | None = None,
    proportions_from: Path | None = None,
    gating: str = "mixture",
    which: str = "best",
    output: Path | None = None,
    passes: int = 20,
) -> Prediction:
    """Predict new samples with a finished run's models.

    Args:
        run_dir: the run's folder. input_path: npz, CSV, image or folder of images, as in the run's data source.
        silo: whose mixture proportions to use; ``None``: they are estimated, without training or labels, from
            ``proportions_from`` (default: the samples to predict).
        gating: ``mixture`` or ``map``. which: ``best`` or ``final`` models.
        output: where to write the predictions (.csv or .npz); ``None``: nowhere.
        passes: EM passes of the estimate.

    Raises FedgmiError with one clear message; nothing is written then.
    """
    if gating not in GATINGS:
        raise DeliveryError(f"--gating must be one of {', '.join(GATINGS)}, not {gating!r}")
    if silo is not None and proportions_from is not None:
        raise DeliveryError("proportions come either from a silo or from a file, not from both")
    delivery = load_run(run_dir, which)
    samples = _read(delivery, input_path)
    evidence = delivery.evidence(samples.x)
    if silo is not None:
        alpha, source = silo_proportions(delivery, silo), f"silo {silo}"
    else:
        own = evidence if proportions_from is None else delivery.evidence(_read(delivery, proportions_from).x)
        alpha = delivery.proportions(own, passes)
        source = f"estimated from {len(own.losses)} unlabelled samples"
    prediction = _predict(delivery, samples, evidence, alpha, source, gating)
    if output is not None:
        prediction.save(output)
    return prediction


def _read(delivery: Delivery, path: Path) -> Samples:
    samples = load_samples(delivery.config, path, delivery.shape, delivery.class_names, delivery.moments)
    if not len(samples.x):
        raise DeliveryError(f"{path} holds no sample")
    return samples


def _predict(
    delivery: Delivery, samples: Samples, evidence: Evidence, alpha: torch.Tensor, source: str, gating: str
) -> Prediction:
    aff = delivery.affinities(evidence, alpha)
    mixed = mix(gate_weights(aff, gating), expert_probabilities(delivery.experts, samples.x))
    return Prediction(
        samples.names,
        delivery.class_names,
        mixed.numpy(),
        responsibilities(aff).numpy(),
        torch.as_tensor(alpha, dtype=torch.float64).numpy(),
        source,
        None if samples.y is None else samples.y.numpy(),
        samples.skipped,
    )


def silo_proportions(delivery: Delivery, silo: str) -> torch.Tensor:
    """A silo's mixture proportions under these models, float64 (M,), as the run kept them.

    Raises DeliveryError naming the silos there are, or what is wrong with the file.
    """
    known = {path.stem: path for path in sorted((delivery.run_dir / "silos").glob("*.json"))}
    if silo not in known:
        close = difflib.get_close_matches(silo, known, 3) or sorted(known)[:5]
        hint = f"did you mean {' or '.join(close)}?" if close else "the run kept no silo's proportions."
        raise DeliveryError(
            f"{delivery.run_dir}: no silo is called {silo!r}; {hint} Without a silo, proportions are estimated."
        )
    try:
        kept = json.loads(known[silo].read_bytes())
        alpha = [float(value) for value in kept.get(delivery.which, kept)["alpha"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeliveryError(
            f"{known[silo]} holds no mixture proportions: restore it, or predict without a silo."
        ) from error
    components = len(delivery.vaes)
    if len(alpha) != components or not all(map(math.isfinite, alpha)) or min(alpha) < 0 or sum(alpha) <= 0:
        raise DeliveryError(f"{known[silo]}: mixture proportions must be {components} finite, non-negative numbers.")
    return torch.tensor(alpha, dtype=torch.float64) / sum(alpha)


def export(
    run_dir: Path,
    out: Path,
    *,
    format: str = "safetensors",
    which: str = "best",
    silo: str | None = None,
    gating: str = "mixture",
) -> list[Path]:
    """Write a finished run's models to the new folder ``out`` for use elsewhere; returns the files.

    Args:
        format: ``safetensors`` (state dicts and manifest) or ``onnx`` (experts, VAEs and the whole personalised
            predictor, checked with onnxruntime against the models themselves).
        silo: whose proportions the predictor carries; ``None``: it takes them as a second input.

    Raises:
        FedgmiError: one clear message; nothing is written.
    """
    if format not in FORMATS:
        raise DeliveryError(f"--format must be one of {', '.join(FORMATS)}, not {format!r}")
    if gating not in GATINGS:
        raise DeliveryError(f"--gating must be one of {', '.join(GATINGS)}, not {gating!r}")
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DeliveryError(f"{out} is there already: choose a new folder")
    delivery = load_run(run_dir, which)
    alpha = None if silo is None else silo_proportions(delivery, silo)
    files = export_onnx(delivery, alpha, gating) if format == "onnx" else _safetensors(delivery, alpha)
    if silo is not None:
        files["export.json"] = atomic.json_bytes({**json.loads(files["export.json"]), "silo": silo})
    try:
        atomic.replace_folder(out, files, last="export.json")
    except OSError as error:
        raise DeliveryError(f"{out} cannot be written: {error.strerror or error}") from error
    return [out / name for name in files]


def _safetensors(delivery: Delivery, alpha: torch.Tensor | None) -> dict[str, bytes]:
    """The saved files as they are (their digests were checked on loading), the configuration, and what to know."""
    place = delivery.run_dir / "models" / delivery.which
    files = {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}
    files["config.yaml"] = delivery.config.to_yaml().encode()
    about = {"format": "safetensors", "which": delivery.which, "meta": dict(delivery.meta)}
    files["export.json"] = atomic.json_bytes({**about, "alpha": None if alpha is None else alpha.tolist()})
    return files
