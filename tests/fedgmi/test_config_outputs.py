"""What comes out of a configuration: the effective dump, the digests, the schema; and the files that are shipped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from fedgmi_fedml.config import Config, config_folder, config_names, load_config, parse_config
from fedgmi_fedml.config.agreement import EXCLUDED
from fedgmi_fedml.config.reader import parse_document
from fedgmi_fedml.config.schema import config_schema, schema_text
from fedgmi_fedml.config.vocabulary import settings

SHIPPED = (
    "breast_cancer_table",
    "cifar10_rotation",
    "digits",
    "fashion_rotation",
    "letters_case",
    "medical_images",
    "mnist_rotation",
    "mnist_rotation4",
)


@pytest.mark.parametrize("name", SHIPPED)
class TestShipped:
    def test_is_valid_and_named_after_its_file(self, name: str) -> None:
        config = load_config(name)
        assert config.common_args.run_name == name
        assert config.fedgmi_args.secure.backend == "masked"

    def test_round_trip_is_identical(self, name: str) -> None:
        config = load_config(name)
        again = parse_config(config.to_yaml())
        assert again == config
        assert again.to_yaml() == config.to_yaml()
        assert again.digest() == config.digest()

    def test_no_line_is_too_long_and_the_first_comment_says_what_it_is(self, name: str) -> None:
        lines = (config_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        assert max(map(len, lines)) <= 120
        assert lines[0] == "# yaml-language-server: $schema=schema.json"
        assert lines[1].startswith("# ")


def test_the_shipped_ones_are_all_there() -> None:
    assert config_names() == SHIPPED


def test_dump_of_awkward_values() -> None:
    awkward = load_config(
        "digits",
        [
            "common_args.run_name='1e-3'",
            "model_args.vae=my.vaes:make",
            "model_args.vae_options={'on': yes, text: 'no', number: 1e-7, nothing: null, deep: {a: [[1, 2], [x]]}}",
            "model_args.model_options={}",
            "comm_args.customized_training_mqtt_config={BROKER_HOST: 127.0.0.1, BROKER_PORT: 1883}",
            "data_args.silo_mixture={kind: explicit, proportions: [[0.25, 0.75], [1, 0]], samples_per_silo: [10, 20]}",
            "train_args.learning_rate=1e-5",
        ],
    )  # fmt: skip
    assert awkward.common_args.run_name == "1e-3"
    again = parse_config(awkward.to_yaml())
    assert again == awkward
    assert again.digest() == awkward.digest()


OTHER = {
    "common_args.run_name": "other",
    "data_args.dataset": "emnist",
    "data_args.announced_shape": "[1, 8, 8]",
    "data_args.silo_mixture.kind": "random",
    "data_args.data_cache_dir": "/other",
    "data_args.data_path": "/other.npz",
    "data_args.data_options": "{download: true}",
    "data_args.silo_mixture.proportions": "[[0.5, 0.5]]",
    "data_args.silo_mixture.group": "hospital",
    "data_args.silo_mixture.components": "[{rotate: 0}, {rotate: 180}]",
    "data_args.silo_mixture.samples_per_silo": "[10, 11]",
    "data_args.silo_mixture.layout": "fedsoft_digits_linear",
    "model_args.model": "cnn",
    "model_args.model_options": "{hidden: [7]}",
    "model_args.vae": "tabular",
    "model_args.vae_options": "{latent: 3}",
    "train_args.client_num_in_total": 13,
    "train_args.client_num_per_round": 11,
    "train_args.vae_learning_rate": 0.5,
    "train_args.early_stopping_rounds": 7,
    "validation_args.evaluate_baselines": "[fedavg]",
    "device_args.device": "cpu",
    "tracking_args.output_dir": "/other",
    "tracking_args.status_port": 8891,
    "tracking_args.status_bind": "127.0.0.2",
    "fedgmi_args.affinity.temperature": "auto",
    "fedgmi_args.initialisation.candidates": 9,
    "fedgmi_args.initialisation.warmup_beta": "[2, 3]",
    "fedgmi_args.secure.rules.colluders": 0,
    "fedgmi_args.secure.rules.max_drops": 0,
    "fedgmi_args.secure.rules.min_contributors": 3,
    "fedgmi_args.secure.rules.w_max": 0.75,
    "fedgmi_args.secure.piece_bytes": 8192,
    "fedgmi_args.initialisation.weight_floor": 0.125,
}
NOTHING_ELSE_FITS = {
    "common_args.scenario",
    "data_args.data_options",
    "data_args.partition_method",
    "train_args.federated_optimizer",
}
BASE = ["model_args.model_options={}", "model_args.vae_options={}", "data_args.data_options={}"]


def changed(name: str) -> Config:
    """``digits`` with one setting changed."""
    base = load_config("digits", BASE)
    value: object = base
    for key in name.split("."):
        value = getattr(value, key)
    other = OTHER.get(name)
    if other is None:
        named = get_args(dict(settings())[name].annotation)
        if isinstance(value, str) and value in named:
            other = next(word for word in named if word != value)
        elif isinstance(value, bool):
            other = str(not value).lower()
        elif isinstance(value, float):
            other = value + 0.0625
        else:
            other = value + 1  # type: ignore[operator]
    return load_config("digits", [*BASE, f"{name}={other}"])


@pytest.mark.parametrize("name", [name for name, _ in settings() if name not in NOTHING_ELSE_FITS])
def test_the_digest_depends_on_everything_but_what_is_excluded(name: str) -> None:
    base, other = load_config("digits", BASE), changed(name)
    assert other != base
    excluded = any(name == key or name.startswith(f"{key}.") for key in EXCLUDED)
    assert (other.digest() == base.digest()) == excluded


def test_every_exclusion_exists_and_has_a_reason() -> None:
    names = [name for name, _ in settings()]
    for key, reason in EXCLUDED.items():
        assert any(name == key or name.startswith(f"{key}.") for name in names), key
        assert len(reason) > 10


def test_digest_survives_what_agents_rewrite() -> None:
    base = load_config("digits")
    rewritten = base.to_yaml().replace("using_mlops: false", "using_mlops: true")
    rewritten = rewritten.replace(
        "client_num_in_total: 12", "client_num_in_total: 4\n  client_id_list: '[1, 2]'\n  run_id: 9"
    )
    rewritten = rewritten.replace("client_num_per_round: 12", "client_num_per_round: 4")
    rewritten = rewritten.replace("worker_num: 1", "worker_num: 4") + "dynamic_args: {run_id: 9}\n"
    agent = parse_config(rewritten)
    assert agent != base
    assert agent.digest() == base.digest()
    assert agent.run_digest() != base.run_digest()


def test_digest_is_the_same_in_every_process() -> None:
    code = "from fedgmi_fedml.config import load_config; print(load_config('digits').digest())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == load_config("digits").digest()
    assert len(load_config("digits").digest()) == 64


def test_committed_schema_is_in_step() -> None:
    committed = json.loads((config_folder() / "schema.json").read_text(encoding="utf-8"))
    assert committed == json.loads(schema_text()), "run: fedgmi config schema > configs/schema.json"


def test_every_setting_is_described() -> None:
    for name, field in settings():
        assert field.description, name


def test_schema_accepts_shipped_files_and_refuses_unknown_keys() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(config_schema())
    for name in SHIPPED:
        values = parse_document((config_folder() / f"{name}.yaml").read_text(encoding="utf-8")).values
        assert not list(validator.iter_errors(values)), name
        assert not list(validator.iter_errors(json.loads(json.dumps(load_config(name).model_dump(mode="json")))))
    values["train_args"]["epoch"] = 3
    assert list(validator.iter_errors(values))
    del values["train_args"]["epoch"], values["data_args"]["dataset"]
    assert list(validator.iter_errors(values))


def test_a_wheel_keeps_them_inside_the_package() -> None:
    """Where the package has a folder ``configs`` (as a wheel does), that one is used, not the source tree's."""
    import fedgmi_fedml.config.load as load

    package = Path(load.__file__).resolve().parents[1]
    expected = package / "configs" if (package / "configs").is_dir() else package.parent / "configs"
    assert config_folder() == expected
