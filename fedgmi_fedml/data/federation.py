"""A configuration into data: the silos of a simulation, or one silo's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgmi_fedml.data.components import Component, build_components
from fedgmi_fedml.data.mixtures import proportions
from fedgmi_fedml.data.records import PARTS, Federation, Pool, Progress, SiloData, stream
from fedgmi_fedml.data.sources import load_digits, load_npz
from fedgmi_fedml.data.splits import Draw, largest_that_fits, part_sizes, share_out
from fedgmi_fedml.shapes import DataShape


def _pool(config: Any) -> Pool:
    data = config.data_args
    if data.dataset == "digits":
        return load_digits()
    return load_npz(Path(data.data_path))


def _sizes(config: Any, pool: Pool, components: Sequence[Component], alpha: Any) -> list[dict[str, int]]:
    data, seed = config.data_args, config.common_args.random_seed
    shares = (data.validation_share, data.test_share)
    asked = data.silo_mixture.samples_per_silo
    if asked is None:
        train = [largest_that_fits(pool, components, alpha, shares, seed)] * len(alpha)
    elif isinstance(asked, int):
        train = [asked] * len(alpha)
    else:
        train = [int(n) for n in stream(seed, "sizes").integers(asked[0], asked[1] + 1, len(alpha))]
    return [part_sizes(n, *shares) for n in train]


def _fill(pool: Pool, components: Sequence[Component], draws: Sequence[Draw], order: np.random.Generator) -> Any:
    """Samples, labels and true components of one part of one silo, in random order."""
    x = np.zeros((sum(len(draw.index) for draw in draws), *pool.sample_shape), dtype=np.float32)
    y, true = np.zeros(len(x), dtype=np.int64), np.zeros(len(x), dtype=np.int64)
    places, start = order.permutation(len(x)), 0
    for draw in draws:
        at = places[start : start + len(draw.index)]
        start += len(draw.index)
        x[at] = components[draw.component].apply(pool.images(draw.source, draw.index))
        y[at] = pool.parts[draw.source].y[draw.index]
        true[at] = draw.component
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(true)


def load_federation(config: Any, progress: Progress | None = None) -> Federation:
    """The silos of a simulation, mixed from one pooled source as ``data_args`` says; deterministic for a seed."""
    pool = _pool(config)
    seed = config.common_args.random_seed
    count = config.train_args.client_num_in_total
    components = build_components(config.data_args.silo_mixture.components or [], pool)
    alpha = proportions(config.data_args.silo_mixture, count, len(components), seed)
    plans = share_out(pool, components, alpha, _sizes(config, pool, components, alpha), seed)
    silos, true_alpha = [], np.zeros((count, len(components)))
    for number, plan in enumerate(plans):
        order = stream(seed, f"order {number}")
        filled = {part: _fill(pool, components, plan[part], order) for part in PARTS}
        fields: dict[str, Any] = {}
        for part, (x, y, true) in filled.items():
            fields |= {f"x_{part}": x, f"y_{part}": y, f"true_component_{part}": true}
        silos.append(SiloData(name=f"silo-{number + 1:03d}", **fields))
        held = np.bincount(filled["train"][2].numpy(), minlength=len(components))
        true_alpha[number] = held / max(held.sum(), 1)
        if progress is not None:
            progress("preparing silos", number + 1, count)
    shape = DataShape(pool.sample_shape, len(pool.class_names), pool.value_range)
    return Federation(shape, pool.class_names, silos, true_alpha, tuple(c.name for c in components), pool.origin)
