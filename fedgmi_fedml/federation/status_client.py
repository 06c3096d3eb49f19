"""Asks a running server's status page for its document, over plain sockets of the standard library.

No proxy, no redirect, a bounded answer: the token goes to the address that was given and nowhere else.
"""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedgmi_fedml.errors import RunError
from fedgmi_fedml.federation.status_document import FORMAT

__all__ = ["NoAnswer", "ask", "read_token"]

TIMEOUT = 10.0
MOST_BYTES = 32 << 20


class NoAnswer(RunError):  # noqa: N818 - says what happened
    """Nobody answers at the address (any more)."""


def read_token(path: Path) -> str:
    """The token in ``path``.

    Raises:
        RunError: it cannot be read, or is none.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a token"
        raise RunError(
            f"{path}: the status page's token cannot be read ({reason}): run as the server's user, or name a copy with "
            "--token-file"
        ) from error
    if not token or len(token) > 512 or not token.isprintable() or " " in token:
        raise RunError(f"{path}: holds no token of a status page: check --token-file")
    return token


def ask(url: str, token: str) -> dict[str, Any]:
    """The status document behind ``url``.

    Raises:
        NoAnswer: nobody answers. RunError: the address is none, the token is refused, or the answer is no status.
    """
    status, body = _get(url, token)
    if status == 401:
        raise RunError(
            f"{url}: the token is not this server's: every start of a server makes a new one, in the run's status.token"
        )
    if status == 503:
        raise NoAnswer(f"{url}: the status page is busy; try again")
    if status != 200:
        raise RunError(f"{url}: answered {status}, so there is no status page of FedGMI: check --url")
    try:
        found = json.loads(body)
        if found["format"] != FORMAT:
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{url}: what answers there is no status page of this version of FedGMI: check --url") from None
    return dict(found)


def _get(url: str, token: str) -> tuple[int, bytes]:
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise RunError(f"--url {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise RunError(f"--url {url}: must look like http://HOST:PORT/")
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=ssl.create_default_context())
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)  # type: ignore[assignment]
    try:
        connection.request("GET", parts.path.rstrip("/") + "/status.json", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NoAnswer(f"{url}: no status page answers there ({reason})") from error
    finally:
        connection.close()
    if len(body) > MOST_BYTES:
        raise RunError(f"{url}: the answer is too long for a status page: check --url")
    return answer.status, body
