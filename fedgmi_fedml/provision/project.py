"""``project.yaml``: who takes part in a federation, where its server is, and which configuration it trains by."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from fedgmi_fedml.config import Config, config_names, parse_config
from fedgmi_fedml.config.base import Lax, Section, expected, suggestion
from fedgmi_fedml.config.reader import Document, KeyPath, parse_document, read_text
from fedgmi_fedml.config.validate import phrase
from fedgmi_fedml.errors import ConfigError
from secure.types import Rules

IdentitySource = Literal["make", "request"]

_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,38}[A-Za-z0-9])?$"
_NAME_WORDS = "1 to 40 letters a–z, digits, dots, dashes or underscores, with a letter or digit at both ends"
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")

Name = Annotated[Annotated[str, Field(pattern=_NAME)], expected(_NAME_WORDS)]
Text = Annotated[
    Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")],
    expected("a text of 1 to 200 characters on one line"),
]


class ServerEntry(Section):
    """The one party that everybody dials."""

    name: Name = Field(default="server", description="Name of the server.")
    address: str = Field(description="host:port that silos dial, such as fed.example.org:8890.")
    bind: str | None = Field(default=None, description="host:port to listen on; null: every address, the same port.")
    names: Annotated[tuple[str, ...], Lax] = Field(
        default=(), description="Further DNS names and IP addresses under which silos may reach the server."
    )
    identity: IdentitySource = Field(default="make", description="As for a silo.")


class SiloEntry(Section):
    """One silo."""

    name: Name = Field(description="Unique; names the kit's folder.")
    organisation: Text | None = Field(default=None, description="Contributors count by organisation; null: the name.")
    identity: IdentitySource = Field(
        description="request: the silo makes its keys, and they never leave it. make: the operator makes them."
    )


class Project(Section):
    """A federation as its operator describes it."""

    federation: Name = Field(description="Names the federation in every certificate.")
    operator: Text = Field(description="Who signs the roster.")
    config: str = Field(min_length=1, description="Training configuration: a file, or the name of a shipped one.")
    server: ServerEntry
    silos: Annotated[tuple[SiloEntry, ...], Lax]
    validity_days: int = Field(default=365, ge=1, le=3650, description="Life of certificates and roster, days.")
    allow_unprotected: bool = Field(
        default=False, description="Accept a configuration whose back-end is `none`: measurements only."
    )


@dataclass(frozen=True)
class Settled:
    """A project that has been checked together with its configuration.

    Attributes:
        project: what ``project.yaml`` says.
        source: the file.
        config: the training configuration.
        config_text: its file, byte for byte: what kits hold.
        bind: where the server listens, host:port.
        hosts: DNS names and addresses for the server's certificate, the advertised one first.
        warnings: what the operator should know, though it stops nothing.
    """

    project: Project
    source: Path
    config: Config
    config_text: bytes
    bind: str
    hosts: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def rules(self) -> Rules:
        """What every silo insists on: the run's own rules."""
        return Rules(**self.config.fedgmi_args.secure.rules.model_dump())


def read_project(path: Path) -> Settled:
    """Read and check ``project.yaml`` and the configuration that it names.

    Raises:
        ConfigError: with every problem at once.
    """
    document = parse_document(read_text(path))
    project = None if any(not problem.path for problem in document.problems) else _validated(document)
    if project is not None:
        for keys, text in _own_problems(project):
            document.report(keys, text)
    problems = [str(problem) for problem in sorted(document.problems, key=lambda problem: problem.order)]
    if project is None:
        raise ConfigError.collected(problems, str(path))
    text, config = _configuration(project, path, problems)
    if config is not None:
        problems += _together(project, config)
    if problems or config is None:
        raise ConfigError.collected(problems, str(path))
    host, port = split_address(project.server.address)
    bind = project.server.bind or f"0.0.0.0:{port}"
    hosts = tuple(dict.fromkeys(map(_canonical, (host, *project.server.names))))
    return Settled(project, path, config, text.encode(), bind, hosts, tuple(_warnings(project, config)))


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 address stands in brackets.

    Raises:
        ValueError: another form; the message says which is wanted.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("must be host:port, with a port from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets, as in [2001:db8::1]:8890")
    if not is_host(host):
        raise ValueError("its host must be a DNS name (ASCII, no wildcard) or an IP address")
    return host, int(port)


def is_host(text: str) -> bool:
    """Whether this is a DNS name without wildcards, or an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        numeric = re.fullmatch(r"[\d.]+", text) is not None
        return not numeric and len(text) <= 253 and _HOST.fullmatch(text) is not None
    return True


def _canonical(host: str) -> str:
    """The one spelling of an address, as certificates give it back; names as they are."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _validated(document: Document) -> Project | None:
    try:
        return Project.model_validate(document.values)
    except ValidationError as errors:
        for error in errors.errors(include_url=False):
            path = tuple(error["loc"])
            document.report(path, _explain(path, error))
        return None


def _explain(path: KeyPath, error: ErrorDetails) -> str:
    """pydantic's finding in a reader's words."""
    model: Any = {"server": ServerEntry, "silos": SiloEntry}.get(str(path[0])) if len(path) > 1 else Project
    fields = (model or Project).model_fields
    if error["type"] == "extra_forbidden":
        return f"unknown key: {suggestion(str(path[-1]), list(fields))}"
    if error["type"] == "missing":
        return f"missing. {fields[str(path[-1])].description or 'every project must say it'}"
    return phrase(error)


def _own_problems(project: Project) -> Iterator[tuple[KeyPath, str]]:
    """What no single key can tell."""
    for key, address in (("address", project.server.address), ("bind", project.server.bind)):
        if address is not None:
            try:
                split_address(address)
            except ValueError as error:
                yield ("server", key), f'{error}, is "{address}"'
    for number, name in enumerate(project.server.names):
        if not is_host(name):
            yield ("server", "names", number), f'must be a DNS name or an IP address without port, is "{name}"'
    seen = {project.server.name.casefold(): "the server"}
    for number, silo in enumerate(project.silos):
        other = seen.setdefault(silo.name.casefold(), f"silo {number + 1}")
        if other != f"silo {number + 1}":
            yield ("silos", number, "name"), f'"{silo.name}" is the name of {other} already (case does not count)'


def _configuration(project: Project, source: Path, problems: list[str]) -> tuple[str, Config | None]:
    """Text and meaning of the training configuration; relative paths start at the project's folder."""
    from fedgmi_fedml.config import find_config

    beside = source.parent / Path(project.config).expanduser()
    try:
        shipped = project.config in config_names() and not beside.is_file()
        file = find_config(project.config) if shipped else find_config(beside)
        text = read_text(file)
        return text, parse_config(text, str(file))
    except ConfigError as error:
        problems.append(f"config: {error}")
        return "", None


def _together(project: Project, config: Config) -> Iterator[str]:
    """Does the configuration fit the silos that are there?"""
    secure, count, train = config.fedgmi_args.secure, len(project.silos), config.train_args
    if secure.backend == "none" and not project.allow_unprotected:
        yield (
            f"config ({project.config}), fedgmi_args.secure.backend: none protects nothing; use masked. For "
            "measurements without anybody's data say allow_unprotected: true in the project"
        )
    if train.client_num_in_total != count:
        yield (
            f"config ({project.config}), train_args.client_num_in_total: is {train.client_num_in_total}, but the "
            f"project lists {count} silos; make both the same (and client_num_per_round no larger)"
        )
    organisations = {(silo.organisation or silo.name).strip().casefold() for silo in project.silos}
    gate = secure.rules.gate
    if len(organisations) < gate:
        yield (
            f"silos: they belong to {len(organisations)} organisations, but a component's sum is released only over "
            f"{gate} (fedgmi_args.secure.rules of {project.config}); add organisations"
        )


def _warnings(project: Project, config: Config) -> Iterator[str]:
    if config.fedgmi_args.secure.backend == "none":
        yield "back-end none: NOTHING is protected; never use these kits with anybody's data"
    if config.fedgmi_args.secure.cohort_nonces == "seed":
        yield (
            "fedgmi_args.secure.cohort_nonces is seed: cohorts can be foretold. A deployment wants system; "
            "fedgmi server and fedgmi silo refuse seed without --repeatable"
        )
    made = sum(silo.identity == "make" for silo in project.silos)
    if made and config.fedgmi_args.secure.backend != "none":
        yield (
            f"identity: make for {made} of {len(project.silos)} silos: whoever holds these kits can act for them; "
            "with identity: request a silo's keys never leave it"
        )
