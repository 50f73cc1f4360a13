"""`dragoman compare`: whether one of two models is better, or the difference is chance."""

import argparse
from functools import partial
from pathlib import Path

from dragoman.cli.options import JSON, TARGET, THREADS, Command, Option, Options, keywords


def _two(text: str, metavar: str) -> tuple[str, str]:
    first, _, second = text.partition(",")
    if not (first and second):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form {metavar}")
    return first, second


_MODEL = {
    "type": Path,
    "metavar": "RUN|EXPORT|FILE",
    "help": "a run, a checkpoint in it, an export, or a file of translations",
}


@Command(
    "compare",
    "test whether one of two models is better",
    "Say whether one of two models is better: BLEU, chrF and, if available, COMET with paired "
    "tests, by length and by rare words, and the sentences that differ most.",
    *(Option("first", **_MODEL), Option("second", **_MODEL)),
    Option(
        "--test",
        type=partial(_two, metavar="SOURCE,REFERENCE"),
        action="append",
        default=[],
        dest="tests",
        metavar="SOURCE,REFERENCE",
        help="a test set (default: that of the runs); may be given again",
    ),
    *(TARGET, THREADS),
    Option(
        "--comet",
        type=partial(_two, metavar="PYTHON,CHECKPOINT"),
        metavar="PYTHON,CHECKPOINT",
        help="also score with COMET: a Python that has unbabel-comet, and a checkpoint here",
    ),
    JSON,
)
def run(options: Options) -> None:
    """Translate the test sets with both models and print the comparison."""
    import json
    from dataclasses import asdict

    from dragoman.api.comparison import compare
    from dragoman.cli.comparison_view import print_comparison

    found = compare(**keywords(options, "json"))
    if options.json:
        values = [asdict(one) | {"better": one.better} for one in found]
        print(json.dumps(values, indent=1))  # in ASCII: no text can send escape sequences
        return
    for one in found:
        print_comparison(one)
