"""`dragoman distill`: a small, fast model from a larger one."""

from pathlib import Path

from dragoman.cli.options import (
    ANY_LANGUAGE,
    CHECKPOINT,
    RANKS,
    RUNS,
    SET,
    THREADS,
    Command,
    Option,
    Options,
    keywords,
    positive,
)


@Command(
    "distill",
    "train a small model on a larger one's output",
    "Train a small, fast student on the translations and the pairs of a larger model: translate, "
    "train, export, compare.",
    Option("teacher", type=Path, metavar="TEACHER", help="a run directory"),
    Option(
        "recipe",
        nargs="?",
        default="student-small",
        metavar="RECIPE",
        help="the recipe of the student: student-small (default), student-tiny, or a TOML file",
    ),
    SET,
    Option(
        "--input",
        type=Path,
        dest="text",
        metavar="INPUT",
        help="text to learn from (default: the teacher's training text)",
    ),
    ANY_LANGUAGE,
    Option(
        "--n-best",
        type=positive,
        default=1,
        metavar="N",
        help="learn N translations of each sentence (default: 1)",
    ),
    Option(
        "--synthetic-only",
        action="store_true",
        help="learn from translations alone, not from the teacher's own pairs as well",
    ),
    CHECKPOINT.but(help="the checkpoint of the teacher: best, last, a step or a directory"),
    Option(
        "--quantization",
        choices=["float32", "float16", "int8"],
        default="int8",
        help="the type of the weights of both models in the comparison (default: int8)",
    ),
    RUNS,
    RANKS,
    THREADS.but(help="cores that translate (default: all)"),
)
def run(options: Options) -> None:
    """Translate, train, export and compare; then print the losses and gains of the student."""
    from dragoman.api.distillation import distill
    from dragoman.cli.comparison_view import print_distilled

    print_distilled(distill(**keywords(options), progress=True))
