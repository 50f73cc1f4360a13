"""A page names every extra, and the table of contents of the site every page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOR_DEVELOPERS = {"dev", "docs"}


@pytest.mark.smoke
def test_the_table_of_extras_is_complete() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    page = (REPOSITORY / "docs/how-to/install.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows[1:] for name in re.findall(r"`([a-z]+)`", row)}
    extras = project["optional-dependencies"]
    assert named == set(extras) - FOR_DEVELOPERS
    (everything,) = extras["all"]
    within = set(re.findall(r"[a-z]+", everything.partition("[")[2]))
    assert named - within == {"all", "mlflow", "wandb"}, "what the last row says"


@pytest.mark.smoke
def test_the_site_lists_every_page() -> None:
    navigation = (REPOSITORY / "zensical.toml").read_text()
    docs = REPOSITORY / "docs"
    for folder in ("how-to", "reference"):
        for page in (docs / folder).glob("*.md"):
            assert f'"{page.relative_to(docs)}"' in navigation
