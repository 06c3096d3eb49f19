"""Values, settings against each other, ``--set`` and paths: each refusal says key, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgmi_fedml.config import Config, load_config, parse_config
from fedgmi_fedml.config.checks import MODEL_OPTIONS, VAE_OPTIONS
from fedgmi_fedml.config.sections import DATASETS, LAYOUTS, MODELS, VAES
from fedgmi_fedml.errors import ConfigError


def refused(*overrides: str) -> tuple[str, ...]:
    """The problems that ``digits`` has with these settings."""
    with pytest.raises(ConfigError) as caught:
        load_config("digits", overrides)
    return caught.value.problems


def one(*overrides: str) -> str:
    """The one problem that ``digits`` has with these settings."""
    found = refused(*overrides)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("train_args.epochs=1.5", "must be a whole number, is 1.5"),
        ("train_args.epochs=true", "must be a whole number, is true"),
        ("train_args.epochs='3'", 'must be a whole number, is "3" in quotes; remove the quotes'),
        ("train_args.epochs=0", "must be at least 1, is 0"),
        ("train_args.epochs=", "must be a whole number, is null"),
        ("train_args.learning_rate=0", "must be above 0, is 0"),
        ("train_args.learning_rate=fast", 'must be a number, is "fast"'),
        ("train_args.learning_rate=.nan", "must be a finite number"),
        ("train_args.mixed_precision=1", "must be true or false, is 1"),
        ("train_args.mixed_precision='False'", 'must be true or false, is "False" in quotes; remove the quotes'),
        ("common_args.run_name=2024", "must be text, is 2024; put it in quotes"),
        ("common_args.run_name=''", "must not be empty"),
        ("common_args.random_seed=-1", "must be at least 0, is -1"),
        ("data_args.test_share=1.0", "must be below 1, is 1"),
        ("data_args.silo_mixture=7", "must be a mapping of keys, is 7"),
        ("data_args.silo_mixture.level=0.6", "must be at most 0.5, is 0.6"),
        ("data_args.silo_mixture.components=rotate", 'must be a list, is "rotate"'),
        ("data_args.silo_mixture.components=[{rotate: 45}]", "must be one of 0, 90, 180, 270, is 45"),
        ("data_args.silo_mixture.components=[{classes: uper}]", "must be upper, lower, digits, or a list of class"),
        ("data_args.silo_mixture.components=[{where: 3}]", "must be a mapping of columns to a value"),
        ("data_args.silo_mixture.proportions=[[0.5, -0.5]]", "must be a list of rows of numbers of zero or more"),
        ("data_args.silo_mixture.samples_per_silo=many", "must be a whole number above 0, [low, high], or null"),
        ("data_args.silo_mixture.samples_per_silo=[1, 2, 3]", "must be a whole number above 0, [low, high], or null"),
        ("model_args.model_options=", "must be a mapping, is null"),
        ("device_args.device=gpu", "must be auto, cpu, cuda or cuda:<number>"),
        ("fedgmi_args.affinity.temperature=0", "must be a number above 0, or auto, is 0"),
        ("fedgmi_args.initialisation.warmup_beta=3", "must be [b0, b1], two numbers of zero or more, is 3"),
        ("fedgmi_args.secure.piece_bytes=1", "must be at least 4096, is 1"),
        ("fedgmi_args.secure.rules.w_max=0", "must be above 0, is 0"),
        ("fedgmi_args.secure.deadlines.join=0", "must be above 0, is 0"),
    ],
)
def test_wrong_values(setting: str, says: str) -> None:
    key = setting.partition("=")[0]
    problem = one(setting)
    assert problem.startswith(f"--set {key}")
    assert says in problem


@pytest.mark.parametrize("clip", ["0", "-1", "-0.0"])
def test_clip_must_be_positive(clip: str) -> None:
    """Field report A8."""
    assert "fedgmi_args.secure.clip: must be above 0" in one(f"fedgmi_args.secure.clip={clip}")


def test_a_clip_too_large_for_useful_steps() -> None:
    assert "fedgmi_args.secure.clip: must be at most 1024, is 1000000.0" in one("fedgmi_args.secure.clip=1e6")


@pytest.mark.parametrize(
    ("setting", "nearest", "valid"),
    [
        ("data_args.dataset=mnits", "mnist", "cifar10"),
        ("train_args.client_optimizer=adamm", "adam", "sgd"),
        ("comm_args.backend=MQTTS3", "MQTT_S3", "GRPC"),
        ("comm_args.backend=mqtt_s3", "MQTT_S3", "GRPC"),
        ("fedgmi_args.secure.backend=maskd", "masked", "homomorphic"),
        ("fedgmi_args.affinity.score=elb", "elbo", "iwae"),
        ("data_args.silo_mixture.kind=dirichlett", "dirichlet", "natural"),
        ("data_args.silo_mixture.layout=fedsoft_digits_30-70", "fedsoft_digits_30_70", "fedsoft_letters_random"),
        ("validation_args.evaluate_baselines=[fedavgg]", "fedavg", "local"),
        ("model_args.model=resnet18", "resnet18_gn", "package.module:factory"),
        ("model_args.vae=convv", "conv", "tabular"),
        ("common_args.training_type=cross-silo", "cross_silo", "simulation"),
    ],
)
def test_misspelt_names_get_the_nearest_and_the_valid_ones(setting: str, nearest: str, valid: str) -> None:
    """Field report A7."""
    problem = one(setting)
    assert f'did you mean "{nearest}"?' in problem
    assert valid in problem


def test_a_name_with_one_possibility() -> None:
    assert one("train_args.federated_optimizer=FedAvg").endswith('must be FedGMI, is "FedAvg"')


def test_a_name_like_nothing_lists_the_valid_ones() -> None:
    assert one("fedgmi_args.secure.backend=xyz").endswith('"xyz" is not known: Valid: masked, none, homomorphic')


@pytest.mark.parametrize("path", ["my_models:make", "package.module:factory", "a.b:C.build"])
def test_import_paths(path: str) -> None:
    config = load_config("digits", [f"model_args.vae={path}", "model_args.vae_options={anything: 1}"])
    assert config.model_args.vae == path


@pytest.mark.parametrize("path", ["my_models", "a b:c", "module:", ":factory", "mod.:f", "os;x:y"])
def test_what_is_no_import_path(path: str) -> None:
    assert "package.module:factory for your own" in one(f"model_args.model='{path}'")


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


class TestOverrides:
    def test_values_are_yaml(self) -> None:
        config = load_config(
            "digits",
            [
                "train_args.learning_rate=1e-4",
                "fedgmi_args.secure.backend=none",
                "validation_args.evaluate_baselines=[local]",
                "train_args.vae_learning_rate=",
                "common_args.run_name='2024'",
                "model_args.vae_options.latent=3",
                "data_args.silo_mixture.components.1.rotate=180",
            ],
        )
        assert config.train_args.learning_rate == 1e-4
        assert config.fedgmi_args.secure.backend == "none"
        assert config.validation_args.evaluate_baselines == ("local",)
        assert config.train_args.vae_rate == 1e-4
        assert config.common_args.run_name == "2024"
        assert config.model_args.vae_options["latent"] == 3
        assert config.data_args.silo_mixture.components[1] == {"rotate": 180}

    def test_a_section_that_the_file_lacks(self) -> None:
        assert load_config("digits", ["tracking_args.output_dir=/somewhere"]).tracking_args.output_dir == "/somewhere"

    def test_the_last_one_counts(self) -> None:
        assert load_config("digits", ["train_args.epochs=2", "train_args.epochs=3"]).train_args.epochs == 3

    def test_equals_signs_in_values(self) -> None:
        assert load_config("digits", ["common_args.run_name=a=b"]).common_args.run_name == "a=b"

    def test_a_required_key_may_come_from_the_command_line(self) -> None:
        text = load_config("digits").to_yaml().replace("  dataset: digits\n", "")
        assert parse_config(text, overrides=["data_args.dataset=digits"]).data_args.dataset == "digits"

    @pytest.mark.parametrize(
        ("override", "says"),
        [
            ("train_args.epochs", "--set train_args.epochs: must be section.key=value"),
            ("=3", "--set =3: must be section.key=value"),
            ("train_args..epochs=3", "must be section.key=value"),
            ("epochs=3", "--set epochs: needs its section: section.key=value; did you mean train_args.epochs?"),
            ("zebra=3", "--set zebra: needs its section: section.key=value"),
            ("train_args.epoch=3", '--set train_args.epoch: unknown key; did you mean "epochs"?'),
            ("trian_args.epochs=3", 'trian_args: unknown section; did you mean "train_args"?'),
            ("fedgmi_args.backend=none", "--set fedgmi_args.backend: also in section comm_args"),
            ("train_args.epochs=[1", "--set train_args.epochs: '[1' cannot be read as YAML; put text in quotes"),
            ("train_args.epochs=2001-99-99", "cannot be read as YAML"),
            ("train_args.epochs.x=1", "--set train_args.epochs.x: train_args.epochs is a single value; it has no x"),
            ("data_args.silo_mixture.components.7.rotate=0", "is a list of 2; 7 is no entry of it"),
            ("data_args.silo_mixture.components.x.rotate=0", "is a list of 2; x is no entry of it"),
        ],
    )
    def test_what_cannot_be_set(self, override: str, says: str) -> None:
        assert says in one(override)

    def test_every_wrong_override_is_told(self) -> None:
        assert len(refused("epochs=3", "train_args.epoch=3", "train_args.batch_size=0", "x")) == 4

    def test_lines_of_replaced_lists_are_forgotten(self) -> None:
        problem = one("data_args.silo_mixture.components=[{rotate: 1}]")
        assert problem.startswith("--set data_args.silo_mixture.components.0.rotate: must be one of")


class TestPaths:
    def test_variables_and_home_are_expanded(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("FEDGMI_DATA", "/data")
        monkeypatch.setenv("HOME", str(tmp_path))
        config = load_config("digits", ["data_args.data_path=${FEDGMI_DATA}/x.npz", "tracking_args.output_dir=~/runs"])
        assert config.data_args.data_path == "/data/x.npz"
        assert config.data_args.data_cache_dir == "/data"
        assert config.tracking_args.output_dir == str(tmp_path / "runs")

    def test_defaults_for_what_is_not_set(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("FEDGMI_DATA", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        config = load_config("digits", ["data_args.data_path=${FEDGMI_DATA:-/default}/x.npz"])
        assert config.data_args.data_path == "/default/x.npz"
        assert config.data_args.data_cache_dir == str(tmp_path / ".cache" / "fedgmi")

    @pytest.mark.parametrize("value", [None, ""])
    def test_unset_variable(self, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
        monkeypatch.delenv("FEDGMI_NOWHERE", raising=False)
        if value is not None:
            monkeypatch.setenv("FEDGMI_NOWHERE", value)
        problem = one("data_args.data_path=${FEDGMI_NOWHERE}/mnist.npz")
        assert "--set data_args.data_path: the environment variable FEDGMI_NOWHERE is not set" in problem
        assert "${FEDGMI_NOWHERE:-/default/folder}" in problem


def test_construction_in_code_is_just_as_strict() -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError):
        Config.model_validate({"train_args": {"learning_rte": 1.0}})
    with pytest.raises(ValidationError):
        Config().train_args.epochs = 3  # type: ignore[misc]


def test_names_are_those_of_the_code_behind_them() -> None:
    """The lists that the configuration keeps (so that it need not load torch) are those of data and models."""
    data = pytest.importorskip("fedgmi_fedml.data")
    experts = pytest.importorskip("fedgmi_fedml.models.experts")
    vaes = pytest.importorskip("fedgmi_fedml.models.vaes")
    components = pytest.importorskip("fedgmi_fedml.data.components")
    from fedgmi_fedml.config.sections import ComponentSpec

    assert sorted(DATASETS) == sorted(data.DATASETS)
    assert sorted(LAYOUTS) == sorted(data.LAYOUTS)
    assert {name: options for name, (_, options) in experts._FACTORIES.items()} == MODEL_OPTIONS
    assert vaes._OPTIONS == VAE_OPTIONS
    assert sorted(MODELS) == sorted(MODEL_OPTIONS)
    assert sorted(VAES) == sorted(VAE_OPTIONS)
    assert sorted(ComponentSpec.__annotations__) == sorted(components._KEYS)


def test_rules_are_those_of_secure() -> None:
    from secure.types import Rules

    ours = Config().fedgmi_args.secure.rules
    assert Rules(**ours.model_dump()) == Rules()
    assert ours.gate == Rules().gate()


def test_a_backend_that_the_rounds_cannot_use_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match=r"secure\.backend.*homomorphic.*use masked"):
        load_config("digits", ["fedgmi_args.secure.backend=homomorphic"])
