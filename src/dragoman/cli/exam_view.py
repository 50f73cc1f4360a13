"""The marks of an exam in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from dragoman.api.exam import Exam
from dragoman.base import units
from dragoman.base.printable import clipped, printable_line
from dragoman.base.terminal import plain_table
from dragoman.cli.console import facts_table
from dragoman.evaluation.exam import Mark
from dragoman.telemetry.events import PASSING_SHARE

_BAD: Final = 0.6
_SHOWN: Final = 3
"""Subjects whose worst translation is shown."""
_LONGEST: Final = 120


def print_exams(exams: Sequence[Exam], console: Console) -> None:
    """Print the rate of each subject; of one system then the worst translations of the weakest."""
    letters = [""] if len(exams) == 1 else [chr(ord("A") + number) for number in range(len(exams))]
    for letter, exam in zip(letters, exams, strict=True):
        heading = f"{letter}  {exam.system}".lstrip()
        heading += f": {exam.direction}, sentences of {exam.test}"
        console.print(Text(printable_line(heading), style="bold"), soft_wrap=True)
    one = len(exams) == 1
    right = ("texts", "held", "chrF") if one else ("texts", *letters)
    table = plain_table("subject", "key that teaches it", right=right)
    by_subject = [{mark.subject: mark for mark in exam.marks} for exam in exams]
    # Each has those that it can be examined in: terms need a system that takes them.
    for subject in dict.fromkeys(mark.subject for exam in exams for mark in exam.marks):
        marks = [of_system.get(subject) for of_system in by_subject]
        known = [mark for mark in marks if mark is not None]
        table.add_row(
            subject,
            known[0].cure if min(mark.rate for mark in known) < PASSING_SHARE else "",
            units.COUNT.text(known[0].tried),
            *("" if mark is None else _rate(mark) for mark in marks),
            *([_chrf(known[0])] if one else []),
        )
    console.print("", table, "")
    console.print("held: the share of the changed texts whose translation is still right")
    if one:
        console.print("chrF: its likeness to the translation of the sentence as it is")
        weakest = sorted((mark for mark in exams[0].marks if mark.worst), key=_by_rate)
        for mark in weakest[:_SHOWN]:
            console.print("", _worst(mark))


def _rate(mark: Mark) -> Text:
    style = "green" if mark.rate >= PASSING_SHARE else "red" if mark.rate < _BAD else "yellow"
    return Text(units.SHARE.text(mark.rate), style=style)


def _chrf(mark: Mark) -> str:
    return "" if mark.chrf is None else units.SCORE.text(mark.chrf)


def _by_rate(mark: Mark) -> float:
    return mark.rate


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
