"""Values, settings against each other, ``--set`` and paths: each refusal says key, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_refusals import one, refused

from fedgmi_fedml.config import Config, load_config, parse_config
from fedgmi_fedml.config.checks import MODEL_OPTIONS, VAE_OPTIONS
from fedgmi_fedml.config.sections import DATASETS, LAYOUTS, MODELS, VAES


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
