"""Reports and comparisons in a real browser: whole at 400 pixels."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.reporting.comparison import compare
from dragoman.reporting.comparison_page import write_comparison
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.telemetry.host import HourlyPrice

SCREENSHOTS = os.environ.get("DRAGOMAN_SCREENSHOTS")
"""A folder to keep pictures in, for eyes."""
RECORDED = Path(__file__).resolve().parents[1] / "golden" / "recorded"
PRICE = HourlyPrice(amount=3.06, currency="USD")
OUTSIDE = """() => [...document.querySelectorAll('main *:not(.runs *)')].filter(one => {
  const box = one.getBoundingClientRect();
  // A table of runs scrolls by itself.
  return box.width > 0 && (box.left < -1 || box.right > innerWidth + 1);
}).map(one => one.outerHTML.slice(0, 80))"""


def _look(browser: Any, url: str, name: str) -> None:
    """Nothing sticks out, in light and dark; a page may only ask for itself."""
    for width, scheme in ((1400, "light"), (400, "dark")):
        page = browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=False,
        )
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(url)
        if SCREENSHOTS:
            page.screenshot(path=f"{SCREENSHOTS}/{name}-{width}-{scheme}.png", full_page=True)
        assert {one for one in asked if not one.startswith("data:")} == {url}
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        page.close()


@pytest.mark.parametrize("name", ["two_ranks_of_one_host", "two_hosts_starved", "overfitting"])
def test_a_report_fits_and_needs_nothing(name: str, browser: Any, tmp_path: Path) -> None:
    html = Report.of(read_facts(RECORDED / name, price=PRICE)).write(tmp_path)[0]
    _look(browser, html.as_uri(), name)


def test_a_comparison_fits_and_needs_nothing(browser: Any, tmp_path: Path) -> None:
    names = ("two_ranks_of_one_host", "stopped_by_its_schedule", "overfitting")
    facts = [read_facts(RECORDED / name, price=PRICE) for name in names]
    html = write_comparison(compare(facts), tmp_path)[0]
    _look(browser, html.as_uri(), "comparison")
