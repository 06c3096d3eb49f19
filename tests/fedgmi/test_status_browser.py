"""The status page in a real browser: the token's cookie, the policy, the refresh, light and dark, wide and narrow.

Needs Debian's Chromium (``apt-get install chromium``) or Chrome on the path; without one these tests are skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from dataclasses import replace

from status_example import Clock, blank, feed

from fedgmi_fedml.federation.status_page import open_status_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

pytestmark = [pytest.mark.slow, pytest.mark.needs_program(*BROWSERS)]


class Told:
    """A state that says how often it was read, and breaks after so many times."""

    def __init__(self, state, breaks_after: int = 10**9) -> None:
        self.state, self.clock, self.reads, self.breaks_after = state, state.clock, 0, breaks_after

    @property
    def snapshot(self):
        self.reads += 1
        if self.reads > self.breaks_after:
            raise ValueError
        return replace(self.state.snapshot, federation=f"reading {self.reads}")


@pytest.fixture
def state():
    clock = Clock()
    found = blank(clock=clock)
    feed(found, clock)
    return found


def browse(folder: Path, state, *options: str, budget: int = 3000) -> subprocess.CompletedProcess[str]:
    """Open the page with the token, let ``budget`` milliseconds of the page's own time pass, and do what is asked."""
    with open_status_page(state, "127.0.0.1", 0, folder / "status.token") as page:
        link = f"{page.url}?token={(folder / 'status.token').read_text().strip()}"
        command = [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", f"--virtual-time-budget={budget}",
            *options, link,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the browser's console says of the page: violations of its policy, errors of its script."""
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_link_leads_to_the_page_and_the_policy_lets_it_work(state, tmp_path: Path) -> None:
    done = browse(tmp_path, state, "--dump-dom")
    assert "north-sea-imaging" in done.stdout
    assert "token=" not in done.stdout
    assert complaints(done) == []


def test_the_script_keeps_the_page_fresh(state, tmp_path: Path) -> None:
    told = Told(state)
    done = browse(tmp_path, told, "--dump-dom", budget=18_000)
    shown = re.search(r"<h1>reading (\d+)", done.stdout)
    assert shown is not None
    assert int(shown[1]) >= 3
    assert told.reads < 20
    assert re.search(r"<title>Rounds 6/10 · reading (\d+)</title>", done.stdout)
    assert 'class="gone"' not in done.stdout
    assert complaints(done) == []


def test_a_server_that_no_longer_answers_is_said_and_the_last_figures_stay(state, tmp_path: Path) -> None:
    done = browse(tmp_path, Told(state, breaks_after=2), "--dump-dom", budget=30_000)
    assert '<body class="gone">' in done.stdout
    assert "reading 2" in done.stdout


def test_the_script_rests_once_the_run_is_over(state, tmp_path: Path) -> None:
    told = Told(state)
    state.write("events", {"event": "finished"})
    done = browse(tmp_path, told, "--dump-dom", budget=30_000)
    assert told.reads == 1
    assert "Finished" in done.stdout


def picture(folder: Path, state, size: tuple[int, int], *options: str) -> Image.Image:
    """The page as the browser paints it."""
    file = folder / "page.png"
    browse(folder, state, f"--window-size={size[0]},{size[1]}", f"--screenshot={file}", *options)
    with Image.open(file) as found:
        return found.convert("RGB")


def share(image: Image.Image, colour: tuple[int, int, int], off: int = 6) -> float:
    """Share of the pixels of about this colour."""
    away = np.abs(np.asarray(image, dtype=np.int16) - np.array(colour, dtype=np.int16))
    return float((away <= off).all(axis=2).mean())


def test_it_follows_the_readers_wish_for_light_or_dark(state, tmp_path: Path) -> None:
    light = picture(tmp_path, state, (1280, 900))
    dark = picture(tmp_path, state, (1280, 900), "--blink-settings=preferredColorScheme=0")
    assert share(light, (0xF7, 0xF7, 0xF4)) > 0.6  # --page of report.style
    assert share(dark, (0x14, 0x17, 0x1A)) > 0.6
    assert share(light, (0x24, 0x58, 0xA6)) > 0.002  # the bars: the sheet was let in
    assert share(dark, (0x7F, 0xB0, 0xF0)) > 0.002


@pytest.mark.parametrize("width", [390, 820, 1600])
def test_nothing_runs_out_of_the_window(state, tmp_path: Path, width: int) -> None:
    """The outermost columns of pixels hold nothing but the page's ground."""
    image = picture(tmp_path, state, (width, 3000))
    edge = image.crop((image.width - 8, 0, image.width, image.height))
    assert share(edge, (0xF7, 0xF7, 0xF4)) > 0.99
