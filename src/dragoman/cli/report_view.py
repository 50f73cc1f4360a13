"""The answers of a report in the terminal: scores and samples, judgements, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.base.printable import printable, printable_line
from dragoman.cli.console import facts_table
from dragoman.reporting.render import Report, faults, in_one_line
from dragoman.reporting.scores import of_samples
from dragoman.reporting.verdict import Verdict

_STYLES = {"cannot tell": "dim", "measured": "cyan"}
_MOST_ALERTS = 3
"""More of them hide the answers."""


def print_answers(report: Report, console: Console) -> None:
    """Print the answers that need a judgement, the findings, what is wrong with the evidence, the
    last alerts but for mere information, and a line of each fact."""
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
    _print_items("About the evidence", faults(facts), console)
    alerts = [alert.text for alert in facts.alerts if alert.severity != "info"]
    alerts = [text for text in alerts if text not in faults(facts)]
    heading = "Alerts while it trained"
    if len(alerts) > _MOST_ALERTS:
        heading += f": the last {_MOST_ALERTS} of {len(alerts)}"
    _print_items(heading, alerts[-_MOST_ALERTS:], console)
    console.print(Text("\nFacts, whole on the page", style="bold"))
    for number, one in report.measurements:
        subject = one.key.replace("_", " ").capitalize()
        newest = one.says.split("\n")[0]
        line = Text(f"{number:>2}. {subject}: {printable_line(newest)}", style="dim")
        console.print(line, no_wrap=True, overflow="ellipsis")
    console.print()


def _print_items(heading: str, texts: Sequence[str], console: Console) -> None:
    if texts:
        console.print(Text(f"\n{heading}", style="bold"))
        console.print(facts_table(("-", Text(printable_line(text))) for text in texts))


def _answers(answers: Iterable[tuple[str, Verdict]]) -> Table:
    """Answers and remedies, each indented behind its mark."""
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for mark, one in answers:
        style = "yellow" if one.remedy else _STYLES.get(one.answer, "green")
        said = (one.question, " ", (one.answer.upper(), style), f": {printable(one.says)}")
        table.add_row(mark, Text.assemble(*said))
        if one.remedy:
            table.add_row("->", Text(printable_line(one.remedy), style="yellow"))
    return table
