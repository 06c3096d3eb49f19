"""The status page's HTTP: token, allow-list of requests, bounds, headers; and what page, JSON and metrics hold."""

from __future__ import annotations

import contextlib
import html.parser
import json
import logging
import os
import re
import socket
import stat
import sys
import threading
import time
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from status_example import Clock, blank, feed

from fedgmi_fedml.errors import RunError
from fedgmi_fedml.federation import status_http
from fedgmi_fedml.federation.metrics import exposition
from fedgmi_fedml.federation.status_html import status_page
from fedgmi_fedml.federation.status_page import open_status_page


@dataclass
class Reply:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: str


@dataclass
class Visitor:
    """Speaks to the page over a plain socket, so that nothing tidies up what is sent."""

    port: int
    token: str

    def raw(self, data: bytes, seconds: float = 10.0) -> bytes:
        """Everything that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(data)
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts)

    def get(self, path: str = "/", method: str = "GET", **headers: str) -> Reply:
        """One well-formed request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: x"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return parsed(self.raw(("\r\n".join(lines) + "\r\n\r\n").encode()))

    def page(self, path: str = "/") -> Reply:
        """With the token."""
        return self.get(path, Authorization=f"Bearer {self.token}")


def parsed(data: bytes) -> Reply:
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    return Reply(int(lines[0].split()[1]), headers, body.decode())


@pytest.fixture
def state():
    clock = Clock()
    found = blank(clock=clock)
    feed(found, clock)
    return found


@pytest.fixture
def visitor(state, tmp_path):
    with open_status_page(state, "127.0.0.1", 0, tmp_path / "status.token") as page:
        yield Visitor(page.port, (tmp_path / "status.token").read_text().strip())


LOCKED = ("/", "/status.json", "/metrics")

# ---- the token -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LOCKED)
def test_nothing_without_the_token(visitor: Visitor, path: str) -> None:
    refused = [
        visitor.get(path),
        visitor.get(path, Authorization="Bearer wrong"),
        visitor.get(path, Authorization=f"Basic {visitor.token}"),
        visitor.get(path, Authorization=visitor.token),
        visitor.get(path, Authorization=f"Bearer {visitor.token}x"),
        visitor.get(path, Authorization=f"Bearer {visitor.token[:-1]}"),
        visitor.get(path, Cookie=f"fedgmi_status_{visitor.port}={visitor.token}"),  # the cookie has another value
        visitor.get(path, Cookie=f"fedgmi_status_{visitor.port}="),
        visitor.get(f"{path}?token=wrong"),
        visitor.get(f"{path}?token="),
        visitor.get(path, Authorization="Bearer \u00e4"),
    ]
    for reply in refused:
        assert reply.status == 401
        assert "Set-Cookie" not in reply.headers
        for word in ("Aalborg", "north-sea", "rounds", "fedgmi_info"):
            assert word not in reply.body
    assert visitor.page(path).status == 200


def test_a_browser_gets_a_cookie_and_a_clean_address(visitor: Visitor) -> None:
    first = visitor.get(f"/?token={visitor.token}")
    assert first.status == 303
    assert first.headers["Location"] == "/"
    cookie = first.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert visitor.token not in cookie
    name_and_value = cookie.split(";")[0]
    assert visitor.get("/", Cookie=f"a=b; {name_and_value}; c=d").status == 200
    assert visitor.get("/", Cookie=name_and_value + "x").status == 401


def test_health_tells_strangers_nothing_but_ok(visitor: Visitor) -> None:
    assert visitor.get("/healthz").body == "ok\n"
    for path in ("/status.css", "/status.js"):
        reply = visitor.get(path)
        assert reply.status == 200
        assert "Aalborg" not in reply.body


def test_the_token_is_new_private_and_gone_with_the_page(state, tmp_path: Path) -> None:
    file, before = tmp_path / "run" / "status.token", os.umask(0)
    try:
        tokens = set()
        for _ in range(2):
            with open_status_page(state, "127.0.0.1", 0, file) as page:
                tokens.add(file.read_text())
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
                assert file.with_suffix(".url").read_text() == f"http://127.0.0.1:{page.port}/\n"
            assert not list(file.parent.iterdir())
            page.close()  # once more does no harm
    finally:
        os.umask(before)
    assert len(tokens) == 2
    assert all(len(token) > 40 for token in tokens)


def test_a_later_pages_token_is_left_alone(state, tmp_path: Path) -> None:
    file = tmp_path / "status.token"
    first = open_status_page(state, "127.0.0.1", 0, file)
    second = open_status_page(state, "127.0.0.1", 0, file)
    first.close()
    assert Visitor(second.port, file.read_text().strip()).page().status == 200
    second.close()
    assert not file.exists()


def test_the_token_is_never_logged(visitor: Visitor, caplog: pytest.LogCaptureFixture, capfd) -> None:
    with caplog.at_level(logging.DEBUG):
        visitor.get(f"/?token={visitor.token}")
        visitor.get(f"/nowhere?token={visitor.token}")
        visitor.page()
    out, err = capfd.readouterr()
    assert visitor.token not in caplog.text + out + err


# ---- what may be asked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "FOO", "get"])
def test_only_get_and_head(visitor: Visitor, method: str) -> None:
    reply = visitor.get("/", method, Authorization=f"Bearer {visitor.token}")
    assert reply.status == 405
    assert reply.headers["Allow"] == "GET, HEAD"
    assert "Aalborg" not in reply.body


def test_head_is_get_without_a_body(visitor: Visitor) -> None:
    reply = visitor.get("/", "HEAD", Authorization=f"Bearer {visitor.token}")
    assert reply.status == 200
    assert int(reply.headers["Content-Length"]) > 1000
    assert reply.body == ""


@pytest.mark.parametrize(
    "path",
    ["/../status.token", "/status.token", "/%2e%2e/status.token", "//etc/passwd", "/./", "/status.json/", "/favicon",
     "/status.css/../status.token", "/index.html", "/\\..\\status.token", "*", "http://x/status.token"],
)  # fmt: skip
def test_no_other_path_exists(visitor: Visitor, path: str) -> None:
    reply = visitor.page(path)
    assert reply.status == 404
    assert visitor.token not in reply.body


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/healthz", "/nowhere", "/status.js"])
@pytest.mark.parametrize("known", [True, False])
def test_every_answer_has_the_security_headers(visitor: Visitor, path: str, known: bool) -> None:
    reply = visitor.page(path) if known else visitor.get(path)
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Cache-Control"] == "no-store"
    assert reply.headers["Referrer-Policy"] == "no-referrer"
    assert reply.headers["Connection"] == "close"
    assert reply.headers["Server"] == "fedgmi"
    assert "Access-Control-Allow-Origin" not in reply.headers


@pytest.mark.parametrize(
    "data",
    [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET / HTTP/1.1 extra\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n",
     b"\x80\x02cos\nsystem\n(S'id'\ntR.\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 150 + b"\r\n",
     b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
)  # fmt: skip
def test_garbage_is_refused_and_harmless(visitor: Visitor, data: bytes) -> None:
    answer = visitor.raw(data)
    assert b"Aalborg" not in answer
    assert not answer.startswith(b"HTTP/1.1 2")
    assert visitor.page().status == 200


def test_only_one_request_of_a_connection_is_served(visitor: Visitor) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    assert visitor.raw(request * 3).count(b"HTTP/1.1") == 1


def test_large_heads_are_refused(visitor: Visitor) -> None:
    for data in (b"GET /" + b"a" * 20_000, b"GET / HTTP/1.1\r\nA: " + b"b" * 20_000 + b"\r\n\r\n"):
        with contextlib.suppress(ConnectionResetError):  # it hung up while we were still sending: just as good
            assert visitor.raw(data).startswith(b"HTTP/1.1 431")
    assert visitor.page().status == 200


def test_a_trickle_ends_at_the_deadline_whatever_its_pace(visitor: Visitor, monkeypatch) -> None:
    monkeypatch.setattr(status_http, "DEADLINE", 0.6)
    began = time.monotonic()
    answer = b""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", visitor.port), timeout=0.05) as connection,
    ):
        while not answer and time.monotonic() - began < 5:
            connection.sendall(b"G")  # a byte every now and then keeps a timeout for each read from ever coming
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(100)
    assert answer.startswith(b"HTTP/1.1 408")
    assert 0.4 < time.monotonic() - began < 3


def test_connections_are_bounded_and_come_back(visitor: Visitor, monkeypatch) -> None:
    monkeypatch.setattr(status_http, "DEADLINE", 1.0)
    idle = [socket.create_connection(("127.0.0.1", visitor.port)) for _ in range(status_http.MOST_CONNECTIONS)]
    time.sleep(0.3)
    assert threading.active_count() < status_http.MOST_CONNECTIONS + 20
    assert visitor.raw(b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503")
    time.sleep(1.2)
    assert visitor.get("/healthz").status == 200
    for connection in idle:
        connection.close()


def test_visitors_that_hang_up_leave_no_trace(visitor: Visitor, capfd) -> None:
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", visitor.port)) as connection:
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # reset instead of a farewell
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(f"GET / HTTP/1.1\r\nAuthorization: Bearer {visitor.token}\r\n\r\n".encode())
    time.sleep(0.3)
    assert visitor.page().status == 200
    assert capfd.readouterr().err == ""


def test_an_error_in_the_page_stays_in_the_page(state, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        clock = Clock()

        @property
        def snapshot(self):
            raise ValueError("secret 4711")

    with open_status_page(Broken(), "127.0.0.1", 0, tmp_path / "status.token") as page:
        visitor = Visitor(page.port, (tmp_path / "status.token").read_text().strip())
        reply = visitor.page()
    assert reply.status == 500
    assert "4711" not in reply.body
    assert "ValueError" in caplog.text


# ---- where it listens ------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_said_before_anything_is_written(state, visitor: Visitor, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=rf"127.0.0.1:{visitor.port} cannot be listened on.*status_port"):
        open_status_page(state, "127.0.0.1", visitor.port, tmp_path / "other" / "status.token")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("bind", ["no.such.host.invalid", "203.0.113.7", "", "a" * 300])
def test_an_address_that_is_not_ours_is_said(state, bind: str, tmp_path: Path) -> None:
    if bind == "":
        pytest.skip("the configuration refuses an empty address")
    with pytest.raises(RunError, match="cannot be listened on"):
        open_status_page(state, bind, 0, tmp_path / "status.token")


def test_a_token_that_cannot_be_written_closes_the_port(state, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="token cannot be written"):
        open_status_page(state, "127.0.0.1", 0, tmp_path / "file" / "status.token")


def test_beyond_loopback_is_warned_of(state, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_status_page(state, "127.0.0.1", 0, tmp_path / "status.token"):
        assert caplog.text == ""
    with open_status_page(state, "0.0.0.0", 0, tmp_path / "status.token") as page:
        assert "not encrypted" in caplog.text
        assert "ssh -L" in caplog.text
        assert page.url == f"http://127.0.0.1:{page.port}/"


def test_ipv6_loopback(state, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    try:
        page = open_status_page(state, "::1", 0, tmp_path / "status.token")
    except RunError:
        pytest.skip("no IPv6 here")
    with page, socket.create_connection(("::1", page.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert page.url == f"http://[::1]:{page.port}/"
    assert caplog.text == ""


# ---- content ---------------------------------------------------------------------------------------------------------


class Shape(html.parser.HTMLParser):
    """Checks that tags nest, and collects what a page refers to."""

    VOID = {"meta", "link", "br", "rect", "line", "circle", "path", "img", "hr", "col"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []
        self.scripts = 0

    def handle_starttag(self, name, attributes):
        self.refers += [value for key, value in attributes if key in ("href", "src", "action", "srcset")]
        self.scripts += name == "script"
        assert not [key for key, _ in attributes if key.startswith("on")]
        if name not in self.VOID or name in ("circle", "path", "rect"):
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.refers += [value for key, value in attributes if key in ("href", "src")]

    def handle_endtag(self, name):
        assert self.open.pop() == name


def shaped(text: str) -> Shape:
    shape = Shape()
    shape.feed(text)
    assert shape.open == []
    return shape


def test_the_page_says_what_there_is(visitor: Visitor) -> None:
    text = visitor.page().body
    for words in (
        "north-sea-imaging", "digits/5f2c90aa", "Running", "6 of 8", "Aalborg", "no sign of life for 45 s",
        "OutOfMemoryError", "in round 7", "missing from 1 sum, round 5", "fedgmi_args.components",
        "validation accuracy, round 6", "VAE loss", "How far apart the components are", "Silos to server",
        "masked secure aggregation", "copper-lamp-042 river-tin-517", "A secure sum of round 3 was discarded",
        "Candidates: 4 rounds",
    ):  # fmt: skip
        assert words in text, words


def test_the_page_is_well_formed_and_refers_to_itself_only(visitor: Visitor) -> None:
    shape = shaped(visitor.page().body)
    assert set(shape.refers) <= {"/status.css", "/status.js", "/status.json", "/metrics"}
    assert shape.scripts == 1
    assert "<style" not in visitor.page().body
    for path in ("/status.css", "/status.js"):
        assert not re.search(r"https?:|//[a-z]|@import|url\(", visitor.get(path).body)


def test_a_page_before_anything_happened_and_after_the_end() -> None:
    state = blank()
    text = status_page(state.snapshot, 1000.0)
    shaped(text)
    assert "Waiting for silos" in text
    assert "0 of 8" in text
    state.write("events", {"event": "failed", "reason": "silo 3 failed in rounds 2: MemoryError"})
    text = status_page(state.snapshot, 1000.0)
    assert "the last whole models kept: silo 3 failed" in text
    assert "<script" not in text  # what has ended needs no refresh


def test_without_protection_the_page_says_so_first(state) -> None:
    in_clear = state.snapshot.protection.model_copy(update={"backend": "none"})
    text = status_page(changed(state.snapshot, protection=in_clear), 1000.0)
    assert text.index("No protection was in force") < text.index("<main>")


def test_foreign_text_is_shown_as_text(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>\n# HELP x\x1b[2J'
    state = blank()
    silos = tuple(changed(silo, name=evil) for silo in state.snapshot.silos)
    state._snapshot = changed(state.snapshot, federation=evil, run_id=evil, silos=silos)
    state.silo(1, "lost", evil)
    state.write("events", {"event": "silo_failed", "silo": 2, "round": 0, "error": evil})
    state.write("events", {"event": "warning", "text": evil, "time": "2026"})
    text = status_page(state.snapshot, 1000.0)
    shape = shaped(text)
    assert shape.scripts == 1
    assert "<script>alert" not in text
    lines = exposition(state.snapshot, 1000.0).splitlines()
    assert not [line for line in lines if line.startswith("# HELP x")]


def test_many_silos_and_components_still_fit() -> None:
    clock = Clock()
    state = blank(silos=128, clock=clock, components=12)
    feed(state, clock, rounds=40, silos=128, components=12)
    text = status_page(state.snapshot, clock())
    shaped(text)
    assert len(text) < 1_000_000


def test_json_is_the_document(visitor: Visitor) -> None:
    reply = visitor.page("/status.json")
    assert reply.headers["Content-Type"].startswith("application/json")
    found = json.loads(reply.body)
    assert found["format"] == "fedgmi-status/1"
    assert found["silos"][4]["error"] == "OutOfMemoryError"
    assert found["silos"][4]["failed_in"] == {"phase": "rounds", "round": 6}


SAMPLE = re.compile(
    r'^(fedgmi_[a-z_]+)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? (-?[0-9.e+-]+|NaN|[+-]Inf)$'
)


def samples(text: str) -> dict[str, float]:
    """Every sample, after Prometheus' own rules: HELP and TYPE before it, no name twice, counters end in _total."""
    kinds: dict[str, str] = {}
    found: dict[str, float] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in kinds
        elif line.startswith("# TYPE "):
            assert line.split()[2] == name
            kinds[name] = line.split()[3]
            assert kinds[name] in ("gauge", "counter")
            assert (kinds[name] == "counter") == name.endswith("_total")
        else:
            match = SAMPLE.match(line)
            assert match, line
            assert match[1] == name
            key = match[1] + (match[2] or "")
            assert key not in found
            found[key] = float(match[3])
    return found


def test_metrics_follow_prometheus_format(visitor: Visitor) -> None:
    reply = visitor.page("/metrics")
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert reply.body.endswith("\n")
    found = samples(reply.body)
    assert found['fedgmi_run_state{state="running"}'] == 1
    assert found['fedgmi_rounds_total{phase="rounds"}'] == 6
    assert found['fedgmi_rounds_planned{phase="rounds"}'] == 10
    assert found['fedgmi_bytes_total{phase="rounds",direction="up"}'] == 6 * 8 * 247_000
    assert found['fedgmi_silos{state="in"}'] == 5
    assert found['fedgmi_silo_in{silo="3"}'] == 0
    assert found['fedgmi_silo_failures_total{silo="5"}'] == 1
    assert found['fedgmi_silo_dropped_rounds_total{silo="3"}'] == 1
    assert found['fedgmi_silo_seen_age_seconds{silo="1"}'] == pytest.approx(1.7)
    assert found['fedgmi_vae_loss_nats{component="1"}'] == pytest.approx(22.07, abs=0.01)
    assert found['fedgmi_separability_nats{component="0",other="1"}'] > 3
    assert found["fedgmi_validation_accuracy"] == pytest.approx(0.866, abs=1e-3)
    assert found["fedgmi_sessions_total"] == 18


def test_metrics_before_the_first_round() -> None:
    found = samples(exposition(blank().snapshot, 1000.0))
    assert found['fedgmi_run_state{state="waiting"}'] == 1
    assert found['fedgmi_silos{state="expected"}'] == 8
    assert "fedgmi_validation_accuracy" not in found


def test_labels_of_metrics_stay_few_in_long_runs_with_many_parties() -> None:
    clock = Clock()
    state = blank(silos=128, clock=clock, components=20)
    feed(state, clock, rounds=30, silos=128, components=20)
    assert len(samples(exposition(state.snapshot, clock()))) < 1000
