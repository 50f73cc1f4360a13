"""The output of `dragoman calibrate`: how often each colour is right."""

from __future__ import annotations

from rich.text import Text

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.base.terminal import open_console, plain_table
from dragoman.evaluation.confidence import Measured


def print_measured(measured: Measured) -> None:
    """How many translations have each colour, and how many of them are right."""
    console = open_console()
    kinds = {"green": measured.green, "yellow": measured.yellow, "red": measured.red}
    total = sum(kept.sentences for kept in kinds.values())
    table = plain_table("colour", right=("sentences", "share", "right"))
    for colour, kept in kinds.items():
        share = units.SHARE.text(kept.sentences / total)
        right = units.SHARE.text(kept.right / kept.sentences) if kept.sentences else ""
        table.add_row(Text(colour, style=colour), units.COUNT.text(kept.sentences), share, right)
    console.print("", table, "")
    error = units.SHARE.text(measured.error)
    console.print(
        Text(
            f"measured on {printable_line(measured.test)}; the mean error of the probabilities is "
            f"{error}"
        ),
        soft_wrap=True,
    )
    console.print("translate with confidence, or serve the model, to see the colours")
