"""``fedgmi status``: where a run stands, from its server's status page or from its folder."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

_WATCHED = 2.0
"""Seconds between two looks of ``--watch``."""
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_OVER = ("finished", "failed", "stopped_early", "interrupted")
_RUNS = Path("runs")


@click.command()
@click.option("--url", metavar="URL", help="Ask the status page there. [default: as the run's folder says]")
@click.option(
    "--run", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The run's folder, of a server, a silo or a simulation. [default: the one in ./runs that was written last]",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the page's token. [default: status.token in the run's folder]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the whole status document (fedgmi-status/1).")
@click.option("--watch", is_flag=True, help="Look again every two seconds until the run has ended.")
@click.option("--link", is_flag=True, help="Print the page's address with the token in it, for a browser on this host.")
def status(
    url: str | None, folder: Path | None, token_file: Path | None, as_json: bool, watch: bool, link: bool
) -> None:
    """Where a run stands: rounds, silos, summed metrics, bytes, protection.

    \b
      fedgmi status --run runs/digits/server --watch

    While the server shows its status page (tracking_args.status_port), the page is asked; else the run's folder tells
    how far it came, whether it has ended, or since when there is no news of it.
    """
    folder = folder if url is not None else folder or _newest()
    if link:
        click.echo(_source(url, folder, token_file).link())
        return
    while True:
        found, note = _source(url, folder, token_file).look()  # a server that starts again has another page
        _show(found, note, as_json, clear=watch and not as_json)
        if not watch or found["state"] in _OVER:
            return
        time.sleep(_WATCHED)


def _show(found: dict[str, Any], note: str, as_json: bool, clear: bool) -> None:
    from fedgmi_fedml.federation.status_text import status_text

    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    terminal = click.get_text_stream("stdout").isatty()
    click.echo((_CLEAR if clear and terminal else "") + status_text(found, note))


@dataclass(frozen=True)
class _Source:
    """Where to look: a page, a folder, or the page of a folder's run while there is one."""

    url: str | None
    folder: Path | None
    token_file: Path | None

    def look(self) -> tuple[dict[str, Any], str]:
        """The status document, and a line on where it comes from.

        Raises:
            RunError: no page answers, and no folder is known.
        """
        from fedgmi_fedml.errors import RunError
        from fedgmi_fedml.federation.status_client import NoAnswer, ask, read_token
        from fedgmi_fedml.federation.status_folder import read_folder

        if self.url is not None and self.token_file is not None:
            try:
                return ask(self.url, read_token(self.token_file)), f"from the server's status page, {self.url}"
            except NoAnswer:
                if self.folder is None:
                    raise
            except RunError:
                if self.folder is None or self.token_file.exists():  # else the page has just closed
                    raise
        if self.folder is None:
            raise RunError(f"{self.url}: its token is wanted: name the file with --token-file, or the run with --run")
        return read_folder(self.folder), f"from the files in {self.folder}; no status page of the run answers"

    def link(self) -> str:
        """The page's address for a browser.

        Raises:
            RunError: no page is open.
        """
        from fedgmi_fedml.errors import RunError
        from fedgmi_fedml.federation.status_client import read_token

        if self.url is None or self.token_file is None:
            raise RunError(
                "no status page is open for this run: set tracking_args.status_port on the server, or name it with "
                "--url and --token-file"
            )
        return f"{self.url.rstrip('/')}/?token={read_token(self.token_file)}"


def _newest() -> Path:
    """The run in ./runs that was written last.

    Raises:
        RunError: there is none.
    """
    from fedgmi_fedml.errors import RunError
    from fedgmi_fedml.federation.status_folder import newest_run

    folder = newest_run(_RUNS)
    if folder is None:
        raise RunError("no run in ./runs: name its folder with --run, or its status page with --url")
    return folder


def _source(url: str | None, folder: Path | None, token_file: Path | None) -> _Source:
    """What the command line and the folder say together."""
    if folder is not None:
        written, token = folder / "status.url", folder / "status.token"
        if url is None and written.is_file():
            url = written.read_text(encoding="ascii", errors="replace").strip()
        if token_file is None and token.is_file():
            token_file = token
    return _Source(url, folder, token_file)
