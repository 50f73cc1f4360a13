"""No link is dead, a page names every extra, and the site lists every page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from dragoman.recipe.recipe import Recipe

REPOSITORY = Path(__file__).resolve().parents[2]
FOR_DEVELOPERS = {"dev", "docs"}
FILE = re.compile(r"\.(toml|jsonl?|py|safetensors|bin|gz|en|de)\b")
"""What ends the name of a file, not of a key."""


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
    pages = [page.relative_to(docs).as_posix() for page in docs.rglob("*.md")]
    assert len(pages) > 20
    assert [page for page in pages if page != "README.md" and f'"{page}"' not in navigation] == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.smoke
@pytest.mark.parametrize(
    "page",
    [
        *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "benchmarks/README.md"),
        *(
            str(path.relative_to(REPOSITORY))
            for path in sorted((REPOSITORY / "docs").rglob("*.md"))
        ),
    ],
)
def test_no_link_is_dead_in_a_plain_checkout(page: str) -> None:
    path = REPOSITORY / page
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", text)
    for target, anchor in links:
        aim = path.parent / target if target else path
        assert aim.exists(), f"{page} leads to {target}, which is not there"
        assert not anchor or anchor in anchors(aim), f"{page}: {target} has no #{anchor}"


@pytest.mark.smoke
def test_pages_name_keys_that_a_recipe_has() -> None:
    sections = Recipe.model_fields
    form = re.compile(rf"(?<![\w/.])({'|'.join(sections)})((?:\.[a-z_0-9]+)+)(?![\w/(])")
    named = 0
    for page in sorted((REPOSITORY / "docs").rglob("*.md")):
        for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
            for section, path in form.findall(code):
                if FILE.search(path):
                    continue
                kind: object = sections[section].annotation
                for key in path.strip(".").split("."):
                    fields = getattr(kind, "model_fields", {})
                    assert key in fields, f"{page.name}: a recipe has no {section}{path}"
                    kind = fields[key].annotation
                named += 1
    assert named > 60


@pytest.mark.smoke
def test_pages_agree_on_the_score_and_the_time_of_the_demo() -> None:
    found: dict[str, set[str]] = {}
    docs = (REPOSITORY / "docs").rglob
    for page in [REPOSITORY / "README.md", *docs("*.md"), *docs("*.ipynb")]:
        text = re.sub(r'\\n|[\s",]+', " ", page.read_text(encoding="utf-8"))
        for form in (r"reaches about \d+ BLEU", r"\d+ to +\d+ minutes on two cores"):
            for words in re.findall(form, text):
                found.setdefault(form, set()).add(" ".join(words.split()))
    assert [len(words) for words in found.values()] == [1, 1], found
