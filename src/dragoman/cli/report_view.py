"""The answers of a report in the terminal: scores and samples, judgements, what to do."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.base.printable import printable_line
from dragoman.cli.console import facts_table
from dragoman.reporting.render import Report, in_one_line
from dragoman.reporting.scores import of_samples
from dragoman.reporting.verdict import Verdict

_STYLES = {"cannot tell": "dim", "measured": "cyan"}


def print_answers(report: Report, console: Console) -> None:
    """Print the answers of a report that need a judgement; its page has the facts, too."""
    facts = report.facts
    console.print(Text(printable_line(f"{facts.name}: {in_one_line(facts)}"), style="bold"))
    if facts.samples:
        console.print(Text(of_samples(facts), style="dim"))
    for number, sample in enumerate(facts.samples):
        shown = facts_table((name, Text(printable_line(text))) for name, text in sample.rows)
        console.print(*([""] if number else []), shown)
    console.print("", _answers((f"{number}.", one) for number, one in report.judgements))
    if ill := [one for one in report.ailments if one.answer == "yes"]:
        console.print(Text("\nFindings", style="bold"))
        console.print(_answers(("-", one) for one in ill))
    first, *_, last = (number for number, _ in report.measurements)
    more = f"\nAnswers {first} to {last} are facts on speed, network and files: see the page.\n"
    console.print(Text(more, style="dim"))


def _answers(answers: Iterable[tuple[str, Verdict]]) -> Table:
    """Answers and remedies, each indented behind its mark."""
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for mark, one in answers:
        style = "yellow" if one.remedy else _STYLES.get(one.answer, "green")
        said = (one.question, " ", (one.answer.upper(), style), f": {printable_line(one.says)}")
        table.add_row(mark, Text.assemble(*said))
        if one.remedy:
            table.add_row("->", Text(printable_line(one.remedy), style="yellow"))
    return table
