"""A deployment: one silo's own data, and new samples to predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgmi_fedml.data.assemble import Assembler
from fedgmi_fedml.data.checks import check_likelihood
from fedgmi_fedml.data.components import ClassMap, Component
from fedgmi_fedml.data.records import Rows, SiloData, stream
from fedgmi_fedml.data.sources import expand, load_pool, make_request
from fedgmi_fedml.data.splits import Draw, split_own
from fedgmi_fedml.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

OWN_DATA = ("npz", "csv", "image_folder")


def part_shares(config: Config) -> tuple[float, float]:
    """Validation and test share. Raises ConfigError when nothing is left to train on."""
    shares = config.data_args.validation_share, config.data_args.test_share
    if min(shares) < 0 or sum(shares) >= 1:
        raise ConfigError(
            f"data_args.validation_share ({shares[0]:g}) and test_share ({shares[1]:g}) must leave samples to train on"
        )
    return shares


def load_silo(config: Config, path: str | Path | None = None, name: str = "silo") -> SiloData:
    """One silo's own data, from ``path`` (``data_args.data_path`` where it is None); needs nothing else.

    Classes, ranges and vocabularies come from the configuration, since silos must agree on them. The source's own
    validation and test parts are used; where there are none, shares are held out, by class, with the run's seed.
    A silo without samples is fine. Raises ConfigError or DataError naming silo, file, key and remedy.
    """
    if config.data_args.dataset not in OWN_DATA:
        raise ConfigError(
            f"data_args.dataset: {config.data_args.dataset!r} is a public data set for simulations; a silo's own data "
            f"are {', '.join(OWN_DATA)}"
        )
    shares = part_shares(config)
    try:
        pool = load_pool(make_request(config, None if path is None else expand(str(path)), agreed=True))
        check_likelihood(pool.shape, config, pool.origin)
    except DataError as error:
        raise type(error)(f"{name}: {error}") from None
    rows: dict[str, Rows] = {part: np.arange(len(held), dtype=np.int64) for part, held in pool.parts.items()}
    # A silo's split depends on its data's size and the seed only, so that it stays the same wherever the files lie.
    generator = stream(config.common_args.random_seed, f"own {len(pool.parts['train'])}")
    parts = split_own(pool, rows, shares, generator)
    plan = {part: [Draw(0, source, index)] if len(index) else [] for part, (source, index) in parts.items()}
    classes = ClassMap(np.arange(len(pool.class_names), dtype=np.int64), pool.class_names)
    silo = Assembler(pool, (Component(),), classes).silo(name, plan, generator, truth=False)
    silo.used, silo.skipped = pool.used, pool.skipped
    return silo
