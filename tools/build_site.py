"""Builds the documentation as a site: build/site.

Pages lie in docs/ and beside it, where they read well in the repository. build/pages gets all of
them, with links that lead from one to the other, and the reference pages, which are made from the
code. `<!-- site: TEXT -->` in a page is text for the site alone. zensical makes the site of these
and refuses links that lead nowhere. Then each page is read again: what it loads must lie in the
site.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from reference import commands, events, python, recipe

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES, SITE = REPOSITORY / "build" / "pages", REPOSITORY / "build" / "site"
BESIDE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "readme.md",
    "benchmarks/README.md": "benchmarks/index.md",
    **{
        f"benchmarks/{name}": f"benchmarks/{name}"
        for name in ("claims.toml", "results.jsonl", "strategy_quality.jsonl")
    },
    "docs/README.md": "index.md",
    "docs/notebook.ipynb": "notebook.md",
}
"""Pages and files beside docs/, and those with another place in the site than in docs/."""
MADE = {
    "reference/commands.md": commands.page,
    "reference/events.md": events.page,
    "reference/python.md": python.page,
    "reference/recipe.md": recipe.page,
}
"""Pages that are made from the code."""
FOR_THE_SITE = re.compile(r"<!-- site:\s(.*?)-->", re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[#)])")
FENCE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"^(```\w+ title=)(\S+)$", re.MULTILINE)
"""zensical wants the quotation marks that GitHub does not need."""
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


def main() -> int:
    """Build the site; exit code 1 if a link or a page is wrong."""
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    write_pages()
    zensical = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    if code := subprocess.run(zensical, cwd=REPOSITORY).returncode:
        return code
    problems = [problem for page in sorted(SITE.rglob("*.html")) for problem in wrong_in(page)]
    print("\n".join(problems) or f"{SITE / 'index.html'}", file=sys.stderr if problems else None)
    return 1 if problems else 0


def write_pages() -> None:
    """Write build/pages: what zensical reads."""
    places = placed()
    for path, place in places.items():
        target = PAGES / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith((".md", ".ipynb")):
            text = (REPOSITORY / path).read_text(encoding="utf-8")
            text = as_markdown(text) if path.endswith(".ipynb") else FOR_THE_SITE.sub(r"\1", text)
            target.write_text(linked(text, path, places), encoding="utf-8")
        if not path.endswith(".md"):
            shutil.copyfile(REPOSITORY / path, target.with_suffix(Path(path).suffix))
    for name, page in MADE.items():
        (PAGES / name).parent.mkdir(exist_ok=True)
        (PAGES / name).write_text(page(), encoding="utf-8")


def placed() -> dict[str, str]:
    """The place in the site of each page and picture, by its path in the repository."""
    in_docs = (path for path in (REPOSITORY / "docs").rglob("*") if path.is_file())
    kept = {path.relative_to(REPOSITORY).as_posix() for path in in_docs}
    return {
        path: BESIDE.get(path, path.removeprefix("docs/")) for path in sorted(kept | set(BESIDE))
    }


def linked(text: str, path: str, places: dict[str, str]) -> str:
    """The text of a page with links to where other pages are placed; code stays as it is."""
    folder = PurePosixPath(path).parent

    def moved(link: re.Match[str]) -> str:
        aim = os.path.normpath(folder / link[1])
        if aim not in places or aim == path:
            return link[0]
        return os.path.relpath(places[aim], PurePosixPath(places[path]).parent)

    kept: list[str] = []

    def put_aside(code: re.Match[str]) -> str:
        kept.append(TITLE.sub(r'\1"\2"', code[0]))
        return f"\0{len(kept) - 1}\0"

    text = LINK.sub(moved, FENCE.sub(put_aside, text))
    return re.sub("\0(\\d+)\0", lambda number: kept[int(number[1])], text)


def as_markdown(notebook: str) -> str:
    """The cells of a notebook; code is fenced."""
    cells = json.loads(notebook)["cells"]
    texts = (("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells)
    return "\n\n".join(f"```python\n{text}\n```" if code else text for text, code in texts) + "\n"


class Page(HTMLParser):
    """The files that a page loads, the targets of its links, its anchors and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of one element."""
        given = dict(attrs)
        self.anchors |= {str(given[name]) for name in ("id", "name") if given.get(name)}
        address = given.get(LOADED.get(tag, "href")) or ""
        if tag in LOADED and given.get("rel") not in ("canonical", "alternate", "prev", "next"):
            self.loaded.append(address)
        elif tag == "a":
            self.links.append(address)

    def handle_data(self, data: str) -> None:
        """Take note of text."""
        self.text += data


def wrong_in(path: Path) -> list[str]:
    """The faults of a page, such as files that it loads from elsewhere and broken links."""
    page = Page(path)
    found = ["shows the marks of a block of code"] if "```" in page.text else []
    for address in page.loaded + page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if address in page.loaded and parts.scheme != "data":
                found.append(f"loads {address} from elsewhere")
            continue
        aim = path.parent / unquote(parts.path) if parts.path else path
        aim = aim / "index.html" if aim.is_dir() else aim
        if path.name == "404.html":
            continue  # its links begin at the root of a server
        if not aim.is_file():
            found.append(f"leads to {address}, which is not there")
        elif parts.fragment and aim.suffix == ".html":
            anchors = page.anchors if aim == path else Page(aim).anchors
            if unquote(parts.fragment) not in anchors:
                found.append(f"leads to {address}, of which there is the page, not the place")
    return [f"{path.relative_to(SITE)} {problem}" for problem in found]


if __name__ == "__main__":
    sys.exit(main())
