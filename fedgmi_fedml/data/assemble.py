"""From a plan to tensors: one silo's parts out of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedgmi_fedml.data.components import ClassMap, Component, table_scale
from fedgmi_fedml.data.records import PARTS, Pool, Rows, SiloData
from fedgmi_fedml.data.splits import Draw, Plan
from fedgmi_fedml.shapes import DataShape


class Assembler:
    """Builds silos from one pool. Converts only the samples that a silo uses; the pool stays in its stored type."""

    def __init__(self, pool: Pool, components: Sequence[Component], classes: ClassMap) -> None:
        self._pool = pool
        self._components = components
        self._classes = classes
        self._table_scale = table_scale(pool) if any(component.changes_table for component in components) else None
        self.shape = DataShape(pool.sample_shape, len(classes.names), pool.value_range)

    def silo(self, name: str, plan: Plan, order: np.random.Generator, truth: bool) -> SiloData:
        """One silo, each part in random order; ``truth`` keeps the true components."""
        schema = self._pool.schema
        fields: dict[str, Any] = {}
        raw: dict[str, Any] = {}
        for part in PARTS:
            draws = plan.get(part, [])
            places = order.permutation(sum(len(draw.index) for draw in draws))
            if schema is None:
                fields[f"x_{part}"] = torch.from_numpy(self._images(draws, places))
            else:
                raw[part] = self._rows(draws, places)
                fields[f"x_{part}"] = torch.full((len(places), schema.width), torch.nan)
            fields[f"y_{part}"] = torch.from_numpy(self._spread(draws, places, self._labels))
            if truth:
                true = self._spread(draws, places, lambda draw: np.full(len(draw.index), draw.component))
                fields[f"true_component_{part}"] = torch.from_numpy(true)
        return SiloData(
            name=name,
            shape=self.shape,
            class_names=self._classes.names,
            schema=schema,
            raw=raw if schema is not None else None,
            standardised=schema is None,
            **fields,
        )

    def _images(self, draws: Sequence[Draw], places: Rows) -> Any:
        x, start = np.empty((len(places), *self._pool.sample_shape), dtype=np.float32), 0
        for draw in draws:
            component = self._components[draw.component]
            x[places[start : start + len(draw.index)]] = component.image(self._pool.images(draw.source, draw.index))
            start += len(draw.index)
        return x

    def _rows(self, draws: Sequence[Draw], places: Rows) -> Any:
        width = self._pool.parts["train"].x.shape[1]
        x, start = np.empty((len(places), width), dtype=np.float64), 0
        for draw in draws:
            rows = self._pool.parts[draw.source].raw(draw.index)
            component = self._components[draw.component]
            if self._table_scale is not None:
                rows = component.row(rows, *self._table_scale)
            x[places[start : start + len(draw.index)]] = rows
            start += len(draw.index)
        return x

    def _labels(self, draw: Draw) -> Rows:
        return self._classes.new[self._pool.parts[draw.source].y[draw.index]]

    @staticmethod
    def _spread(draws: Sequence[Draw], places: Rows, value: Any) -> Rows:
        result, start = np.empty(len(places), dtype=np.int64), 0
        for draw in draws:
            result[places[start : start + len(draw.index)]] = value(draw)
            start += len(draw.index)
        return result
