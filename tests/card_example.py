"""The example on the card of an export, run as it stands."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def python_on_card(export: Path) -> list[str]:
    """Every piece of Python on a card."""
    card = (export / "README.md").read_text("utf-8")
    return re.findall(r"```python\n(.*?)\n```", card, re.DOTALL)


def printed_by_example(export: Path) -> str:
    """What the first example in Python on a card prints, for this folder."""
    code = python_on_card(export)[0].replace("THIS_FOLDER", export.as_posix())
    shown = io.StringIO()
    names: dict[str, Any] = {}
    with redirect_stdout(shown):
        exec(compile(code, export / "README.md", "exec"), names)
    return shown.getvalue().removesuffix("\n")
