"""A comparison of two models, and of a student and its teacher, for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from dragoman.api.comparison import Comparison
from dragoman.api.distillation import Distilled
from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.base.terminal import open_console, plain_table
from dragoman.evaluation.paired import FEWEST, FEWEST_DIFFERENT, SIGNIFICANT, Group, SentencePair


def print_comparison(comparison: Comparison) -> None:
    """Print scores, p-values and the verdict; then where the systems differ."""
    _print_scores(comparison)
    _print_where(comparison)


def print_distilled(made: Distilled) -> None:
    """Print student and teacher in one table; then the files of both."""
    console = open_console()
    result = made.comparison.result
    table = plain_table("", right=("teacher", "student", "difference"))
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF")):
        score = result.scores[name]
        p = max(score.p_bootstrap, score.p_randomisation)
        difference = f"{score.difference:+.2f} (p {p:.3f})"
        table.add_row(label, f"{score.first:.2f}", f"{score.second:.2f}", difference)
    teacher, student = made.teacher, made.student
    sizes = [units.SIZE.text(one.size_bytes) for one in (teacher, student)]
    table.add_row("size", *sizes, f"{student.size_bytes / teacher.size_bytes:.2f} x")
    rates = [one.sentences_per_s for one in (teacher, student)]
    table.add_row("sentences/s", *(f"{rate:.0f}" for rate in rates), f"{rates[1] / rates[0]:.2f} x")
    beams = [str(one.beam_size) for one in (teacher, student)]
    table.add_row("beam", *beams, "")
    pairs = units.COUNT.text(made.synthesized.pairs)
    has_own = len(made.run.recipe().corpus.train) > 1
    beside = " and from the teacher's own pairs" if has_own else " alone"
    console.print("", table, "")
    console.print(
        f"On {units.COUNT.text(result.pairs)} sentences of the teacher's test set; the student "
        f"learnt from {pairs} translations{beside}."
    )
    for name, path in (
        ("text", made.synthesized.output),
        ("run of the student", made.run.path),
        ("export of the student", student.path),
        ("export of the teacher", teacher.path),
    ):
        console.print(f"{name}: {printable_line(str(path))}", soft_wrap=True, markup=False)


def _print_scores(comparison: Comparison) -> None:
    """Print scores, p-values and the verdict."""
    console = open_console()
    result = comparison.result
    sentences = f"{units.COUNT.text(result.pairs)} sentences"
    title = f"{printable_line(comparison.test)}: {sentences}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(f"A  {printable_line(comparison.first)}", soft_wrap=True, markup=False)
    console.print(f"B  {printable_line(comparison.second)}", soft_wrap=True, markup=False)
    right = ("A", "B", "B - A", "p bootstrap", "p randomisation")
    table = plain_table("", right=right)
    for name, score in result.scores.items():
        table.add_row(
            {"bleu": "BLEU", "chrf": "chrF", "comet": "COMET"}[name],
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
        else f"Neither is shown to be better: that needs {FEWEST_DIFFERENT} sentences that differ."
        if result.pairs - result.ties < FEWEST_DIFFERENT
        else f"{letter} is better: every p is below {SIGNIFICANT}."
        if letter
        else "Neither is shown to be better: the scores disagree."
        if all(score.winner for score in result.scores.values())
        else f"Neither is shown to be better: that needs every p below {SIGNIFICANT}."
    )
    console.print(Text(verdict, style="bold"))
    console.print(
        "The tests ask whether other sentences could have turned the result round. The same recipe "
        "with another seed differs, too.",
        style="dim",
    )
    for score in result.scores.values():
        console.print(score.signature, style="dim", soft_wrap=True)


def _print_where(comparison: Comparison) -> None:
    """Print where the systems differ: by length, by rare words, and in which sentences."""
    console = open_console()
    result = comparison.result
    console.print(
        f"\nSentences by chrF: A ahead in {result.first_wins}, equal {result.ties}, "
        f"B ahead in {result.second_wins}"
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
        ("A furthest ahead", result.first_best),
        ("B furthest ahead", result.second_best),
    ):
        if sentences:
            console.print()
            console.print(Text(title, style="dim"))
            for sentence in sentences:
                console.print()
                for line in _sentence(sentence):
                    console.print(line, soft_wrap=not console.is_terminal)


def _groups(title: str, groups: tuple[Group, ...]) -> Table:

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

    for name, text in (
        (f"line {sentence.line}", sentence.source),
        ("reference", sentence.reference),
        (f"A {sentence.first_chrf:.0f}", sentence.first),
        (f"B {sentence.second_chrf:.0f}", sentence.second),
    ):
        yield Text.assemble((f"{name:<10} ", "dim"), printable_line(text))
