"""Standardising a table over all silos from secure sums alone.

Each silo brings sufficient statistics of its training rows: their number; per numeric column how many are present,
and the sums of z and z², z = (value − centre) / reach in [−1, 1]; per further feature the number of ones. A secure
survey session adds them; only the silos learn the totals, and never another silo's part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedgmi_fedml.data.records import PARTS, SiloData
from fedgmi_fedml.data.table import TableSchema
from fedgmi_fedml.errors import DataError
from secure.types import StatisticSpec

SUM_STEP = 2.0**-32
"""Resolution of Σz and Σz²: a spread of 1/1000 of the declared range is still measured to a few per cent."""
SMALLEST_SHARE_SPREAD = 0.1
"""Smallest standard deviation assumed of a zero/one feature, so that rare categories do not become huge values."""


@dataclass(frozen=True, repr=False)
class TableMoments:
    """Mean and standard deviation of every feature over all silos' training rows, before standardisation.

    ``mean`` and ``spread`` hold (width,) floats, numeric columns in their own unit; spreads are never zero.
    """

    schema: TableSchema
    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def __repr__(self) -> str:
        return f"TableMoments({self.schema.width} features, values hidden)"

    @classmethod
    def from_totals(cls, schema: TableSchema, totals: Sequence[float]) -> TableMoments:
        """Moments from the summed statistics (order of ``table_statistics_spec``). A column nobody has: mean at centre.

        Raises DataError when the totals do not belong to this schema.
        """
        values = np.asarray(totals, dtype=np.float64)
        numeric = len(schema.numeric)
        if values.shape != (len(table_statistics_spec(schema)),) or not np.isfinite(values).all():
            raise DataError("the summed statistics do not fit the table's columns: silos disagree on data_options")
        rows = max(values[0], 1.0)
        present, first, second = values[1 : 1 + 3 * numeric].reshape(3, numeric)
        held = np.maximum(present, 1.0)
        centre = np.array([column.centre for column in schema.numeric])
        reach = np.array([column.reach for column in schema.numeric])
        mean_z = first / held
        variance = np.maximum(second / held - mean_z**2, 0.0)
        # A variance below what the rounding of many silos' sums can make is none: a constant column keeps its unit.
        spread_z = np.where(variance > 256 * SUM_STEP / held, np.sqrt(variance), 1.0)
        share = np.clip(values[1 + 3 * numeric :] / rows, 0.0, 1.0)
        deviation = np.maximum(np.sqrt(share * (1 - share)), SMALLEST_SHARE_SPREAD)
        mean = np.concatenate([centre + reach * mean_z, share])
        spread = np.concatenate([reach * spread_z, deviation])
        return cls(schema, tuple(mean.tolist()), tuple(spread.tolist()))

    def features(self, raw: npt.NDArray[np.float64]) -> torch.Tensor:
        """Standardised features, float32 (n, width), of raw rows (n, columns); missing values at the mean."""
        numeric = len(self.schema.numeric)
        values = np.concatenate([raw[:, :numeric], self.schema.one_hot(raw)], axis=1)
        values = (values - np.asarray(self.mean)) / np.asarray(self.spread)
        values[:, :numeric] = np.where(np.isnan(values[:, :numeric]), 0.0, values[:, :numeric])
        return torch.from_numpy(values.astype(np.float32))

    def to_dict(self) -> dict[str, Any]:
        """Plain form, to be kept with a run's models."""
        return {"schema": self.schema.to_dict(), "mean": list(self.mean), "spread": list(self.spread)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TableMoments:
        """The moments that ``to_dict`` described."""
        return cls(TableSchema.from_dict(plain["schema"]), tuple(plain["mean"]), tuple(plain["spread"]))


def table_statistics_spec(schema: TableSchema) -> tuple[StatisticSpec, ...]:
    """Names, bounds (for one silo) and resolutions of the statistics, in order."""
    bound = float(schema.max_rows)
    names = [column.name for column in schema.numeric]
    ones = schema.features[len(names) :]
    return (
        StatisticSpec("table rows", bound, 1.0),
        *(StatisticSpec(f"table {name} present", bound, 1.0) for name in names),
        *(StatisticSpec(f"table {name} sum", bound, SUM_STEP) for name in names),
        *(StatisticSpec(f"table {name} squares", bound, SUM_STEP) for name in names),
        *(StatisticSpec(f"table {name} count", bound, 1.0) for name in ones),
    )


def table_statistics(silo: SiloData) -> tuple[float, ...]:
    """This silo's part of the statistics, from its training rows; all zero for an empty silo.

    Raises DataError when the silo holds more rows than ``data_options.max_rows`` or is no table.
    """
    if silo.schema is None or silo.raw is None:
        raise DataError(f"{silo.name}: its data are no table, there is nothing to standardise")
    schema, raw = silo.schema, silo.raw["train"]
    if len(raw) > schema.max_rows:
        raise DataError(
            f"{silo.name}: has more training rows than data_args.data_options.max_rows ({schema.max_rows}) allows; "
            f"raise max_rows on every party"
        )
    z = raw[:, : len(schema.numeric)] - np.array([column.centre for column in schema.numeric])
    z = np.clip(z / np.array([column.reach for column in schema.numeric]), -1.0, 1.0)
    sums = [(~np.isnan(z)).sum(axis=0), np.nansum(z, axis=0), np.nansum(z * z, axis=0), schema.one_hot(raw).sum(axis=0)]
    return (float(len(raw)), *np.concatenate(sums).astype(np.float64).tolist())


def summed_statistics(silos: Iterable[SiloData]) -> tuple[float, ...]:
    """The totals in the clear: what a secure survey gives, for tests and for comparison."""
    return tuple(math.fsum(column) for column in zip(*(table_statistics(silo) for silo in silos), strict=True))


def apply_moments(silo: SiloData, moments: TableMoments) -> SiloData:
    """The silo with its features standardised; its raw rows are kept, so that it can be done again."""
    if silo.raw is None or silo.schema != moments.schema:
        raise DataError(f"{silo.name}: the moments belong to a table with other columns")
    features: dict[str, Any] = {f"x_{part}": moments.features(silo.raw[part]) for part in PARTS}
    return replace(silo, **features, standardised=True)
