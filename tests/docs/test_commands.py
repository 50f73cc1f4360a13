"""Every command of the documentation is executed, page by page, in a new folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
LONG = {REPOSITORY / "docs/how-to/serve.md"}
"""Pages that train, export and serve: minutes, for `make test-all`."""
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: ```sh is run, ```LANGUAGE title=NAME is written to that file."""

    language: str
    title: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page in order."""
    found = []
    for language, info, text in FENCE.findall(page.read_text(encoding="utf-8")):
        title = re.search(r"title=(\S+)", info)
        found.append(Block(language, title.group(1) if title else None, text))
    return found


def runnable(page: Path) -> bool:
    """Whether the page has a command."""
    return any(block.language == "sh" for block in blocks(page))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=str(page.relative_to(REPOSITORY)),
            marks=[pytest.mark.slow] if page in LONG else [],
        )
        for page in PAGES
        if runnable(page)
    ],
)
def test_the_commands_of_a_page_work(page: Path, tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
    }
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
