"""`dragoman evaluate`: translate a test set and score it."""

from pathlib import Path

from dragoman.cli.options import (
    CHECKPOINT,
    RANKS,
    RUN_OR_BUNDLE,
    SET,
    TARGET,
    Command,
    Option,
    Options,
    keywords,
)


@Command(
    "evaluate",
    "translate a test set and score it",
    "Translate a test set and score it: BLEU and chrF with signature and interval.",
    *(RUN_OR_BUNDLE, CHECKPOINT, SET),
    Option(
        "--source", type=Path, help="source text (default: the run's test set; an export has none)"
    ),
    Option("--reference", type=Path, help="its reference translation"),
    TARGET,
    RANKS.but(default=1, help="processes that score a run (default: 1)"),
)
def run(options: Options) -> None:
    """Translate a test set and score it."""
    from dragoman.api.training import evaluate

    evaluate(**keywords(options), progress=True)
