"""Names and texts of a run cannot steer a page, a markdown file or a terminal."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dragoman.reporting.comparison import compare
from dragoman.reporting.comparison_page import write_comparison
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from forked_command import execute

RECORDED = Path(__file__).resolve().parents[2] / "golden" / "recorded" / "two_hosts_starved"
HOSTILE = (
    "<script>alert(1)</script>'\"><img src=x onerror=alert(1)> [x](javascript:alert) `|\x1b[2J"
)
KEPT = {"kind", "reason", "device"}
"""Fields of events whose values decide what is read."""


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


def _hostile(values: Any, key: str = "") -> Any:
    if isinstance(values, list):
        return [_hostile(value, key) for value in values]
    if isinstance(values, dict):
        return {name: _hostile(value, name) for name, value in values.items()}
    return f"{values}{HOSTILE}" if isinstance(values, str) and key not in KEPT else values


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A real run in which every text of every event is hostile."""
    directory = tmp_path / "run"
    (directory / "events").mkdir(parents=True)
    for path in (RECORDED / "events").glob("log.jsonl"):
        lines = (json.dumps(_hostile(json.loads(line))) for line in path.read_text().splitlines())
        alert = {"severity": "warning", "cause": HOSTILE, "remedy": HOSTILE}
        last = json.loads(path.read_text().splitlines()[-1])
        named = {name: last[name] for name in ("v", "time", "mono_s", "rank", "step")}
        added = json.dumps(named | {"kind": "alert", "host": HOSTILE} | alert)
        (directory / "events" / path.name).write_text("\n".join([*lines, added]) + "\n")
    return directory


def _is_harmless(page: str) -> None:
    tags = _Tags()
    tags.feed(page)
    names = [name for name, _ in tags.found]
    assert "script" not in names
    assert "img" not in names
    assert not any(name.startswith("on") for _, attrs in tags.found for name, _ in attrs)
    assert "\x1b" not in page


def test_no_text_of_a_run_breaks_a_page(run: Path, tmp_path: Path) -> None:
    facts = read_facts(run)
    page, markdown, _ = Report.of(facts).write(tmp_path / "report")
    _is_harmless(page.read_text(encoding="utf-8"))
    assert "alert(1)" in page.read_text(encoding="utf-8")
    text = markdown.read_text(encoding="utf-8")
    assert not re.search(r"<[a-z/]", text), "a raw tag"
    assert "](" not in text.replace("\\](", ""), "a link"
    page, markdown, _ = write_comparison(compare([facts, facts]), tmp_path / "both")
    _is_harmless(page.read_text(encoding="utf-8"))
    assert not re.search(r"<[a-z/]", markdown.read_text(encoding="utf-8"))


@pytest.mark.system
def test_a_name_does_not_steer_the_terminal(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    renamed = run.rename(run.with_name("r\x1b[31m\u202eun"))
    for command in (["report"], ["inspect"], ["watch", "--once"]):
        code, _ = execute([*command, str(renamed)], output="said")
        assert code == 0
        said = Path("said").read_text(encoding="utf-8")
        assert said
        assert not re.search("[\x1b\u202e]", said), command
    code, error = execute(["report", f"{renamed}\x1b[2J"])
    assert code
    assert error
    assert "\x1b" not in error
