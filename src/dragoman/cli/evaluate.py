"""`dragoman evaluate`: translate a test set and score it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dragoman.cli import options as shared
from dragoman.cli.options import Commands, positive


def add_parser(commands: Commands) -> None:
    """Add `dragoman evaluate`."""
    parser = commands.add_parser(
        "evaluate",
        help="translate a test set and score it",
        description="Translate a test set and score it: BLEU and chrF with signature and interval.",
    )
    shared.add_model(parser)
    parser.add_argument("--source", type=Path, help="source text (default: the run's test set)")
    parser.add_argument("--reference", type=Path, help="its reference translation")
    shared.add_target(parser)
    parser.add_argument("--ranks", type=positive, default=1, help="processes (default: 1)")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Translate a test set and score it."""
    from dragoman.api.training import evaluate

    evaluate(
        options.run,
        checkpoint=options.checkpoint,
        source=options.source,
        reference=options.reference,
        target_language=options.target,
        ranks=options.ranks,
        overrides=options.overrides,
        progress=True,
    )
    return 0
