"""MNIST, Fashion-MNIST, EMNIST (by class) and CIFAR-10 in the files and folders that torchvision keeps.

Only torchvision downloads, and only with ``data_options.download: true``. IDX files are read by the few lines below,
plain (mapped into memory, not loaded) or gzipped, from torchvision's folders or from any folder that holds them, such
as that of Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

import gzip
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgmi_fedml.data.checks import class_labels
from fedgmi_fedml.data.records import Array, Pool, PoolPart
from fedgmi_fedml.errors import DataError

_DIGITS = tuple(string.digits)
CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": _DIGITS,
    "fashion": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    "emnist": (*_DIGITS, *string.ascii_uppercase, *string.ascii_lowercase),
    "cifar10": (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class _Idx:
    """Where a data set in IDX files lies: torchvision's folder, and the prefixes of its training and test files."""

    title: str
    folder: str
    prefixes: dict[str, str]
    transposed: bool = False

    def file(self, part: str, kind: str) -> str:
        return f"{self.prefixes[part]}-{'images-idx3' if kind == 'images' else 'labels-idx1'}-ubyte"

    def files(self) -> list[str]:
        return [self.file(part, kind) for part in self.prefixes for kind in ("images", "labels")]


_IDX = {
    "mnist": _Idx("MNIST", "MNIST", {"train": "train", "test": "t10k"}),
    "fashion": _Idx("Fashion-MNIST", "FashionMNIST", {"train": "train", "test": "t10k"}),
    "emnist": _Idx("EMNIST", "EMNIST", {"train": "emnist-byclass-train", "test": "emnist-byclass-test"}, True),
}
_CIFAR_FOLDER = "cifar-10-batches-py"


def read_idx(path: Path) -> Array:
    """An IDX file of unsigned bytes, gzipped or not, with the shape that its header gives. Raises DataError."""
    gzipped = path.suffix == ".gz"
    try:
        with gzip.open(path, "rb") if gzipped else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:3] != b"\x00\x00\x08":
                raise DataError(f"{path}: is no IDX file of bytes; fetch it again")
            shape = tuple(np.frombuffer(file.read(4 * head[3]), dtype=">u4").astype(int).tolist())
            if gzipped:
                return np.frombuffer(file.read(), dtype=np.uint8).reshape(shape)
        return np.memmap(path, dtype=np.uint8, mode="r", offset=4 + 4 * head[3], shape=shape)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path}: is damaged or cut off ({error}); fetch it again") from None


def _places(base: Path, folder: str) -> Iterator[Path]:
    yield from (base, base / "raw", base / folder / "raw", base / folder)


def _find(idx: _Idx, bases: list[Path]) -> dict[str, Path] | None:
    """Every file of a data set, all from one folder, or None."""
    for base in bases:
        for place in _places(base, idx.folder):
            found = {}
            for name in idx.files():
                for candidate in (place / name, place / f"{name}.gz"):
                    if candidate.is_file():
                        found[name] = candidate
                        break
            if len(found) == len(idx.files()):
                return found
    return None


def _download(dataset: str, cache: Path) -> None:
    from torchvision import datasets

    title = _IDX[dataset].title if dataset in _IDX else "CIFAR-10"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if dataset == "emnist":
            datasets.EMNIST(str(cache), split="byclass", download=True)
        else:
            getattr(datasets, {"mnist": "MNIST", "fashion": "FashionMNIST", "cifar10": "CIFAR10"}[dataset])(
                str(cache), download=True
            )
    except (OSError, RuntimeError, EOFError) as error:
        raise DataError(f"{title} could not be downloaded ({error}). {_where_to_put(dataset, cache)}") from None


def _where_to_put(dataset: str, cache: Path) -> str:
    """How to provide a data set by hand."""
    if dataset == "cifar10":
        names = ", ".join([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"])
        place = cache / _CIFAR_FOLDER
    else:
        names, place = ", ".join(_IDX[dataset].files()), cache / _IDX[dataset].folder / "raw"
    gz = "" if dataset == "cifar10" else " (plain or .gz)"
    return (
        f"Put the files {names}{gz} into {place}, or set data_args.data_path to the folder that holds them or to an "
        f"npz file with x_train, y_train, x_test and y_test, or put that at {cache / f'{dataset}.npz'}"
    )


def _missing(dataset: str, bases: list[Path], cache: Path) -> DataError:
    title = _IDX[dataset].title if dataset in _IDX else "CIFAR-10"
    looked = " or ".join(str(base) for base in bases)
    return DataError(
        f"{title} is not under {looked} (neither {dataset}.npz nor its own files). {_where_to_put(dataset, cache)}; "
        f"where there is a network, data_args.data_options.download: true lets torchvision download it"
    )


def _idx_pool(dataset: str, files: dict[str, Path]) -> Pool:
    idx, classes = _IDX[dataset], CLASSES[dataset]
    parts, origin = {}, str(next(iter(files.values())).parent)
    for part in idx.prefixes:
        images_at, labels_at = files[idx.file(part, "images")], files[idx.file(part, "labels")]
        images, labels = read_idx(images_at), read_idx(labels_at)
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(f"{images_at} {images.shape} and {labels_at} {labels.shape} do not belong together")
        y, _ = class_labels(labels, classes, str(labels_at))
        # EMNIST's images are stored with rows and columns exchanged.
        x = images.transpose(0, 2, 1) if idx.transposed else images
        parts[part] = PoolPart(x, np.arange(len(x), dtype=np.int64), y)
    return Pool(origin, parts, classes, 255.0, "hw", used=sum(len(part) for part in parts.values()))


def _cifar(bases: list[Path], cache: Path) -> Pool:
    for base in bases:
        root = base.parent if base.name == _CIFAR_FOLDER else base
        if not (root / _CIFAR_FOLDER).is_dir():
            continue
        from torchvision.datasets import CIFAR10

        parts, classes = {}, CLASSES["cifar10"]
        for part, train in (("train", True), ("test", False)):
            try:
                # torchvision compares checksums before it unpickles anything.
                stored: Any = CIFAR10(str(root), train=train)
            except (RuntimeError, OSError) as error:
                raise DataError(
                    f"{root / _CIFAR_FOLDER}: is incomplete or damaged ({error}). {_where_to_put('cifar10', cache)}"
                ) from None
            y, classes = class_labels(np.asarray(stored.targets), stored.classes, str(root / _CIFAR_FOLDER))
            parts[part] = PoolPart(stored.data, np.arange(len(y), dtype=np.int64), y)
        used = sum(len(part) for part in parts.values())
        return Pool(str(root / _CIFAR_FOLDER), parts, tuple(classes), 255.0, "hwc", used=used)
    raise _missing("cifar10", bases, cache)


def load(dataset: str, path: Path | None, cache: Path, download: bool) -> Pool:
    """The pool of a published data set from ``path`` or ``cache``, downloaded before when asked and missing.

    Raises DataError that says which files to put where.
    """
    bases = [base for base in (path, cache) if base is not None]
    if dataset == "cifar10":
        if download and not any((base / _CIFAR_FOLDER).is_dir() for base in bases):
            _download(dataset, cache)
        return _cifar(bases, cache)
    files = _find(_IDX[dataset], bases)
    if files is None and download:
        _download(dataset, cache)
        files = _find(_IDX[dataset], bases)
    if files is None:
        raise _missing(dataset, bases, cache)
    return _idx_pool(dataset, files)
