"""Opens and closes the status page: its address, its token, and the two files that tell its owner of them.

``run/status.token`` holds the token, readable by its owner only (Prometheus: ``credentials_file``); ``run/status.url``
the address. Both go when the page closes; a killed server leaves them, and the next one replaces them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import socket
import threading
from pathlib import Path

from fedgmi_fedml.errors import RunError
from fedgmi_fedml.federation.status_http import StatusServer, Watched

__all__ = ["StatusPage", "open_status_page"]

log = logging.getLogger(__name__)

PATIENCE = 5.0


class StatusPage:
    """An open page. ``open_status_page`` makes one.

    Attributes:
        url: where it is reached from this machine, without the token.
        port: the port it listens on.
    """

    def __init__(self, server: StatusServer, url: str, files: dict[Path, str]) -> None:
        self.url, self.port = url, server.port
        self._server, self._files = server, files
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="fedgmi-status", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; the token's file goes with it. Idempotent, and never raises."""
        with contextlib.suppress(Exception):
            self._server.shutdown()
            self._thread.join(PATIENCE)
        with contextlib.suppress(Exception):
            self._server.server_close()
        for path, text in self._files.items():
            with contextlib.suppress(OSError, ValueError):
                if path.read_text(encoding="ascii") == text:  # a later page's file is not ours
                    path.unlink()
        self._files = {}

    def __enter__(self) -> StatusPage:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()


def open_status_page(state: Watched, bind: str, port: int, token_file: Path) -> StatusPage:
    """Show ``state`` on ``bind``:``port`` until closed.

    Args:
        state: what to show.
        bind: an address of this machine; anything but loopback is warned of, for the page speaks plain HTTP.
        port: 0 takes a free one.
        token_file: receives the token, readable by its owner only; the page's address is written beside it, with the
            ending ``.url``. Both are removed by ``close``.

    Raises:
        RunError: the address cannot be used, or the files cannot be written.
    """
    token = secrets.token_urlsafe(32)
    server = _listen(bind, port, state, token)
    url = f"http://{_reached(bind)}:{server.port}/"
    files = {token_file: token + "\n", token_file.with_suffix(".url"): url + "\n"}
    try:
        for path, text in files.items():
            _write_private(path, text)
    except OSError as error:
        server.server_close()
        raise RunError(f"{token_file}: the status page's token cannot be written ({error.strerror})") from error
    if not _is_loopback(str(server.server_address[0])):
        log.warning(
            "the status page on %s:%d is not encrypted: whoever can listen on the network reads the page and its "
            "token. Bind it to 127.0.0.1 and reach it through an SSH tunnel (ssh -L %d:127.0.0.1:%d HOST), or put a "
            "TLS proxy in front of it", bind, server.port, server.port, server.port,
        )  # fmt: skip
    return StatusPage(server, url, files)


def _listen(bind: str, port: int, state: Watched, token: str) -> StatusServer:
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return StatusServer(family, address[:2], state, token)  # type: ignore[arg-type]
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"status page: {bind}:{port} cannot be listened on ({reason}); set tracking_args.status_port (0 takes a "
            "free port) or status_bind, or leave the page out with null"
        ) from error


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _reached(bind: str) -> str:
    """How this machine itself reaches the page."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)  # noqa: S104 - compared, not bound
    return f"[{host}]" if ":" in host else host


def _write_private(path: Path, text: str) -> None:
    """Replace ``path``; at no moment can anybody but its owner read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
