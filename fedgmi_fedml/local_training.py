"""One silo's gradient steps: a VAE or an expert on (a part of) the local data, for E epochs, optimiser fresh each time.

Modules are reused: a state goes in, the trained state comes out, and nothing of the call stays behind in the module
that another call could notice. The loop has no DataLoader and no Python work per sample: one permutation an epoch, one
gather, one forward and backward pass and one fused optimiser step a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models import State, Vae, export_state, load_state

__all__ = ["ExpertStats", "TrainSettings", "expert_predictions", "pick_device", "train_expert", "train_vae"]

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


def _optimiser(module: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """A fresh optimiser. The fused kernels update all tensors in one call (a quarter of an MLP VAE's step on a CPU)."""
    rate, decay = settings.learning_rate, settings.weight_decay
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=_SGD_MOMENTUM, weight_decay=decay, fused=True)
    return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=True)


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def _batches(count: int, size: int, merge_single: bool, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """One epoch's index tensors, in random order. With ``merge_single`` a last batch of one joins the one before."""
    order = torch.randperm(count, generator=generator)
    stops = [*range(size, count, size), count]
    if merge_single and len(stops) > 1 and stops[-1] - stops[-2] == 1:
        del stops[-2]
    start = 0
    for stop in stops:
        yield order[start:stop]
        start = stop


def _train(
    module: nn.Module,
    count: int,
    settings: TrainSettings,
    generator: torch.Generator,
    step_loss: Callable[[torch.Tensor], torch.Tensor],
    what: str,
) -> float:
    """Runs the epochs; ``step_loss`` maps a batch of positions to its mean loss. Returns the last epoch's mean loss."""
    optimiser = _optimiser(module, settings)
    device = next(module.parameters()).device
    norms = _batch_norms(module)
    module.train()
    if count == 1:  # a batch of one has no variance to normalise with: use the running statistics, leave them alone
        for layer in norms:
            layer.eval()
    mean = 0.0
    for _ in range(settings.epochs):
        total = torch.zeros((), dtype=torch.float64, device=device)
        for batch in _batches(count, settings.batch_size, bool(norms), generator):
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.mixed_precision):
                loss = step_loss(batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            if settings.grad_clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), settings.grad_clip)
            optimiser.step()
            total += loss.detach() * len(batch)
        mean = float(total) / count
        _check_finite(module, mean, what)
    return mean


def _check_finite(module: nn.Module, loss: float, what: str) -> None:
    """Raises ModelError when the loss or a parameter is not finite. The message holds no figure of the silo."""
    # NaN and infinity survive a sum, which takes one pass where isfinite().all() takes three.
    if not math.isfinite(loss) or not all(math.isfinite(parameter.detach().sum()) for parameter in module.parameters()):
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
    count = len(x) if index is None else len(index)
    load_state(vae, state)
    if count == 0 or settings.epochs == 0:
        return export_state(vae), 0.0
    device = next(vae.parameters()).device
    x = x.to(device)

    def step_loss(batch: torch.Tensor) -> torch.Tensor:
        rows = batch if index is None else index[batch]
        return vae.training_loss(x[rows.to(device)], generator).mean()

    loss = _train(vae, count, settings, generator, step_loss, what)
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
) -> tuple[State, ExpertStats]:
    """Trains from ``state`` by cross-entropy; arguments as in ``train_vae``, ``y`` int64 (n,) class numbers.

    A last batch of one sample joins the batch before where the expert has BatchNorm; a part of one sample is trained
    with the running statistics.
    """
    count = len(x) if index is None else len(index)
    load_state(expert, state)
    if count == 0 or settings.epochs == 0:
        return export_state(expert), ExpertStats()
    device = next(expert.parameters()).device
    x, y = x.to(device), y.to(device)
    correct: list[torch.Tensor] = []

    def step_loss(batch: torch.Tensor) -> torch.Tensor:
        rows = (batch if index is None else index[batch]).to(device)
        logits, target = expert(x[rows]), y[rows]
        correct.append((logits.detach().argmax(1) == target).sum())
        return functional.cross_entropy(logits, target)

    loss = _train(expert, count, settings, generator, step_loss, what)
    last = len(correct) // settings.epochs
    hits = int(torch.stack(correct[-last:]).sum())
    return export_state(expert), ExpertStats(loss, hits / count)


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
