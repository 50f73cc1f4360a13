"""The marks of an exam in the terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from dragoman.api.exam import Exam
from dragoman.base import units
from dragoman.base.printable import clipped, printable_line
from dragoman.base.terminal import plain_table
from dragoman.cli.console import facts_table
from dragoman.evaluation.exam import Mark

_GOOD: Final = 0.9
_BAD: Final = 0.6
_SHOWN: Final = 3
"""Subjects whose worst translation is shown."""
_LONGEST: Final = 120


def print_exam(exam: Exam, console: Console) -> None:
    """Print the rate of each subject, then the worst translations of the weakest ones."""
    heading = f"{exam.system}: {exam.direction}, sentences of {exam.test}"
    console.print(Text(printable_line(heading), style="bold"), soft_wrap=True)
    table = plain_table("subject", "key that teaches it", right=("texts", "held", "chrF"))
    for mark in exam.marks:
        style = "green" if mark.rate >= _GOOD else "red" if mark.rate < _BAD else "yellow"
        table.add_row(
            mark.subject,
            mark.cure if mark.rate < _GOOD else "",
            units.COUNT.text(mark.tried),
            Text(units.SHARE.text(mark.rate), style=style),
            "" if mark.chrf is None else units.SCORE.text(mark.chrf),
        )
    console.print("", table, "")
    console.print("held: the share of the changed texts whose translation is still right")
    console.print("chrF: its likeness to the translation of the sentence as it is")
    weakest = sorted((mark for mark in exam.marks if mark.worst), key=lambda mark: mark.rate)
    for mark in weakest[:_SHOWN]:
        console.print("", _worst(mark))


def _worst(mark: Mark) -> object:
    assert mark.worst is not None
    facts = (
        (mark.subject, mark.worst.problem),
        ("source", mark.worst.text),
        ("translation", mark.worst.translation),
    )
    return facts_table(
        (name, Text(printable_line(clipped(text, _LONGEST)))) for name, text in facts
    )
