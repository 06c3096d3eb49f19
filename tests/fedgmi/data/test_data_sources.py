"""npz files, published data sets in their own files, image folders: small generated ones."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import string
from pathlib import Path

import numpy as np
import pytest

from fedgmi_fedml.data import load_federation, load_silo
from fedgmi_fedml.data.torchvision_sets import read_idx
from fedgmi_fedml.errors import ConfigError, DataError, RangeError

Image = pytest.importorskip("PIL.Image")


def save(path: Path, **arrays) -> str:
    np.savez(path, **arrays)
    return str(path)


def grey(count: int, value: int = 200) -> np.ndarray:
    return np.full((count, 4, 4), value, dtype=np.uint8)


def labels(count: int) -> np.ndarray:
    return np.arange(count) % 2


# npz files


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


# published data sets in their own files


def write_idx(path: Path, array: np.ndarray, zipped: bool = False) -> None:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(f"{path}.gz", "wb") if zipped else path.open("wb") as file:
        file.write(head + array.astype(np.uint8).tobytes())


def write_mnist(folder: Path, zipped: bool = False, prefixes=("train", "t10k"), classes: int = 10) -> np.ndarray:
    rng = np.random.default_rng(1)
    for prefix, count in zip(prefixes, (90, 40), strict=True):
        images = rng.integers(0, 256, (count, 6, 6), dtype=np.uint8)
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images, zipped)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(count) % classes, zipped)
    return images


@pytest.mark.parametrize("place", ["MNIST/raw", ".", "raw", "MNIST"])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_from_its_files(make_config, tmp_path, place, zipped):
    write_mnist(tmp_path / place, zipped)
    config = make_config(2, dataset="mnist", data_cache_dir=str(tmp_path), mixture={"samples_per_silo": 30})
    federation = load_federation(config)
    assert federation.shape.input_shape == (1, 6, 6)
    assert federation.class_names == tuple(string.digits)
    assert len(federation.silos[0].x_train) == 30


def test_fashion_from_a_folder_of_its_own(make_config, tmp_path):
    write_mnist(tmp_path / "fashion-mnist", zipped=True)
    config = make_config(2, dataset="fashion", data_path=str(tmp_path / "fashion-mnist"),
                         data_cache_dir=str(tmp_path / "none"), mixture={"samples_per_silo": 20})  # fmt: skip
    assert load_federation(config).class_names[0] == "T-shirt/top"


def test_emnist_letters_stand_upright(make_config, tmp_path):
    write_mnist(tmp_path / "EMNIST/raw", prefixes=("emnist-byclass-train", "emnist-byclass-test"), classes=62)
    upright = np.zeros((90, 6, 6), dtype=np.uint8)
    upright[:, 0, 5] = 255
    write_idx(tmp_path / "EMNIST/raw/emnist-byclass-train-images-idx3-ubyte", upright.transpose(0, 2, 1))
    config = make_config(2, dataset="emnist", data_cache_dir=str(tmp_path), mixture={
        "samples_per_silo": 8, "components": [{"classes": "upper"}, {"classes": "lower"}]})  # fmt: skip
    federation = load_federation(config)
    assert federation.class_names == tuple(string.ascii_uppercase)
    assert (federation.silos[0].x_train[:, 0, 0, 5] == 1.0).all()


def test_published_sets_from_an_npz_file(make_config, image_npz):
    federation = load_federation(make_config(2, dataset="mnist", data_path=str(image_npz)))
    assert federation.shape.classes == 10


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("mnist", ["MNIST", "train-images-idx3-ubyte", "MNIST/raw", "download: true"]),
        ("fashion", ["Fashion-MNIST", "t10k-labels-idx1-ubyte", "FashionMNIST/raw"]),
        ("emnist", ["emnist-byclass-train-images-idx3-ubyte", "EMNIST/raw"]),
        ("cifar10", ["CIFAR-10", "data_batch_1", "cifar-10-batches-py", "download: true"]),
    ],
)
def test_absent_files_say_where_to_put_them(make_config, tmp_path, dataset, words):
    with pytest.raises(DataError) as caught:
        load_federation(make_config(2, dataset=dataset, data_cache_dir=str(tmp_path / "cache")))
    assert all(word in str(caught.value) for word in words)
    assert not (tmp_path / "cache").exists(), "nothing is written unless a download was asked for"


@pytest.mark.parametrize("dataset", ["mnist", "fashion", "emnist", "cifar10"])
def test_download_without_a_network_says_where_to_put_files(make_config, tmp_path, monkeypatch, dataset):
    from torchvision import datasets

    def fail(*args, **kwargs):
        raise RuntimeError("Error downloading")

    for name in ("MNIST", "FashionMNIST", "EMNIST", "CIFAR10"):
        monkeypatch.setattr(getattr(datasets, name), "download", fail)
    config = make_config(2, dataset=dataset, data_cache_dir=str(tmp_path), data_options={"download": True})
    with pytest.raises(DataError, match=r"could not be downloaded.*Put the files"):
        load_federation(config)


def test_download_is_torchvisions(make_config, tmp_path, monkeypatch):
    from torchvision import datasets

    monkeypatch.setattr(datasets.MNIST, "download", lambda self: write_mnist(Path(self.raw_folder)))
    config = make_config(2, dataset="mnist", data_cache_dir=str(tmp_path), data_options={"download": True})
    assert load_federation(config).shape.input_shape == (1, 6, 6)
    monkeypatch.setattr(datasets.MNIST, "download", lambda self: pytest.fail("it is there already"))
    load_federation(config)


def test_damaged_idx_files(tmp_path, make_config):
    write_mnist(tmp_path)
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"train-images.*cut off"):
        load_federation(make_config(2, dataset="mnist", data_cache_dir=str(tmp_path)))
    images.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="no IDX file"):
        read_idx(images)
    write_idx(images, np.zeros((3, 6, 6)))
    with pytest.raises(DataError, match="do not belong together"):
        load_federation(make_config(2, dataset="mnist", data_cache_dir=str(tmp_path)))


def write_cifar(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches in CIFAR-10's own format, and torchvision's checksums to match."""
    from torchvision.datasets import CIFAR10

    def write(name: str, content: object) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = [name for name, _ in CIFAR10.train_list + CIFAR10.test_list]
    batches = {name: {"data": rng.integers(0, 256, (20, 3072), dtype=np.uint8)} for name in names}
    sums = {name: write(name, {**batch, "labels": [i % 10 for i in range(20)]}) for name, batch in batches.items()}
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in names[:-1]])
    monkeypatch.setattr(CIFAR10, "test_list", [[names[-1], sums[names[-1]]]])
    meta = write("batches.meta", {"label_names": [f"kind {i}" for i in range(10)]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": meta})


def test_cifar10_from_its_files(make_config, tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder, monkeypatch)
    for settings in ({"data_cache_dir": str(tmp_path)}, {"data_path": str(folder), "data_cache_dir": "/nowhere"}):
        config = make_config(2, dataset="cifar10", mixture={"samples_per_silo": 20}, **settings)
        federation = load_federation(config)
        assert federation.shape.input_shape == (3, 32, 32)
        assert federation.class_names[3] == "kind 3"
    (folder / "data_batch_3").write_bytes(b"changed")
    with pytest.raises(DataError, match="incomplete or damaged"):
        load_federation(config)


# image folders


def write_folder(root: Path, classes=("cat", "dog"), count: int = 10, size=(5, 4), mode: str = "L") -> Path:
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            shape = size if mode == "L" else (*size, 3)
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


def test_image_folder(make_config, tmp_path):
    write_folder(tmp_path)
    (tmp_path / "cat" / "notes.txt").write_text("ignored")
    (tmp_path / "cat" / ".hidden.png").write_text("ignored")
    mixture = {"components": [{}], "samples_per_silo": 6}
    federation = load_federation(make_config(2, dataset="image_folder", data_path=str(tmp_path), mixture=mixture))
    assert federation.shape.input_shape == (1, 5, 4)
    assert federation.class_names == ("cat", "dog")
    assert (federation.used, federation.skipped) == (20, 0)
    silo = load_silo(make_config(dataset="image_folder", data_options={"classes": ["dog", "cat"]}), tmp_path)
    assert (silo.class_names, silo.used) == (("dog", "cat"), 20)
    pixels = np.asarray(Image.open(tmp_path / "dog" / "0.png"), dtype=np.float32) / 255
    every = np.concatenate([silo.x_train, silo.x_val, silo.x_test])[:, 0]
    at = int(np.abs(every - pixels).sum(axis=(1, 2)).argmin())
    assert np.allclose(every[at], pixels)
    assert np.concatenate([silo.y_train, silo.y_val, silo.y_test])[at] == 0


def test_image_folder_with_its_own_parts_and_colour(make_config, tmp_path):
    write_folder(tmp_path / "train", mode="RGB", size=(6, 6))
    write_folder(tmp_path / "test", mode="RGB", size=(6, 6), count=4)
    options = {"classes": ["cat", "dog"]}
    silo = load_silo(make_config(dataset="image_folder", data_options=options), tmp_path)
    assert (len(silo.x_train), len(silo.x_val), len(silo.x_test)) == (18, 2, 8)
    assert silo.x_train.shape[1:] == (3, 6, 6)


def test_unreadable_files_are_counted_and_too_many_fail(make_config, tmp_path):
    write_folder(tmp_path)
    (tmp_path / "cat" / "0.png").write_bytes(b"not an image")
    whole = (tmp_path / "dog" / "1.png").read_bytes()
    (tmp_path / "dog" / "1.png").write_bytes(whole[: len(whole) // 2])
    mixture = {"components": [{}]}
    config = make_config(2, dataset="image_folder", data_path=str(tmp_path), mixture=mixture)
    federation = load_federation(config)
    assert federation.summary()["files_used"] == 18
    assert federation.summary()["files_total"] == 20
    options = {"max_unreadable_share": 0.05}
    config = make_config(2, dataset="image_folder", data_path=str(tmp_path), mixture=mixture, data_options=options)
    with pytest.raises(DataError, match=r"2 of 20 image files.*0\.png.*max_unreadable_share \(0\.05\)"):
        load_federation(config)


def test_most_files_unreadable(make_config, tmp_path):
    write_folder(tmp_path, count=20)
    for path in sorted(tmp_path.rglob("*.png"))[:38]:
        path.write_bytes(b"")
    options = {"classes": ["cat", "dog"]}
    with pytest.raises(DataError, match="38 of 40"):
        load_silo(make_config(dataset="image_folder", data_options=options), tmp_path)
    options["max_unreadable_share"] = 0.99
    silo = load_silo(make_config(dataset="image_folder", data_options=options), tmp_path)
    assert (silo.used, silo.skipped) == (2, 38)


def test_images_of_different_sizes(make_config, tmp_path):
    write_folder(tmp_path, size=(5, 4))
    write_folder(tmp_path, classes=("dog",), size=(8, 8), count=2)
    options = {"classes": ["cat", "dog"]}
    with pytest.raises(DataError, match=r"8 × 8 pixels.*image_size"):
        load_silo(make_config(dataset="image_folder", data_options=options), tmp_path)
    options["image_size"] = [6, 3]
    silo = load_silo(make_config(dataset="image_folder", data_options=options), tmp_path)
    assert silo.x_train.shape[1:] == (1, 6, 3)


def test_sixteen_bit_images_keep_their_range(make_config, tmp_path):
    (tmp_path / "a").mkdir()
    ramp = np.linspace(0, 65535, 16).reshape(4, 4).astype(np.uint16)
    for i in range(4):
        Image.fromarray(ramp).save(tmp_path / "a" / f"{i}.png")
    silo = load_silo(make_config(dataset="image_folder", data_options={"classes": ["a"]}), tmp_path)
    assert np.allclose(silo.x_train[0, 0], ramp / 65535, atol=1 / 255)


def test_folders_that_do_not_fit(make_config, tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load_federation(make_config(2, dataset="image_folder", data_path=str(tmp_path / "none")))
    with pytest.raises(DataError, match="no class sub-folders"):
        load_federation(make_config(2, dataset="image_folder", data_path=str(tmp_path)))
    write_folder(tmp_path)
    with pytest.raises(DataError, match=r"data_options\.classes"):
        load_silo(make_config(dataset="image_folder"), tmp_path)
    with pytest.raises(DataError, match="'dog' is no class"):
        load_silo(make_config(dataset="image_folder", data_options={"classes": ["cat", "cow"]}), tmp_path)


def test_empty_image_folder(make_config, tmp_path):
    (tmp_path / "cat").mkdir()
    options = {"classes": ["cat", "dog"]}
    with pytest.raises(DataError, match="image_size"):
        load_silo(make_config(dataset="image_folder", data_options=options), tmp_path)
    options |= {"image_size": [4, 4], "mode": "rgb"}
    silo = load_silo(make_config(dataset="image_folder", data_options=options), tmp_path)
    assert silo.x_train.shape == (0, 3, 4, 4)


# options and paths


@pytest.mark.parametrize(
    ("dataset", "options", "word"),
    [
        ("npz", {"x_trian": "x"}, "did you mean 'x_train'"),
        ("npz", {"pixel_max": -1}, "pixel_max"),
        ("digits", {"download": True}, "none for this data set"),
        ("mnist", {"download": "maybe"}, "download"),
        ("csv", {}, "label: is required"),
        ("image_folder", {"max_unreadable_share": 2}, "max_unreadable_share"),
        ("mnits", {}, "mnist"),
    ],
)
def test_option_problems(dataset, options, word):
    from fedgmi_fedml.data import option_problems

    problems = option_problems(dataset, options)
    assert len(problems) == 1
    assert word in problems[0]


def test_paths_are_expanded(make_config, image_npz, monkeypatch):
    monkeypatch.setenv("WHERE", str(image_npz.parent))
    load_federation(make_config(2, dataset="npz", data_path="${WHERE}/images.npz"))
    load_federation(make_config(2, dataset="npz", data_path="${NOWHERE:-" + str(image_npz.parent) + "}/images.npz"))
    with pytest.raises((ConfigError, DataError), match="NOWHERE"):
        load_federation(make_config(2, dataset="npz", data_path="${NOWHERE}/images.npz"))
