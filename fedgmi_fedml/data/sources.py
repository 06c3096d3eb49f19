"""From a configuration to a source's pool: which loader reads which data set."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgmi_fedml.data import bundled, image_folder, npz_file, table_file, torchvision_sets
from fedgmi_fedml.data.checks import check_pool_parts
from fedgmi_fedml.data.options import NpzOptions, read_options
from fedgmi_fedml.data.records import Pool
from fedgmi_fedml.errors import DataError

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
DEFAULT_CACHE = "~/.cache/fedgmi"


@dataclass(frozen=True)
class Request:
    """What to read.

    Attributes:
        dataset: name of the source.
        path: its file or folder, ``None`` where the configuration has none.
        cache: folder of downloaded data sets.
        options: the source's validated settings.
        columns: further per-row columns that are needed (the group, ``where`` of components).
        group: the column among them that says which silo a row belongs to.
        agreed: whether classes, ranges and vocabularies must come from the configuration, because other silos
            cannot be asked (a deployment); a simulation takes them from its one source.
    """

    dataset: str
    path: Path | None
    cache: Path
    options: Any
    columns: frozenset[str] = frozenset()
    group: str | None = None
    agreed: bool = False


def expand(path: str) -> Path:
    """A path with ~, ${VARIABLE} and ${VARIABLE:-default} filled in. Raises DataError where one is not set."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1]) or match[2]
        if found is None:
            raise DataError(f"data_args: the path {path!r} needs the environment variable {match[1]}, which is not set")
        return found

    return Path(_VARIABLE.sub(value, path)).expanduser()


def make_request(config: Config, path: Path | None = None, agreed: bool = False) -> Request:
    """The request that a configuration describes; ``path`` takes the place of ``data_args.data_path``."""
    data = config.data_args
    if path is None and data.data_path is not None:
        path = expand(data.data_path)
    cache = expand(data.data_cache_dir or DEFAULT_CACHE)
    return Request(data.dataset, path, cache, read_options(data.dataset, data.data_options), agreed=agreed)


def _npz(request: Request) -> Pool:
    return npz_file.load(_needed(request), request.options, request.columns, request.agreed)


def _csv(request: Request) -> Pool:
    return table_file.load(_needed(request), request.options, request.columns, request.group, request.agreed)


def _published(request: Request) -> Pool:
    """MNIST and its kind: an npz file where ``data_path`` names one, else the files that torchvision keeps."""
    usual = torchvision_sets.CLASSES[request.dataset]
    given = request.path
    if given is not None and not (given.is_dir() or given.suffix == ".npz"):
        what = "is no npz file and no folder" if given.exists() else "does not exist"
        raise DataError(f"{given}: {what}; data_args.data_path of {request.dataset!r} names one or the other")
    for path in (request.path, *(base / f"{request.dataset}.npz" for base in (request.path, request.cache) if base)):
        if path is not None and path.suffix == ".npz" and (path == request.path or path.is_file()):
            pool = npz_file.load(path, NpzOptions(), request.columns, request.agreed, usual)
            return _as_expected(pool, request, path)
    return torchvision_sets.load(request.dataset, request.path, request.cache, request.options.download)


def _as_expected(pool: Pool, request: Request, path: Path) -> Pool:
    """The file holds what its name promises: CIFAR-10 under MNIST's name would train without a word."""
    channels = 3 if request.dataset == "cifar10" else 1
    if pool.sample_shape[0] != channels or len(pool.sample_shape) != 3:
        raise DataError(
            f"{path}: holds samples of shape {pool.sample_shape}, images of {request.dataset} have {channels} "
            "channel(s): correct data_args.data_path or data_args.dataset (npz takes any images)"
        )
    return pool


def _needed(request: Request) -> Path:
    if request.path is None:
        raise DataError(f"data_args.data_path: data set {request.dataset!r} needs the path of its file or folder")
    return request.path


_LOADERS: dict[str, Callable[[Request], Pool]] = {
    "digits": lambda request: bundled.digits(),
    "breast_cancer": lambda request: bundled.table("breast_cancer"),
    "wine": lambda request: bundled.table("wine"),
    "mnist": _published,
    "fashion": _published,
    "emnist": _published,
    "cifar10": _published,
    "npz": _npz,
    "image_folder": lambda request: image_folder.load(_needed(request), request.options, request.agreed),
    "csv": _csv,
}


def load_pool(request: Request) -> Pool:
    """Read a source. Raises DataError (or RangeError, ConfigError) naming file, key, value and remedy."""
    pool = _LOADERS[request.dataset](request)
    check_pool_parts(pool)
    absent = sorted(request.columns - set(pool.parts["train"].columns))
    if absent:
        raise DataError(
            f"{pool.origin}: has no column {absent[0]!r} (data_args.silo_mixture: group, or where of a component)"
        )
    return pool
