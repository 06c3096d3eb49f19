"""Affinity, MAP, responsibilities and proportions: hand-computed values, extremes, EM's guarantees."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmi_fedml.affinity import (
    LABEL_FLOOR,
    PROPORTION_FLOOR,
    ROUTER_FLOOR,
    affinities,
    assign,
    em_proportions,
    estimate_alpha,
    label_term,
    log_proportions,
    responsibilities,
    router_term,
    score_matrix,
    scores,
)
from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models import Bank, DataShape, Vae, export_state, load_state, make_vae

torch.set_num_threads(1)
SHAPE = DataShape((1, 4, 4), 2)


def tiny(seed: int = 0, **options: object) -> Vae:
    return make_vae("mlp", {"hidden": [5], "latent": 2, **options}, SHAPE, seed)


losses_strategy = st.integers(1, 4).flatmap(
    lambda m: st.lists(st.lists(st.floats(-1e6, 1e6), min_size=m, max_size=m), min_size=1, max_size=6)
)


# ── ℓ ────────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_elbo_is_reconstruction_plus_kl_at_the_mean() -> None:
    vae, x = tiny(), torch.rand(3, 1, 4, 4)
    with torch.no_grad():
        mean, logvar = vae.encode(x)
        nll, kl = vae.reconstruction_nll(x, vae.decode(mean)), vae.kl(mean, logvar)
    assert torch.allclose(scores(vae, x, "elbo"), nll + kl)
    assert torch.allclose(scores(vae, x, "reconstruction"), nll)


def test_scores_do_not_depend_on_the_batch_or_leave_a_trace() -> None:
    vae, x = tiny().train(), torch.rand(7, 1, 4, 4)
    assert torch.allclose(scores(vae, x, batch=2), scores(vae, x), rtol=1e-6)
    assert vae.training
    scores(vae, x).add_(1.0)  # an ordinary tensor, not an inference one
    assert scores(vae, x[:0]).shape == (0,)


def test_iwae_approaches_the_exact_likelihood_of_a_linear_vae() -> None:
    shape = DataShape((2,), 2, "real")
    vae = make_vae("mlp", {"hidden": [], "latent": 1}, shape, 3)
    x = torch.tensor([[0.3, -0.8], [1.0, 0.2]])
    with torch.no_grad():
        vae.encoder[0].weight.zero_()  # the posterior is the prior: a fair proposal
        vae.encoder[0].bias.zero_()
        weight, bias = vae.decoder[0].weight.double(), vae.decoder[0].bias.double()
        covariance = weight @ weight.T + torch.eye(2).double() * vae.log_scale().double().exp() ** 2
        exact = -torch.distributions.MultivariateNormal(bias, covariance).log_prob(x.double())
    generator = torch.Generator().manual_seed(0)
    one = torch.stack([scores(vae, x, "iwae", generator=generator, samples=1) for _ in range(100)]).mean(0)
    many = torch.stack([scores(vae, x, "iwae", generator=generator, samples=200) for _ in range(10)]).mean(0)
    assert torch.allclose(many.double(), exact, atol=0.02)
    assert bool((one > many).all())  # more samples, tighter bound


def test_iwae_gives_every_vae_the_same_draws_and_follows_its_seed() -> None:
    vae, x = tiny(), torch.rand(5, 1, 4, 4)

    def run(seed: int) -> torch.Tensor:
        return score_matrix([vae, vae], x, "iwae", generator=torch.Generator().manual_seed(seed), samples=3)

    assert torch.equal(run(1)[:, 0], run(1)[:, 1])
    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_matrix_from_a_bank_equals_separate_modules() -> None:
    vaes, x = [tiny(seed) for seed in range(3)], torch.rand(4, 1, 4, 4)
    bank = Bank(tiny(9), [export_state(vae) for vae in vaes])
    assert torch.equal(score_matrix(bank, x), score_matrix(vaes, x))


def test_unknown_kind_and_diverged_vae() -> None:
    vae = tiny()
    with pytest.raises(ModelError, match="elbo, reconstruction, iwae"):
        scores(vae, torch.rand(1, 1, 4, 4), "nll")
    load_state(vae, {name: value * math.nan for name, value in export_state(vae).items()})
    with pytest.raises(ModelError, match="diverged"):
        scores(vae, torch.rand(1, 1, 4, 4))


@pytest.mark.parametrize("kind", ["elbo", "reconstruction", "iwae"])
@pytest.mark.parametrize("x", [torch.zeros(1, 1, 4, 4), torch.ones(3, 1, 4, 4), torch.zeros(0, 1, 4, 4)])
def test_constant_single_and_empty_parts_stay_finite(kind: str, x: torch.Tensor) -> None:
    losses = score_matrix([tiny(0), tiny(1)], x, kind, generator=torch.Generator().manual_seed(0))
    aff = affinities(losses, log_proportions([1.0, 0.0]))
    assert bool(torch.isfinite(aff).all())
    assert bool(torch.isfinite(estimate_alpha(aff)).all())


# ── a, r, α ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_affinity_by_hand() -> None:
    losses = torch.tensor([[10.0, 12.0], [20.0, 14.0]])
    aff = affinities(losses, torch.log(torch.tensor([0.25, 0.75])), 2.0, torch.tensor([1.0, 3.0]))
    expected = [[-4.5 + math.log(0.25), -4.5 + math.log(0.75)], [-9.5 + math.log(0.25), -5.5 + math.log(0.75)]]
    assert aff.tolist() == [pytest.approx(row, rel=1e-6) for row in expected]
    assert responsibilities(aff)[0].tolist() == pytest.approx([0.25, 0.75])
    assert assign(aff).tolist() == [1, 1]
    assert estimate_alpha(aff, "hard").tolist() == [0.0, 1.0]
    second = 1.0 / (1.0 + math.exp(4.0) * 3.0)
    assert estimate_alpha(aff, "soft").tolist() == pytest.approx([(0.25 + second) / 2, 1 - (0.25 + second) / 2])


@settings(deadline=None)
@given(losses_strategy, st.floats(0.01, 1e3))
def test_responsibilities_are_finite_and_sum_to_one(rows: list[list[float]], temperature: float) -> None:
    losses = torch.tensor(rows)
    alpha = torch.zeros(losses.shape[1])
    alpha[0] = 1.0  # every other proportion is zero
    r = responsibilities(affinities(losses, log_proportions(alpha), temperature))
    assert bool(torch.isfinite(r).all())
    assert torch.allclose(r.sum(1), torch.ones(len(rows)).double())
    assert float(estimate_alpha(affinities(losses, log_proportions(alpha)), "hard").sum()) == pytest.approx(1.0)


@settings(deadline=None)
@given(losses_strategy, st.floats(-1e5, 1e5))
def test_what_all_components_share_does_not_matter(rows: list[list[float]], shift: float) -> None:
    losses = torch.tensor(rows, dtype=torch.float64)
    uniform = log_proportions(torch.ones(losses.shape[1]))
    first, second = (responsibilities(affinities(values, uniform)) for values in (losses, losses + shift))
    assert torch.allclose(first, second, atol=1e-6)


def test_differences_survive_next_to_a_million_nats() -> None:
    losses = torch.tensor([[1e6, 1e6 + 1.0]], dtype=torch.float64)
    r = responsibilities(affinities(losses, log_proportions([0.5, 0.5])))
    assert r[0, 0].item() == pytest.approx(1.0 / (1.0 + math.exp(-1.0)), rel=1e-9)


def test_proportions_are_lifted_to_the_floor_and_normalised() -> None:
    values = log_proportions([0.0, 2.0]).exp()
    assert values.sum().item() == pytest.approx(1.0)
    assert values[0].item() == pytest.approx(PROPORTION_FLOOR / 2, rel=1e-3)
    assert log_proportions([0.0, 0.0]).exp().tolist() == pytest.approx([0.5, 0.5])
    for bad in ([math.nan, 1.0], [-0.1, 1.1], [[0.5, 0.5]], []):
        with pytest.raises(ModelError):
            log_proportions(torch.tensor(bad))


def test_a_lost_component_comes_back_when_it_fits() -> None:
    aff = affinities(torch.tensor([[100.0, 80.0]]), log_proportions([1.0, 0.0]))
    assert assign(aff).tolist() == [1]


def test_temperature_and_mode_are_checked() -> None:
    with pytest.raises(ModelError, match="temperature"):
        affinities(torch.zeros(1, 2), torch.zeros(2), 0.0)
    with pytest.raises(ModelError, match="soft or hard"):
        estimate_alpha(torch.zeros(1, 2), "firm")


def test_no_samples_means_uniform() -> None:
    assert estimate_alpha(torch.zeros(0, 4), "hard").tolist() == [0.25] * 4
    assert em_proportions(torch.zeros(0, 2)).tolist() == [0.5, 0.5]


# ── EM ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_em_finds_the_proportions_of_separated_components() -> None:
    losses = torch.tensor([[0.0, 50.0]] * 3 + [[50.0, 0.0]] * 7)
    assert em_proportions(losses).tolist() == pytest.approx([0.3, 0.7], abs=1e-4)


@settings(deadline=None)
@given(st.integers(0, 2**31), st.floats(0.3, 5.0))
def test_em_never_lowers_the_likelihood(seed: int, temperature: float) -> None:
    losses = 4.0 * torch.randn(30, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def likelihood(passes: int) -> float:
        alpha = em_proportions(losses, passes, temperature)
        return float(torch.logsumexp(affinities(losses, log_proportions(alpha), temperature), 1).sum())

    values = [likelihood(passes) for passes in (0, 1, 2, 5, 20)]
    # The floor under α may cost the last fraction of a nat.
    assert all(later >= earlier - 30 * PROPORTION_FLOOR for earlier, later in pairwise(values))


def test_em_estimates_a_known_gaussian_mixture() -> None:
    generator = torch.Generator().manual_seed(0)
    component = (torch.rand(4000, generator=generator) < 0.3).double()
    x = torch.randn(4000, generator=generator, dtype=torch.float64) + 2.0 * component
    losses = torch.stack([0.5 * x**2, 0.5 * (x - 2.0) ** 2], 1)
    assert em_proportions(losses, 200).tolist() == pytest.approx([0.7, 0.3], abs=0.03)


# ── further terms ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_label_term_by_hand() -> None:
    """Two experts, three samples; the second expert is sure and wrong about the last: −8 and no less."""
    said = torch.tensor([[[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]], [[0.2, 0.8], [0.4, 0.6], [0.0, 1.0]]])
    found = label_term(said, torch.tensor([0, 1, 0]))
    expected = [[math.log(0.5), math.log(0.2)], [math.log(0.75), math.log(0.6)], [math.log(0.9), LABEL_FLOOR]]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-7)
    assert LABEL_FLOOR == -8.0
    assert label_term(said[:, :0], torch.zeros(0, dtype=torch.long)).shape == (0, 2)


def test_router_term_by_hand() -> None:
    """g / π: a router that only repeats the prior says nothing; zero probability is bounded by the floor."""
    prior = torch.tensor([0.8, 0.2])
    found = router_term(torch.tensor([[0.8, 0.2], [0.4, 0.6], [1.0, 0.0]]), prior)
    expected = [[0.0, 0.0], [math.log(0.5), math.log(3.0)], [math.log(1.25), ROUTER_FLOOR]]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(router_term(torch.tensor([[0.4, 0.6]]), prior, 2.0), 2 * found[1:2])
    uniform = router_term(torch.tensor([[0.25, 0.75]]), None)
    assert uniform[0].tolist() == pytest.approx([math.log(0.5), math.log(1.5)])
    assert bool(torch.isfinite(router_term(torch.tensor([[0.5, 0.5]]), torch.tensor([1.0, 0.0]))).all())


def test_the_whole_affinity_by_hand() -> None:
    """a = −(ℓ − o)/T + log α + router + label with ℓ = (8, 4), o = (4, 0), T = 4, α = (¼, ¾), g = (0.9, 0.1), π = ½."""
    extra = router_term(torch.tensor([[0.9, 0.1]]), torch.tensor([0.5, 0.5]))
    extra = extra + label_term(torch.tensor([[[0.5, 0.5]], [[0.1, 0.9]]]), torch.tensor([1]))
    a = affinities(torch.tensor([[8.0, 4.0]]), log_proportions([0.25, 0.75]), 4.0, torch.tensor([4.0, 0.0]), extra)
    by_hand = [-1 + math.log(0.25 * 1.8 * 0.5), -1 + math.log(0.75 * 0.2 * 0.9)]
    assert a[0].tolist() == pytest.approx(by_hand, abs=1e-6)


def test_em_uses_further_terms() -> None:
    """Losses that say nothing, and a router that is right about every sample: α is the share of its votes."""
    votes = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]])
    alpha = em_proportions(torch.zeros(4, 2), extra=router_term(votes, None))
    assert alpha.tolist() == pytest.approx([0.75, 0.25], abs=1e-3)
    assert em_proportions(torch.zeros(4, 2)).tolist() == pytest.approx([0.5, 0.5])
