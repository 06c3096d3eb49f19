"""Personalised prediction against values computed by hand (algorithm.md, "Personalised prediction")."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import nn

from fedgmi_fedml import personalise
from fedgmi_fedml.errors import ModelError
from fedgmi_fedml.models import Bank, DataShape, Vae, export_state, make_expert, make_vae
from fedgmi_fedml.personalise import expert_probabilities, gate_weights, mix, predict

torch.set_num_threads(1)
SHAPE = DataShape((2,), 2)


def constant_vae(probability: float) -> Vae:
    """Independent pixels of one probability, KL zero: ℓ of an all-ones sample is −2 log p."""
    vae = make_vae("mlp", {"hidden": [], "latent": 1}, SHAPE, 0)
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.zero_()
        vae.decoder[0].bias.fill_(math.log(probability / (1 - probability)))
    return vae


def constant_expert(probability: float) -> nn.Module:
    """Always says class 1 with this probability."""
    expert = make_expert("mlp", {"hidden": []}, SHAPE, 0)
    with torch.no_grad():
        for parameter in expert.parameters():
            parameter.zero_()
        expert[1].bias[1] = math.log(probability / (1 - probability))
    return expert


VAES, EXPERTS = [constant_vae(0.8), constant_vae(0.4)], [constant_expert(0.9), constant_expert(0.2)]
ONES = torch.ones(3, 2)


def test_mixture_by_hand() -> None:
    """r ∝ α_j p_j² = (0.25 · 0.64, 0.75 · 0.16) = (0.16, 0.12); p = (4 · 0.9 + 3 · 0.2) / 7."""
    p = predict(VAES, EXPERTS, torch.tensor([0.25, 0.75]), ONES)
    assert p[:, 1].tolist() == pytest.approx([(4 * 0.9 + 3 * 0.2) / 7] * 3, rel=1e-5)
    assert p.sum(1).tolist() == pytest.approx([1.0] * 3)


def test_map_takes_one_expert() -> None:
    p = predict(VAES, EXPERTS, torch.tensor([0.25, 0.75]), ONES, "map")
    assert p[:, 1].tolist() == pytest.approx([0.9] * 3, rel=1e-5)
    p = predict(VAES, EXPERTS, torch.tensor([0.01, 0.99]), ONES, "map")
    assert p[:, 1].tolist() == pytest.approx([0.2] * 3, rel=1e-5)


def test_temperature_and_offset_by_hand() -> None:
    """T = 2 takes the root of the likelihoods: r ∝ (0.8, 0.4); an offset of 2 log 2 undoes their difference."""
    p = predict(VAES, EXPERTS, torch.tensor([0.5, 0.5]), ONES, temperature=2.0)
    assert p[0, 1].item() == pytest.approx((2 * 0.9 + 0.2) / 3, rel=1e-5)
    offset = torch.tensor([0.0, 2.0 * math.log(2.0)])
    p = predict(VAES, EXPERTS, torch.tensor([0.5, 0.5]), ONES, offset=offset)
    assert p[0, 1].item() == pytest.approx(0.55, rel=1e-5)


def test_a_silo_that_holds_one_component_still_predicts() -> None:
    p = predict(VAES, EXPERTS, torch.tensor([1.0, 0.0]), ONES)
    assert p[0, 1].item() == pytest.approx(0.9, abs=1e-3)
    assert predict(VAES, EXPERTS, torch.tensor([1.0, 0.0]), ONES[:0]).shape == (0, 2)


def test_banks_work() -> None:
    vaes = Bank(constant_vae(0.5), [export_state(vae) for vae in VAES])
    experts = Bank(constant_expert(0.5), [export_state(expert) for expert in EXPERTS])
    alpha = torch.tensor([0.3, 0.7])
    assert torch.equal(predict(vaes, experts, alpha, ONES), predict(VAES, EXPERTS, alpha, ONES))


def test_labels_cannot_enter_gating() -> None:
    for name, function in inspect.getmembers(personalise, inspect.isfunction):
        if function.__module__ == personalise.__name__:
            assert not {"y", "labels", "label", "target"} & set(inspect.signature(function).parameters), name


def test_errors() -> None:
    with pytest.raises(ModelError, match="mixture, map"):
        gate_weights(torch.zeros(1, 2), "best")
    with pytest.raises(ModelError, match="1 experts do not match 2 VAEs"):
        predict(VAES, EXPERTS[:1], torch.tensor([0.5, 0.5]), ONES)


def test_mix_by_hand() -> None:
    probabilities = expert_probabilities(EXPERTS, ONES[:1])
    assert mix(torch.tensor([[0.5, 0.5]]), probabilities)[0].tolist() == pytest.approx([0.45, 0.55])
