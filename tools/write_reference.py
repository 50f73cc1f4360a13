"""Writes the pages of docs/reference, and the last section of ARCHITECTURE.md, from the code.

tools/write_reference.py           write them
tools/write_reference.py --check   name the pages that are not what would be written; exit code 1
"""

from __future__ import annotations

import sys
from pathlib import Path

from reference import commands, events, modules, python, recipe

REPOSITORY = Path(__file__).resolve().parents[1]


def _architecture() -> str:
    """The page with its last section written anew."""
    written_by_hand = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return written_by_hand.partition(modules.TITLE)[0] + modules.section()


PAGES = {
    "docs/reference/commands.md": commands.page,
    "docs/reference/events.md": events.page,
    "docs/reference/python.md": python.page,
    "docs/reference/recipe.md": recipe.page,
    "ARCHITECTURE.md": _architecture,
}


def main() -> int:
    """Write or check the pages."""
    stale = 0
    for name, page in PAGES.items():
        path, text = REPOSITORY / name, page()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{name} is stale: make docs", file=sys.stderr)
            stale += 1
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
