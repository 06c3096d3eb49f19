"""YAML text into plain values, each with the place it came from, and the problems that FedML passes over in silence.

FedML flattens the sections into one namespace, keeps ``1e-3`` as text, crashes on an empty section or a value at top
level, and ignores a broken file altogether. Here each of these is a number, or a problem with its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedgmi_fedml.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Where a value lives, e.g. ``("train_args", "epochs")``; numbers count a list's entries from 0."""

OVERRIDE = "--set"
"""Place of what the command line says."""

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
LAUNCH_JOB_KEYS = ("workspace", "job", "server_job", "job_type", "job_subtype", "computing", "bootstrap", "fedml_env")


def dotted(path: KeyPath) -> str:
    """``train_args.epochs``."""
    return ".".join(str(key) for key in path)


@dataclass(frozen=True)
class Problem:
    """One thing wrong.

    Attributes:
        path: the key, or ``()`` for the file as a whole.
        text: what is wrong and the remedy, without the key's name.
        place: ``"line 12"``, ``"--set"`` or ``""``.
    """

    path: KeyPath
    text: str
    place: str = ""

    def __str__(self) -> str:
        between = " " if self.place == OVERRIDE else ", "
        where = between.join(part for part in (self.place, dotted(self.path)) if part)
        return f"{where}: {self.text}" if where else self.text

    @property
    def order(self) -> tuple[int, str]:
        """Sort key: by line, what has none last."""
        number = re.search(r"\d+", self.place)
        return (int(number.group()) if number else 1 << 30, dotted(self.path))


@dataclass
class Document:
    """What a file says: values by section, the place of every key, and the problems found so far."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: KeyPath) -> str:
        """Place of a key, of the list around an entry, or ``""`` for a key that is not in the file."""
        if any(self.places.get(path[:length]) == OVERRIDE for length in range(1, len(path))):
            return OVERRIDE
        while path and path not in self.places and isinstance(path[-1], int):
            path = path[:-1]
        return self.places.get(path, "")

    def report(self, path: KeyPath, text: str, place: str | None = None) -> None:
        """Adds a problem."""
        self.problems.append(Problem(path, text, self.place(path) if place is None else place))


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as FedML reads it, but with numbers such as ``1e-3`` and ``2.5e4`` as numbers."""


class _Dumper(yaml.SafeDumper):
    """Writes what ``_Loader`` reads: text that looks like ``1e-3`` in quotes, plain lists on one line, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        flat = not any(isinstance(item, (dict, list, tuple)) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flat)


_EXPONENT = re.compile(r"^[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$")
for _kind_of_reader in (_Loader, _Dumper):
    _kind_of_reader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def dump_yaml(values: dict[str, Any]) -> str:
    """YAML of plain values in their own order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=100)


def read_text(path: Path) -> str:
    """The file's text. Raises ConfigError for what is missing, a folder, too large or no text."""
    try:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; pass a configuration file (YAML)")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: {len(data):,} bytes is no configuration file (limit {MAX_BYTES:,})")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text in UTF-8; pass a configuration file (YAML)") from None


def parse_scalar(text: str) -> Any:
    """A value as YAML would read it (``--set``). Raises ``yaml.YAMLError`` or ``ValueError``."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def parse_document(text: str) -> Document:
    """Values, places and structural problems of a whole file; never raises for what a user can write."""
    document = Document()
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        values = None if node is None else _Builder(loader, document).build(node, ())
    except yaml.YAMLError as error:
        document.problems.append(_syntax(error))
        return document
    finally:
        loader.dispose()
    if isinstance(values, dict):
        document.values = values
        return document
    found = "is empty" if values is None else f"holds a single {_kind(values)}"
    document.report((), f"the file {found}; it needs sections such as data_args: and train_args:")
    return document


def launch_job_keys(document: Document) -> list[str]:
    """Keys that only a FedML launch job has at top level; empty for anything that has a section of ours."""
    if any(str(key).endswith("_args") for key in document.values):
        return []
    return [key for key in LAUNCH_JOB_KEYS if key in document.values]


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "value"


def _syntax(error: yaml.YAMLError) -> Problem:
    """A parser's complaint, with line and column where it has them."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "'\\t'" in reason:
        reason = "a tab; indent with spaces"
    elif "expected a single document" in str(error):
        reason = "a second document (---); keep one"
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return Problem((), f"not valid YAML: {reason}", place)


class _Builder:
    """Nodes into plain values. Remembers the place of each key and reports duplicates, odd keys and loops."""

    def __init__(self, loader: _Loader, document: Document) -> None:
        self.loader, self.document = loader, document
        self.open: list[int] = []  # nodes being built, to notice an alias inside its own anchor
        self.built = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """Plain value of a node."""
        self.built += 1
        if id(node) in self.open or self.built > MAX_NODES:
            loop = "an alias refers to itself" if id(node) in self.open else "aliases make the file too large"
            raise yaml.MarkedYAMLError(problem=loop, problem_mark=node.start_mark)
        self.open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(child, (*path, number)) for number, child in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self.open.pop()

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        try:
            return self.loader.construct_object(node)
        except (ValueError, OverflowError):
            self.document.report(path, f'"{node.value}" cannot be read; put text in quotes', _line(node))
            return None

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        own = {id(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"}
        self.loader.flatten_mapping(node)  # resolves `<<`, whose keys may be overridden
        first: dict[str, str] = {}
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, place = self._key(key_node, path), _line(key_node)
            here = (*path, key)
            if key in first and id(key_node) in own:
                self.document.report(here, f"given twice (first in {first[key]}); keep one", place)
            if id(key_node) in own:
                first.setdefault(key, place)
            self.document.places[here] = place
            values[key] = self.build(value_node, here)
        return values

    def _key(self, node: yaml.Node, path: KeyPath) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self.document.report(path, "a list or mapping cannot be a key", _line(node))
            return "?"
        if node.tag != "tag:yaml.org,2002:str":
            kind = node.tag.rpartition(":")[2]
            self.document.report((*path, node.value), f"YAML reads this key as {kind}; put it in quotes", _line(node))
        return str(node.value)


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
