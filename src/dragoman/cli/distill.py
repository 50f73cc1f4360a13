"""`dragoman distill`: a small, fast model from a larger one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.options import (
    CHECKPOINT,
    RANKS,
    RUNS,
    SET,
    THREADS,
    Command,
    Option,
    Options,
    keywords,
)

if TYPE_CHECKING:
    from dragoman.api.distillation import Distilled


@Command(
    "distill",
    "train a small model on a larger one's output",
    "Train a small, fast student on the translations of a larger model: translate, train, export, "
    "compare.",
    Option("teacher", type=Path, metavar="TEACHER", help="a run directory"),
    Option(
        "recipe",
        nargs="?",
        default="student-small",
        metavar="RECIPE",
        help="of the student: student-small (default), student-tiny, or a TOML file",
    ),
    SET,
    Option(
        "--input",
        type=Path,
        dest="text",
        metavar="INPUT",
        help="text to learn from (default: the teacher's training text)",
    ),
    CHECKPOINT.but(help="of the teacher: best, last, a step or a directory"),
    Option(
        "--quantization",
        choices=["float32", "float16", "int8"],
        default="int8",
        help="of both models as they are compared (default: int8)",
    ),
    RUNS,
    RANKS.but(help="processes that train (default: one a GPU)"),
    THREADS.but(help="cores that translate (default: all)"),
)
def run(options: Options) -> None:
    """Translate, train, export, compare, and print what the student lost and gained."""
    from dragoman.api.distillation import distill

    _print(distill(**keywords(options), progress=True))


def _print(made: Distilled) -> None:
    """One table, and where the parts are."""
    from dragoman.base import units
    from dragoman.base.printable import printable_line
    from dragoman.base.terminal import open_console, plain_table

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
    console.print("", table, "")
    console.print(
        f"On {units.COUNT.text(result.pairs)} sentences of the teacher's test set; the student "
        f"learnt from {pairs} translations.",
        soft_wrap=True,
    )
    for name, path in (
        ("text", made.synthesized.output),
        ("run of the student", made.run.path),
        ("export of the student", student.path),
        ("export of the teacher", teacher.path),
    ):
        console.print(f"{name}: {printable_line(str(path))}", soft_wrap=True, markup=False)
