"""Image folders, small generated ones; options and paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgmi_fedml.data import load_federation, load_silo
from fedgmi_fedml.errors import ConfigError, DataError

Image = pytest.importorskip("PIL.Image")


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
