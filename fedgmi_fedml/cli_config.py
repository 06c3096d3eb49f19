"""``fedgmi config show | check | explain | names | schema`` and ``fedgmi completion``. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

_SHELLS = ("bash", "zsh", "fish")


class ConfigName(click.ParamType):
    """A configuration file, or the name of a shipped one; completes both."""

    name = "config"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from fedgmi_fedml.config import config_names

        names = [CompletionItem(name) for name in config_names() if name.startswith(incomplete)]
        return [*names, CompletionItem(incomplete, type="file")]


class Override(click.ParamType):
    """``section.key=value``; completes the key."""

    name = "section.key=value"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from fedgmi_fedml.config.vocabulary import all_paths, dotted

        keys = sorted({dotted(path) for paths in all_paths().values() for path in paths})
        return [CompletionItem(f"{key}=", type="plain") for key in keys if key.startswith(incomplete)]


def config_argument(required: bool = True) -> Any:
    """The argument CONFIG."""
    return click.argument("config", type=ConfigName(), metavar="CONFIG", required=required)


def set_option() -> Any:
    """The option ``--set``, which may be given many times."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        type=Override(),
        metavar="SECTION.KEY=VALUE",
        help="Change one setting, such as train_args.comm_round=5. May be given many times.",
    )


@click.group()
def config() -> None:
    """Show, check and describe configurations.

    CONFIG is a YAML file, or the name of a shipped configuration (fedgmi config names).
    """


@config.command()
@config_argument()
@set_option()
def show(config: str, overrides: tuple[str, ...]) -> None:
    """Print the effective configuration, defaults included, as YAML that can be read again."""
    from fedgmi_fedml.cli import read_config

    click.echo(read_config(config, overrides).to_yaml(), nl=False)


@config.command()
@config_argument()
@set_option()
def check(config: str, overrides: tuple[str, ...]) -> None:
    """Validate a configuration in full, and say what it promises."""
    from fedgmi_fedml.cli import read_config
    from fedgmi_fedml.config import find_config

    loaded = read_config(config, overrides)
    click.echo(f"{find_config(config)}: valid")
    for line in describe(loaded):
        click.echo(f"  {line}")


@config.command()
def names() -> None:
    """List the shipped configurations, and the file behind each."""
    from fedgmi_fedml.config import config_names, find_config

    for name in config_names():
        click.echo(f"{name:<24} {_title(find_config(name))}")


@config.command()
def schema() -> None:
    """Print the JSON schema of a configuration, for editors."""
    from fedgmi_fedml.config.schema import schema_text

    click.echo(schema_text(), nl=False)


@config.command()
@click.argument("key", required=False)
def explain(key: str | None) -> None:
    """Say what settings mean: KEY or a part of it, such as secure.clip or warmup; without it, all of them."""
    from fedgmi_fedml.config.base import suggestion
    from fedgmi_fedml.config.vocabulary import settings

    found = [(name, field) for name, field in settings() if key is None or key in name]
    if not found:
        last = {name.rpartition(".")[2] for name, _ in settings()}
        raise click.UsageError(f'no setting "{key}": {suggestion(str(key).rpartition(".")[2], sorted(last))}')
    for name, field in found:
        click.echo(f"{name}  [{_default(field.default)}]\n    {field.description}")


def _default(value: Any) -> str:
    """A default as YAML would write it, without the line's end."""
    from fedgmi_fedml.config.reader import dump_yaml

    return dump_yaml({"default": value}).strip().replace("\n", " ")


def describe(config: Config) -> list[str]:
    """What a configuration promises and costs, one fact a line."""
    from secure.gate import feasibility

    train, method, secure = config.train_args, config.fedgmi_args, config.fedgmi_args.secure
    case, rules = feasibility(train.client_num_per_round), secure.rules
    protection = {
        "none": "NONE: updates, sizes and sums travel in the clear (for measurement only)",
        "masked": "masked: the server sees sums of updates, and nothing of a single silo",
        "homomorphic": "homomorphic: the server sees no models at all",
    }
    return [
        f"silos        {train.client_num_per_round} of {train.client_num_in_total} a round",
        f"components   {method.components}, from {method.candidate_count} candidates",
        f"rounds       {train.comm_round}, after {method.initialisation.candidate_rounds} for candidates and "
        f"{method.initialisation.warmup_rounds} of warm-up",
        f"aggregation  {protection[secure.backend]}",
        f"gate         {rules.gate} holders before a component's sum is released",
        f"withstands   {rules.colluders} colluding and {rules.max_drops} vanishing silos "
        f"(threshold and quorum {case.threshold} of {case.silos})",
        f"digest       {config.digest()}",
    ]


def _title(path: Path) -> str:
    """The first sentence of a configuration's opening comment."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and "yaml-language-server" not in line:
            return line[2:].strip()
    return str(path)


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(fedgmi completion bash)"            in ~/.bashrc
    zsh:   eval "$(fedgmi completion zsh)"             in ~/.zshrc
    fish:  fedgmi completion fish > ~/.config/fish/completions/fedgmi.fish
    """
    from fedgmi_fedml.cli import fedgmi

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(fedgmi, {}, "fedgmi", "_FEDGMI_COMPLETE").source())
