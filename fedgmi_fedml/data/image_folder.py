"""Image folders: one sub-folder a class, or train/, val/ and test/ with such sub-folders.

Files that cannot be read are left out and counted; too many of them are an error (field case E5). Files that are no
images by their names are ignored. Decoded by Pillow in this process: no worker processes, no shared memory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgmi_fedml.data.options import ImageFolderOptions
from fedgmi_fedml.data.records import PARTS, Array, Pool, PoolPart
from fedgmi_fedml.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pnm")
_WIDE = ("I;16", "I;16B", "I;16L", "I;16N", "I")


@dataclass
class Decoder:
    """Turns files into equal uint8 arrays; the first readable image decides mode and size where they are not set."""

    mode: str | None
    size: tuple[int, int] | None
    resize: bool
    used: int = 0
    skipped: list[Path] = field(default_factory=list)

    @classmethod
    def from_options(cls, options: ImageFolderOptions) -> Decoder:
        """A decoder for the configured mode and size."""
        return cls(options.mode, options.image_size, options.image_size is not None)

    def read(self, path: Path) -> npt.NDArray[np.uint8] | None:
        """The image, uint8 (H, W) or (H, W, 3), or None for one that cannot be read.

        Raises DataError for an image whose size differs from the others' when no ``image_size`` is set.
        """
        from PIL import Image

        try:
            with Image.open(path) as image:
                image.load()
                pixels = self._decode(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            self.skipped.append(path)
            return None
        if self.size is None:
            self.size = (int(pixels.shape[0]), int(pixels.shape[1]))
        if pixels.shape[:2] != self.size:
            raise DataError(
                f"{path}: is {pixels.shape[0]} × {pixels.shape[1]} pixels, others are {self.size[0]} × {self.size[1]}; "
                f"set data_args.data_options.image_size: [height, width]"
            )
        self.used += 1
        return pixels

    def _decode(self, image: Any) -> npt.NDArray[np.uint8]:
        from PIL import Image

        if image.mode in _WIDE:
            # Pillow would cut 16 bits off at 255; keep the upper 8 instead.
            image = Image.fromarray((np.clip(np.asarray(image, dtype=np.int64), 0, 65535) >> 8).astype(np.uint8))
        elif image.mode == "F":
            raise ValueError("floating point images have no agreed range")
        if self.mode is None:
            self.mode = "grey" if image.mode in ("L", "1", "LA") else "rgb"
        image = image.convert("L" if self.mode == "grey" else "RGB")
        if self.resize and self.size is not None and image.size != self.size[::-1]:
            image = image.resize(self.size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(image, dtype=np.uint8)


def image_files(folder: Path) -> list[Path]:
    """Image files below a folder, sorted by path; hidden files and folders are left out."""
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name) for name in files if not name.startswith(".") and name.lower().endswith(SUFFIXES)]
    return sorted(found)


def _sub_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _class_folders(places: dict[str, Path], given: Sequence[str] | None, agreed: bool, root: Path) -> tuple[str, ...]:
    held = sorted({name for place in places.values() for name in _sub_folders(place)})
    if given is None:
        if agreed:
            raise DataError(
                f"{root}: set data_args.data_options.classes to the names of the class folders, "
                f"so that all silos number them alike"
            )
        if not held:
            raise DataError(f"{root}: holds no class sub-folders; put each class's images into a folder of its own")
        return tuple(held)
    strangers = sorted(set(held) - set(given))
    if strangers:
        raise DataError(
            f"{root}: sub-folder {strangers[0]!r} is no class of data_args.data_options.classes ({', '.join(given)})"
        )
    return tuple(given)


def check_unreadable(decoder: Decoder, limit: float, root: Path) -> None:
    """Raise DataError when more than the configured share of files could not be read."""
    total = decoder.used + len(decoder.skipped)
    if total and len(decoder.skipped) / total > limit:
        names = ", ".join(path.name for path in decoder.skipped[:3])
        raise DataError(
            f"{root}: {len(decoder.skipped)} of {total} image files cannot be read (such as {names}), more than "
            f"data_args.data_options.max_unreadable_share ({limit:g}) allows; repair or remove them"
        )


def _read_part(place: Path, classes: Sequence[str], decoder: Decoder) -> tuple[list[Array], list[int]]:
    images, labels = [], []
    for label, name in enumerate(classes):
        for path in image_files(place / name):
            pixels = decoder.read(path)
            if pixels is not None:
                images.append(pixels)
                labels.append(label)
    return images, labels


def _stack(images: list[Array], decoder: Decoder, root: Path) -> Array:
    if images:
        return np.stack(images)
    if decoder.size is None or decoder.mode is None:
        raise DataError(
            f"{root}: holds no readable image; a silo without data needs data_args.data_options.image_size and mode"
        )
    return np.zeros((0, *decoder.size, *((3,) if decoder.mode == "rgb" else ())), dtype=np.uint8)


def load(root: Path, options: ImageFolderOptions, agreed: bool = False) -> Pool:
    """The pool of an image folder. Raises DataError naming folder, key and remedy."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; put it there or correct data_args.data_path")
    split = {part: root / part for part in PARTS if (root / part).is_dir()}
    places = split if "train" in split else {"train": root}
    classes = _class_folders(places, options.classes, agreed, root)
    decoder = Decoder.from_options(options)
    read = {part: _read_part(place, classes, decoder) for part, place in places.items()}
    check_unreadable(decoder, options.max_unreadable_share, root)
    parts = {}
    for part, (images, labels) in read.items():
        x = _stack(images, decoder, root)
        parts[part] = PoolPart(x, np.arange(len(x), dtype=np.int64), np.asarray(labels, dtype=np.int64))
    layout = "hw" if decoder.mode == "grey" else "hwc"
    return Pool(str(root), parts, classes, 255.0, layout, used=decoder.used, skipped=len(decoder.skipped))
