"""Settings that contradict each other, or cannot be used: each refusal says keys, values and remedy."""

from __future__ import annotations

import pytest
from config_refusals import one, refused

from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import ConfigError


class TestSilos:
    """Enough silos for what the rules ask; nothing is ever lowered to fit."""

    def test_more_a_round_than_there_are(self) -> None:
        assert one("train_args.client_num_per_round=13") == (
            "--set train_args.client_num_per_round: 13 silos a round, but there are 12; "
            "at most train_args.client_num_in_total"
        )

    def test_fewer_than_min_contributors(self) -> None:
        found = refused("train_args.client_num_in_total=3", "train_args.client_num_per_round=3")
        assert (
            "--set train_args.client_num_per_round: 3 silos, but a sum is released only over at least 4 "
            "(fedgmi_args.secure.rules.min_contributors), so that it never shows one silo's update; add silos"
        ) in found
        assert any("cohort_size: a cohort of 4 cannot be drawn from 3 silos" in problem for problem in found)

    def test_back_end_none_keeps_the_rules(self) -> None:
        found = refused("fedgmi_args.secure.backend=none", "train_args.client_num_per_round=3")
        assert any("3 silos, but a sum is released" in problem for problem in found)

    def test_gate_above_a_round(self) -> None:
        found = refused("train_args.client_num_per_round=5", "fedgmi_args.secure.rules.min_contributors=6")
        assert any("5 silos, but a sum is released only over at least 6" in problem for problem in found)

    def test_more_drops_than_a_quorum_allows(self) -> None:
        found = refused("fedgmi_args.secure.rules.max_drops=4")
        assert any("12 silos survive at most 3 drops" in problem for problem in found)
        assert all("max_drops 4" in problem for problem in found if "drops (quorum" in problem)

    def test_more_colluders_than_a_quorum_allows(self) -> None:
        found = refused("fedgmi_args.secure.rules.colluders=7", "fedgmi_args.initialisation.cohort_size=12")
        assert any("withstand at most" in problem for problem in found)

    def test_beyond_the_complete_graph(self) -> None:
        problem = one("train_args.client_num_in_total=200", "train_args.client_num_per_round=200")
        assert "200 silos: the complete graph of pairwise masks ends at 128" in problem

    def test_cohort_below_the_gate(self) -> None:
        problem = one("fedgmi_args.initialisation.cohort_size=3")
        assert problem.startswith("--set fedgmi_args.initialisation.cohort_size: 3 silos, but a sum")

    def test_small_federations_with_their_own_rules(self) -> None:
        config = load_config(
            "digits",
            [
                "train_args.client_num_in_total=3",
                "train_args.client_num_per_round=3",
                "fedgmi_args.initialisation.cohort_size=3",
                "fedgmi_args.secure.rules={max_drops: 0, min_contributors: 3}",
            ],
        )
        assert config.fedgmi_args.secure.rules.gate == 3

    def test_min_contributors_of_one_shows_an_update(self) -> None:
        assert "must be at least 2" in one("fedgmi_args.secure.rules.min_contributors=1")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["fedgmi_args.initialisation.candidates=1"], "1 candidates cannot give 2 components"),
        (["fedgmi_args.initialisation.kl_samples=1"], "at least 2 samples"),
        (
            ["train_args.early_stopping_rounds=5", "data_args.validation_share=0.0"],
            "early stopping needs validation samples",
        ),
        (
            ["train_args.early_stopping_rounds=2", "validation_args.frequency_of_the_test=5"],
            "only every 5 rounds are tested",
        ),
        (["data_args.silo_mixture.kind=explicit"], "needs one row of proportions a silo"),
        (
            ["data_args.silo_mixture.kind=explicit", "data_args.silo_mixture.proportions=[[0.5, 0.6]]"],
            "proportions.0: must sum to 1, sums to 1.1",
        ),
        (
            ["data_args.silo_mixture.kind=explicit", "data_args.silo_mixture.proportions=[[0.5, 0.5], [1]]"],
            "proportions.1: 1 numbers, but there are 2 components",
        ),
        (["data_args.silo_mixture.kind=natural"], "needs the name of the group column"),
        (["data_args.silo_mixture.components=[]"], "needs at least one component"),
        (["data_args.silo_mixture.samples_per_silo=[9, 3]"], "[low, high] is upside down: [9, 3]"),
        (["data_args.validation_share=0.5", "data_args.test_share=0.5"], "must stay below 1"),
        (["data_args.dataset=npz"], "dataset: npz needs the path of its data"),
        (
            ["data_args.dataset=wine", "model_args.vae=tabular", "model_args.vae_options={}"],
            "wine is a table, with no images to rotate",
        ),
        (["data_args.data_options.download=true"], "data_args.data_options.download: unknown key"),
        (["model_args.vae_options.hiden=[3]"], 'no option of mlp: did you mean "hidden"? Valid: hidden, latent'),
        (["model_args.model=resnet18_bn", "model_args.model_options={groups: 2}"], "resnet18_bn: it has none"),
    ],
)
def test_settings_against_each_other(settings: list[str], says: str) -> None:
    assert says in one(*settings)


TABLE = ["data_args.dataset=wine", "data_args.silo_mixture.components=[{}, {flip: true}]"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["model_args.model=cnn", "model_args.model_options={}"], "cnn needs images, wine is a table; use mlp"),
        (["model_args.vae=conv", "model_args.vae_options={}"], "conv needs images, wine is a table; use tabular"),
        (["model_args.vae_options={likelihood: bernoulli}"], "a standardised table needs gaussian"),
    ],
)
def test_models_that_cannot_take_a_table(settings: list[str], says: str) -> None:
    """Field report D7, as far as it shows before any data are read."""
    assert says in one(*TABLE, "model_args.vae_options={}", *settings)


def test_a_wrong_value_does_not_hide_other_problems_nor_invent_some() -> None:
    found = refused(
        "train_args.client_num_per_round=many", "data_args.silo_mixture.kind=explicit", "train_args.epochs=0"
    )
    assert sorted(problem.partition(":")[0] for problem in found) == [
        "--set train_args.client_num_per_round",
        "--set train_args.epochs",
        "data_args.silo_mixture.proportions",
    ]


def test_a_backend_that_the_rounds_cannot_use_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match=r"secure\.backend.*homomorphic.*use masked"):
        load_config("digits", ["fedgmi_args.secure.backend=homomorphic"])
