"""The documentation as a site: without a wrong link, readable, and quiet towards other servers."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = (
    *("docs", "benchmarks", "tools", "zensical.toml"),
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md"),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources of the site, which may be spoilt."""
    if not Path(sys.executable).with_name("zensical").is_file():
        pytest.skip("zensical is not installed: pip install -c constraints.txt -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copyfile(source, folder / name)
    return folder


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / "tools/build_site.py"], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def site(copy: Path) -> Iterator[str]:
    """The address of the built site."""
    done = built(copy)
    assert done.returncode == 0, done.stdout + done.stderr

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Handler, directory=copy / "build/site")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_pages_ask_no_other_server_and_fit_a_telephone(site: str, copy: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 800})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    pages = sorted((copy / "build/site").rglob("*.html"))
    assert len(pages) > 25
    for path in pages:
        page.goto(f"{site}/{path.relative_to(copy / 'build/site')}")
        page.wait_for_load_state("networkidle")
        width = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert width <= 0, f"{path.name} is wider than the window"
        missing = "[...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)"
        assert page.evaluate(missing) == [], path.name
    page.close()
    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []


def test_search_finds_an_option_and_a_key_of_an_event(site: str, browser: Any) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    for word, place in (("no_repeat_ngram_size", "recipe"), ("carrier_changes", "events")):
        page.goto(f"{site}/index.html")
        page.wait_for_load_state("networkidle")
        links = page.locator(f'a[href*="{place}.html"]:visible')
        without_search = links.count()
        page.keyboard.press("Control+k")
        page.keyboard.type(word)
        sync_api.expect(links).to_have_count(without_search + 1, timeout=60_000)
    page.close()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("[one](how-to/nowhere.md)", "does not exist"),
        pytest.param("[one](tutorial.md#nowhere)", "anchor does not exist", marks=pytest.mark.slow),
        ("![one](https://example.org/picture.png)", "loads https://example.org/picture.png"),
        pytest.param(
            "```sh one=1, two\nls\n\nls\n```", "marks of a block of code", marks=pytest.mark.slow
        ),
    ],
    ids=["page", "place", "picture from elsewhere", "block of code"],
)
def test_a_wrong_page_is_refused(copy: Path, site: str, wrong: str, problem: str) -> None:
    home = copy / "docs/README.md"
    whole = home.read_text(encoding="utf-8")
    home.write_text(f"{whole}\n{wrong}\n", encoding="utf-8")
    try:
        done = built(copy)
    finally:
        home.write_text(whole, encoding="utf-8")
    assert done.returncode == 1
    assert problem in done.stdout + done.stderr
