"""An experiment's folder: ``experiment.yaml`` and ``cells/<id>.json``, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedgmi_fedml import atomic
from fedgmi_fedml.errors import CheckpointError, RunError
from fedgmi_fedml.experiments.cell import FORMAT
from fedgmi_fedml.experiments.definition import Cell, Experiment

__all__ = ["Store"]


class Store:
    """The results of an experiment in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cells = folder / "cells"

    def begin(self, experiment: Experiment, resume: bool) -> list[Cell]:
        """Open the folder for an experiment; returns the cells that are still to be run, in order.

        Raises:
            RunError: results are there already and ``resume`` was not asked for, or they are of other configurations.
        """
        done = {record["id"]: record["config_digest"] for record in self.records()}
        if done and not resume:
            raise RunError(
                f"{self.folder} holds {len(done)} cells already: add --resume to run the others, or take another --out"
            )
        for cell in experiment.cells:
            if cell.id in done and done[cell.id] != cell.config.run_digest():
                raise RunError(
                    f"{self.path(cell)} was run with another configuration than the experiment has now: remove it to "
                    "run that cell again, or choose another --out"
                )
        atomic.write_bytes(self.folder / "experiment.yaml", experiment.text.encode())
        return [cell for cell in experiment.cells if cell.id not in done]

    def path(self, cell: Cell) -> Path:
        """The cell's file."""
        return self._cells / f"{cell.id}.json"

    def save(self, experiment: str, cell: Cell, record: Mapping[str, Any]) -> None:
        """Write one cell's record, atomically."""
        atomic.write_json(self.path(cell), {"experiment": experiment, "id": cell.id, **record})

    def records(self) -> list[dict[str, Any]]:
        """All records, in the order of their names.

        Raises:
            CheckpointError: a file is damaged, or no cell.
        """
        return list(self._read())

    def _read(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self._cells.glob("*.json")):
            try:
                record = json.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{path} cannot be read ({error}): remove it, and run the cell again") from error
            if not isinstance(record, dict) or record.get("format") != FORMAT:
                raise CheckpointError(f"{path} is no cell of format {FORMAT}: remove it, and run the cell again")
            yield record
