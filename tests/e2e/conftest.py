"""A browser for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from served import FAR_NAME

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, one for a file of tests."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {FAR_NAME} 127.0.0.1"]
        browser = running.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()
