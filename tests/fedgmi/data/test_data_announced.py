"""What a federation announces of its samples, and how a silo whose data differ is told."""

import numpy as np
import pytest

from fedgmi_fedml.config import load_config
from fedgmi_fedml.data import load_federation, load_silo
from fedgmi_fedml.data.announced import announced
from fedgmi_fedml.errors import ConfigError, DataError

NPZ = (
    "data_args.dataset=npz",
    "data_args.silo_mixture.components=[{}]",
    "data_args.announced_shape=[1, 8, 8]",
    "data_args.data_options={classes: 10}",
)
COLUMNS = "columns: {age: [0, 120], smoker: ['no', 'yes']}"
CSV = (
    "data_args.dataset=csv",
    "data_args.silo_mixture.components=[{}]",
    "model_args.model=mlp",
    "model_args.vae=tabular",
    "model_args.vae_options={likelihood: gaussian}",
    f"data_args.data_options={{label: ill, classes: ['no', 'yes'], {COLUMNS}}}",
)


def images(folder, shape=(20, 8, 8), labels=10, name="own.npz"):
    path = folder / name
    generator = np.random.default_rng(0)
    np.savez(path, x=generator.integers(0, 256, shape, dtype=np.uint8), y=np.arange(len(range(shape[0]))) % labels)
    return path


def test_a_published_set_announces_what_its_simulation_has():
    config = load_config("digits")
    told, made = announced(config), load_federation(config)
    assert (told.shape, told.class_names, told.schema) == (made.shape, made.class_names, made.schema)
    for silo in made.silos:
        told.check(silo)


def test_images_of_ones_own_announce_shape_and_classes_without_a_path(tmp_path):
    told = announced(load_config("digits", NPZ))
    assert told.shape.input_shape == (1, 8, 8)
    assert told.class_names == tuple(map(str, range(10)))
    told.check(load_silo(load_config("digits", NPZ), images(tmp_path)))


@pytest.mark.parametrize(
    ("shape", "names"), [((20, 9, 8), "1 × 9 × 8.*1 × 8 × 8"), ((20, 8, 8, 3), "3 × 8 × 8.*1 × 8 × 8")]
)
def test_a_silo_of_another_shape_is_told_both(tmp_path, shape, names):
    config = load_config("digits", NPZ)
    silo = load_silo(config, images(tmp_path, shape), name="clinic-b")
    with pytest.raises(DataError, match=f"clinic-b.*{names}.*announced_shape"):
        announced(config).check(silo)


def test_a_silo_with_other_classes_is_told(tmp_path):
    silo = load_silo(load_config("digits", [*NPZ, "data_args.data_options={classes: 11}"]), images(tmp_path))
    with pytest.raises(DataError, match="classes 0, 1.*announced 0, 1"):
        announced(load_config("digits", NPZ)).check(silo)


def test_a_table_announces_its_columns(tmp_path):
    told = announced(load_config("digits", CSV))
    assert told.shape.input_shape == (3,)
    assert told.schema is not None
    assert told.schema.columns == ("age", "smoker")
    path = tmp_path / "own.csv"
    path.write_text("age,smoker,ill\n50,no,no\n60,yes,yes\n")
    told.check(load_silo(load_config("digits", CSV), path))
    other = load_config("digits", [*CSV[:-1], CSV[-1].replace("120", "130")])
    with pytest.raises(DataError, match="columns 2 .age, smoker. with their ranges"):
        told.check(load_silo(other, path))


def test_an_image_folder_with_size_and_mode_needs_no_further_shape():
    options = "data_args.data_options={classes: [a, b], image_size: [12, 10], mode: rgb}"
    changes = ["data_args.dataset=image_folder", "data_args.silo_mixture.components=[{}]", options]
    assert announced(load_config("digits", changes)).shape.input_shape == (3, 12, 10)
    with pytest.raises(ConfigError, match="contradicts"):
        announced(load_config("digits", [*changes, "data_args.announced_shape=[1, 12, 10]"]))


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        (["data_args.data_options={}"], "data_options.classes"),
        (["data_args.announced_shape=null", "data_args.data_path=/x.npz"], "announced_shape"),
        ([*CSV, "data_args.announced_shape=null", "data_args.data_path=/x.csv",
          "data_args.data_options={label: ill, classes: ['no', 'yes']}"], "data_options.columns"),
    ],
)  # fmt: skip
def test_what_must_be_announced_is_named(changes, missing):
    with pytest.raises(ConfigError, match=missing):
        announced(load_config("digits", [*NPZ, *changes]))


def test_one_machine_may_look_at_the_pooled_file(tmp_path):
    path = images(tmp_path)
    changes = [*NPZ, "data_args.announced_shape=null", f"data_args.data_path={path}"]
    more = ["train_args.client_num_in_total=5", "train_args.client_num_per_round=5"]
    config = load_config("digits", [*changes, *more])
    with pytest.raises(ConfigError):
        announced(config)
    assert announced(config, pooled=True).shape == load_federation(config).shape


def test_files_need_a_path_or_an_announcement():
    with pytest.raises(ConfigError, match="announced_shape"):
        load_config("digits", [NPZ[0], NPZ[1]])
    with pytest.raises(ConfigError, match="is a table"):
        load_config("breast_cancer_table", ["data_args.announced_shape=[1, 8, 8]"])
