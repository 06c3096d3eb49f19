"""``fedgmi status``: from a page, from a folder, and what it says when there is neither."""

from __future__ import annotations

import http.server
import json
import re
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from status_example import Clock, blank, feed

from fedgmi_fedml import cli, cli_status
from fedgmi_fedml.federation.status_document import document
from fedgmi_fedml.federation.status_page import open_status_page
from fedgmi_fedml.federation.status_text import status_text
from fedgmi_fedml.telemetry import Telemetry


@pytest.fixture
def shown(tmp_path: Path):
    """A run's folder whose server shows its page."""
    clock = Clock()
    state = blank(clock=clock)
    feed(state, clock)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.jsonl").write_text(
        '{"elapsed": 1.0, "event": "phase", "phase": "rounds", "total": 5, "done": 2}\n'
    )
    with open_status_page(state, "127.0.0.1", 0, folder / "status.token") as page:
        yield folder, page, state


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    code = cli.run(["status", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_page_is_asked_while_there_is_one(shown, capsys) -> None:
    folder, page, _ = shown
    code, out, err = run(capsys, "--run", folder)
    assert (code, err) == (0, "")
    for words in ("north-sea-imaging", "6/10 ◀", "Silos: 6 of 8 in", "86.6 %   (round 6)", f"page, {page.url}"):
        assert words in out, words
    page.close()
    code, out, _ = run(capsys, "--run", folder)
    assert code == 0
    assert "2/5" in out
    assert "no status page of the run answers" in out


def test_a_killed_servers_files_do_not_mislead(shown, capsys) -> None:
    folder, page, _ = shown
    token, url = (folder / "status.token").read_text(), (folder / "status.url").read_text()
    page.close()
    (folder / "status.token").write_text(token)
    (folder / "status.url").write_text(url)
    code, out, _ = run(capsys, "--run", folder)
    assert code == 0
    assert "no status page of the run answers" in out


def test_json_is_the_whole_document(shown, capsys) -> None:
    folder, page, _ = shown
    found = json.loads(run(capsys, "--run", folder, "--json")[1])
    assert found["format"] == "fedgmi-status/1"
    assert found["silos_in"] == 6
    page.close()
    assert json.loads(run(capsys, "--run", folder, "--json")[1])["state"] == "running"


def test_by_address_and_token(shown, capsys, tmp_path: Path) -> None:
    folder, page, _ = shown
    token = folder / "status.token"
    for url in (page.url, page.url.rstrip("/"), f"127.0.0.1:{page.port}"):
        assert run(capsys, "--url", url, "--token-file", token)[0] == 0
    (tmp_path / "wrong").write_text("wrong\n")
    (tmp_path / "empty").write_text("")
    for arguments, words in (
        (("--url", page.url), "--token-file"),
        (("--url", page.url, "--token-file", tmp_path / "wrong"), "the token is not this server's"),
        (("--url", page.url, "--token-file", tmp_path / "empty"), "holds no token"),
        (("--url", f"{page.url}nowhere", "--token-file", token), "answered 404"),
        (("--url", "ftp://127.0.0.1/", "--token-file", token), "must look like http://HOST:PORT/"),
        (("--url", "http://127.0.0.1:port/", "--token-file", token), "--url"),
        (("--url", "http://127.0.0.1:9/", "--token-file", token), "no status page answers there"),
        (("--url", page.url, "--token-file", tmp_path / "none"), "does not exist"),
    ):
        code, out, err = run(capsys, *arguments)
        assert code == 2, arguments
        assert words in err, err
        assert out == ""
        assert "Traceback" not in err


def test_the_link_opens_the_page(shown, capsys) -> None:
    folder, page, _ = shown
    _, out, _ = run(capsys, "--run", folder, "--link")
    assert out.strip() == f"{page.url}?token={(folder / 'status.token').read_text().strip()}"
    page.close()
    code, _, err = run(capsys, "--run", folder, "--link")
    assert code == 2
    assert "tracking_args.status_port" in err


def test_without_a_run(capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys)
    assert code == 2
    assert "no run in ./runs" in err
    code, _, err = run(capsys, "--run", tmp_path)
    assert code == 2
    assert "no run has written anything there" in err


def test_the_newest_run_is_the_default(shown, capsys, monkeypatch) -> None:
    folder, _, _ = shown
    (folder.parent / "runs").mkdir()
    folder.rename(folder.parent / "runs" / "mine")
    monkeypatch.chdir(folder.parent)
    code, out, _ = run(capsys)
    assert code == 0
    assert "north-sea-imaging" in out


def test_watching_ends_with_the_run(shown, capsys, monkeypatch) -> None:
    folder, _, state = shown
    looks = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            with Telemetry([(state, "server")]) as telemetry:
                telemetry.event("finished")

    monkeypatch.setattr(cli_status.time, "sleep", wait)
    code, out, _ = run(capsys, "--run", folder, "--watch")
    assert code == 0
    assert len(looks) == 2
    assert out.count("Running") == 2
    assert out.count("Finished") == 1
    assert "\x1b" not in out  # no terminal


def test_watching_goes_on_from_the_folder_when_the_server_ends(shown, capsys, monkeypatch) -> None:
    folder, page, _ = shown

    def wait(seconds: float) -> None:
        page.close()
        with open(folder / "events.jsonl", "a", encoding="utf-8") as file:
            file.write('{"elapsed": 2.0, "event": "interrupted"}\n')

    monkeypatch.setattr(cli_status.time, "sleep", wait)
    code, out, _ = run(capsys, "--run", folder, "--watch")
    assert code == 0
    assert "Interrupted" in out


def test_watching_finds_a_server_that_started_again(shown, capsys, monkeypatch) -> None:
    folder, page, state = shown
    pages = []

    def wait(seconds: float) -> None:
        page.close()
        if not pages:
            pages.append(open_status_page(state, "127.0.0.1", 0, folder / "status.token"))
            return
        with Telemetry([(state, "server")]) as telemetry:
            telemetry.event("failed", reason="three rounds in a row reached no result")

    monkeypatch.setattr(cli_status.time, "sleep", wait)
    code, out, _ = run(capsys, "--run", folder, "--watch")
    pages[0].close()
    assert code == 0
    assert out.count("from the server's status page") == 3
    assert "Ended early: three rounds in a row reached no result" in out


def test_what_answers_may_be_anything(capsys, tmp_path: Path, monkeypatch) -> None:
    """Redirects are not followed, so that the token stays here; other answers are said to be none of ours."""
    heard = []

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.headers["Authorization"])
            status, body = answers[0]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    (tmp_path / "token").write_text("sesame\n")
    answers = [(200, b"")]
    try:
        for answer in (
            (302, b""),
            (200, b"hello"),
            (200, b"[]"),
            (200, b'{"format": "other/1"}'),
            (500, b""),
            (204, b""),
        ):
            answers[0] = answer
            code, _, err = run(capsys, "--url", f"127.0.0.1:{server.server_port}", "--token-file", tmp_path / "token")
            assert code == 2, answer
            assert "Traceback" not in err
        assert heard == ["Bearer sesame"] * 6
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        answers[0] = (500, b"")
        assert (
            "answered 500"
            in run(capsys, "--url", f"127.0.0.1:{server.server_port}", "--token-file", tmp_path / "token")[2]
        )
    finally:
        server.shutdown()
        server.server_close()


def test_nothing_in_a_document_steers_the_terminal() -> None:
    clock = Clock()
    state = blank(clock=clock)
    feed(state, clock)
    found = document(state.snapshot, clock())
    evil = "\x1b[2J\x07\u202e\r\nfake line"
    found |= {"federation": evil, "run_id": evil, "reason": evil}
    for silo in found["silos"]:
        silo |= {"name": evil, "reason": evil, "error": evil}
    found["events"].append({"event": "warning", "text": evil, "time": evil})
    text = status_text(found, evil)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    assert not [line for line in text.split("\n") if line.startswith("fake line")]


def test_a_finished_simulations_folder(tmp_path: Path, capsys) -> None:
    from report_example import write_run

    write_run(tmp_path / "run")
    code, out, _ = run(capsys, "--run", tmp_path / "run")
    assert code == 0
    assert "Finished" in out
    assert "Partition" not in out  # the server's view, whatever the folder holds
