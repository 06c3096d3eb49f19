"""VAEs: MLP, convolutional and tabular, with Bernoulli or Gaussian likelihood (Kingma and Welling 2014).

All losses are per sample, in nats, summed over the sample's values, with every constant of the density kept: they are
proper negative log-densities and may be compared between models and with log-proportions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedgmi_fedml.errors import ModelError, RangeError
from fedgmi_fedml.models.imports import call_factory, check_options, seeded
from fedgmi_fedml.shapes import DataShape

__all__ = ["ConvVae", "MlpVae", "Vae", "build_vae", "make_vae"]

_LOG_2PI = math.log(2.0 * math.pi)
_LOGVAR_LIMIT = 10.0  # keeps exp() finite whatever the encoder says; working posteriors lie well inside
LIKELIHOODS = ("bernoulli", "gaussian")


def standard_normal(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Standard normal noise of ``like``'s shape, drawn on the generator's device: a CPU seed rules every device."""
    if generator is None:
        return torch.randn_like(like)
    noise = torch.randn(like.shape, generator=generator, device=generator.device, dtype=torch.float32)
    return noise.to(device=like.device, dtype=like.dtype)


class Vae(nn.Module):
    """One component's density model. A subclass offers ``encode_raw`` and ``decode``; the likelihood lives here.

    Args:
        shape: shape of one sample.
        latent: latent dimensions, ≥ 1.
        likelihood: ``"bernoulli"`` (values in [0, 1]), ``"gaussian"``, or ``None`` for what the value range suggests.
        scale_shape: broadcastable shape of the Gaussian's learned standard deviation, e.g. ``(features,)``.
        min_scale, max_scale: bounds of that standard deviation, in units of the data.
        kl_weight: weight of the KL in training (β of a β-VAE), > 0; scores always use the ELBO itself.
    """

    def __init__(
        self,
        shape: DataShape,
        latent: int,
        likelihood: str | None = None,
        scale_shape: Sequence[int] = (1,),
        min_scale: float = 0.05,
        max_scale: float = 2.0,
        kl_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.shape, self.latent, self.kl_weight = shape, latent, kl_weight
        self.likelihood = likelihood or ("bernoulli" if shape.value_range == "unit" else "gaussian")
        _check_settings(shape, latent, self.likelihood, min_scale, max_scale)
        if not kl_weight > 0.0:
            raise ModelError(f"kl_weight must be positive, not {kl_weight}")
        if self.likelihood == "gaussian":
            low, high = math.log(min_scale), math.log(max_scale)
            self._log_scale_range = (low, high)
            start = min(max(math.log(0.3 if shape.value_range == "unit" else 1.0), low + 0.1), high - 0.1)
            share = (start - low) / (high - low)
            self.raw_scale = nn.Parameter(torch.full(tuple(scale_shape), math.log(share / (1.0 - share))))

    # ── what a subclass gives ────────────────────────────────────────────────────────────────────────────────────
    def encode_raw(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 2·latent): posterior mean and unbounded log-variance, side by side."""
        raise NotImplementedError

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """(B, latent) → (B, *input_shape): logits (Bernoulli) or means (Gaussian)."""
        raise NotImplementedError

    # ── the rest follows ─────────────────────────────────────────────────────────────────────────────────────────
    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Posterior mean and log-variance, each (B, latent). The log-variance is cut off at ±10."""
        mean, raw = self.encode_raw(x).chunk(2, dim=1)
        return mean, raw.clamp(-_LOGVAR_LIMIT, _LOGVAR_LIMIT)

    def log_scale(self) -> torch.Tensor:
        """Log of the Gaussian's standard deviation, between the bounds, shape ``scale_shape``."""
        low, high = self._log_scale_range
        return low + (high - low) * torch.sigmoid(self.raw_scale)

    def reconstruction_nll(self, x: torch.Tensor, decoded: torch.Tensor) -> torch.Tensor:
        """−log p(x | z), (B,) nats: Bernoulli cross-entropy from logits, or the Gaussian's negative log-density."""
        if self.likelihood == "bernoulli":
            if torch.onnx.is_in_onnx_export():  # the exporter's own cross-entropy takes the log of a rounded zero
                return (functional.softplus(decoded) - x * decoded).flatten(1).sum(1)
            return (
                functional.binary_cross_entropy_with_logits(decoded.to(x.dtype), x, reduction="none").flatten(1).sum(1)
            )
        log_scale = self.log_scale()
        squares = ((x - decoded) * torch.exp(-log_scale)).square()
        return (0.5 * (squares + _LOG_2PI) + log_scale).flatten(1).sum(1)

    def kl(self, mean: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
        """KL(N(mean, exp logvar) ‖ N(0, 1)), (B,) nats, ≥ 0."""
        return 0.5 * (mean.square() + logvar.exp() - logvar - 1.0).sum(1)

    def training_loss(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Negative ELBO with one reparametrised latent and the KL weighted by ``kl_weight``, (B,) nats."""
        mean, logvar = self.encode(x)
        z = torch.addcmul(mean, standard_normal(mean, generator), torch.exp(0.5 * logvar))
        nll, divergence = self.reconstruction_nll(x, self.decode(z)), self.kl(mean, logvar)
        return nll + (divergence if self.kl_weight == 1.0 else self.kl_weight * divergence)

    def to_data(self, decoded: torch.Tensor) -> torch.Tensor:
        """The mean of the likelihood, in data space."""
        return torch.sigmoid(decoded) if self.likelihood == "bernoulli" else decoded

    def sample(self, count: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """(count, *input_shape): likelihood means of latents drawn from the prior, in data space."""
        weight = next(self.parameters())
        z = standard_normal(torch.empty(count, self.latent, device=weight.device, dtype=weight.dtype), generator)
        with torch.no_grad():
            return self.to_data(self.decode(z))

    def check_range(self, x: torch.Tensor) -> None:
        """Raises RangeError naming the range found where the likelihood cannot describe it, ModelError on a shape."""
        if tuple(x.shape[1:]) != self.shape.input_shape:
            raise ModelError(f"samples have shape {tuple(x.shape[1:])}, the VAE needs {self.shape.input_shape}")
        if x.numel() == 0:
            return
        low, high = (float(value) for value in torch.aminmax(x))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RangeError("the data holds values that are not finite; clean or impute them first")
        if self.likelihood == "bernoulli" and (low < 0.0 or high > 1.0):
            raise RangeError(
                f"values range from {low:.4g} to {high:.4g}, but a Bernoulli likelihood needs [0, 1]: "
                "scale the data, or set model_args.vae_options.likelihood: gaussian"
            )


def _check_settings(shape: DataShape, latent: int, likelihood: str, min_scale: float, max_scale: float) -> None:
    """Raises ModelError for a setting that no data could satisfy."""
    if latent < 1:
        raise ModelError(f"a VAE needs at least one latent dimension, not {latent}")
    if likelihood not in LIKELIHOODS:
        raise ModelError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, not {likelihood!r}")
    if likelihood == "bernoulli" and shape.value_range != "unit":
        raise ModelError("a Bernoulli likelihood needs values in [0, 1]; these are real: use likelihood: gaussian")
    if not 0.0 < min_scale < max_scale:
        raise ModelError(f"need 0 < min_scale < max_scale, not {min_scale} and {max_scale}")


def dense(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them, none after the last."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += ([nn.ReLU(inplace=True)] if index else []) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


class MlpVae(Vae):
    """Fully connected encoder and decoder over the flattened sample, e.g. 784-256-16.

    Args:
        hidden: widths of the hidden layers of the encoder; the decoder mirrors them.
        scale: ``"feature"`` (one learned deviation per value) or ``"shared"``.
    """

    def __init__(
        self,
        shape: DataShape,
        hidden: Sequence[int] = (256,),
        latent: int = 16,
        likelihood: str | None = None,
        scale: str = "shared",
        min_scale: float = 0.05,
        max_scale: float = 2.0,
        kl_weight: float = 1.0,
    ) -> None:
        if scale not in ("feature", "shared"):
            raise ModelError(f"scale must be feature or shared, not {scale!r}")
        scale_shape = shape.input_shape if scale == "feature" else (1,)
        super().__init__(shape, latent, likelihood, scale_shape, min_scale, max_scale, kl_weight)
        self.encoder = dense((shape.size, *hidden, 2 * latent))
        self.decoder = dense((latent, *reversed(hidden), shape.size))

    def encode_raw(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x.flatten(1))

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.decoder(z).view(-1, *self.shape.input_shape)


class ConvVae(Vae):
    """Strided convolutions down, transposed ones up, for images of any size from 4 × 4.

    Args:
        channels: width of each stage; every stage halves height and width (rounded up).
        hidden: width of the dense layer between the last stage and the latent.
    """

    def __init__(
        self,
        shape: DataShape,
        channels: Sequence[int] = (16, 32),
        hidden: int = 128,
        latent: int = 16,
        likelihood: str | None = None,
        min_scale: float = 0.05,
        max_scale: float = 2.0,
        kl_weight: float = 1.0,
    ) -> None:
        if not channels:
            raise ModelError("the convolutional VAE needs at least one stage: give channels")
        if not shape.is_image:
            raise ModelError("the convolutional VAE needs images; use vae: tabular or mlp for tables")
        super().__init__(shape, latent, likelihood, (1,), min_scale, max_scale, kl_weight)
        planes = list(pairwise((shape.input_shape[0], *channels)))
        sizes = [(shape.input_shape[1], shape.input_shape[2])]
        for _ in channels:
            height, width = sizes[-1]
            sizes.append(((height + 1) // 2, (width + 1) // 2))
        down: list[nn.Module] = []
        for outer, inner in planes:
            down += [nn.Conv2d(outer, inner, 3, stride=2, padding=1), nn.ReLU(inplace=True)]
        up: list[nn.Module] = []
        for (outer, inner), (large, small) in reversed(list(zip(planes, pairwise(sizes), strict=True))):
            # A kernel of 3 with stride 2 gives 2n − 1; output padding makes it 2n where the original side was even.
            padding = (large[0] - 2 * small[0] + 1, large[1] - 2 * small[1] + 1)
            up += [nn.ReLU(inplace=True), nn.ConvTranspose2d(inner, outer, 3, 2, 1, output_padding=padding)]
        deepest = (planes[-1][1], *sizes[-1])
        flat = math.prod(deepest)
        self.encoder = nn.Sequential(*down, nn.Flatten(1), *dense((flat, hidden, 2 * latent)))
        self.decoder = nn.Sequential(*dense((latent, hidden, flat)), nn.Unflatten(1, deepest), *up)

    def encode_raw(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.decoder(z)


_OPTIONS = {
    "mlp": ("hidden", "latent", "likelihood", "scale", "min_scale", "max_scale", "kl_weight"),
    "conv": ("channels", "hidden", "latent", "likelihood", "min_scale", "max_scale", "kl_weight"),
    "tabular": ("hidden", "latent", "likelihood", "scale", "min_scale", "max_scale", "kl_weight"),
}


def _construct(name: str, options: Mapping[str, Any], shape: DataShape) -> nn.Module:
    """The module itself, unchecked and with whatever random state is current."""
    if ":" in name:
        return call_factory(name, shape, options)
    if name not in _OPTIONS:
        raise ModelError(f"no VAE is called {name!r}: use {', '.join(_OPTIONS)} or package.module:factory")
    check_options(name, options, _OPTIONS[name])
    if name == "conv":
        return ConvVae(shape, **options)
    if name == "tabular":
        defaults = {"hidden": (64, 64), "latent": max(1, min(8, shape.size // 2)), "scale": "feature"}
        return MlpVae(shape, **{**defaults, "likelihood": "gaussian", **options})
    return MlpVae(shape, **options)


def check_vae(module: nn.Module, shape: DataShape, name: str) -> Vae:
    """One dry pass in evaluation mode. Raises ModelError that says which part of the VAE's interface does not fit."""
    parts = ("encode", "decode", "reconstruction_nll", "kl", "training_loss", "sample", "check_range")
    missing = [part for part in parts if not callable(getattr(module, part, None))]
    if missing:
        raise ModelError(f"VAE {name!r} has no method {', '.join(missing)}; derive it from fedgmi_fedml.models.Vae")
    x = torch.full((2, *shape.input_shape), 0.5)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            mean, logvar = module.encode(x)  # type: ignore[operator]
            decoded = module.decode(mean)  # type: ignore[operator]
            losses = (module.reconstruction_nll(x, decoded), module.kl(mean, logvar))  # type: ignore[operator]
            drawn = module.sample(2, torch.Generator().manual_seed(0))  # type: ignore[operator]
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise ModelError(f"VAE {name!r} fails on samples of shape {shape.input_shape}: {error}") from error
    finally:
        module.train(training)
    if mean.shape != logvar.shape or any(tuple(loss.shape) != (2,) for loss in losses):
        raise ModelError(f"VAE {name!r} must give means and log-variances (B, latent) and losses (B,) in nats")
    if tuple(drawn.shape) != tuple(x.shape):
        raise ModelError(f"VAE {name!r} samples shape {tuple(drawn.shape[1:])}, the data has {shape.input_shape}")
    return module  # type: ignore[return-value]


def make_vae(name: str, options: Mapping[str, Any], shape: DataShape, seed: int) -> Vae:
    """A VAE by name (``mlp``, ``conv``, ``tabular``) or import path, its weights drawn from ``seed`` alone.

    Raises ModelError for unknown names or options, and when the model does not fit the data's shape.
    """
    return check_vae(seeded(lambda: _construct(name, options, shape), seed), shape, name)


def build_vae(config: Any, shape: DataShape, seed: int) -> Vae:
    """The VAE that ``config.model_args.vae`` and ``vae_options`` name; see ``make_vae``."""
    return make_vae(config.model_args.vae, dict(config.model_args.vae_options or {}), shape, seed)
