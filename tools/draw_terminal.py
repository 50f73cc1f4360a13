"""Draws what a terminal showed, read from stdin with its colours, as an SVG picture.

tmux capture-pane -e -p -t demo | tools/draw_terminal.py docs/demo.svg "make demo"
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100


def main() -> None:
    """Write the picture named by the first argument, titled by the second."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(sys.stdin.read().rstrip("\n")))
    # Fonts are asked for by name only: a picture in a README loads nothing from elsewhere.
    svg = console.export_svg(title=sys.argv[2])
    start, end = svg.index("@font-face"), svg.rindex("@font-face")
    end = svg.index("}", end) + 1
    Path(sys.argv[1]).write_text(svg[:start] + svg[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
