"""npz files: names, groups, shapes, labels, ranges."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from fedgmi_fedml.data import load_federation, load_silo
from fedgmi_fedml.errors import ConfigError, DataError, RangeError


def save(path: Path, **arrays) -> str:
    np.savez(path, **arrays)
    return str(path)


def grey(count: int, value: int = 200) -> np.ndarray:
    return np.full((count, 4, 4), value, dtype=np.uint8)


def labels(count: int) -> np.ndarray:
    return np.arange(count) % 2


def test_medmnist_names_and_shapes(make_config, tmp_path):
    path = save(
        tmp_path / "med.npz",
        train_images=np.full((60, 4, 4, 3), 90, np.uint8), train_labels=labels(60)[:, None].astype(np.uint8),
        val_images=np.full((12, 4, 4, 3), 120, np.uint8), val_labels=labels(12)[:, None],
        test_images=np.full((24, 4, 4, 3), 150, np.uint8), test_labels=labels(24)[:, None],
    )  # fmt: skip
    federation = load_federation(make_config(2, dataset="npz", data_path=path, mixture={"samples_per_silo": 30}))
    silo = federation.silos[0]
    assert federation.shape.input_shape == (3, 4, 4)
    assert np.allclose(silo.x_val, 120 / 255), "validation comes from the source's own part"
    assert np.allclose(silo.x_test, 150 / 255)


def test_names_given_and_test_mask(make_config, tmp_path):
    mask = np.arange(50) % 5 == 0
    x = grey(50)
    x[mask] = 50
    path = save(tmp_path / "own.npz", pixels=x, digit=labels(50), held_out=mask)
    options = {"x_train": "pixels", "y_train": "digit", "test_mask": "held_out"}
    config = make_config(2, dataset="npz", data_path=path, data_options=options, mixture={"samples_per_silo": 10})
    silo = load_federation(config).silos[0]
    assert np.allclose(silo.x_train, 200 / 255)
    assert np.allclose(silo.x_test, 50 / 255)


def test_natural_groups(make_config, tmp_path):
    writer = np.repeat([3, 5, 8, 9], [40, 30, 20, 2])
    path = save(
        tmp_path / "w.npz", x=grey(92), y=labels(92), writer=writer, writer_codes=np.array([f"w{i}" for i in range(10)])
    )
    mixture = {"kind": "natural", "group": "writer"}
    federation = load_federation(make_config(3, dataset="npz", data_path=path, mixture=mixture))
    assert [silo.name for silo in federation.silos] == ["w3", "w5", "w8"]
    assert [len(silo.x_train) for silo in federation.silos] == [28, 21, 14]
    assert [len(silo.x_test) for silo in federation.silos] == [8, 6, 4]
    assert federation.true_alpha is None
    assert federation.silos[0].true_component_train is None
    mixture["samples_per_silo"] = 15
    small = load_federation(make_config(3, dataset="npz", data_path=path, mixture=mixture))
    assert [len(silo.x_train) for silo in small.silos] == [15, 15, 14]
    assert [len(silo.x_test) for silo in small.silos] == [4, 4, 4]
    with pytest.raises(DataError, match=r"4 groups.*client_num_in_total"):
        load_federation(make_config(9, dataset="npz", data_path=path, mixture=mixture))


def test_natural_groups_with_selecting_components(make_config, tmp_path):
    y = np.arange(120) % 3
    path = save(tmp_path / "w.npz", x=grey(120), y=y, hospital=np.where(np.arange(120) < 60, "north", "south"))
    mixture = {"kind": "natural", "group": "hospital", "components": [{"classes": [0]}, {"classes": [1]}]}
    federation = load_federation(make_config(2, dataset="npz", data_path=path, mixture=mixture))
    assert [silo.name for silo in federation.silos] == ["north", "south"]
    assert np.allclose(federation.true_alpha, 0.5, atol=0.05)
    assert set(federation.silos[0].y_train.tolist()) == {0, 1}
    mixture["components"] = [{"rotate": 0}, {"rotate": 90}]
    with pytest.raises(ConfigError, match="select"):
        load_federation(make_config(2, dataset="npz", data_path=path, mixture=mixture))


def test_overlapping_components_take_a_sample_once(make_config, tmp_path):
    y = np.arange(120) % 3
    path = save(tmp_path / "w.npz", x=grey(120), y=y, hospital=np.where(np.arange(120) < 60, "north", "south"))
    mixture = {"kind": "natural", "group": "hospital", "components": [{"classes": [0, 1]}, {"classes": [1, 2]}]}
    silo = load_federation(make_config(2, dataset="npz", data_path=path, mixture=mixture)).silos[0]
    assert sum(len(silo.part(part)[0]) for part in ("train", "val", "test")) == 60
    assert set(silo.y_train[silo.true_component_train == 1].tolist()) == {2}


def test_natural_needs_a_group(make_config, image_npz):
    with pytest.raises(ConfigError, match=r"silo_mixture\.group"):
        load_federation(make_config(2, dataset="npz", data_path=str(image_npz), mixture={"kind": "natural"}))


def test_a_file_for_each_silo(make_config, tmp_path):
    options = {"classes": ["no", "yes"]}
    for name, count in (("oslo", 30), ("rome", 20), ("wien", 0)):
        save(tmp_path / f"{name}.npz", x_train=grey(count), y_train=labels(count))
    mixture = {"kind": "natural", "group": "file"}
    config = make_config(3, dataset="npz", data_path=str(tmp_path), data_options=options, mixture=mixture)
    federation = load_federation(config)
    assert [(silo.name, len(silo.x_train)) for silo in federation.silos] == [("oslo", 21), ("rome", 14), ("wien", 0)]
    save(tmp_path / "rome.npz", x_train=np.zeros((9, 5, 5), np.uint8), y_train=labels(9))
    with pytest.raises(DataError, match=r"oslo, wien: 1×4×4.*rome: 1×5×5"):
        load_federation(config)
    with pytest.raises(DataError, match=r"3 silos.*client_num_in_total"):
        load_federation(make_config(4, dataset="npz", data_path=str(tmp_path), data_options=options, mixture=mixture))


def test_a_silos_own_data(make_config, tmp_path):
    path = save(tmp_path / "own.npz", x_train=grey(100), y_train=labels(100), classes=np.array(["benign", "malign"]))
    config = make_config(dataset="npz", data_path=path)
    silo, again = load_silo(config, name="oslo"), load_silo(config, path)
    assert (silo.name, len(silo.x_train), len(silo.x_val), len(silo.x_test)) == ("oslo", 70, 10, 20)
    assert silo.class_names == ("benign", "malign")
    assert silo.shape.input_shape == (1, 4, 4)
    assert (silo.y_train == again.y_train).all()
    assert abs(int(silo.y_test.sum()) - 10) <= 1, "the held-out part has the classes in proportion"


def test_an_empty_silo_is_fine(make_config, tmp_path):
    path = save(tmp_path / "empty.npz", x_train=grey(0), y_train=labels(0), classes=np.array(["a", "b"]))
    silo = load_silo(make_config(dataset="npz"), path)
    assert silo.x_train.shape == (0, 1, 4, 4)
    assert silo.shape.classes == 2
    one = save(tmp_path / "one.npz", x_train=grey(1), y_train=labels(1), classes=np.array(["a", "b"]))
    assert len(load_silo(make_config(dataset="npz"), one).x_train) == 1


def test_public_data_sets_are_no_silos_own(make_config):
    with pytest.raises(ConfigError, match="npz, csv, image_folder"):
        load_silo(make_config(dataset="digits"), "/nowhere")


def test_a_deployment_must_name_the_classes(make_config, tmp_path):
    path = save(tmp_path / "own.npz", x_train=grey(10), y_train=labels(10))
    with pytest.raises(DataError, match=r"^rome: .*data_options\.classes"):
        load_silo(make_config(dataset="npz"), path, name="rome")
    assert load_silo(make_config(dataset="npz", data_options={"classes": 3}), path).shape.classes == 3


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"x_train": grey(10), "y_train": np.arange(10), "classes": np.array(["a", "b"])}, "label 2 is outside"),
        ({"x_train": grey(10), "y_train": np.arange(10) - 1}, "label -1 is outside"),
        ({"x_train": grey(10), "y_train": np.linspace(0, 1, 10)}, "whole numbers"),
        ({"x_train": grey(10), "y_train": np.zeros((10, 3))}, r"shape \(10, 3\)"),
        ({"x_train": grey(10), "y_train": labels(9)}, "10 samples.*9 labels"),
        ({"x_train": grey(10)}, "no array 'y_train'"),
        ({"images": grey(10), "y_train": labels(10)}, "none of x_train.*images"),
        ({"x_train": np.array(["a"] * 10), "y_train": labels(10)}, "samples are numbers"),
        ({"x_train": np.array([None] * 10), "y_train": labels(10)}, "without objects"),
        ({"x_train": np.zeros((10, 2, 4, 5, 5), np.uint8), "y_train": labels(10)}, "neither images"),
        ({"x_train": np.ones((10, 3, 9, 3), np.uint8), "y_train": labels(10)}, "data_options.axes"),
        ({"x_train": np.ones((10, 7, 9, 8), np.uint8), "y_train": labels(10)}, "data_options.axes"),
        ({"x_train": grey(10), "y_train": labels(10), "test_mask": np.ones(9, bool)}, "one true or false"),
        ({"x_train": grey(9), "y_train": labels(9), "x_test": np.zeros((3, 5, 5), np.uint8), "y_test": labels(3)},
         "different shapes"),
    ],
)  # fmt: skip
def test_bad_npz_files(make_config, tmp_path, arrays, word):
    path = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=word) as caught:
        load_federation(make_config(2, dataset="npz", data_path=path))
    assert "bad.npz" in str(caught.value)


def test_files_that_are_no_npz(make_config, tmp_path):
    for name, content in (("a.npz", b"hello"), ("b.npz", b""), ("c.npz", b"PK\x03\x04broken")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            load_federation(make_config(2, dataset="npz", data_path=str(tmp_path / name)))
    whole = Path(save(tmp_path / "whole.npz", x_train=grey(500), y_train=labels(500)))
    whole.write_bytes(whole.read_bytes()[:900])
    with pytest.raises(DataError, match=r"whole\.npz"):
        load_federation(make_config(2, dataset="npz", data_path=str(whole)))
    with pytest.raises(DataError, match="no such file"):
        load_federation(make_config(2, dataset="npz", data_path=str(tmp_path / "missing.npz")))
    with pytest.raises((ConfigError, DataError), match="data_path"):
        load_federation(make_config(2, dataset="npz"))


def test_never_unpickles(make_config, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / "bomb.npz").write_bytes(pickle.dumps(Bomb()))
    path = save(tmp_path / "object.npz", x_train=np.array([Bomb()], dtype=object), y_train=labels(1))
    for name in ("bomb.npz", path):
        with pytest.raises(DataError):
            load_federation(make_config(2, dataset="npz", data_path=str(tmp_path / name)))
    assert not (tmp_path / "exploded").exists()


# ranges (field case D7)


def test_float_images_in_range_are_taken_as_they_are(make_config, tmp_path):
    path = save(tmp_path / "f.npz", x_train=np.full((40, 4, 4), 0.25), y_train=labels(40))
    federation = load_federation(make_config(2, dataset="npz", data_path=path))
    assert np.allclose(federation.silos[0].x_train, 0.25)
    assert federation.shape.value_range == "unit"


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.full((20, 4, 4), 254.0), "from 254 to 254.*pixel_max"),
        (np.random.default_rng(0).normal(size=(20, 4, 4)) * 2, "from -.*value_range: real"),
        (np.full((20, 4, 4), 7, np.uint8), "from 7 to 7.*pixel_max to 7"),
        (np.full((20, 4, 4), 4000, np.uint16), "4000.*pixel_max"),
    ],
)
def test_ranges_that_say_nothing_are_refused_by_name(make_config, tmp_path, x, words):
    path = save(tmp_path / "r.npz", x_train=x, y_train=labels(20))
    with pytest.raises(RangeError, match=words):
        load_federation(make_config(2, dataset="npz", data_path=path))


def test_pixel_max_scales(make_config, tmp_path):
    path = save(tmp_path / "r.npz", x_train=np.full((40, 4, 4), 8, np.uint8), y_train=labels(40))
    config = make_config(2, dataset="npz", data_path=path, data_options={"pixel_max": 16})
    assert np.allclose(load_federation(config).silos[0].x_train, 0.5)
    with pytest.raises(RangeError, match=r"from 8 to 8.*pixel_max"):
        load_federation(make_config(2, dataset="npz", data_path=path, data_options={"pixel_max": 4}))


def test_standardised_images_need_the_gaussian_likelihood(make_config, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 4, 4))
    settings = {
        "dataset": "npz",
        "data_path": save(tmp_path / "s.npz", x_train=x, y_train=labels(40)),
        "data_options": {"value_range": "real"},
    }
    assert load_federation(make_config(2, likelihood="gaussian", **settings)).shape.value_range == "real"
    with pytest.raises(RangeError, match=r"bernoulli.*gaussian"):
        load_federation(make_config(2, likelihood="bernoulli", **settings))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(make_config, tmp_path, bad):
    x = np.full((20, 4, 4), 0.5)
    x[3, 1, 1] = bad
    path = save(tmp_path / "nan.npz", x_train=x, y_train=labels(20))
    with pytest.raises(DataError, match=r"nan\.npz: array train.*NaN"):
        load_federation(make_config(2, dataset="npz", data_path=path))
