"""`dragoman compare`: whether one of two models is better, or the difference is chance."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.options import JSON, TARGET, THREADS, Command, Option, Options, keywords

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from dragoman.api.comparison import Comparison
    from dragoman.evaluation.paired import Group, SentencePair


def _test(text: str) -> tuple[str, str]:
    source, comma, reference = text.partition(",")
    if not (source and comma and reference):
        raise argparse.ArgumentTypeError(f"{text!r} is not SOURCE,REFERENCE, two names of files")
    return source, reference


_MODEL = {
    "type": Path,
    "metavar": "RUN|EXPORT|FILE",
    "help": "a run, a checkpoint in it, an export, or a file of translations",
}


@Command(
    "compare",
    "test whether one of two models is better",
    "Say whether one of two models is better: BLEU and chrF with paired tests, by length and by "
    "rare words, and the sentences that differ most.",
    *(Option("first", **_MODEL), Option("second", **_MODEL)),
    Option(
        "--test",
        type=_test,
        action="append",
        default=[],
        dest="tests",
        metavar="SOURCE,REFERENCE",
        help="a test set (default: that of the runs); may be given again",
    ),
    *(TARGET, THREADS, JSON),
)
def run(options: Options) -> None:
    """Translate the test sets with both models and print the comparison."""
    import json
    from dataclasses import asdict

    from dragoman.api.comparison import compare

    found = compare(**keywords(options, "json"))
    if options.json:
        values = [asdict(one) | {"better": one.better} for one in found]
        print(json.dumps(values, indent=1))  # in ASCII: no text can send escape sequences
        return
    for one in found:
        _print_scores(one)
        _print_where(one)


def _print_scores(comparison: Comparison) -> None:
    """Scores, p-values and the verdict."""
    from rich.text import Text

    from dragoman.base import units
    from dragoman.base.printable import printable_line
    from dragoman.base.terminal import open_console, plain_table
    from dragoman.evaluation.paired import FEWEST, SIGNIFICANT

    console = open_console()
    result = comparison.result
    console.print(
        Text(f"{comparison.test}: {units.COUNT.text(result.pairs)} sentences", style="bold")
    )
    console.print(f"A  {printable_line(comparison.first)}", soft_wrap=True, markup=False)
    console.print(f"B  {printable_line(comparison.second)}", soft_wrap=True, markup=False)
    right = ("A", "B", "B - A", "p bootstrap", "p randomisation")
    table = plain_table("", right=right)
    for name, score in result.scores.items():
        table.add_row(
            {"bleu": "BLEU", "chrf": "chrF"}[name],
            f"{score.first:.2f}",
            f"{score.second:.2f}",
            f"{score.difference:+.2f}",
            f"{score.p_bootstrap:.4f}",
            f"{score.p_randomisation:.4f}",
        )
    console.print("", table, "")
    letter = {"first": "A", "second": "B", None: None}[result.winner]
    verdict = (
        f"Too few sentences for a verdict: it takes {FEWEST} or more."
        if result.pairs < FEWEST
        else f"{letter} is better: every p is below {SIGNIFICANT}."
        if letter
        else f"Neither is shown to be better: that needs every p below {SIGNIFICANT}."
    )
    console.print(Text(verdict, style="bold"), soft_wrap=True)
    console.print(
        "The tests ask whether other sentences could have turned the result round. The same recipe "
        "with another seed differs, too.",
        style="dim",
        soft_wrap=True,
    )
    for score in result.scores.values():
        console.print(score.signature, style="dim", soft_wrap=True)


def _print_where(comparison: Comparison) -> None:
    """Where the systems differ: by length, by rare words, and in which sentences."""
    from rich.text import Text

    from dragoman.base import units
    from dragoman.base.terminal import open_console

    console = open_console()
    result = comparison.result
    console.print(
        f"\nSentences by chrF: A ahead in {result.first_wins}, equal {result.ties}, "
        f"B ahead in {result.second_wins}",
        soft_wrap=True,
    )
    for title, groups in (
        ("BLEU by words of the reference", result.by_length),
        (
            f"F1 of words by occurrences in {units.COUNT.text(comparison.counted_pairs)} training "
            "pairs",
            result.by_frequency,
        ),
    ):
        if groups:
            console.print("", _groups(title, groups))
    for title, sentences in (
        ("A ahead the most", result.first_best),
        ("B ahead the most", result.second_best),
    ):
        if sentences:
            console.print()
            console.print(Text(title, style="dim"))
            for sentence in sentences:
                console.print()
                for line in _sentence(sentence):
                    console.print(line, soft_wrap=not console.is_terminal)


def _groups(title: str, groups: tuple[Group, ...]) -> Table:
    from dragoman.base.terminal import plain_table

    table = plain_table(title, right=("how many", "A", "B", "B - A"))
    for group in groups:
        table.add_row(
            group.name,
            f"{group.size:,}",
            f"{group.first:.1f}",
            f"{group.second:.1f}",
            f"{group.second - group.first:+.1f}",
        )
    return table


def _sentence(sentence: SentencePair) -> Iterator[Text]:
    from rich.text import Text

    from dragoman.base.printable import printable_line

    for name, text in (
        (f"line {sentence.line}", sentence.source),
        ("reference", sentence.reference),
        (f"A {sentence.first_chrf:.0f}", sentence.first),
        (f"B {sentence.second_chrf:.0f}", sentence.second),
    ):
        yield Text.assemble((f"{name:<10} ", "dim"), printable_line(text))
