"""Local training: learns, repeats bit for bit, survives small and odd parts, says when it diverges."""

from __future__ import annotations

import math
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.local_training import (
    TrainSettings,
    expert_predictions,
    pick_device,
    train_expert,
    train_vae,
)
from fedgmi_fedml.models import DataShape, State, Vae, export_state, make_expert, make_vae

torch.set_num_threads(1)
SHAPE = DataShape((1, 6, 6), 2)
QUICK = TrainSettings(epochs=2, batch_size=8)


def vae_and_state(**options: object) -> tuple[Vae, State]:
    vae = make_vae("mlp", {"hidden": [8], "latent": 2, **options}, SHAPE, 0)
    return vae, export_state(vae)


def expert_and_state() -> tuple[nn.Module, State]:
    expert = make_expert("mlp", {"hidden": [8]}, SHAPE, 0)
    return expert, export_state(expert)


def images(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Bright left or right halves, with noise; labels say which."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (count,), generator=generator)
    x = 0.2 * torch.rand(count, 1, 6, 6, generator=generator)
    x[y == 0, :, :, :3] += 0.7
    x[y == 1, :, :, 3:] += 0.7
    return x, y


def rng(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same(first: State, second: State) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_one_sgd_step_by_hand() -> None:
    """Softmax regression with one weight matrix: the new weights are w − rate · gradient."""
    expert = make_expert("mlp", {"hidden": []}, DataShape((2,), 2), 0)
    state = OrderedDict((name, torch.zeros_like(value)) for name, value in export_state(expert).items())
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
    new, stats = train_expert(expert, state, x, y, TrainSettings(1, 4, "sgd", 0.1), rng())
    assert stats.loss == pytest.approx(math.log(2.0))
    assert new["1.weight"].flatten().tolist() == pytest.approx([-0.05, -0.1, 0.05, 0.1])
    assert new["1.bias"].tolist() == pytest.approx([-0.05, 0.05])


def test_both_learn() -> None:
    x, y = images(64)
    vae, state = vae_and_state()
    _, first = train_vae(vae, state, x, TrainSettings(1, 8), rng())
    trained, last = train_vae(vae, state, x, TrainSettings(30, 8, learning_rate=0.01), rng())
    assert last < first - 1.0
    expert, start = expert_and_state()
    trained, stats = train_expert(expert, start, x, y, TrainSettings(20, 8, learning_rate=0.01), rng())
    assert stats.accuracy > 0.95
    unseen, labels = images(50, seed=1)
    assert (expert_predictions(expert, trained, unseen).argmax(1) == labels).float().mean() > 0.95


def test_bit_identical_whatever_the_module_did_before() -> None:
    x, y = images(21)
    vae, state = vae_and_state()
    first = train_vae(vae, state, x, QUICK, rng())
    train_vae(vae, state, x[:5], QUICK, rng(7))
    torch.manual_seed(99)  # the global generator has no say
    second = train_vae(vae, state, x, QUICK, rng())
    assert same(first[0], second[0])
    assert first[1] == second[1]
    assert not same(first[0], train_vae(vae, state, x, QUICK, rng(2))[0])
    expert, start = expert_and_state()
    ones = train_expert(expert, start, x, y, QUICK, rng())
    assert same(ones[0], train_expert(make_expert("mlp", {"hidden": [8]}, SHAPE, 5), start, x, y, QUICK, rng())[0])


def test_start_and_module_state_are_not_changed_by_accident() -> None:
    x, _ = images(9)
    vae, state = vae_and_state()
    kept = {name: value.clone() for name, value in state.items()}
    trained, _ = train_vae(vae, state, x, QUICK, rng())
    assert all(torch.equal(state[name], kept[name]) for name in kept)
    before = trained["encoder.0.weight"].clone()
    train_vae(vae, state, x, QUICK, rng(3))
    assert torch.equal(trained["encoder.0.weight"], before)  # a copy, not the module's own memory


def test_index_trains_on_that_part_alone() -> None:
    x, y = images(30)
    rows = torch.tensor([3, 4, 9, 20, 21])
    vae, state = vae_and_state()
    assert same(train_vae(vae, state, x, QUICK, rng(), index=rows)[0], train_vae(vae, state, x[rows], QUICK, rng())[0])
    expert, start = expert_and_state()
    first, stats = train_expert(expert, start, x, y, QUICK, rng(), index=rows)
    second, again = train_expert(expert, start, x[rows], y[rows], QUICK, rng())
    assert same(first, second)
    assert stats == again


@pytest.mark.parametrize("index", [None, torch.zeros(0, dtype=torch.int64)])
def test_empty_part_leaves_the_state(index: torch.Tensor | None) -> None:
    x, y = images(0 if index is None else 5)
    vae, state = vae_and_state()
    new, loss = train_vae(vae, state, x, QUICK, rng(), index=index)
    assert same(new, state)
    assert loss == 0.0
    expert, start = expert_and_state()
    new, stats = train_expert(expert, start, x, y, QUICK, rng(), index=index)
    assert same(new, start)
    assert (stats.loss, stats.accuracy) == (0.0, 0.0)


class Normed(nn.Module):
    """A BatchNorm over vectors, which raises on a batch of one, and a log of the batches it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(36), nn.Linear(36, 2)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return self.last(self.norm(x.flatten(1)))


def test_last_batch_of_one_joins_the_one_before() -> None:
    x, y = images(17)
    module = Normed()
    train_expert(module, export_state(module), x, y, TrainSettings(1, 8), rng())
    assert module.seen == [8, 9]
    expert, start = expert_and_state()  # without BatchNorm nothing is merged
    train_expert(expert, start, x, y, TrainSettings(1, 8), rng())


def test_a_single_sample_trains_with_the_running_statistics() -> None:
    x, y = images(1)
    module = Normed()
    state = export_state(module)
    new, stats = train_expert(module, state, x, y, QUICK, rng())
    assert torch.equal(new["norm.running_mean"], state["norm.running_mean"])
    assert not torch.equal(new["last.weight"], state["last.weight"])
    assert math.isfinite(stats.loss)


def test_batchnorm_statistics_are_trained_and_the_counter_stays() -> None:
    x, y = images(16)
    module = Normed()
    new, _ = train_expert(module, export_state(module), x, y, QUICK, rng())
    assert float(new["norm.running_mean"].abs().sum()) > 0
    assert not any("num_batches" in name for name in new)


def test_divergence_is_one_clear_error_without_figures() -> None:
    x, y = images(32)
    vae, state = vae_and_state(likelihood="gaussian", min_scale=1e-4)
    settings = TrainSettings(60, 8, "sgd", 1e6)
    with pytest.raises(ModelError, match=r"training diverged \(warmup 3, VAE 1\)") as error:
        train_vae(vae, state, x, settings, rng(), what="warmup 3, VAE 1")
    assert not set("0245678") & set(str(error.value).replace("3, VAE 1", ""))
    expert, start = expert_and_state()
    with pytest.raises(ModelError, match="diverged"):
        train_expert(expert, start, x * 1e30, y, settings, rng())


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("x", [torch.zeros(9, 1, 6, 6), torch.ones(9, 1, 6, 6)])
def test_constant_images_and_a_large_step_stay_finite(optimizer: str, x: torch.Tensor) -> None:
    vae, state = vae_and_state()
    settings = TrainSettings(20, 4, optimizer, 0.1, grad_clip=1.0)
    new, loss = train_vae(vae, state, x, settings, rng())
    assert math.isfinite(loss)
    assert all(bool(torch.isfinite(value).all()) for value in new.values())


def test_input_times_a_thousand_stays_finite_under_a_gaussian() -> None:
    shape = DataShape((5,), 2, "real")
    vae = make_vae("tabular", {}, shape, 0)
    x = 1000.0 * torch.randn(40, 5, generator=rng())
    new, loss = train_vae(vae, export_state(vae), x, TrainSettings(5, 8, learning_rate=0.1), rng())
    assert math.isfinite(loss)
    assert all(bool(torch.isfinite(value).all()) for value in new.values())


def test_gradient_clipping_bounds_the_step() -> None:
    x, y = images(8)
    expert, start = expert_and_state()
    new, _ = train_expert(expert, start, x, y, TrainSettings(1, 8, "sgd", 1.0, grad_clip=1e-3), rng())
    moved = math.sqrt(sum(float((new[name] - start[name]).square().sum()) for name in start))
    assert moved == pytest.approx(1e-3, rel=1e-3)


def test_mixed_precision_learns_and_returns_float32() -> None:
    x, y = images(64)
    vae, state = vae_and_state()
    settings = TrainSettings(20, 8, learning_rate=0.01, mixed_precision=True)
    new, loss = train_vae(vae, state, x, settings, rng())
    _, full = train_vae(vae, state, x, TrainSettings(20, 8, learning_rate=0.01), rng())
    assert {value.dtype for value in new.values()} == {torch.float32}
    assert loss == pytest.approx(full, rel=0.1)
    expert, start = expert_and_state()
    assert train_expert(expert, start, x, y, settings, rng())[1].accuracy > 0.9


def test_statistics_are_means_over_the_last_epoch() -> None:
    x, y = images(10)
    expert, start = expert_and_state()
    settings = TrainSettings(1, 4, "sgd", 1e-12)  # too small a step to move anything
    _, stats = train_expert(expert, start, x, y, settings, rng())
    probabilities = expert_predictions(expert, start, x)
    assert stats.loss == pytest.approx(float(nn.functional.nll_loss(probabilities.log(), y)), rel=1e-5)
    assert stats.accuracy == pytest.approx(float((probabilities.argmax(1) == y).float().mean()))


def test_predictions_are_probabilities_for_any_batch() -> None:
    x, _ = images(7)
    expert, start = expert_and_state()
    whole = expert_predictions(expert, start, x)
    assert torch.allclose(whole, expert_predictions(expert, None, x, batch=2), atol=1e-6)
    assert torch.allclose(whole.sum(1), torch.ones(7))
    assert expert_predictions(expert, start, x[:0]).shape == (0, 2)


def test_settings_from_a_configuration() -> None:
    args = SimpleNamespace(
        epochs=3,
        batch_size=7,
        client_optimizer="sgd",
        learning_rate=0.1,
        weight_decay=0.01,
        vae_learning_rate=None,
        mixed_precision=False,
    )
    config = SimpleNamespace(train_args=args)
    assert TrainSettings.for_expert(config) == TrainSettings(3, 7, "sgd", 0.1, 0.01)
    assert TrainSettings.for_vae(config, epochs=5) == TrainSettings(5, 7, "sgd", 0.1, 0.0)
    args.vae_learning_rate = 0.2
    assert TrainSettings.for_vae(config).learning_rate == 0.2


@pytest.mark.parametrize(
    "bad", [{"optimizer": "adamm"}, {"epochs": -1}, {"batch_size": 0}, {"learning_rate": 0.0}], ids=str
)
def test_settings_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        TrainSettings(**bad)  # type: ignore[arg-type]


def test_devices() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type in ("cpu", "cuda")
    with pytest.raises(ModelError, match="is not there"):
        pick_device("cuda:99")
    with pytest.raises(ModelError, match="none of auto"):
        pick_device("gpu")
