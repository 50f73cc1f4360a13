"""The three files of a report: whole, self-contained, and small."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dragoman.base.errors import MachineError
from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.reporting.checks import CHECKS
from dragoman.reporting.document import escape
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report, as_json
from dragoman.reporting.svg import Axis, BarPlot, LinePlot, Series, ticks
from dragoman.telemetry.events import Alert, EventWriter
from dragoman.telemetry.host import HourlyPrice
from dragoman.watch.live import open_run
from recorded_runs import Recorded

PRICE = HourlyPrice(amount=3.06, currency="USD")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = Recorded().write(tmp_path_factory.mktemp("runs") / "run")
    recipe = load_recipe("demo", ["train.max_steps=8000"])
    (directory / "recipe.toml").write_text(dump_toml(recipe))
    return directory


@pytest.fixture(scope="module")
def report(run: Path) -> Report:
    return Report.of(read_facts(run, price=PRICE))


class _Page(HTMLParser):
    """Tags that are open, names of all tags, links to elsewhere, and the text."""

    VOID = frozenset({"meta", "rect", "circle", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def _page(report: Report, directory: Path) -> tuple[_Page, str]:
    html = report.write(directory)[0].read_text(encoding="utf-8")
    page = _Page()
    page.feed(html)
    return page, html


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(report: Report, tmp_path: Path) -> None:
    page, html = _page(report, tmp_path)
    assert page.open == []
    assert "script" not in page.tags
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert "http" not in html.replace("http-equiv", "")
    assert "@import" not in html
    assert "url(" not in html
    assert "prefers-color-scheme:dark" in html
    assert len(html) < 500_000


def test_every_question_is_on_the_page_with_its_answer(report: Report, tmp_path: Path) -> None:
    page, _ = _page(report, tmp_path)
    text = page.text.replace("\u00a0", " ")
    assert len(report.answers) == 12
    assert len(report.ailments) == len(CHECKS) - 12
    for verdict in (*report.answers, *report.ailments):
        assert verdict.question in text
        assert verdict.says in text
        assert all(row.text in text for row in verdict.evidence if row.value is not None)


def test_json_has_values_beside_texts(report: Report) -> None:
    values = json.loads(as_json(report))
    answers = {one["key"]: one for one in values["answers"]}
    assert answers["trained"]["answer"] == "yes"
    rows = {row["name"]: row for row in answers["step_time"]["evidence"]}
    assert rows["mean"]["value"] == pytest.approx(0.411)
    assert rows["mean"]["text"] == "411 ms/step"
    assert values["run"]["finished"] is True


def test_markdown_has_each_question_twice(report: Report, tmp_path: Path) -> None:
    text = report.write(tmp_path)[1].read_text(encoding="utf-8")
    for number, verdict in enumerate(report.answers, 1):
        assert f"| {number} | {verdict.question} | **{verdict.answer}** |" in text
        assert f"## {number}. {verdict.question}" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 5) for row in rows)


def test_every_form_of_the_report_has_the_alerts(tmp_path: Path) -> None:
    run = Recorded(steps=200).write(tmp_path / "run")
    with EventWriter(run / "events") as events:
        alert = Alert(severity="error", cause="host-b is lost", remedy="see its log")
        events.write(alert, step=200)
    for path in Report.of(read_facts(run)).write(tmp_path):
        text = path.read_text(encoding="utf-8")
        assert "host-b is lost" in text, path
        assert "see its log" in text, path
    live = open_run(run)
    live.look()
    assert any("see its log" in alert for alert in live.now().alerts)


def test_a_report_that_cannot_be_written_is_an_error(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot write the report"):
        report.write(tmp_path / "file")


def test_the_page_of_a_long_run_stays_small(tmp_path: Path) -> None:
    run = Recorded(steps=50_000, max_steps=50_000, validate_every=500).write(tmp_path / "run")
    page = Report.of(read_facts(run)).write(tmp_path / "report")[0]
    assert page.stat().st_size < 500_000


def _texts(svg: str) -> list[tuple[float, float, str, str]]:
    root = ElementTree.fromstring(svg)
    found = []

    def walk(node: ElementTree.Element, down: float) -> None:
        moved = re.search(r"translate\(0 (\d+)\)", node.get("transform", ""))
        down += float(moved[1]) if moved else 0.0
        if node.tag == "text":
            x, y = float(node.get("x", 0)), float(node.get("y", 0)) + down
            found.append((x, y, node.get("text-anchor", "start"), node.text or ""))
        for child in node:
            walk(child, down)

    walk(root, 0.0)
    return found


@pytest.mark.parametrize("width", [340, 760])
@pytest.mark.parametrize("top", [1e-4, 2.5, 9.4, 50_000])
def test_labels_of_a_plot_do_not_overlap(width: int, top: float) -> None:
    series = [
        Series("dev", [(step, top * (1 - step / 20_000)) for step in range(0, 10_000, 500)]),
        Series("training, with dropout and smoothing", [(0, top), (10_000, top / 3)]),
    ]
    svg = LinePlot(
        series, Axis("step", "{:,.0f}".format), Axis("loss", "{:.4g}".format), height=240
    ).svg(width)
    boxes = []
    for x, y, anchor, text in _texts(svg):
        length = len(text) * 6.3
        left = {"start": x, "middle": x - length / 2, "end": x - length}[anchor]
        assert left >= -2, text
        assert left + length <= width + 2, text
        boxes.append((left, left + length, y))
    for n, (left, right, y) in enumerate(boxes):
        for other_left, other_right, other_y in boxes[n + 1 :]:
            assert abs(y - other_y) >= 10 or right <= other_left or other_right <= left


def test_a_plot_of_nothing_is_nothing() -> None:
    axis = Axis("step", str)
    assert LinePlot([Series("dev", [(0, 1)])], axis, axis).svg(340) == ""
    assert LinePlot([Series("dev", [(0, float("nan"))] * 3)], axis, axis).svg(340) == ""
    assert BarPlot("x", [("train", 0.0)], str).svg(340) == ""


def test_parts_of_a_bar_fill_it() -> None:
    svg = BarPlot("whole", [("a", 1), ("b", 3)], "{} s".format).svg(400)
    widths = [float(found) for found in re.findall(r'y="0" width="([\d.]+)"', svg)]
    assert widths == [100, 300]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.13, 0.17), (-5, 12), (0, 50_000), (3, 3)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high, 6)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    assert len({f"{tick:.4g}" for tick in found}) == len(found)


def test_a_number_with_an_exponent_and_an_option_stay_whole() -> None:
    assert escape("to 3.000e-3 by") == "to <span class='whole'>3.000e-3</span> by"
    assert escape("say --price '3 USD'").startswith("say <span class='whole'>--price</span> ")
    assert escape("2 kB (= 2 KiB)") == "2\u00a0kB (=\u00a02\u00a0KiB)"
    assert escape("2026-11-22") == "2026-11-22"
