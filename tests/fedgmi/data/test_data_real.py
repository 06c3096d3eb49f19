"""The real data sets, where they are at hand (``FEDGMI_DATA``)."""

from __future__ import annotations

import string

import numpy as np
import pytest

from fedgmi_fedml.data import load_federation

FOUR = [{"rotate": angle} for angle in (0, 90, 180, 270)]


@pytest.fixture
def load(make_config, real_data):
    def load_file(name, silos, dataset="npz", **mixture):
        path = real_data / name
        if not path.is_file():
            pytest.skip(f"no {name} in {real_data}")
        return load_federation(make_config(silos, dataset=dataset, data_path=str(path), mixture=mixture))

    return load_file


def test_mnist_four_rotations(load):
    federation = load("mnist.npz", 24, "mnist", kind="dominant", samples_per_silo=1000, components=FOUR)
    assert federation.shape.input_shape == (1, 28, 28)
    assert {len(silo.x_train) for silo in federation.silos} == {1000}
    np.testing.assert_allclose(federation.true_alpha.max(axis=1), 0.6)
    ink = [silo.x_train.mean() for silo in federation.silos]
    assert all(0.12 < value < 0.14 for value in ink), "a known property of MNIST: mean pixel 0.1307"


def test_mnist_in_fedsofts_layout(load):
    federation = load("mnist.npz", 100, layout="fedsoft_digits_30_70")
    sizes = [len(silo.x_train) for silo in federation.silos]
    assert min(sizes) >= 100
    assert max(sizes) <= 200
    np.testing.assert_allclose(federation.true_alpha[:50, 0], 0.3, atol=0.01)
    np.testing.assert_allclose(federation.true_alpha[50:, 0], 0.7, atol=0.01)
    assert federation.notes == ()


def test_letters_by_case(load):
    federation = load("unipen_chars.npz", 20, samples_per_silo=1000,
                      components=[{"classes": "upper"}, {"classes": "lower"}])  # fmt: skip
    assert federation.class_names == tuple(string.ascii_uppercase)
    labels = np.concatenate([silo.y_train.numpy() for silo in federation.silos])
    assert np.bincount(labels, minlength=26).min() > 0


def test_characters_by_contributor(load):
    federation = load("unipen_chars.npz", 20, kind="natural", group="contributor",
                      components=[{"classes": "upper"}, {"classes": "lower"}])  # fmt: skip
    assert len({silo.name for silo in federation.silos}) == 20
    assert "aga" in {silo.name for silo in federation.silos}
    np.testing.assert_allclose(federation.true_alpha.sum(axis=1), 1)


def test_cifar10_copy(load):
    federation = load("cifar10_jpeg_25k.npz", 4, "cifar10", samples_per_silo=500)
    assert federation.shape.input_shape == (3, 32, 32)
    assert federation.class_names[0] == "airplane"
    silo = federation.silos[0]
    assert len(set(np.round(silo.x_train[0].mean(dim=(1, 2)).numpy(), 6))) > 1, "colours are kept apart"


@pytest.mark.parametrize(
    ("name", "shape", "classes"), [("breastmnist.npz", (1, 28, 28), 2), ("retinamnist.npz", (3, 28, 28), 5)]
)
def test_medical_images(load, name, shape, classes):
    federation = load(name, 8)
    assert federation.shape.input_shape == shape
    assert federation.shape.classes == classes
    assert min(len(silo.x_test) for silo in federation.silos) >= 15


def test_too_many_for_the_copy(load):
    from fedgmi_fedml.errors import DataError

    with pytest.raises(DataError, match=r"cifar10_jpeg_25k\.npz.*samples_per_silo"):
        load("cifar10_jpeg_25k.npz", 20, layout="fedsoft_cifar10_linear")
