"""Experts, VAEs and the whole personalised predictor as ONNX, each checked with onnxruntime before it is handed out.

    expert-j.onnx      x → logits (B, classes)
    vae-j.onnx         x → loss (B,) nats, latent (B, L), reconstruction (B, …)
    router.onnx        x → logits (B, M), where the run has a router
    predictor.onnx     x [, alpha (M,)] → probabilities (B, classes), responsibilities (B, M)

The legacy exporter is used: it needs no package beside torch and onnx. What torch computes and what onnxruntime
computes from the file must agree on samples drawn from the VAEs, in a batch of another size than the traced one.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgmi_fedml import atomic
from fedgmi_fedml.affinity import PROPORTION_FLOOR, router_term
from fedgmi_fedml.errors import DeliveryError

if TYPE_CHECKING:
    from fedgmi_fedml.deliver import Delivery

__all__ = ["TOLERANCE", "export_onnx"]

TOLERANCE = 1e-4
"""Largest difference from torch in a probability, a logit or a nat. Losses of more than ten nats may differ by
``_RELATIVE`` of their size: float32 holds no more."""
_RELATIVE = 1e-5
_OPSET = 17


class _Expert(nn.Module):
    def __init__(self, expert: nn.Module) -> None:
        super().__init__()
        self.expert = expert

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.expert(x)
        return logits


class _Score(nn.Module):
    """ℓ as ``affinity.scores`` computes it with the latent at its posterior mean, without its loop over batches."""

    def __init__(self, vae: nn.Module, kind: str) -> None:
        super().__init__()
        self.vae: Any = vae
        self.kind = kind

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, logvar = self.vae.encode(x)
        decoded = self.vae.decode(mean)
        loss = self.vae.reconstruction_nll(x, decoded)
        if self.kind != "reconstruction":
            loss = loss + self.vae.kl(mean, logvar)
        to_data = getattr(self.vae, "to_data", lambda value: value)
        return loss, mean, to_data(decoded)


class _Predictor(nn.Module):
    """p_i(y|x) = Σ_j r_i^j(x) p(y|x; w_j) as one graph; everything after the losses in float64, as in ``affinity``."""

    offset: torch.Tensor
    alpha: torch.Tensor | None
    router_prior: torch.Tensor | None

    def __init__(self, delivery: Delivery, kind: str, gating: str, alpha: torch.Tensor | None) -> None:
        super().__init__()
        self.scores = nn.ModuleList(_Score(vae, kind) for vae in delivery.vaes)
        self.experts = nn.ModuleList(delivery.experts)
        self.temperature, self.gating = delivery.temperature, gating
        components = len(delivery.vaes)
        offset = torch.zeros(components, dtype=torch.float64) if delivery.offset is None else delivery.offset.double()
        self.register_buffer("offset", offset)
        self.register_buffer("alpha", alpha)
        self.router, self.weight = delivery.router, delivery.config.fedgmi_args.affinity.router_weight
        self.register_buffer("router_prior", delivery.shares)

    def forward(self, x: torch.Tensor, alpha: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        given = self.alpha if alpha is None else alpha
        if given is None:
            raise ValueError("no mixture proportions")
        given = given.double()
        lifted = (given / given.sum()).clamp_min(PROPORTION_FLOOR / len(self.scores))
        losses = torch.stack([score(x)[0] for score in self.scores], dim=1).double()
        affinity = torch.log(lifted / lifted.sum()) - (losses - self.offset) / self.temperature
        if self.router is not None:
            voices = torch.softmax(self.router(x).float(), 1)
            affinity = affinity + router_term(voices, self.router_prior, self.weight)
        shares = torch.softmax(affinity, dim=1)
        weights = shares
        if self.gating == "map":
            weights = torch.nn.functional.one_hot(affinity.argmax(1), len(self.scores)).double()
        classes = torch.stack([torch.softmax(expert(x).float(), 1) for expert in self.experts], dim=1).double()
        return (weights.unsqueeze(2) * classes).sum(1).float(), shares.float()


def _runtime() -> Any:
    """onnxruntime. Raises DeliveryError when it or onnx is not installed."""
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise DeliveryError(
            f"ONNX needs {' and '.join(missing)}: install fedgmi-fedml[onnx], or use --format safetensors"
        )
    return importlib.import_module("onnxruntime")


def _probe(delivery: Delivery) -> torch.Tensor:
    """Samples like those the models know: drawn from each VAE, within the range of the data. float32 (B, …)."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([vae.sample(8, generator) for vae in delivery.vaes])
    return drawn.clamp(0.0, 1.0) if delivery.shape.value_range == "unit" else drawn


def _to_bytes(
    module: nn.Module, args: tuple[torch.Tensor, ...], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    """One ONNX file; the first axis of everything but ``alpha`` is free. Raises DeliveryError where tracing fails."""
    buffer = io.BytesIO()
    free = {name: {0: "batch"} for name in (*inputs, *outputs) if name != "alpha"}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the legacy exporter announces its age, and constants it has folded
            torch.onnx.export(
                module.eval(), args, buffer,  # type: ignore[arg-type] # a buffer is fine for the legacy exporter
                input_names=list(inputs), output_names=list(outputs), dynamic_axes=free,
                opset_version=_OPSET, dynamo=False,
            )  # fmt: skip
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DeliveryError(f"{type(module).__name__.strip('_')}: torch cannot write it as ONNX ({reason})") from error
    return buffer.getvalue()


def _largest_difference(
    runtime: Any, data: bytes, name: str, module: nn.Module, inputs: Mapping[str, torch.Tensor], slack: float
) -> dict[str, float]:
    """Run the file and the module on the same samples; the largest difference of each output.

    Raises DeliveryError where one exceeds ``TOLERANCE``, ``_RELATIVE`` of the value, or ``slack``.
    """
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    got = session.run(None, {key: value.numpy() for key, value in inputs.items()})
    with torch.no_grad():
        expected = module(*inputs.values())
    expected = expected if isinstance(expected, tuple) else (expected,)
    found: dict[str, float] = {}
    for output, ours, theirs in zip(session.get_outputs(), expected, got, strict=True):
        reference: npt.NDArray[Any] = ours.double().numpy()
        if reference.shape != theirs.shape:
            raise DeliveryError(f"{name}: {output.name} has shape {theirs.shape}, torch gives {reference.shape}")
        difference = np.abs(reference - theirs.astype(np.float64))
        largest = float(difference.max(initial=0.0))
        if not bool((difference <= np.maximum(TOLERANCE + slack, _RELATIVE * np.abs(reference))).all()):
            raise DeliveryError(f"{name}: onnxruntime and torch differ in {output.name} by {largest:.2g}: not exported")
        found[output.name] = largest
    return found


def export_onnx(delivery: Delivery, alpha: torch.Tensor | None, gating: str) -> dict[str, bytes]:
    """All files, by name, with ``export.json`` that says what goes in and what comes out.

    Args:
        alpha: proportions that the predictor carries, float64 (M,); ``None``: they are its second input.
        gating: ``mixture`` or ``map``.

    Raises:
        DeliveryError: onnx or onnxruntime is missing, a model cannot be written, or a file computes something else.
    """
    runtime = _runtime()
    asked = delivery.config.fedgmi_args.affinity.score
    kind = "elbo" if asked == "iwae" else asked  # importance samples are random: a file cannot hold them
    x = _probe(delivery)
    files: dict[str, bytes] = {}
    checked: dict[str, dict[str, float]] = {}

    def add(
        name: str, module: nn.Module, outputs: Sequence[str], extra: torch.Tensor | None = None, slack: float = 0.0
    ) -> None:
        inputs = {"x": x} if extra is None else {"x": x, "alpha": extra}
        traced = (x[:2],) if extra is None else (x[:2], extra)
        files[name] = _to_bytes(module, traced, list(inputs), outputs)
        checked[name] = _largest_difference(runtime, files[name], name, module, inputs, slack)

    for j, (vae, expert) in enumerate(zip(delivery.vaes, delivery.experts, strict=True)):
        add(f"expert-{j}.onnx", _Expert(expert), ["logits"])
        add(f"vae-{j}.onnx", _Score(vae, kind), ["loss", "latent", "reconstruction"])
    if delivery.router is not None:
        add("router.onnx", _Expert(delivery.router), ["logits"])
    predictor = _Predictor(delivery, kind, gating, alpha)
    # A softmax moves by at most half of what its argument moves: an error of the losses is allowed to show.
    slack = 0.5 * max(checked[f"vae-{j}.onnx"]["loss"] for j in range(len(delivery.vaes))) / delivery.temperature
    if delivery.router is not None:
        slack += checked["router.onnx"]["logits"] * predictor.weight
    uniform = torch.full((len(delivery.vaes),), 1.0 / len(delivery.vaes))
    add("predictor.onnx", predictor, ["probabilities", "responsibilities"], uniform if alpha is None else None, slack)
    files["export.json"] = atomic.json_bytes(_about(delivery, alpha, gating, kind, checked))
    return files


def _about(
    delivery: Delivery, alpha: torch.Tensor | None, gating: str, kind: str, checked: Mapping[str, dict[str, float]]
) -> dict[str, Any]:
    """What a user of the files must know."""
    asked = delivery.config.fedgmi_args.affinity.score
    return {
        "format": "onnx",
        "which": delivery.which,
        "opset": _OPSET,
        "input": {"name": "x", "dtype": "float32", "shape": ["batch", *delivery.shape.input_shape]},
        "value_range": delivery.shape.value_range,
        "moments": delivery.meta.get("moments"),
        "class_names": list(delivery.class_names),
        "alpha": None if alpha is None else alpha.tolist(),
        "gating": gating,
        "score": kind,
        "note": None if kind == asked else f"the run scored with {asked}, which is random; the files score with {kind}",
        "config_digest": delivery.meta.get("config_digest"),
        "largest_difference_from_torch": checked,
    }
