"""One reader of YAML: every way in which a file can be wrong is one clear problem, and all are told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgmi_fedml.config import Config, config_folder, load_config, parse_config
from fedgmi_fedml.config.reader import dump_yaml, parse_document
from fedgmi_fedml.errors import ConfigError

COMPLETE = """\
common_args: {training_type: cross_silo}
data_args: {dataset: digits}
model_args: {model: mlp}
train_args:
  federated_optimizer: FedGMI
  client_num_in_total: 12
  client_num_per_round: 12
  comm_round: 3
comm_args: {backend: FEDGMI_GRPC}
fedgmi_args: {components: 2}
"""


def problems(text: str, *overrides: str) -> tuple[str, ...]:
    """Every problem of a text that must not be accepted."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "run.yaml", overrides)
    assert str(caught.value).startswith("run.yaml: ")
    for problem in caught.value.problems:
        assert problem in str(caught.value)
    return caught.value.problems


def only(text: str, *overrides: str) -> str:
    """The one problem of a text."""
    found = problems(text, *overrides)
    assert len(found) == 1, found
    return found[0]


def with_train(*lines: str) -> str:
    """The complete configuration with further lines in ``train_args``, from line 9 on."""
    added = "".join(f"  {line}\n" for line in lines)
    return COMPLETE.replace("  comm_round: 3\n", f"  comm_round: 3\n{added}")


def test_a_minimal_file_takes_the_defaults() -> None:
    config = parse_config(COMPLETE)
    assert config.train_args.learning_rate == Config().train_args.learning_rate
    assert config.train_args.comm_round == 3
    assert config.fedgmi_args.candidate_count == 6


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 0.001), ("5E-4", 0.0005), ("2.5e1", 25.0), ("+1e0", 1.0), (".5e-1", 0.05), ("1", 1.0)],
)
def test_exponents_are_numbers(written: str, value: float) -> None:
    assert parse_config(with_train(f"learning_rate: {written}")).train_args.learning_rate == value


def test_quoted_exponents_stay_text_and_are_refused() -> None:
    assert only(with_train("learning_rate: '1e-3'")) == (
        'line 9, train_args.learning_rate: must be a number, is "1e-3" in quotes; remove the quotes'
    )


class TestUnknownKeys:
    def test_nearest(self) -> None:
        assert only(with_train("learning_rte: 1")) == (
            'line 9, train_args.learning_rte: unknown key; did you mean "learning_rate"?'
        )

    def test_belongs_in_another_section(self) -> None:
        assert only(with_train("device: cpu")) == (
            "line 9, train_args.device: unknown here; it belongs in section device_args"
        )

    def test_belongs_in_a_nested_section(self) -> None:
        assert only(with_train("clip: 3.0")).endswith("unknown here; it belongs in section fedgmi_args.secure")

    def test_near_a_key_of_another_section(self) -> None:
        assert only(with_train("output_dirs: x")).endswith('unknown key; did you mean "tracking_args.output_dir"?')

    def test_nothing_near_lists_what_is_valid(self) -> None:
        text = COMPLETE.replace("components: 2", "components: 2, secure: {rules: {zzzzqq: 1}}")
        assert "unknown key; valid here: colluders, max_drops" in only(text)

    def test_in_a_list_of_mappings(self) -> None:
        text = COMPLETE.replace("dataset: digits", "dataset: digits, silo_mixture: {components: [{}, {rotat: 90}]}")
        assert only(text) == ('line 2, data_args.silo_mixture.components.1.rotat: unknown key; did you mean "rotate"?')

    @pytest.mark.parametrize(
        ("key", "hint"),
        [
            ("enable_fhe", "fedgmi_args.secure"),
            ("enable_dp", "differential privacy is not part"),
            ("partition_alpha", "silo_mixture"),
            ("using_gpu", "device_args.device"),
            ("enable_wandb", "enable_tensorboard"),
            ("lr", "write learning_rate"),
        ],
    )
    def test_keys_of_fedml_that_would_be_ignored_say_what_to_write(self, key: str, hint: str) -> None:
        assert hint in only(with_train(f"{key}: true"))

    def test_section(self) -> None:
        assert (
            only(COMPLETE + "trian_args: {epochs: 2}\n")
            == 'line 11, trian_args: unknown section; did you mean "train_args"?'
        )

    def test_section_unlike_any(self) -> None:
        assert "valid sections: common_args, data_args" in only(COMPLETE + "zebra: {epochs: 2}\n")

    def test_value_outside_sections(self) -> None:
        assert only(COMPLETE + "epochs: 2\n") == (
            "line 11, epochs: stands outside every section; it belongs in section train_args"
        )
        assert "a value outside every section" in only(COMPLETE + "zebra: 2\n")

    def test_transport_settings_pass(self) -> None:
        config = parse_config(COMPLETE.replace("backend: FEDGMI_GRPC", "backend: GRPC, grpc_ipconfig_path: a.csv"))
        assert config.comm_args.model_extra == {"grpc_ipconfig_path": "a.csv"}
        assert parse_config(config.to_yaml()) == config


class TestFlattening:
    def test_same_key_in_two_sections(self) -> None:
        text = COMPLETE.replace("{training_type: cross_silo}", "{training_type: cross_silo, epochs: 3}")
        assert only(text.replace("comm_round: 3", "comm_round: 3\n  epochs: 2")) == (
            "line 1, common_args.epochs: also in section train_args (line 9); FedML drops the sections' names and the "
            "last one wins; keep the one in train_args"
        )

    def test_open_section_does_not_hide_it(self) -> None:
        text = COMPLETE.replace("backend: FEDGMI_GRPC", "backend: FEDGMI_GRPC, random_seed: 1")
        text = text.replace("training_type: cross_silo", "training_type: cross_silo, random_seed: 2")
        assert "line 9, comm_args.random_seed: also in section common_args (line 1)" in only(text)

    def test_stranger_after_the_proper_place(self) -> None:
        assert "line 10, fedgmi_args.backend: also in section comm_args (line 9)" in only(
            COMPLETE.replace("components: 2", "components: 2, backend: none")
        )

    def test_key_twice_in_one_mapping(self) -> None:
        assert only(with_train("epochs: 1", "epochs: 2")) == (
            "line 10, train_args.epochs: given twice (first in line 9); keep one"
        )

    def test_section_twice(self) -> None:
        found = problems(COMPLETE + "data_args: {dataset: wine}\n")
        assert found[0] == "line 11, data_args: given twice (first in line 2); keep one"

    @pytest.mark.parametrize("body", ["", " null", " ~"])
    def test_empty_section(self, body: str) -> None:
        assert only(COMPLETE + f"device_args:{body}\n") == (
            "line 11, device_args: the section is empty, which FedML cannot read; give it a key or remove it"
        )

    @pytest.mark.parametrize("body", ["7", "[1, 2]", "text"])
    def test_section_that_is_no_mapping(self, body: str) -> None:
        assert "must be a section" in only(COMPLETE + f"device_args: {body}\n")


class TestWholeFile:
    def test_empty(self) -> None:
        assert "the file is empty" in only("")
        assert "the file is empty" in only("# only a comment\n")

    def test_scalar(self) -> None:
        assert "the file holds a single value" in only("hello")

    def test_list(self) -> None:
        assert "the file holds a single list" in only("- 1\n- 2\n")

    def test_broken_yaml_names_line_and_column(self) -> None:
        assert only("train_args:\n  epochs: [1\ndata_args: 3\n").startswith("line 3, column 10: not valid YAML: ")

    def test_tab(self) -> None:
        assert only("train_args:\n\tepochs: 1\n").endswith("not valid YAML: a tab; indent with spaces")

    def test_two_documents(self) -> None:
        assert "a second document (---)" in only("a: 1\n---\nb: 2\n")

    def test_alias_in_itself(self) -> None:
        assert "an alias refers to itself" in only("train_args: &a\n  epochs: *a\n")

    def test_aliases_that_explode(self) -> None:
        lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 8)]
        assert "aliases make the file too large" in only("\n".join(lines))

    def test_unknown_tag(self) -> None:
        assert "not valid YAML" in only("train_args: {epochs: !!python/object:os.system 1}\n")

    def test_bad_timestamp(self) -> None:
        assert any("cannot be read; put text in quotes" in line for line in problems(with_train("epochs: 2001-99-99")))

    def test_keys_that_are_no_text(self) -> None:
        assert "train_args.on: YAML reads this key as bool; put it in quotes" in problems(with_train("on: 3"))[0]
        assert "YAML reads this key as int" in problems(with_train("3: 3"))[0]
        assert any("cannot be a key" in problem for problem in problems(with_train("? [1, 2]\n  : 3")))

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"absent\.yaml: no such file, and no shipped configuration"):
            load_config(tmp_path / "absent.yaml")

    def test_misspelt_name(self) -> None:
        with pytest.raises(ConfigError, match=r'did you mean "mnist_rotation"\? Shipped: breast_cancer_table, '):
            load_config("mnist_rotatoin")

    def test_shipped_name_with_a_folder_that_is_not_there(self) -> None:
        with pytest.raises(ConfigError, match=r'did you mean "digits"\?'):
            load_config("nowhere/digits.yaml")

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is a folder"):
            load_config(tmp_path)

    def test_a_folder_does_not_hide_a_shipped_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "digits").mkdir()
        monkeypatch.chdir(tmp_path)
        assert load_config("digits").common_args.run_name == "digits"

    def test_a_file_comes_before_a_shipped_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "digits").write_text(COMPLETE)
        monkeypatch.chdir(tmp_path)
        assert load_config("digits").common_args.run_name == "fedgmi"

    def test_not_text(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_bytes(b"PK\x03\x04\xff\xfe")
        with pytest.raises(ConfigError, match="is not text in UTF-8"):
            load_config(tmp_path / "x.yaml")

    def test_too_large(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_bytes(b"#" * ((1 << 20) + 1))
        with pytest.raises(ConfigError, match="is no configuration file"):
            load_config(tmp_path / "x.yaml")

    def test_unreadable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "x.yaml"
        file.write_text(COMPLETE)

        def refuse(self: Path) -> bytes:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(ConfigError, match=r"x\.yaml: cannot be read \(Permission denied\)"):
            load_config(file)

    def test_byte_order_mark_is_read_over(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbf" + COMPLETE.encode())
        assert load_config(tmp_path / "x.yaml").train_args.comm_round == 3

    def test_launch_job_by_mistake(self) -> None:
        job = "workspace: ws\njob: |\n  python3 client.py\njob_type: federate\ncomputing: {minimum_num_gpus: 0}\n"
        message = only(job)
        assert "is a FedML launch job (it has workspace, job, job_type, computing)" in message
        assert "`fedml launch`" in message
        assert "breast_cancer_table" in message

    def test_launch_job_of_the_repository(self) -> None:
        job = config_folder() / "fedgmi.yaml"
        if not job.exists():
            pytest.skip("the launch job is not there yet")
        with pytest.raises(ConfigError, match="is a FedML launch job"):
            load_config(job)

    def test_a_training_configuration_with_a_bootstrap_is_no_launch_job(self) -> None:
        assert "line 11, bootstrap" in only(COMPLETE + "bootstrap: echo\n")


def test_all_missing_keys_at_once() -> None:
    found = problems("train_args: {epochs: 2}\n")
    assert [problem.partition(":")[0] for problem in found] == [
        "comm_args.backend",
        "common_args.training_type",
        "data_args.dataset",
        "fedgmi_args.components",
        "model_args.model",
        "train_args.client_num_in_total",
        "train_args.client_num_per_round",
        "train_args.comm_round",
        "train_args.federated_optimizer",
    ]
    assert all("missing; every configuration file must say it" in problem for problem in found)


def test_every_optional_key_may_go_and_every_required_one_may_not() -> None:
    """Field report A2: keys deleted one at a time."""
    document = parse_document((config_folder() / "digits.yaml").read_text())
    required = {path.partition(":")[0] for path in problems("comm_args: {}\n")}
    deleted = 0
    for section, body in document.values.items():
        for key in body:
            rest = {
                name: {k: v for k, v in inner.items() if (name, k) != (section, key)}
                for name, inner in document.values.items()
            }
            text = dump_yaml(rest)
            if f"{section}.{key}" in required:
                assert only(text) == f"{section}.{key}: missing; every configuration file must say it"
            else:
                assert parse_config(text).data_args.dataset == "digits"
            deleted += 1
    assert deleted > 20


def test_all_problems_are_told_at_once_in_the_order_of_lines() -> None:
    text = with_train("learning_rate: -1", "epochs: 0", "batch_sise: 3").replace("dataset: digits", "dataset: digit")
    found = problems(text, "train_args.weight_decay=x")
    assert [problem.partition(":")[0] for problem in found] == [
        "line 2, data_args.dataset",
        "line 9, train_args.learning_rate",
        "line 10, train_args.epochs",
        "line 11, train_args.batch_sise",
        "--set train_args.weight_decay",
    ]


def test_merge_keys_are_no_duplicates() -> None:
    text = "x_args: &base {epochs: 2, batch_size: 7}\n" + COMPLETE.replace(
        "train_args:\n", "train_args:\n  <<: *base\n  epochs: 5\n"
    )
    found = problems(text)
    assert len(found) == 1
    assert "x_args: unknown section" in found[0]


def test_agents_additions_are_read_over() -> None:
    """What FedML's agents write into a packaged configuration changes nothing that is ours."""
    text = with_train("run_id: 7", "client_id_list: '[1]'", "client_id: 1", "server_id: 2")
    text = text.replace("backend: FEDGMI_GRPC", "backend: FEDGMI_GRPC, mqtt_config_path: /a, s3_config_path: /b")
    text += "tracking_args: {log_file_dir: /l, log_server_url: u}\n"
    text += (
        "dynamic_args: {run_id: 7, client_num_in_total: 3, using_mlops: true}\nenvironment_args: {bootstrap: b.sh}\n"
    )
    assert parse_config(text) == parse_config(COMPLETE + "tracking_args: {}\n")
