"""The report: well-formed, self-contained, the same again from the same files, and shows each party only its own."""

from __future__ import annotations

import io
import re
import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import report_example as example
from PIL import Image

from fedgmi_fedml.errors import CheckpointError, DeliveryError
from fedgmi_fedml.report import ReportData, terminal_summary, words, write_report
from fedgmi_fedml.report.markup import Markup, table, tag
from fedgmi_fedml.report.png import contact_sheet, encode_png
from fedgmi_fedml.report.svg import Band, Series, line_chart, spread, ticks
from fedgmi_fedml.summary import RunSummary, SecureSummary, load_summary
from fedgmi_fedml.telemetry import open_telemetry

VOID = {"meta", "img", "br", "hr", "rect", "line", "path", "circle", "col"}


class Checker(HTMLParser):
    """Collects tags and their attributes, and whether every tag that opens also closes in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, name: str, attributes: list) -> None:
        self.tags.append((name, dict(attributes)))
        if name not in VOID or name in ("rect", "line", "path", "circle"):
            self.stack.append(name)

    def handle_startendtag(self, name: str, attributes: list) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_endtag(self, name: str) -> None:
        assert self.stack.pop() == name


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example.write_run(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return write_report(run).read_text()


def test_every_tag_closes_in_order_and_every_drawing_is_xml(page: str) -> None:
    assert Checker(page).stack == []
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) >= 12
    for drawing in drawings:
        ET.fromstring(drawing)


def test_the_page_asks_nothing_of_anyone(page: str) -> None:
    text = re.sub(r"data:image/png;base64,[^\"]+", "", page)
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script|<link|<iframe|javascript:|\son\w+=", text)
    for _, attributes in Checker(page).tags:
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")


def test_anchors_lead_somewhere(page: str) -> None:
    tags = Checker(page).tags
    targets = {attributes["href"][1:] for name, attributes in tags if name == "a"}
    assert targets == {attributes["id"] for name, attributes in tags if name == "section"}
    assert len(targets) == 6


def test_pictures_have_words_for_those_who_do_not_see_them(page: str) -> None:
    tags = Checker(page).tags
    images = [attributes for name, attributes in tags if name == "img"]
    drawings = [attributes for name, attributes in tags if name == "svg"]
    assert len(images) == 2
    assert all(len(image["alt"]) > 20 for image in images)
    assert all(drawing["role"] == "img" and len(drawing["aria-label"]) > 20 for drawing in drawings)
    assert page.count("<details>") >= 10  # the same figures as tables
    assert 'lang="en"' in page


def test_what_the_run_found_is_on_the_page(page: str) -> None:
    for text in (
        "12 silos, 2 components, 10 rounds in 48 s", "91.3 %",
        "against 86.1 % with FedAvg and 79.9 % with local training",
        "0.0009", "Oracle (true components known)", "component 1 (rotate 90)", "Silo 3 dropped out in round 4",
        "masked vectors only", "copper-lamp-042", "4.02 bytes", "best kept", "ab" * 32, "torch 2.14.1",
    ):  # fmt: skip
        assert text in page


def test_light_dark_and_paper(page: str) -> None:
    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page


def test_the_same_files_give_the_same_page(run: Path, page: str, tmp_path: Path) -> None:
    assert write_report(run).read_text() == page
    for name in ("summary.json", "rounds.jsonl", "report_data.npz"):
        shutil.copy(run / name, tmp_path / name)
    assert write_report(tmp_path).read_text() == page


def test_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        example.arrays(2, 12).save(tmp_path / name, "simulation")
    assert (tmp_path / "a" / "report_data.npz").read_bytes() == (tmp_path / "b" / "report_data.npz").read_bytes()


SECRETS = {
    "server": [
        "silo 7",
        "0.0009",
        "99.9 %",
        "rotate",
        "91.7 %",
        "Mixture of every silo",
        "+55.3",
        "1.98",
        "drift",
        "true ",
    ],
    "silo": ["0.0009", "99.9 %", "rotate", "91.7 %", "true 0"],
}


def test_the_servers_report_of_a_simulation_holds_nothing_of_a_silo(run: Path) -> None:
    path = write_report(run, "server")
    page = path.read_text()
    assert path.name == "report-server.html"
    assert "Server report: only what the server may know" in page
    for secret in SECRETS["server"]:
        assert secret not in page.replace("(true components known)", ""), secret
    assert "How far apart the components are" in page
    assert "VAE loss" in page


def test_a_silos_report_holds_its_own_figures_alone(run: Path, tmp_path: Path) -> None:
    whole = ReportData.load(run)
    with pytest.raises(DeliveryError, match="there for 12 silos"):
        whole.save(tmp_path, "silo")
    with pytest.raises(DeliveryError, match="there for 12 silos"):
        write_report(run, "silo")
    own = ReportData(alpha=whole.alpha[:1], silo_names=whole.silo_names[:1], true_alpha=whole.true_alpha[:1])
    own.save(tmp_path, "silo")
    summary = load_summary(run)
    summary.view, summary.silo = "silo", "silo 1"
    summary.save(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "This silo's mixture" in page
    assert "it stays in the house" in page
    for secret in SECRETS["silo"]:
        assert secret not in page, secret


def test_data_saved_for_the_server_never_hold_a_silos_arrays(run: Path, tmp_path: Path) -> None:
    ReportData.load(run).save(tmp_path, "server")
    with np.load(tmp_path / "report_data.npz") as archive:
        assert set(archive.files) == {"separability", "candidate_separability", "chosen", "samples", "class_names"}


def test_names_cannot_become_markup(run: Path, tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"&"
    summary = load_summary(run)
    summary.run_name, summary.warnings, summary.versions = evil, [evil], {evil: evil}
    summary.save(tmp_path)
    ReportData(alpha=np.array([[0.5, 0.5]]), silo_names=np.array([evil]), true_names=np.array([evil, "b"])).save(
        tmp_path, "simulation"
    )
    page = write_report(tmp_path).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert Checker(page).stack == []


def test_without_security_the_page_says_so_first(tmp_path: Path) -> None:
    RunSummary(secure=SecureSummary(backend="none")).save(tmp_path)
    page = write_report(tmp_path).read_text()
    assert page.index("No protection was in force") < page.index("What protected the silos")
    assert "the counts" in page


def test_a_run_that_knows_nothing_still_has_a_page(tmp_path: Path) -> None:
    RunSummary().save(tmp_path)
    page = write_report(tmp_path).read_text()
    assert Checker(page).stack == []
    assert "was not recorded" in page


@pytest.mark.parametrize(
    ("components", "silos", "shape"),
    [(1, 1, (3, 1, 8, 8)), (2, 3, (4, 3, 32, 32)), (3, 100, (5, 30)), (12, 5, (2, 1, 28, 28))],
)
def test_odd_sizes(tmp_path: Path, components: int, silos: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(components, *shape)).astype(np.float32)
    page = write_report(example.write_run(tmp_path, components, silos, samples)).read_text()
    assert Checker(page).stack == []
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', page)


def test_hostile_figures_leave_no_nan_in_the_drawings(tmp_path: Path) -> None:
    RunSummary(expert_accuracy=[[None, None], [0.5, float("nan")]], pooled_accuracy={"fedgmi": 0.5, "local": 0.5}).save(
        tmp_path
    )
    ReportData(
        alpha=np.array([[np.nan, 1.0], [0.0, 1.0]]),
        true_alpha=np.array([[1.0, 0.0], [0.5, 0.5]]),
        silo_accuracy=np.array([np.nan, 1.0]),
        separability=np.array([[0.0, np.inf], [-1.0, 0.0]]),
        samples=np.full((2, 3, 1, 4, 4), np.nan),
    ).save(tmp_path, "simulation")
    with open_telemetry(tmp_path, "simulation") as telemetry:
        for number, value in enumerate([1e12, float("nan"), 1e12, -1e-9, 0.0]):
            telemetry.round(
                {"phase": "rounds", "round": number, "vae_loss": [value, 3.0], "alpha_mae": max(0.0, value)}
            )
    page = write_report(tmp_path).read_text()
    assert Checker(page).stack == []
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"data:image[^\"]+", "", page), re.IGNORECASE)


def test_missing_and_damaged_files(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"summary\.json"):
        write_report(tmp_path)
    RunSummary().save(tmp_path)
    (tmp_path / "report_data.npz").write_bytes((run / "report_data.npz").read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"report_data\.npz is damaged"):
        write_report(tmp_path)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_png_reads_back_as_the_same_pixels(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_png(pixels)))), pixels)
    with pytest.raises(ValueError, match="pixels must be"):
        encode_png(np.zeros((2, 2, 4), np.uint8))


def test_contact_sheet_lays_pictures_out_in_rows() -> None:
    images = np.zeros((3, 1, 28, 28))
    images[1] = 1.0
    sheet = contact_sheet(images, columns=2)
    assert sheet.shape == (57, 57)
    assert sheet[:28, :28].max() == 0
    assert sheet[:28, 29:].min() == 255
    assert set(sheet[28].tolist()) == {128}
    assert contact_sheet(np.full((1, 3, 8, 8), 0.5), columns=16).shape == (32, 32, 3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.5, 1]), (0.3, 0.92, [0.2, 0.4, 0.6, 0.8, 1.0]), (20, 35, [20, 25, 30, 35]), (3, 3, [3])],
)
def test_axis_ticks_are_round_and_span_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 2 if (low, high) == (0, 1) else 4) == pytest.approx(expected)


def test_labels_are_moved_apart_and_keep_their_order() -> None:
    places = spread([50, 51, 52, 10], 14, 0, 100)
    assert sorted(range(4), key=lambda i: places[i]) == [3, 0, 1, 2]
    assert all(b - a >= 14 - 1e-9 for a, b in zip(sorted(places), sorted(places)[1:], strict=False))
    crowded = spread([98, 99, 100], 14, 0, 100)
    assert max(crowded) <= 100


def test_a_line_breaks_where_a_value_is_missing() -> None:
    chart = line_chart("t", "d", [Series("a", [1.0, None, 2.0, 3.0], "c0")], [Band("Rounds", 0, 4)])
    path = re.search(r'class="series s-c0"><path d="([^"]+)"', chart).group(1)
    assert path.count("M") == 2
    assert path.count("L") == 1
    assert chart.count("<circle") == 3


def test_markup_escapes_everything_that_is_not_markup() -> None:
    assert tag("p", "<b>", Markup("<i>x</i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i>x</i></p>'
    assert 'class="n"' in table(["a", "b"], [["x", "1.5 %"], ["y", "–"]])
    assert 'class="n"' not in table(["a", "b"], [["x", "one"], ["y", "2"]])


def test_words() -> None:
    assert [words.percent(0.91325), words.percent(None), words.points(-0.052)] == ["91.3 %", "–", "−5.2"]
    assert [words.size(812), words.size(1_234_567), words.size(2.5e12)] == ["812 bytes", "1.23 MB", "2,500 GB"]
    assert [words.decimal(0.0123), words.decimal(1e-7), words.decimal(1234.5)] == ["0.012", "1e−07", "1,234.5"]
    assert words.enumerated(["a", "b", "c"]) == "a, b and c"


def test_terminal_summary_compares_and_fits_a_terminal(run: Path) -> None:
    text = terminal_summary(load_summary(run))
    assert max(map(len, text.splitlines())) <= 78
    order = [text.index(name) for name in ("Oracle", "FedGMI (pers", "FedAvg", "Local training")]
    assert order == sorted(order)
    for figure in ("91.3 %", "−5.2", "0.0009", "99.9 %", "masked secure aggregation", "1.98 of 2", "! Silo 3 dropped"):
        assert figure in text
    assert "\x1b" not in text
    bare = terminal_summary(RunSummary())
    assert "not recorded" in bare
    assert "None" not in bare + text


def test_the_truth_is_shown_in_the_order_of_the_learned_components(tmp_path: Path) -> None:
    data = ReportData(
        alpha=np.array([[0.7, 0.1, 0.2], [0.5, 0.3, 0.2]]),
        true_alpha=np.array([[0.25, 0.75], [0.5, 0.5]]),
        true_of=np.array([1, -1, 0]),
        true_names=np.array(["upright", "turned"]),
    )
    data.save(tmp_path, "simulation")
    loaded = ReportData.load(tmp_path)
    assert loaded.matched_truth().tolist() == [[0.75, 0.0, 0.25], [0.5, 0.0, 0.5]]
    RunSummary(components=3, expert_accuracy=[[0.1, 0.9], [0.2, 0.2], [0.8, 0.3]]).save(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "component 0 (turned)" in page
    assert "component 2 (upright)" in page
    assert "component 1 (" not in page
    outlined = re.findall(r'class="cell out"[^>]*><title>([^<]+)', page)
    assert outlined == ["expert 0, turned: 90.0 %", "expert 2, upright: 80.0 %"]


def test_empty_arrays_count_as_absent(tmp_path: Path) -> None:
    np.savez(tmp_path / "report_data.npz", separability=np.zeros(0), true_alpha=np.zeros((0, 0)), alpha=np.ones((1, 1)))
    data = ReportData.load(tmp_path)
    assert data.separability is None
    assert data.true_alpha is None
    assert data.alpha is not None
