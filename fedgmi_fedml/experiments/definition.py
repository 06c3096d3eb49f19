"""An experiment's file: what is compared with what, as a grid of cells, each of them a whole configuration.

    title: …
    set: {section.key: value}       # for every cell; optional
    grids:                          # one or more
      - data: digits                # names the grid's data in cells and tables
        base: digits                # a shipped configuration, or the path of one
        set: {section.key: value}   # optional
        mixtures: {linear: {data_args.silo_mixture.kind: linear}}
        variants: {default: {}}     # optional: ablations
        methods: [fedgmi, fedavg]
        k: [5, 12]                  # silos that take part in a sample-level round
        seeds: [0, 1, 2]

Later settings win: the experiment's, the grid's, the mixture's, the variant's, then method, K and seed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from fedgmi_fedml.baselines import METHODS
from fedgmi_fedml.config import Config, config_folder, load_config
from fedgmi_fedml.config.base import Count, Lax, Natural, Section, suggestion
from fedgmi_fedml.config.reader import Document, parse_document, read_text
from fedgmi_fedml.config.validate import phrase
from fedgmi_fedml.errors import ConfigError

__all__ = ["Cell", "Experiment", "experiment_names", "load_experiment"]

METHOD_NAMES = (*METHODS, "local")
DEFAULT = "default"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")

Settings = dict[str, Any]


class _Grid(Section):
    """One grid as it is written."""

    data: str
    base: str
    set: Settings = Field(default={})
    mixtures: Annotated[dict[str, Settings], Field(min_length=1)]
    variants: dict[str, Settings] = Field(default={DEFAULT: {}}, min_length=1)
    methods: Annotated[tuple[str, ...], Lax, Field(min_length=1)]
    k: Annotated[tuple[Count, ...], Lax, Field(min_length=1)]
    seeds: Annotated[tuple[Natural, ...], Lax, Field(min_length=1)]


class _File(Section):
    """The whole file as it is written."""

    title: Annotated[str, Field(min_length=1)]
    question: str = ""
    set: Settings = Field(default={})
    grids: Annotated[tuple[_Grid, ...], Lax, Field(min_length=1)]


@dataclass(frozen=True)
class Cell:
    """One method on one configuration.

    Attributes:
        data, mixture, variant, method, k, seed: its place in the grid; ``k`` silos a sample-level round.
        base: configuration that it departs from.
        settings: what differs from it, as (section.key, value) in order; later ones win.
    """

    data: str
    mixture: str
    variant: str
    method: str
    k: int
    seed: int
    base: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def id(self) -> str:
        """Names the cell and its file."""
        return f"{self.data}.{self.mixture}.{self.variant}.{self.method}.k{self.k}.s{self.seed}"

    @cached_property
    def config(self) -> Config:
        """The cell's configuration. Raises ConfigError with every problem of it."""
        own = {
            "common_args.random_seed": self.seed,
            "common_args.run_name": "experiment",
            "train_args.client_num_per_round": self.k,
            "validation_args.evaluate_baselines": [],
            "validation_args.evaluate_oracle": False,
        }
        wanted = [*self.settings, *own.items()]
        return load_config(self.base, [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in wanted])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "config"}


@dataclass(frozen=True)
class Experiment:
    """A file's cells, in its order.

    Attributes:
        name: the file's name without its ending.
        text: the file as it was read, for the results' folder.
    """

    name: str
    title: str
    question: str
    cells: tuple[Cell, ...]
    text: str

    def check(self) -> None:
        """Validate every cell's configuration, before any of them is run.

        Raises:
            ConfigError: the first cell that is wrong, by name, with all that is wrong with it.
        """
        for cell in self.cells:
            try:
                _ = cell.config
            except ConfigError as error:
                raise ConfigError(f"cell {cell.id}: {error}") from None


def experiment_names() -> tuple[str, ...]:
    """Names of the shipped experiments."""
    return tuple(sorted(file.stem for file in (config_folder() / "experiments").glob("*.yaml")))


def load_experiment(path_or_name: str | Path) -> Experiment:
    """Read an experiment's file, or a shipped one by its name.

    Raises:
        ConfigError: there is none, or every problem of it with its line and key.
    """
    path, name = Path(path_or_name).expanduser(), str(path_or_name)
    if not path.is_file():
        if name not in experiment_names():
            valid = suggestion(name, experiment_names())
            raise ConfigError(f"{name}: no such file, and no shipped experiment of that name; {valid}")
        path = config_folder() / "experiments" / f"{name}.yaml"
    return parse_experiment(read_text(path), path.stem, str(path))


def parse_experiment(text: str, name: str, source: str) -> Experiment:
    """``load_experiment`` for text that is at hand; ``source`` names it in messages."""
    document = parse_document(text)
    written = None if document.problems else _validated(document)
    if written is None or document.problems:
        problems = sorted(document.problems, key=lambda problem: problem.order)
        raise ConfigError.collected([str(problem) for problem in problems], source)
    cells = tuple(cell for grid in written.grids for cell in _cells(grid, written.set))
    twice = sorted({cell.id for cell in cells if [other.id for other in cells].count(cell.id) > 1})
    if twice:
        raise ConfigError(f"{source}: {twice[0]} is in the grids twice; name data, mixtures or variants apart")
    return Experiment(name, written.title, written.question, cells, text)


def _validated(document: Document) -> _File | None:
    """The file as a model; problems go into the document."""
    try:
        written = _File.model_validate(document.values)
    except ValidationError as errors:
        for error in errors.errors(include_url=False):
            kinds = {"extra_forbidden": "unknown key; remove it", "missing": "is missing", "too_short": "is empty"}
            document.report(tuple(error["loc"]), kinds.get(error["type"]) or phrase(error))
        return None
    for number, grid in enumerate(written.grids):
        here = ("grids", number)
        for key, names in (("data", (grid.data,)), ("mixtures", grid.mixtures), ("variants", grid.variants)):
            for name in names:
                if not _NAME.fullmatch(name):
                    document.report((*here, key), f"{name!r} cannot name a file; use a–z, 0–9, _ and -")
        for method in grid.methods:
            if method not in METHOD_NAMES:
                document.report((*here, "methods"), f'no method "{method}": {suggestion(method, METHOD_NAMES)}')
    return written


def _cells(grid: _Grid, common: Mapping[str, Any]) -> Iterator[Cell]:
    """Every cell of a grid, seed by seed, so that a first seed of everything is there early."""
    for seed in grid.seeds:
        for mixture, mixed in grid.mixtures.items():
            for k in grid.k:
                for variant, varied in grid.variants.items():
                    settings = (*common.items(), *grid.set.items(), *mixed.items(), *varied.items())
                    for method in grid.methods:
                        yield Cell(grid.data, mixture, variant, method, k, seed, grid.base, settings)
