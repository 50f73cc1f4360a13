"""Every command of the documentation is executed, page by page, in a new folder."""

from __future__ import annotations

import lzma
import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from processes import wait_until
from real_text import real_lines

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
LONG_S = {"how-to/serve.md": 600, "how-to/monolingual.md": 1200}
"""Pages for `make test-all`, which train, export and serve, and their limits."""
GIVEN = "mono.de"
"""A file that a page leaves to its reader: German text."""
GIVEN_LINES = 2_000
SHORTER = {
    "tutorial.md": {"--budget 10min": "--budget 10min --set train.max_steps=40"},
    "how-to/monolingual.md": {
        "max_steps = 1500": "max_steps = 300",
        "validate_every_steps = 500": "validate_every_steps = 150",
        "train.max_steps=1500": "train.max_steps=300",
        "train.validate_every_steps=500": "train.validate_every_steps=150",
    },
}
"""Words of a page, and those that are run in their place. Of what it prints, the tables count then:
sentences depend on the figures."""
SERVER = "http://127.0.0.1:8320/health"
NUMBER = re.compile(r"[-+]?\d[\d,.]*")
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: ```sh is run, ```LANGUAGE title=NAME is written to that file, and
    ```text title=printed is in the output of the block before it, but for numbers and spaces."""

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


def limits(page: str) -> list[pytest.MarkDecorator]:
    """The marks of a long page, or the time that every other has."""
    if page in LONG_S:
        return [pytest.mark.slow, pytest.mark.timeout(LONG_S[page])]
    return [pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=f"docs/{page}", marks=limits(page))
        for page in (str(path.relative_to(REPOSITORY / "docs")) for path in PAGES)
        if runnable(REPOSITORY / "docs" / page)
    ],
)
def test_the_commands_of_a_page_work(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = blocks(REPOSITORY / "docs" / page)
    if any(GIVEN in block.text for block in found):
        lines = german_help(request.getfixturevalue("shared_data"))[:GIVEN_LINES]
        (tmp_path / GIVEN).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
    }
    printed = ""
    for block in found:
        text = block.text
        for words, shorter in SHORTER.get(page, {}).items():
            text = text.replace(words, shorter)
        if block.title == "printed":
            awaited = [
                line for line in text.splitlines() if page not in SHORTER or NUMBER.search(line)
            ]
            assert set(shapes("\n".join(awaited))) <= set(shapes(printed)), printed
        elif block.title:
            (tmp_path / block.title).write_text(text, encoding="utf-8")
        elif block.language == "sh":
            done = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            if text.startswith("dragoman serve ") and " &\n" not in text:  # its reader ends it
                try:
                    wait_until(lambda: is_answered(SERVER), limit_s=60)
                finally:
                    os.killpg(done.pid, signal.SIGINT)
            printed, errors = done.communicate()
            assert done.returncode == 0, f"{text}\n{printed}\n{errors}"


def is_answered(address: str) -> bool:
    """Whether a server answers there."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def shapes(text: str) -> list[str]:
    """The lines without their numbers, spaces and rules."""
    return [" ".join(NUMBER.sub("", line).split()) for line in text.splitlines()]


def german_help(shared_data: Path) -> list[str]:
    """German sentences of help pages that the demo's sample does not hold."""
    sides = [
        lzma.decompress((shared_data / f"ende-mixed/train.{side}.xz").read_bytes()).decode()
        for side in ("de", "src")
    ]
    known = set(real_lines("train", "de"))
    pairs = zip(*(side.splitlines() for side in sides), strict=True)
    lines = [line for line, name in pairs if re.fullmatch(r"doc-.*-help", name)]
    return [line for line in dict.fromkeys(lines) if line not in known]
