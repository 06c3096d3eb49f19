"""New samples to predict."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgmi_fedml.data import TableMoments, load_samples
from fedgmi_fedml.data.table import CategoricalColumn, NumericColumn, TableSchema
from fedgmi_fedml.errors import DataError
from fedgmi_fedml.shapes import DataShape

Image = pytest.importorskip("PIL.Image")
GREY = DataShape((1, 4, 4), 3)
NAMES = ("a", "b", "c")


def test_npz_without_and_with_labels(make_config, tmp_path):
    x = np.full((6, 4, 4), 51, np.uint8)
    config = make_config(dataset="npz")
    np.savez(tmp_path / "new.npz", x=x)
    samples = load_samples(config, tmp_path / "new.npz", GREY, NAMES)
    assert samples.x.shape == (6, 1, 4, 4)
    assert torch.allclose(samples.x, torch.tensor(0.2))
    assert samples.y is None
    assert samples.names[5] == "row 5"
    np.savez(tmp_path / "known.npz", x=x, y=np.array(list("abccba")))
    assert load_samples(config, tmp_path / "known.npz", GREY, NAMES).y.tolist() == [0, 1, 2, 2, 1, 0]
    np.savez(tmp_path / "strange.npz", x=x, y=np.array([0, 1, 2, 3, 1, 0]))
    assert load_samples(config, tmp_path / "strange.npz", GREY, NAMES).y is None


def test_cases_of_letters_are_one_class(make_config, tmp_path):
    x, classes = np.full((4, 4, 4), 99, np.uint8), np.array(["b", "A", "C"])
    np.savez(tmp_path / "l.npz", x=x, y=np.array([0, 1, 2, 0]), classes=classes)
    samples = load_samples(make_config(dataset="npz"), tmp_path / "l.npz", GREY, ("A", "B", "C"))
    assert samples.y.tolist() == [1, 0, 2, 1]


def test_digits_are_stored_up_to_sixteen(make_config, tmp_path):
    np.savez(tmp_path / "d.npz", x=np.full((2, 8, 8), 8.0), y=np.array([1, 2]))
    names = tuple("0123456789")
    samples = load_samples(make_config(dataset="digits"), tmp_path / "d.npz", DataShape((1, 8, 8), 10), names)
    assert torch.allclose(samples.x, torch.tensor(0.5))


def test_shape_is_checked(make_config, tmp_path):
    np.savez(tmp_path / "w.npz", x=np.full((2, 5, 4), 99, np.uint8))
    with pytest.raises(DataError, match=r"w\.npz.*\(1, 5, 4\).*expect \(1, 4, 4\)"):
        load_samples(make_config(dataset="npz"), tmp_path / "w.npz", GREY, NAMES)
    with pytest.raises(DataError, match="no such file"):
        load_samples(make_config(dataset="npz"), tmp_path / "none.npz", GREY, NAMES)


def test_images(make_config, tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((4, 4), 102, np.uint8)).save(tmp_path / name / "1.png")
    config = make_config(dataset="mnist")
    samples = load_samples(config, tmp_path, GREY, NAMES)
    assert samples.names == ("a/1.png", "b/1.png")
    assert samples.y.tolist() == [0, 1]
    assert torch.allclose(samples.x, torch.tensor(0.4))
    one = load_samples(config, tmp_path / "a" / "1.png", GREY, NAMES)
    assert one.x.shape == (1, 1, 4, 4)
    assert one.y is None
    colour = load_samples(config, tmp_path, DataShape((3, 4, 4), 3), NAMES)
    assert colour.x.shape == (2, 3, 4, 4)
    (tmp_path / "a" / "2.png").write_bytes(b"broken")
    options = {"max_unreadable_share": 0.5}
    samples = load_samples(make_config(dataset="image_folder", data_options=options), tmp_path, GREY, NAMES)
    assert (len(samples.names), len(samples.skipped)) == (2, 1)
    Image.fromarray(np.full((9, 4), 102, np.uint8)).save(tmp_path / "a" / "3.png")
    with pytest.raises(DataError, match="9 × 4"):
        load_samples(make_config(dataset="image_folder", data_options=options), tmp_path, GREY, NAMES)


def test_tables(make_config, tmp_path):
    schema = TableSchema((NumericColumn("age", 0, 100, True),), (CategoricalColumn("sex", ("f", "m")),))
    moments = TableMoments(schema, (50.0, 0.0, 0.5, 0.5), (10.0, 0.1, 0.5, 0.5))
    shape = DataShape((4,), 2, "real")
    (tmp_path / "new.csv").write_text("sex,age\nf,60\nm,\n")
    config = make_config(dataset="csv", data_options={"label": "ill"})
    samples = load_samples(config, tmp_path / "new.csv", shape, ("no", "yes"), moments)
    assert samples.x.tolist() == [[1, 0, 1, -1], [0, 10, -1, 1]]
    assert samples.y is None
    assert samples.names == ("line 2", "line 3")
    (tmp_path / "known.csv").write_text("sex,age,ill\nf,60,yes\nm,,no\n")
    assert load_samples(config, tmp_path / "known.csv", shape, ("no", "yes"), moments).y.tolist() == [1, 0]
    np.savez(tmp_path / "t.npz", x=np.array([[60.0, 0.0], [np.nan, 1.0]]))
    config = make_config(dataset="npz")
    assert torch.equal(load_samples(config, tmp_path / "t.npz", shape, ("no", "yes"), moments).x, samples.x)
    with pytest.raises(DataError, match="no moments"):
        load_samples(config, tmp_path / "t.npz", shape, ("no", "yes"))
    np.savez(tmp_path / "narrow.npz", x=np.zeros((2, 1)))
    with pytest.raises(DataError, match=r"1 columns.* 2"):
        load_samples(config, tmp_path / "narrow.npz", shape, ("no", "yes"), moments)
