"""Configurations and small generated files for the data sources."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgmi_fedml.config import Config


@pytest.fixture
def make_config() -> Callable[..., Config]:
    """Builds a configuration from keyword arguments of ``data_args``; ``mixture`` is its ``silo_mixture``."""

    def make(
        silos: int = 4, seed: int = 0, mixture: dict[str, Any] | None = None, likelihood: str | None = None, **data: Any
    ) -> Config:
        settings = {"data_args": {**data, "silo_mixture": mixture or {}}, "common_args": {"random_seed": seed}}
        settings["train_args"] = {"client_num_in_total": silos, "client_num_per_round": silos}
        settings["model_args"] = {"vae_options": {"likelihood": likelihood} if likelihood else {}}
        return Config.model_validate(settings)

    return make


@pytest.fixture
def image_npz(tmp_path: Path) -> Path:
    """400 + 100 images, 6 × 6 bytes; pixel (0, 0) is bright and each image is recognised by its own two pixels."""
    return write_images(tmp_path / "images.npz", 400, 100)


@pytest.fixture
def numbers_of() -> Callable[[Any], list[np.ndarray]]:
    """The numbers of every silo's images, one array per silo and part (training, validation, test)."""
    return lambda federation: [
        image_numbers(silo.part(part)[0].numpy()) for silo in federation.silos for part in ("train", "val", "test")
    ]


def numbered_images(start: int, count: int) -> np.ndarray:
    """Images (count, 6, 6) uint8 whose number can be read from two pixels in the middle; the top left corner is 255."""
    images = np.zeros((count, 6, 6), dtype=np.uint8)
    numbers = np.arange(start, start + count)
    images[:, 0, 0] = 255
    images[:, 2, 2], images[:, 3, 3] = numbers // 200, numbers % 200
    return images


def image_numbers(x: np.ndarray) -> np.ndarray:
    """The numbers of images (n, 1, 6, 6) in [0, 1], turned or not by 180 degrees (rotation moves (2, 2) to (3, 3))."""
    pixels = np.round(x[:, 0] * 255).astype(int)
    upright = pixels[:, 0, 0] == 255
    return np.where(upright, pixels[:, 2, 2] * 200 + pixels[:, 3, 3], pixels[:, 3, 3] * 200 + pixels[:, 2, 2])


def write_images(path: Path, train: int, test: int) -> Path:
    """An npz file of numbered images with labels number mod 5."""
    arrays = {"x_train": numbered_images(0, train), "y_train": np.arange(train) % 5}
    if test:
        arrays |= {"x_test": numbered_images(train, test), "y_test": np.arange(train, train + test) % 5}
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; skips where it is absent."""
    root = Path(__file__).resolve().parents[3]
    folder = Path(os.environ.get("FEDGMI_DATA") or root / ".." / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set FEDGMI_DATA")
    return folder
