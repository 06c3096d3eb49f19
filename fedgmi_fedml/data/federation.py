"""Simulation: a configuration into a federation of silos, mixed from one pooled source or read from a file for each."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgmi_fedml.data.assemble import Assembler
from fedgmi_fedml.data.checks import check_likelihood, check_same_shape
from fedgmi_fedml.data.components import Component, build_components, class_map, where_columns, widen_schema
from fedgmi_fedml.data.layouts import Mixture, resolve_mixture
from fedgmi_fedml.data.mixtures import Alpha, proportions
from fedgmi_fedml.data.natural import natural_plans
from fedgmi_fedml.data.records import Federation, Pool, Progress, stream
from fedgmi_fedml.data.silo import load_silo, part_shares
from fedgmi_fedml.data.sources import expand, load_pool, make_request
from fedgmi_fedml.data.splits import Plan, ShortageError, largest_that_fits, part_sizes, share_out
from fedgmi_fedml.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

FILE_GROUP = "file"
"""``silo_mixture.group`` with this value: every file (or folder) under ``data_path`` is one silo."""


def _sizes(
    pool: Pool, components: Sequence[Component], alpha: Alpha, mixture: Mixture, shares: tuple[float, float], seed: int
) -> list[dict[str, int]]:
    asked = mixture.samples
    if asked is None:
        train = [largest_that_fits(pool, components, alpha, shares, seed)] * len(alpha)
        if not train[0]:
            raise DataError(
                f"{pool.origin}: has too few samples to give each of {len(alpha)} silos one of its components; "
                f"lower train_args.client_num_in_total"
            )
    elif isinstance(asked, int):
        train = [asked] * len(alpha)
    else:
        train = stream(seed, "sizes").integers(asked[0], asked[1] + 1, len(alpha)).tolist()
    return [part_sizes(int(count), *shares) for count in train]


def _plans(
    config: Config, pool: Pool, components: Sequence[Component], mixture: Mixture
) -> tuple[list[Plan], list[str], list[str]]:
    """Plans and names of the silos, and notes."""
    seed, count = config.common_args.random_seed, config.train_args.client_num_in_total
    shares = part_shares(config)
    if mixture.kind == "natural":
        return *natural_plans(pool, components, mixture, count, shares, seed), []
    alpha = proportions(mixture, count, len(components), seed)
    sizes = _sizes(pool, components, alpha, mixture, shares, seed)
    names, notes = [f"silo-{number + 1:03d}" for number in range(count)], []
    try:
        plans = share_out(pool, components, alpha, sizes, seed)
    except ShortageError:
        if not mixture.reuse:
            raise
        plans = share_out(pool, components, alpha, sizes, seed, reuse=True)
        notes.append(f"{pool.origin} is too small for the layout: samples are used once for each component")
    return plans, names, notes


def _true_alpha(plans: Sequence[Plan], components: int) -> Alpha:
    """Share of each true component among each silo's training samples (N, M'); zero for an empty silo."""
    held = np.zeros((len(plans), components))
    for number, plan in enumerate(plans):
        for draw in plan["train"]:
            held[number, draw.component] += len(draw.index)
    return held / np.maximum(held.sum(axis=1, keepdims=True), 1)


def _pool(config: Config, mixture: Mixture) -> tuple[Pool, tuple[Component, ...]]:
    """The source and the components that are made from it."""
    group = mixture.group if mixture.kind == "natural" else None
    columns = where_columns(mixture.components) | ({group} if group else frozenset())
    pool = load_pool(replace(make_request(config), columns=columns, group=group))
    check_likelihood(pool.shape, config, pool.origin)
    components = build_components(mixture.components, pool)
    return widen_schema(pool, components), components


def load_federation(config: Config, progress: Progress | None = None, only: Container[int] | None = None) -> Federation:
    """The silos of a simulation, as ``data_args`` says; deterministic for ``common_args.random_seed``.

    Tables come out raw: sum the silos' ``table_statistics`` (securely) and call ``apply_moments`` for each silo.
    ``progress`` is called after each silo. ``only`` names the positions (from 0) of the silos that are wanted; the
    others keep their place but stay empty, so that a worker holds no more than it needs.
    Raises ConfigError or DataError naming file, key, silo and remedy.
    """
    mixture, notes = resolve_mixture(config)
    if mixture.kind == "natural" and not mixture.group:
        raise ConfigError("data_args.silo_mixture.group: kind natural needs the column that says who holds a sample")
    if mixture.kind == "natural" and mixture.group == FILE_GROUP:
        return _from_files(config, progress)
    pool, components = _pool(config, mixture)
    plans, names, more = _plans(config, pool, components, mixture)
    truth = mixture.kind != "natural" or len(components) > 1
    assembler = Assembler(pool, components, class_map(components, pool))
    silos = []
    for number, (plan, name) in enumerate(zip(plans, names, strict=True)):
        order = stream(config.common_args.random_seed, f"order {number}")
        silos.append(assembler.silo(name, plan if only is None or number in only else {}, order, truth))
        if progress is not None:
            progress("preparing silos", number + 1, len(plans))
    return Federation(
        shape=assembler.shape,
        class_names=silos[0].class_names,
        silos=silos,
        true_alpha=_true_alpha(plans, len(components)) if truth else None,
        component_names=tuple(component.name for component in components) if truth else (),
        origin=pool.origin,
        schema=pool.schema,
        used=pool.used,
        skipped=pool.skipped,
        notes=(*notes, *more),
    )


def _silo_paths(root: Path, dataset: str) -> list[Path]:
    if not root.is_dir():
        raise DataError(
            f"{root}: no such folder; silo_mixture.group: file needs one file or folder for each silo in it"
        )
    entries = sorted(entry for entry in root.iterdir() if not entry.name.startswith("."))
    if dataset == "image_folder":
        return [entry for entry in entries if entry.is_dir()]
    return [entry for entry in entries if entry.is_file() and entry.suffix == f".{dataset}"]


def _from_files(config: Config, progress: Progress | None) -> Federation:
    """Each file under ``data_path`` is one silo, read as a deployment would read it."""
    data, count = config.data_args, config.train_args.client_num_in_total
    if data.dataset not in ("npz", "csv", "image_folder") or data.data_path is None:
        raise ConfigError("data_args.silo_mixture.group: file needs dataset npz, csv or image_folder, and data_path")
    root = expand(data.data_path)
    paths = _silo_paths(root, data.dataset)
    if len(paths) != count:
        raise DataError(
            f"{root}: holds the data of {len(paths)} silos; set train_args.client_num_in_total ({count}) to that"
        )
    silos = []
    for number, path in enumerate(paths):
        silos.append(load_silo(config, path, name=path.stem))
        if progress is not None:
            progress("reading silos", number + 1, count)
    shape = check_same_shape({silo.name: silo.shape for silo in silos if silo.shape is not None})
    names = {silo.class_names for silo in silos}
    if len(names) > 1:
        raise DataError(f"{root}: silos name their classes differently ({names}); set data_args.data_options.classes")
    return Federation(
        shape=shape,
        class_names=silos[0].class_names,
        silos=silos,
        origin=str(root),
        schema=silos[0].schema,
        used=sum(silo.used for silo in silos),
        skipped=sum(silo.skipped for silo in silos),
    )
