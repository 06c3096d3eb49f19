"""``fedgmi``: one door to everything. Each command imports its work when it runs, so that ``--help`` is instant."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgmi_fedml.cli_lazy import LazyGroup
from fedgmi_fedml.errors import FedgmiError, Interrupted
from fedgmi_fedml.version import __version__

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

EXIT_BUG, EXIT_INPUT, EXIT_INTERRUPTED = 1, 2, 130

COMMANDS = {
    "simulate": ("fedgmi_fedml.cli_run:simulate", "Run FedGMI on one machine: all silos, the server, every message."),
    "server": ("fedgmi_fedml.cli_federation:server", "Serve a federation over the network: rounds, no data."),
    "silo": ("fedgmi_fedml.cli_federation:silo", "Take part in a federation with this silo's own data."),
    "status": ("fedgmi_fedml.cli_status:status", "Where a run stands: rounds, silos, metrics, protection."),
    "predict": ("fedgmi_fedml.cli_run:predict", "Personalised predictions of a finished run for new files."),
    "export": ("fedgmi_fedml.cli_run:export", "A finished run's models as safetensors or ONNX."),
    "report": ("fedgmi_fedml.cli_run:report", "Write a run's report.html again."),
    "config": ("fedgmi_fedml.cli_config:config", "Show, check and describe configurations."),
    "keys": ("fedgmi_fedml.cli_keys:keys", "Make and inspect identities, rosters and policies."),
    "provision": ("fedgmi_fedml.cli_provision:provision", "Make kits for a federation over a network."),
    "preflight": ("fedgmi_fedml.cli_preflight:preflight", "Check a node before it joins: every check by name."),
    "experiment": ("fedgmi_fedml.cli_experiment:experiment", "Compare methods on a grid; tables and figures."),
    "bench": ("fedgmi_fedml.cli_bench:bench", "Measure speed, memory and bytes."),
    "completion": ("fedgmi_fedml.cli_config:completion", "Print a shell's completion script."),
}
"""Command → where it lives and its line in ``--help``. Known here, so that ``--help`` imports none of them."""

_EPILOG = """\b
Exit codes:
  0    done
  1    unexpected failure, with a traceback: please report it
  2    something you can put right: bad input, refused setting, missing file; one clear message
  3    the run ended early, with a reason; the last whole models are kept
  4    the other side of the network refused this party; the message names the difference
  130  interrupted (Ctrl-C); an interrupted run says how to resume it
"""


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="fedgmi")
@click.option("-v", "--verbose", is_flag=True, help="More log lines, and a traceback for every error.")
@click.option("-q", "--quiet", is_flag=True, help="Warnings and results only.")
def fedgmi(verbose: bool, quiet: bool) -> None:
    """FedGMI: federated mixtures of generative experts, every aggregation secure.

    \b
    Start here:  fedgmi simulate digits
    """
    from fedgmi_fedml.telemetry.logs import setup_logging

    setup_logging(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)


def read_config(name: str, overrides: Sequence[str]) -> Config:
    """The configuration that a command line names."""
    from fedgmi_fedml.config import load_config

    return load_config(name, overrides)


def resume_hint(folder: Path | None) -> str:
    """How to go on with an interrupted run."""
    if folder is None:
        return "nothing was written yet: start again"
    if not any((folder / "checkpoints").glob("*")):
        return f"no round was whole yet: start again (with another --out, or without {folder})"
    return f"resumable: fedgmi simulate --resume --out {folder}"


def run(args: Sequence[str] | None = None) -> int:
    """Runs a command line (default: the process's own) and returns its exit code; never raises."""
    from secure.errors import SecureError

    try:
        code = fedgmi.main(args=args, prog_name="fedgmi", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return EXIT_INPUT
    except Interrupted as stop:
        _log_where()
        _say(f"{stop}; {stop.hint or resume_hint(stop.folder)}")
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return EXIT_INTERRUPTED
    except FedgmiError as error:
        _log_where()
        _say(f"error: {error}")
        return error.exit_code
    except SecureError as error:
        _log_where()
        _say(f"error: {error}")
        return EXIT_INPUT
    except OSError as error:
        if error.filename is None:  # not about a file: nothing that a user could put right from this line
            return _bug()
        _log_where()
        _say(f"error: {error.filename}: {error.strerror}")
        return EXIT_INPUT
    except Exception:
        return _bug()


def _log_where() -> None:
    """With ``-v``, the traceback behind a message."""
    logging.getLogger(__package__).debug("where it happened:", exc_info=True)


def _bug() -> int:
    traceback.print_exc()
    _say("this should not have happened: please report it with the lines above")
    return EXIT_BUG


def _say(text: str) -> None:
    click.echo(text, err=True)


def main() -> None:
    """The console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()
