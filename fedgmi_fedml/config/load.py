"""From a file or a shipped name, and ``--set``, to a ``Config``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedgmi_fedml.config.base import nearest
from fedgmi_fedml.config.expand import expand_paths
from fedgmi_fedml.config.models import Config
from fedgmi_fedml.config.reader import (
    OVERRIDE,
    Document,
    Problem,
    launch_job_keys,
    parse_document,
    parse_scalar,
    read_text,
)
from fedgmi_fedml.config.structure import tidy
from fedgmi_fedml.config.validate import validate
from fedgmi_fedml.config.vocabulary import all_paths, dotted
from fedgmi_fedml.errors import ConfigError

LAUNCH_JOB = "fedgmi"
"""``configs/fedgmi.yaml`` is the job for ``fedml launch``, not a training configuration."""


def config_folder() -> Path:
    """Folder of the shipped configurations: inside the installed package, or ``configs/`` of the source tree."""
    installed = Path(__file__).resolve().parents[1] / "configs"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "configs"


def config_names() -> tuple[str, ...]:
    """Names of the shipped training configurations."""
    return tuple(sorted(file.stem for file in config_folder().glob("*.yaml") if file.stem != LAUNCH_JOB))


def find_config(path_or_name: str | Path) -> Path:
    """The file that a path or a shipped name means; a file of that name comes first.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(path_or_name).expanduser()
    name = str(path_or_name)
    if path.is_file() or (path.is_dir() and name not in config_names()):
        return path
    if name in config_names():
        return config_folder() / f"{name}.yaml"
    raise ConfigError(f"{name}: no such file, and no shipped configuration of that name; {_other_names(path)}")


def _other_names(path: Path) -> str:
    close = path.stem if path.stem in config_names() else nearest(path.stem, config_names())
    question = f'did you mean "{close}"? ' if close else ""
    return f"{question}Shipped: {', '.join(config_names())}"


def load_config(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads, overrides and validates a configuration in full.

    Args:
        path_or_name: a YAML file, or the name of a shipped configuration such as ``digits``.
        overrides: ``section.key=value`` each; values as YAML would read them.

    Raises:
        ConfigError: with every problem at once: file, line, section.key, value and remedy.
    """
    path = find_config(path_or_name)
    return parse_config(read_text(path), str(path), overrides)


def parse_config(text: str, source: str = "configuration", overrides: Sequence[str] = ()) -> Config:
    """``load_config`` for text that is already at hand; ``source`` names it in messages."""
    document = parse_document(text)
    job = launch_job_keys(document)
    if job:
        raise ConfigError(
            f"{source}: is a FedML launch job (it has {', '.join(job)}), not a training configuration. "
            f"It goes to `fedml launch`; pass a training configuration here, such as {', '.join(config_names()[:3])}."
        )
    unreadable = any(not problem.path for problem in document.problems)
    if not unreadable:
        _override(document, overrides)
        config = validate(document, expand_paths(document, tidy(document)))
        if config is not None:
            return config
    problems = sorted(document.problems, key=lambda problem: problem.order)
    raise ConfigError.collected([str(problem) for problem in problems], source)


def _override(document: Document, overrides: Sequence[str]) -> None:
    """Puts ``section.key=value`` into the document; what cannot be put is reported."""
    for override in overrides:
        name, sign, text = override.partition("=")
        name = name.strip()
        place = f"{OVERRIDE} {name}"
        keys = name.split(".")
        if not sign or not all(keys):
            document.problems.append(Problem((), "must be section.key=value", f"{OVERRIDE} {override}"))
            continue
        if len(keys) == 1:
            homes = [dotted(home) for home in all_paths().get(name, ())]
            hint = f"; did you mean {' or '.join(homes)}?" if homes else ""
            document.problems.append(Problem((), f"needs its section: section.key=value{hint}", place))
            continue
        try:
            value = parse_scalar(text)
        except (yaml.YAMLError, ValueError):
            document.problems.append(Problem((), f"{text!r} cannot be read as YAML; put text in quotes", place))
            continue
        _put(document, keys, value, place)


def _put(document: Document, keys: Sequence[str], value: Any, place: str) -> None:
    """Sets one value, making mappings on the way; a number steps into a list."""
    holder: Any = document.values
    path: tuple[str | int, ...] = ()
    for key, step in _steps(keys):
        if isinstance(holder, list):
            if not key.isdigit() or int(key) >= len(holder):
                document.problems.append(
                    Problem((), f"{dotted(path)} is a list of {len(holder)}; {key} is no entry of it", place)
                )
                return
            index: str | int = int(key)
        elif isinstance(holder, dict):
            index = key
        else:
            document.problems.append(Problem((), f"{dotted(path)} is a single value; it has no {key}", place))
            return
        path = (*path, index)
        if step == "last":
            holder[index] = value
        elif isinstance(holder, dict) and holder.get(index) is None:
            holder[index] = {}
        holder = holder[index]
    for stale in [known for known in document.places if known[: len(path)] == path]:
        del document.places[stale]
    document.places[path] = OVERRIDE


def _steps(keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, key in enumerate(keys, 1):
        yield key, "last" if number == len(keys) else "way"
