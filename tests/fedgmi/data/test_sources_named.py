"""Named data sets refuse files that hold something else."""

import numpy as np
import pytest

from fedgmi_fedml.config import load_config
from fedgmi_fedml.data import load_federation
from fedgmi_fedml.errors import DataError


def config(path, dataset="mnist"):
    changes = [f"data_args.data_path={path}", f"data_args.dataset={dataset}", "train_args.client_num_in_total=4"]
    few = ["train_args.client_num_per_round=4", "data_args.silo_mixture.samples_per_silo=10"]
    return load_config("mnist_rotation", [*changes, *few])


def images(path, shape):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (400, *shape), dtype=np.uint8), np.arange(400) % 10
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


def test_another_shape_is_refused_with_both_shapes(tmp_path):
    with pytest.raises(DataError, match=r"\(3, 32, 32\).*1 channel"):
        load_federation(config(images(tmp_path / "cifar.npz", (32, 32, 3))))


def test_the_right_shape_is_taken(tmp_path):
    assert load_federation(config(images(tmp_path / "digits.npz", (28, 28)))).shape.input_shape == (1, 28, 28)


@pytest.mark.parametrize(("name", "what"), [("env.sh", "no npz file"), ("missing.npy", "does not exist")])
def test_neither_folder_nor_npz(tmp_path, name, what):
    (tmp_path / "env.sh").write_text("export A=1")
    with pytest.raises(DataError, match=what):
        load_federation(config(tmp_path / name))
