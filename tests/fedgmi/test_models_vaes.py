"""VAEs: densities against hand-computed and SciPy values, shapes, ranges, options, a user's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedgmi_fedml.errors import ModelError, RangeError
from fedgmi_fedml.models import DataShape, Vae, export_state, make_vae

torch.set_num_threads(1)
IMAGES = DataShape((1, 6, 5), 3)
TABLE = DataShape((4,), 2, "real")


def tiny(**options: object) -> Vae:
    return make_vae("mlp", {"hidden": [7], "latent": 2, **options}, IMAGES, 0)


def test_bernoulli_nll_by_hand() -> None:
    vae = make_vae("mlp", {"hidden": [3], "latent": 1}, DataShape((2,), 2), 0)
    logits = torch.tensor([[math.log(3.0), 0.0]])  # probabilities 0.75 and 0.5
    nll = vae.reconstruction_nll(torch.tensor([[1.0, 0.0]]), logits)
    assert nll.item() == pytest.approx(-math.log(0.75) - math.log(0.5), rel=1e-6)


def test_bernoulli_nll_is_exact_far_out() -> None:
    vae = make_vae("mlp", {"hidden": [3], "latent": 1}, DataShape((2,), 2), 0)
    nll = vae.reconstruction_nll(torch.tensor([[1.0, 1.0]]), torch.tensor([[-300.0, 60.0]]))
    assert nll.item() == pytest.approx(300.0)
    tail = vae.reconstruction_nll(torch.tensor([[1.0, 1.0]]), torch.tensor([[60.0, 60.0]]))
    assert tail.item() == pytest.approx(2.0 * math.exp(-60.0), rel=1e-5)  # not swallowed by cancellation


def test_gaussian_nll_equals_scipy() -> None:
    vae = make_vae("tabular", {}, TABLE, 0)
    x, mean = torch.randn(5, 4), torch.randn(5, 4)
    with torch.no_grad():
        vae.raw_scale.copy_(torch.tensor([-1.0, 0.0, 1.0, 30.0]))
        ours = vae.reconstruction_nll(x, mean).numpy()
        scale = vae.log_scale().exp().numpy()
    assert ours == pytest.approx(-stats.norm.logpdf(x.numpy(), mean.numpy(), scale).sum(1), rel=1e-5)
    assert scale.max() == pytest.approx(2.0)  # raw 30 is at the upper bound


@settings(deadline=None)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=4, max_size=4))
def test_gaussian_scale_never_leaves_its_bounds(raw: list[float]) -> None:
    vae = make_vae("tabular", {"min_scale": 0.2, "max_scale": 0.5}, TABLE, 0)
    with torch.no_grad():
        vae.raw_scale.copy_(torch.tensor(raw))
        scale = vae.log_scale().exp()
    assert bool(((scale >= 0.2 - 1e-6) & (scale <= 0.5 + 1e-6)).all())


def test_kl_by_hand_and_never_negative() -> None:
    vae = tiny()
    mean, logvar = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(4.0)]])
    assert vae.kl(mean, logvar).item() == pytest.approx(0.5 + 0.5 * (4.0 - math.log(4.0) - 1.0), rel=1e-6)
    assert vae.kl(torch.zeros(1, 2), torch.zeros(1, 2)).item() == 0.0


@pytest.mark.parametrize("name", ["mlp", "conv"])
@pytest.mark.parametrize("sides", [(1, 4, 4), (3, 7, 5), (1, 28, 28), (2, 9, 16)])
def test_image_vaes_fit_any_size(name: str, sides: tuple[int, int, int]) -> None:
    shape = DataShape(sides, 2)
    options = {"channels": [2, 3, 4], "hidden": 8} if name == "conv" else {"hidden": [8]}
    vae = make_vae(name, {**options, "latent": 3}, shape, 0)
    x = torch.rand(2, *sides)
    mean, logvar = vae.encode(x)
    assert mean.shape == logvar.shape == (2, 3)
    assert vae.decode(mean).shape == x.shape
    assert vae.training_loss(x, torch.Generator().manual_seed(0)).shape == (2,)
    drawn = vae.sample(5, torch.Generator().manual_seed(0))
    assert drawn.shape == (5, *sides)
    assert 0.0 <= float(drawn.min()) <= float(drawn.max()) <= 1.0


def test_training_loss_is_the_negative_elbo() -> None:
    vae, x = tiny(), torch.rand(3, 1, 6, 5)
    with torch.no_grad():
        mean, logvar = vae.encode(x)
        noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(5))
        decoded = vae.decode(mean + noise * torch.exp(0.5 * logvar))
        expected = vae.reconstruction_nll(x, decoded) + vae.kl(mean, logvar)
        ours = vae.training_loss(x, torch.Generator().manual_seed(5))
    assert torch.allclose(ours, expected, rtol=1e-6)


def test_kl_weight_enters_training_alone() -> None:
    plain, heavy, x = tiny(), tiny(kl_weight=50.0), torch.rand(3, 1, 6, 5)
    with torch.no_grad():
        kl = plain.kl(*plain.encode(x))
        losses = [vae.training_loss(x, torch.Generator().manual_seed(5)) for vae in (plain, heavy)]
        assert torch.equal(plain.kl(*plain.encode(x)), heavy.kl(*heavy.encode(x)))
    assert torch.allclose(losses[1] - losses[0], 49.0 * kl, rtol=1e-4)


def test_latent_stays_finite_on_huge_input() -> None:
    vae = make_vae("tabular", {}, TABLE, 0)
    loss = vae.training_loss(1e6 * torch.ones(2, 4), torch.Generator().manual_seed(0))
    loss.sum().backward()
    assert bool(torch.isfinite(loss).all())
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in vae.parameters())


def test_weights_come_from_the_seed_alone_and_leave_the_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, again, other = (export_state(make_vae("conv", {}, DataShape((1, 8, 8), 2), seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(("scale", "shift", "shown"), [(255.0, 0.0, "255"), (1.0, -2.0, "-2")])
def test_range_error_names_the_range_found(scale: float, shift: float, shown: str) -> None:
    x = torch.linspace(0, 1, 60).view(2, 1, 6, 5) * scale + shift
    with pytest.raises(RangeError, match="Bernoulli") as error:
        tiny().check_range(x)
    assert shown in str(error.value)
    tiny(likelihood="gaussian").check_range(x)


def test_range_check_refuses_nan_and_shapes_and_takes_empty_parts() -> None:
    with pytest.raises(RangeError, match="not finite"):
        tiny().check_range(torch.full((1, 1, 6, 5), math.nan))
    with pytest.raises(ModelError, match=r"\(3, 6, 5\)"):
        tiny().check_range(torch.zeros(1, 3, 6, 5))
    tiny().check_range(torch.zeros(0, 1, 6, 5))
    tiny().check_range(torch.tensor([0.0, 1.0]).repeat(15).view(1, 1, 6, 5))  # the bounds themselves are allowed


@pytest.mark.parametrize(
    ("name", "options", "shape", "match"),
    [
        ("vgg", {}, IMAGES, "mlp, conv, tabular"),
        ("mlp", {"hiden": [3]}, IMAGES, "no option 'hiden'"),
        ("mlp", {"latent": 0}, IMAGES, "latent"),
        ("mlp", {"likelihood": "poisson"}, IMAGES, "bernoulli, gaussian"),
        ("mlp", {"likelihood": "bernoulli"}, TABLE, "use likelihood: gaussian"),
        ("mlp", {"scale": "pixel"}, IMAGES, "feature or shared"),
        ("tabular", {"min_scale": 3.0}, TABLE, "min_scale"),
        ("mlp", {"kl_weight": 0.0}, IMAGES, "kl_weight"),
        ("conv", {}, TABLE, "needs images"),
        ("nowhere:thing", {}, IMAGES, "cannot be imported"),
        ("math:", {}, IMAGES, "package.module:factory"),
        ("math:nothing", {}, IMAGES, "no callable"),
        ("math:sqrt", {"a": 1}, IMAGES, "does not accept"),
        ("builtins:repr", {}, IMAGES, "not a torch.nn.Module"),
    ],
)
def test_settings_that_cannot_work(name: str, options: dict[str, object], shape: DataShape, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        make_vae(name, options, shape, 0)


# ── a user's own ─────────────────────────────────────────────────────────────────────────────────────────────────────
class Linear(Vae):
    """The smallest VAE that a user can write."""

    def __init__(self, shape: DataShape, latent: int = 2, wrong: bool = False) -> None:
        super().__init__(shape, latent)
        self.down = torch.nn.Linear(shape.size, 2 * latent)
        self.up = torch.nn.Linear(latent, shape.size + wrong)

    def encode_raw(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(x.flatten(1))

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.up(z).view(len(z), *self.shape.input_shape)


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> str:
    import sys
    import types

    module = types.ModuleType("own_models")
    module.linear = Linear  # type: ignore[attr-defined]
    module.classifier = lambda shape: torch.nn.Linear(shape.size, 2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_models", module)
    return "own_models"


def test_own_vae_by_import_path(own_module: str) -> None:
    vae = make_vae(f"{own_module}:linear", {"latent": 3}, IMAGES, 0)
    assert vae.encode(torch.rand(2, 1, 6, 5))[0].shape == (2, 3)


def test_own_vae_that_does_not_fit(own_module: str) -> None:
    with pytest.raises(ModelError, match=r"own_models:linear.*\(1, 6, 5\)"):
        make_vae(f"{own_module}:linear", {"wrong": True}, IMAGES, 0)
    with pytest.raises(ModelError, match="has no method encode"):
        make_vae(f"{own_module}:classifier", {}, IMAGES, 0)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**31))
def test_elbo_is_below_the_log_likelihood(latent: int, seed: int) -> None:
    """A linear Gaussian VAE has a closed-form log-likelihood, which no ELBO may exceed (on average over the noise)."""
    shape = DataShape((3,), 2, "real")
    vae = make_vae("mlp", {"hidden": [], "latent": latent}, shape, seed).double()
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        weight, bias = vae.decoder[0].weight.numpy(), vae.decoder[0].bias.numpy()
        covariance = weight @ weight.T + np.eye(3) * float(vae.log_scale().exp()) ** 2
        exact = -stats.multivariate_normal.logpdf(x.numpy(), bias, covariance)
        bound = torch.stack([vae.training_loss(x, generator) for _ in range(400)])
        tolerance = 4.0 * bound.std(0) / 20.0
    assert bool((bound.mean(0) + tolerance >= torch.as_tensor(exact)).all())


def test_a_saturated_decoder_is_exported_exactly(tmp_path):
    """Logits of ±200: the exporter's own cross-entropy would give infinity; ours is the one that torch computes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")

    class Loss(torch.nn.Module):
        def __init__(self, vae):
            super().__init__()
            self.vae = vae

        def forward(self, x, decoded):
            return self.vae.reconstruction_nll(x, decoded)

    vae = make_vae("mlp", {"hidden": [8], "latent": 2, "likelihood": "bernoulli"}, DataShape((1, 4, 4), 2), 0)
    x = torch.rand(3, 1, 4, 4)
    decoded = torch.linspace(-200, 200, x.numel()).view_as(x)
    path = tmp_path / "loss.onnx"
    torch.onnx.export(Loss(vae), (x, decoded), str(path), input_names=["x", "decoded"], dynamo=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": x.numpy(), "decoded": decoded.numpy()})
    expected = vae.reconstruction_nll(x, decoded)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-5, atol=1e-3)
