"""Every test, module and function that docs/SECURITY.md names is there under this name."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "SECURITY.md"
CODE = REPOSITORY / "src" / "dragoman"
NAMES = re.compile(r"`([^`\n]+)`")


def test_tests_are_named_in_full_and_are_there() -> None:
    named = [name for name in NAMES.findall(PAGE.read_text()) if "test_" in name]
    assert len(named) > 20
    for name in named:
        path, _, function = name.partition("::")
        assert re.fullmatch(r"tests/[\w/]+\.py", path), f"{name} is not named from tests/ on"
        assert (REPOSITORY / path).is_file(), f"{name}: there is no such file"
        if function:
            text = (REPOSITORY / path).read_text()
            assert f"\ndef {function}(" in text, f"{name}: there is no such test"


def test_modules_and_functions_are_there() -> None:
    num_modules = 0
    for row in PAGE.read_text().splitlines():
        texts: list[str] = []
        for name in NAMES.findall(row):
            if re.fullmatch(r"[\w/]+\.(py|js)", name):
                place = REPOSITORY if name.startswith("tests/") else CODE
                assert (place / name).is_file(), f"{name}: there is no such file"
                texts.append((place / name).read_text())
                num_modules += 1
            elif texts and re.fullmatch(r"_?[a-z]+_[a-z_]+|verify", name):
                defined = re.compile(rf"^(def {name}\(|    {name}\b)", re.MULTILINE)
                assert any(map(defined.search, texts)), f"{row}: there is no {name}"
    assert num_modules > 20
