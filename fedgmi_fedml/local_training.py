"""One silo's gradient steps: a VAE or an expert on (a part of) the local data, for E epochs, optimiser fresh each time.

Modules are reused: a state goes in, the trained state comes out, and nothing of the call stays behind in the module
that another call could notice. The loop has no DataLoader and no Python work per sample: one permutation an epoch, one
gather, one forward and backward pass and one fused optimiser step a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models import State, Vae, export_state, load_state

__all__ = [
    "ExpertStats",
    "Objective",
    "TrainSettings",
    "expert_predictions",
    "pick_device",
    "train_expert",
    "train_vae",
]

Objective = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(logits (b, classes), labels (b,), positions of the batch in ``x`` (b,)) → mean loss of the batch."""

OPTIMISERS = ("adam", "sgd")
_SGD_MOMENTUM = 0.9


@dataclass(frozen=True)
class TrainSettings:
    """How one call trains.

    Attributes:
        epochs: passes over the part. batch_size: samples a step. optimizer: ``adam`` or ``sgd`` (momentum 0.9).
        learning_rate, weight_decay: of the optimiser, per step.
        grad_clip: largest gradient norm, or ``None`` for no limit.
        mixed_precision: forward and backward in bfloat16, parameters in float32.
    """

    epochs: int = 1
    batch_size: int = 50
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    grad_clip: float | None = None
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMISERS:
            raise ModelError(f"optimiser must be one of {', '.join(OPTIMISERS)}, not {self.optimizer!r}")
        if self.epochs < 0 or self.batch_size < 1 or self.learning_rate <= 0:
            raise ModelError("epochs must be ≥ 0, batch_size ≥ 1 and learning_rate > 0")

    @classmethod
    def for_expert(cls, config: Any, epochs: int | None = None) -> TrainSettings:
        """The settings of ``config.train_args`` for experts; ``epochs`` overrides the local epochs."""
        args = config.train_args
        return cls(
            epochs=args.epochs if epochs is None else epochs,
            batch_size=args.batch_size,
            optimizer=args.client_optimizer,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            mixed_precision=args.mixed_precision,
        )

    @classmethod
    def for_vae(cls, config: Any, epochs: int | None = None) -> TrainSettings:
        """The settings of ``config.train_args`` for VAEs: their own step size, no weight decay."""
        rate = config.train_args.vae_learning_rate or config.train_args.learning_rate
        return replace(cls.for_expert(config, epochs), learning_rate=rate, weight_decay=0.0)


@dataclass(frozen=True)
class ExpertStats:
    """Mean cross-entropy (nats) and accuracy over the last epoch, measured while training. Zero for an empty part."""

    loss: float = 0.0
    accuracy: float = 0.0


def pick_device(name: str) -> torch.device:
    """``auto`` (CUDA where there is one), ``cpu``, ``cuda`` or ``cuda:i``. Raises ModelError where it is missing."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device_args.device: {name!r} is none of auto, cpu, cuda, cuda:0 …") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device_args.device: {name} is not there ({torch.cuda.device_count()} CUDA devices found)")
    return device


def _optimiser(parameters: list[nn.Parameter], settings: TrainSettings) -> torch.optim.Optimizer:
    """A fresh optimiser. The fused kernels update all tensors in one call (a quarter of an MLP VAE's step on a CPU)."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=_SGD_MOMENTUM, weight_decay=decay, fused=True)
    return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=True)


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def _rows(x: torch.Tensor, index: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """The rows to train on, int64 on the device."""
    return (torch.arange(len(x)) if index is None else index).to(device)


def _batches(rows: torch.Tensor, size: int, merge_single: bool, generator: torch.Generator) -> list[torch.Tensor]:
    """One epoch's index tensors, in random order. With ``merge_single`` a last batch of one joins the one before."""
    order = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
    batches = list(order.split(size))
    if merge_single and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _train(
    module: nn.Module,
    rows: torch.Tensor,
    settings: TrainSettings,
    generator: torch.Generator,
    step_loss: Callable[[torch.Tensor], torch.Tensor],
    what: str,
) -> float:
    """Runs the epochs; ``step_loss`` maps a batch of rows to its mean loss. Returns the last epoch's mean loss."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimiser = _optimiser(parameters, settings)
    norms = _batch_norms(module)
    module.train()
    if len(rows) == 1:  # a batch of one has no variance to normalise with: use the running statistics, as they are
        for layer in norms:
            layer.eval()
    mean = 0.0
    for _ in range(settings.epochs):
        batches = _batches(rows, settings.batch_size, bool(norms), generator)
        losses = [_step(parameters, optimiser, settings, step_loss, batch) for batch in batches]
        sizes = torch.tensor([len(batch) for batch in batches], dtype=torch.float64)
        mean = float(torch.stack(losses).double().cpu() @ sizes) / len(rows)
        _check_finite(parameters, mean, what)
    return mean


def _step(
    parameters: list[nn.Parameter],
    optimiser: torch.optim.Optimizer,
    settings: TrainSettings,
    step_loss: Callable[[torch.Tensor], torch.Tensor],
    batch: torch.Tensor,
) -> torch.Tensor:
    """One gradient step; returns the batch's loss, still on the device, so that nothing waits for it."""
    with torch.autocast(batch.device.type, torch.bfloat16) if settings.mixed_precision else nullcontext():
        loss = step_loss(batch)
    for parameter in parameters:  # what zero_grad does, without its hooks
        parameter.grad = None
    loss.backward()
    if settings.grad_clip is not None:
        nn.utils.clip_grad_norm_(parameters, settings.grad_clip)
    optimiser.step()
    return loss.detach()


def _check_finite(parameters: list[nn.Parameter], loss: float, what: str) -> None:
    """Raises ModelError when the loss or a parameter is not finite. The message holds no figure of the silo."""
    # NaN and infinity survive a sum, which takes one pass where isfinite().all() takes three.
    if not math.isfinite(loss) or not all(math.isfinite(parameter.detach().sum()) for parameter in parameters):
        raise ModelError(f"training diverged ({what}): use a smaller learning rate, or scale the data")


def train_vae(
    vae: Vae,
    state: Mapping[str, torch.Tensor],
    x: torch.Tensor,
    settings: TrainSettings,
    generator: torch.Generator,
    *,
    index: torch.Tensor | None = None,
    what: str = "VAE",
) -> tuple[State, float]:
    """Trains from ``state`` by the negative ELBO, on all of ``x`` or the samples that ``index`` names.

    Args:
        vae: the module to train in; its own weights are overwritten.
        state: starting point, never modified.
        x: float32 (n, *input_shape), within the likelihood's range (checked by the caller, once per data set).
        generator: CPU generator; permutations and reparametrisation noise come from it alone.
        index: int64 positions in ``x``, or ``None`` for all. Empty: the state is returned unchanged, loss 0.
        what: phase and component for the error message.

    Returns (new state, mean negative ELBO of the last epoch, nats a sample). Raises ModelError when training diverges.
    """
    load_state(vae, state)
    device = next(vae.parameters()).device
    rows = _rows(x, index, device)
    if len(rows) == 0 or settings.epochs == 0:
        return export_state(vae), 0.0
    x = x.to(device)
    loss = _train(vae, rows, settings, generator, lambda batch: vae.training_loss(x[batch], generator).mean(), what)
    return export_state(vae), loss


def train_expert(
    expert: nn.Module,
    state: Mapping[str, torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    settings: TrainSettings,
    generator: torch.Generator,
    *,
    index: torch.Tensor | None = None,
    what: str = "expert",
    objective: Objective | None = None,
) -> tuple[State, ExpertStats]:
    """Trains from ``state`` by cross-entropy; arguments as in ``train_vae``, ``y`` int64 (n,) class numbers.

    ``objective`` takes the place of the mean cross-entropy: weighted samples, a term that pulls at the weights.

    A last batch of one sample joins the batch before where the expert has BatchNorm; a part of one sample is trained
    with the running statistics.
    """
    load_state(expert, state)
    device = next(expert.parameters()).device
    rows = _rows(x, index, device)
    if len(rows) == 0 or settings.epochs == 0:
        return export_state(expert), ExpertStats()
    x, y = x.to(device), y.to(device)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step_loss(batch: torch.Tensor) -> torch.Tensor:
        logits, target = expert(x[batch]), y[batch]
        seen.append((logits.detach(), target))
        return functional.cross_entropy(logits, target) if objective is None else objective(logits, target, batch)

    loss = _train(expert, rows, settings, generator, step_loss, what)
    last = seen[-(len(seen) // settings.epochs) :]
    right = torch.cat([logits for logits, _ in last]).argmax(1) == torch.cat([target for _, target in last])
    return export_state(expert), ExpertStats(loss, float(right.double().mean()))


def expert_predictions(
    expert: nn.Module, state: Mapping[str, torch.Tensor] | None, x: torch.Tensor, batch: int = 500
) -> torch.Tensor:
    """Class probabilities of one expert, float32 (B, classes) on the CPU; ``state`` is loaded first where given."""
    if state is not None:
        load_state(expert, state)
    device = next(expert.parameters()).device
    expert.eval()
    with torch.no_grad():
        starts = range(0, max(len(x), 1), batch)
        parts = [torch.softmax(expert(x[at : at + batch].to(device)).float(), 1).cpu() for at in starts]
        return torch.cat(parts)
