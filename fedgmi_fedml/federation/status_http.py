"""The status page's HTTP: what a visitor may send, and what is answered.

A request is one small head (at most ``MOST_HEAD`` bytes within ``DEADLINE`` seconds, whatever the pace), GET or HEAD,
answered from a fixed table of paths, and the connection is closed. At most ``MOST_CONNECTIONS`` are served at a time;
whoever comes on top is turned away at once. The standard library parses the head; everything before and after it is
bounded here.

The token is taken as ``Authorization: Bearer …`` (Prometheus, ``fedgmi status``), or once as ``?token=…``: then the
browser gets a cookie of another value, and a clean address.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from fedgmi_fedml.federation.metrics import CONTENT_TYPE, exposition
from fedgmi_fedml.federation.status_assets import SCRIPT, SHEET
from fedgmi_fedml.federation.status_document import document
from fedgmi_fedml.federation.status_html import message_page, status_page
from fedgmi_fedml.federation.status_snapshot import Snapshot

__all__ = ["StatusServer", "Watched"]

log = logging.getLogger(__name__)

DEADLINE = 5.0
MOST_HEAD = 8192
MOST_CONNECTIONS = 16
_END = b"\r\n\r\n"
_HTML = "text/html; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_LOCKED = (
    "This page wants the token in the file status.token of the run's folder.",
    "Open the address that “fedgmi status --run FOLDER --link” prints. If you came here by such a link just now, "
    "load this page once more.",
)


class Watched(Protocol):
    """What the page shows: ``StatusState``."""

    @property
    def snapshot(self) -> Snapshot:
        """The run as it is now; never waits."""

    @property
    def clock(self) -> Callable[[], float]:
        """The snapshot's clock, seconds."""


# ---- one page, in whatever form --------------------------------------------------------------------------------------


def _page(state: Watched) -> tuple[str, str]:
    return _HTML, status_page(state.snapshot, state.clock())


def _json(state: Watched) -> tuple[str, str]:
    text = json.dumps(document(state.snapshot, state.clock()), ensure_ascii=False, allow_nan=False)
    return "application/json; charset=utf-8", text + "\n"


def _metrics(state: Watched) -> tuple[str, str]:
    return CONTENT_TYPE, exposition(state.snapshot, state.clock())


_OPEN: dict[str, tuple[str, str]] = {
    "/healthz": ("text/plain; charset=utf-8", "ok\n"),
    "/status.css": ("text/css; charset=utf-8", SHEET),
    "/status.js": ("text/javascript; charset=utf-8", SCRIPT),
}
"""Path → type and text of what needs no token: the same for every run."""
_LOCKED_PATHS: dict[str, Callable[[Watched], tuple[str, str]]] = {
    "/": _page,
    "/status.json": _json,
    "/metrics": _metrics,
}


# ---- the listener ----------------------------------------------------------------------------------------------------


class StatusServer(ThreadingHTTPServer):
    """Listens, and bounds how many are served at a time."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, family: int, address: tuple[str, int], state: Watched, token: str) -> None:
        self.address_family = family  # type: ignore[assignment]
        self.state, self.token, self.cookie = state, token, secrets.token_urlsafe(32)
        self.slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As the library does, but without asking the name service for this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self.server_address[1])

    @property
    def cookie_name(self) -> str:
        """Browsers share cookies between the ports of a host: each page's has a name of its own."""
        return f"fedgmi_status_{self.port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it in a thread of its own, or turn it away where all are busy."""
        if not self.slots.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(0.2)
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One request, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor that hung up, or an error of ours: a line in the log at most."""
        log.debug("status page: a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request of one connection."""

    server: StatusServer
    protocol_version = "HTTP/1.1"
    rfile: Any

    def handle(self) -> None:
        """Read one head within the deadline, answer it, and hang up."""
        head = self._head()
        if head is None:
            return
        self.rfile = BytesIO(head)
        self.request.settimeout(DEADLINE)  # for the whole answer
        self.close_connection = True
        self.handle_one_request()

    def _head(self) -> bytes | None:
        """The request's head, ``None`` where it is too large, too slow or cut off."""
        ends, head = time.monotonic() + DEADLINE, b""
        while _END not in head:
            left = ends - time.monotonic()
            if left <= 0 or len(head) > MOST_HEAD:
                self._refuse(b"431 Request Header Fields Too Large" if left > 0 else b"408 Request Timeout")
                return None
            self.request.settimeout(left)
            try:
                more = self.request.recv(MOST_HEAD + 1 - len(head) if len(head) <= MOST_HEAD else 1)
            except TimeoutError:
                continue
            if not more:
                return None
            head += more
        return head[: head.index(_END) + len(_END)]

    def _refuse(self, status: bytes) -> None:
        self.request.settimeout(1.0)
        self.request.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def do_GET(self) -> None:
        """Answer from the table of paths."""
        try:
            self._answer()
        except OSError:
            raise
        except Exception as error:  # the run must not care, and the visitor gets no details
            log.warning("the status page could not be made (%s)", type(error).__name__, exc_info=True)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", "the page could not be made\n")

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        if parts.path in _OPEN:
            self._send(HTTPStatus.OK, *_OPEN[parts.path])
            return
        if parts.path not in _LOCKED_PATHS:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "not found\n")
            return
        token = parse_qs(parts.query, max_num_fields=8).get("token", [""])[0]
        if token and self._same(token, self.server.token):
            cookie = f"{self.server.cookie_name}={self.server.cookie}; HttpOnly; SameSite=Strict; Path=/"
            self._send(HTTPStatus.SEE_OTHER, "text/plain; charset=utf-8", "", Location=parts.path, Set_Cookie=cookie)
        elif self._known():
            self._send(HTTPStatus.OK, *_LOCKED_PATHS[parts.path](self.server.state))
        else:
            again = {"WWW_Authenticate": 'Bearer realm="fedgmi status"'}
            self._send(HTTPStatus.UNAUTHORIZED, _HTML, message_page("Token wanted", *_LOCKED), **again)

    def _known(self) -> bool:
        """Whether the visitor has shown the token before, or shows it now."""
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._same(given.strip(), self.server.token):
            return True
        for pair in self.headers.get("Cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.server.cookie_name and self._same(value, self.server.cookie):
                return True
        return False

    @staticmethod
    def _same(given: str, wanted: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())

    def _send(self, status: HTTPStatus, kind: str, text: str, **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses by itself: odd heads, and methods other than GET and HEAD (405)."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.command = getattr(self, "command", None) or "GET"
        self.request_version = getattr(self, "request_version", "") or "HTTP/1.1"
        allow = {"Allow": "GET, HEAD"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self._send(status, "text/plain; charset=utf-8", f"{status.phrase}\n", **allow)

    def version_string(self) -> str:
        """Names no version to strangers."""
        return "fedgmi"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request line may hold the token."""
