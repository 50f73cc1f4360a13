"""Writes the pages of docs/reference that are made from the code.

tools/write_reference.py           write the pages
tools/write_reference.py --check   name the pages that are not what would be written; exit code 1
"""

from __future__ import annotations

import sys
from pathlib import Path

from reference import commands, events, python, recipe

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGES = {
    "commands.md": commands.page,
    "events.md": events.page,
    "python.md": python.page,
    "recipe.md": recipe.page,
}


def main() -> int:
    """Write or check the pages."""
    stale = 0
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"docs/reference/{name} is stale: make docs", file=sys.stderr)
            stale += 1
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
