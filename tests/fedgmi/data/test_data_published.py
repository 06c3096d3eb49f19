"""Published data sets in small generated files of their own formats."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import string
from pathlib import Path

import numpy as np
import pytest

from fedgmi_fedml.data import load_federation
from fedgmi_fedml.data.torchvision_sets import read_idx
from fedgmi_fedml.errors import DataError


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


def test_published_sets_from_an_npz_file(make_config, image_npz, tmp_path):
    federation = load_federation(make_config(2, dataset="mnist", data_path=str(image_npz)))
    assert federation.shape.classes == 10
    (tmp_path / "cache").mkdir()
    image_npz.rename(tmp_path / "cache" / "fashion.npz")
    federation = load_federation(make_config(2, dataset="fashion", data_cache_dir=str(tmp_path / "cache")))
    assert federation.class_names[1] == "Trouser"
    with pytest.raises(DataError, match="no such file"):
        load_federation(make_config(2, dataset="fashion", data_path=str(image_npz)))


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
