"""Selection and warm-up: hand-computed values, properties, one-pass sums against plain statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.initialisation import (
    FIXED_SIGMA,
    FIXED_SIGMA_BELOW,
    WHITE_FLOOR,
    PooledLosses,
    beta_schedule,
    pair_statistics,
    pair_statistics_spec,
    pooled_losses,
    select_greedy,
    select_random,
    survey_statistics,
    survey_statistics_spec,
    symmetric_kl_matrix,
    warmup_responsibilities,
    whitening,
)
from fedgmi_fedml.local_training import TrainSettings, train_vae
from fedgmi_fedml.models import Bank, DataShape, Vae, export_state, make_vae

torch.set_num_threads(1)
SHAPE = DataShape((4,), 2)


def constant_vae(probability: float) -> Vae:
    """A VAE whose decoder ignores its latent: independent pixels of the given probability, KL zero."""
    vae = make_vae("mlp", {"hidden": [], "latent": 1}, SHAPE, 0)
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.zero_()
        vae.decoder[0].bias.fill_(math.log(probability / (1 - probability)))
    return vae


def test_divergence_by_hand() -> None:
    """Decoded samples of p are p itself, so KL(p‖q) estimates 4·KL(Bernoulli p ‖ Bernoulli q)."""
    matrix = symmetric_kl_matrix([constant_vae(0.2), constant_vae(0.5)], 8, torch.Generator().manual_seed(0))
    forward = 0.2 * math.log(0.2 / 0.5) + 0.8 * math.log(0.8 / 0.5)
    backward = 0.5 * math.log(0.5 / 0.2) + 0.5 * math.log(0.5 / 0.8)
    assert matrix[0, 1].item() == pytest.approx(4 * (forward + backward), rel=1e-5)
    assert torch.equal(matrix, matrix.T)
    assert matrix.diagonal().tolist() == [0.0, 0.0]


def test_divergence_of_a_bank_and_of_equal_candidates() -> None:
    vaes = [make_vae("mlp", {"hidden": [3], "latent": 2}, SHAPE, seed) for seed in (0, 0, 5)]
    bank = Bank(make_vae("mlp", {"hidden": [3], "latent": 2}, SHAPE, 9), [export_state(vae) for vae in vaes])
    first, second = (symmetric_kl_matrix(v, 16, torch.Generator().manual_seed(3)) for v in (vaes, bank))
    assert torch.equal(first, second)
    assert first[0, 1].item() == 0.0
    assert bool((first >= 0).all())


def test_greedy_by_hand() -> None:
    points = torch.tensor([0.0, 1.0, 10.0, 4.0, 9.5])
    distance = (points[:, None] - points[None, :]).abs()
    assert select_greedy(distance, 2) == (0, 2)
    assert select_greedy(distance, 3) == (0, 2, 3)
    assert select_greedy(distance, 5) == (0, 1, 2, 3, 4)
    assert select_greedy(distance, 1) == (3,)
    with pytest.raises(ModelError, match="6 components"):
        select_greedy(distance, 6)


@settings(deadline=None)
@given(st.integers(2, 7), st.data())
def test_greedy_picks_distinct_ones_that_no_permutation_changes(count: int, data: st.DataObject) -> None:
    components = data.draw(st.integers(2, count))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    matrix = torch.rand(count, count, generator=generator, dtype=torch.float64)
    matrix = (matrix + matrix.T).fill_diagonal_(0.0)
    chosen = select_greedy(matrix, components)
    assert len(set(chosen)) == components
    order = torch.randperm(count, generator=generator)
    renamed = select_greedy(matrix[order][:, order], components)
    assert {int(order[index]) for index in renamed} == set(chosen)


def test_greedy_with_ties_and_idle_candidates_is_deterministic() -> None:
    assert select_greedy(torch.zeros(4, 4), 3) == select_greedy(torch.zeros(4, 4), 3)
    assert len(set(select_greedy(torch.zeros(4, 4), 3))) == 3


def test_random_selection_follows_its_seed() -> None:
    assert select_random(9, 3, 1) == select_random(9, 3, 1)
    assert len({select_random(9, 3, seed) for seed in range(20)}) > 5
    with pytest.raises(ModelError):
        select_random(2, 3, 0)


# ── warm-up ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@settings(deadline=None)
@given(st.integers(5, 30), st.integers(2, 4), st.integers(0, 10_000))
def test_sums_give_the_plain_mean_and_deviation(silos: int, components: int, seed: int) -> None:
    losses = np.random.default_rng(seed).normal(100.0, 8.0, (silos, components))
    rows = [survey_statistics(torch.tensor(row), components) for row in losses]
    pooled = pooled_losses(np.sum(rows, axis=0).tolist(), components)
    within = losses - losses.mean(axis=1, keepdims=True)
    rest = within - within.mean(axis=0)
    assert pooled.silos == silos
    assert pooled.mean.numpy() == pytest.approx(within.mean(axis=0), abs=1e-9)
    assert pooled.sigma == pytest.approx(float(np.sqrt((rest**2).mean())), rel=1e-6)


def test_silos_without_data_do_not_count() -> None:
    rows = [survey_statistics(torch.tensor([1.0 * i, 5.0]), 2) for i in range(6)]
    with_empty = [*rows, survey_statistics(None, 2)]
    first, second = (pooled_losses(np.sum(r, axis=0).tolist(), 2) for r in (rows, with_empty))
    assert torch.equal(first.mean, second.mean)
    assert (first.sigma, first.silos) == (second.sigma, second.silos)


def test_few_silos_use_a_fixed_sigma_and_none_gives_zeros() -> None:
    rows = [survey_statistics(torch.tensor([100.0 * i, 0.0]), 2) for i in range(FIXED_SIGMA_BELOW - 1)]
    assert pooled_losses(np.sum(rows, axis=0).tolist(), 2).sigma == FIXED_SIGMA
    nobody = pooled_losses([0.0] * 4, 2)
    assert nobody.mean.tolist() == [0.0, 0.0]
    assert nobody.silos == 0
    with pytest.raises(ModelError, match="4 sums"):
        pooled_losses([0.0] * 3, 2)


def test_spec_matches_the_statistics_and_bounds_them() -> None:
    spec = survey_statistics_spec(3)
    values = survey_statistics(torch.tensor([1e5, 0.0, -1e5]), 3)
    assert len(spec) == len(values) == 5
    assert len({item.name for item in spec}) == 5
    assert all(abs(value) <= item.bound for item, value in zip(spec, values, strict=True))


def test_responsibilities_by_hand() -> None:
    losses, mean = torch.tensor([10.0, 14.0]), torch.tensor([-1.0, 1.0])
    # centred in the silo: (−2, 2); by component: (−1, 1); β/σ = 3/2
    r = warmup_responsibilities(losses, mean, 2.0, 3.0)
    assert r[0].item() == pytest.approx(1.0 / (1.0 + math.exp(-3.0)))
    assert r.sum().item() == pytest.approx(1.0)


def test_centring_by_component_keeps_one_lucky_vae_from_taking_all() -> None:
    """VAE 0 is 50 nats better for everybody; silos still split by their own leaning."""
    rows = torch.tensor([[50.0 - 1 - i, 100.0] for i in range(3)] + [[50.0 + 1 + i, 100.0] for i in range(3)])
    sums = np.sum([survey_statistics(row, 2) for row in rows], axis=0).tolist()
    pooled = pooled_losses(sums, 2)
    leaning = torch.stack([warmup_responsibilities(row, pooled.mean, pooled.sigma, 3.0) for row in rows])
    assert leaning.argmax(1).tolist() == [0, 0, 0, 1, 1, 1]


def test_identical_silos_stay_undecided_and_huge_losses_finite() -> None:
    assert warmup_responsibilities(torch.tensor([3.0, 4.0]), torch.tensor([-0.5, 0.5]), 0.0, 9.0).tolist() == [0.5, 0.5]
    r = warmup_responsibilities(torch.tensor([1e6, 0.0]), torch.zeros(2), 1e-3, 25.0)
    assert r.tolist() == [0.0, 1.0]


# ── whitening ────────────────────────────────────────────────────────────────────────────────────────────────────────
def survey(losses: np.ndarray, wanted: bool = True) -> tuple[PooledLosses, torch.Tensor | None]:
    """What every silo reads from a survey of ``losses``, (N, M) nats."""
    rows, m = torch.as_tensor(losses, dtype=torch.float64), losses.shape[1]
    pooled = pooled_losses(np.sum([survey_statistics(row, m) for row in rows], axis=0).tolist(), m)
    pairs = np.sum([pair_statistics(row, m) for row in rows], axis=0).tolist()
    return pooled, whitening(pairs, pooled) if wanted else None


def leanings(losses: np.ndarray, beta: float, white: bool) -> np.ndarray:
    pooled, matrix = survey(losses, white)
    rows = torch.as_tensor(losses, dtype=torch.float64)
    return np.stack([warmup_responsibilities(r, pooled.mean, pooled.sigma, beta, matrix).numpy() for r in rows])


def crowded(silos: int = 24) -> np.ndarray:
    """Four groups of silos as a poor selection shows them: two pairs far apart, groups of one pair close together."""
    group = np.arange(silos) % 4
    losses = np.zeros((silos, 4))
    losses[:, 0] = -12.0 * np.isin(group, (0, 1)) - 1.0 * (group == 0)
    losses[:, 1] = -12.0 * np.isin(group, (2, 3)) - 1.0 * (group == 2)
    losses[:, 2] = -5.0 * np.isin(group, (0, 1)) - 2.0 * (group == 1)
    losses[:, 3] = -5.0 * np.isin(group, (2, 3)) - 2.0 * (group == 3)
    return losses + np.random.default_rng(0).normal(0, 0.1, losses.shape)


@settings(deadline=None)
@given(st.integers(3, 6), st.integers(0, 10_000))
def test_whitened_losses_vary_alike_in_every_direction(components: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.normal(100.0, 1.0, (40, components)) @ rng.normal(0, 3.0, (components, components))
    _, white = survey(losses)
    assert white is not None
    centred = losses - losses.mean(1, keepdims=True)
    centred -= centred.mean(0)
    variances = np.sort(np.linalg.eigvalsh(np.cov((centred @ white.numpy().T).T, bias=True)))
    assert variances[0] == pytest.approx(0.0, abs=1e-9)  # they still add up to zero in each silo
    assert variances[-1] == pytest.approx(components / (components - 1), rel=1e-4)
    plain = np.sort(np.linalg.eigvalsh(np.cov(centred.T, bias=True)))[1:]
    kept = np.minimum(plain / (plain[-1] * WHITE_FLOOR), 1.0)
    assert variances[1:].sum() == pytest.approx(kept.sum() * components / (components - 1), rel=1e-3)


def test_whitening_two_components_is_dividing_by_sigma() -> None:
    losses = np.random.default_rng(3).normal(100.0, 8.0, (9, 2))
    assert leanings(losses, 3.0, True) == pytest.approx(leanings(losses, 3.0, False), rel=1e-9)


def test_no_component_starves_beside_a_large_contrast() -> None:
    """Divided by one σ, two VAEs share all silos; whitened, each of the four finds its group."""
    one_sigma, white = (leanings(crowded(), 3.0, w) for w in (False, True))
    assert ((one_sigma > 0.3).sum(0) == 0).any()
    assert (white > 0.3).sum(0).tolist() == [6, 6, 6, 6]
    assert all(len({tuple(row) for row in (white[g::4] > 0.3).tolist()}) == 1 for g in range(4))


def test_few_or_equal_silos_are_not_whitened() -> None:
    assert survey(crowded(7))[1] is None  # fewer than 2M
    assert survey(crowded(8))[1] is not None
    assert survey(np.ones((24, 4)))[1] is None
    assert survey(np.ones((24, 1)))[1] is None


def test_products_have_their_names_and_none_gives_zeros() -> None:
    assert [s.name for s in pair_statistics_spec(3)] == [f"centred_loss_product.{p}" for p in ("0.1", "0.2", "1.2")]
    assert pair_statistics(torch.tensor([1.0, 2.0, 6.0]), 3) == (2.0, -6.0, -3.0)  # centred: −2, −1, 3
    assert pair_statistics(None, 3) == (0.0, 0.0, 0.0)


def test_beta_rises_to_its_limit() -> None:
    assert [beta_schedule(r, 1.0, 2.0) for r in range(3)] == [1.0, 3.0, 5.0]
    assert [beta_schedule(r, 1.0, 2.0, limit=3.0) for r in range(4)] == [1.0, 3.0, 3.0, 3.0]


def test_candidates_of_different_data_are_farther_apart_than_of_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.rand(120, 4, generator=generator) * torch.tensor([1.0, 1.0, 0.1, 0.1])
    high = low.flip(1)
    vae = make_vae("mlp", {"hidden": [8], "latent": 1}, SHAPE, 0)
    start = export_state(vae)
    parts = (low[:60], low[60:], high[:60], high[60:])
    plan = TrainSettings(15, 10, learning_rate=0.02)
    states = [train_vae(vae, start, x, plan, torch.Generator().manual_seed(i))[0] for i, x in enumerate(parts)]
    matrix = symmetric_kl_matrix(Bank(vae, states), 64, torch.Generator().manual_seed(1))
    assert min(matrix[0, 2], matrix[1, 3], matrix[0, 3], matrix[1, 2]) > 5 * max(matrix[0, 1], matrix[2, 3])
    assert sorted(index // 2 for index in select_greedy(matrix, 2)) == [0, 1]
