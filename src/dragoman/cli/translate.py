"""`dragoman translate`: lines of text, files or documents."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dragoman.cli import options as shared
from dragoman.cli.options import Commands, positive


def add_parser(commands: Commands) -> None:
    """Add `dragoman translate`."""
    parser = commands.add_parser(
        "translate",
        help="translate lines of text or documents",
        description="Translate lines, documents or text with tags. Several checkpoints make an "
        "ensemble.",
    )
    shared.add_model(parser, "RUN|BUNDLE", "a run directory, or what dragoman export has written")
    shared.add_target(parser)
    parser.add_argument("--input", type=Path, help="text, a sentence a line (default: stdin)")
    parser.add_argument(
        "--output",
        type=Path,
        help="where to write it (default: stdout); with --input, the same command goes on after "
        "a break",
    )
    parser.add_argument(
        "--n-best",
        type=positive,
        default=1,
        metavar="N",
        help="N translations a line, scored",
    )
    parser.add_argument("--scores", action="store_true", help="score TAB translation")
    parser.add_argument(
        "--format",
        choices=["line", "document", "markup"],
        default="line",
        help="line: a sentence a line. document: lines are split into sentences and put back. "
        "markup: tags of HTML or XML stay where they are as well",
    )
    parser.add_argument(
        "--engine",
        choices=["auto", "ctranslate2", "torch"],
        default="auto",
        help="auto: CTranslate2 on a CPU where it is installed",
    )
    parser.add_argument(
        "--quantization",
        choices=["float32", "int8"],
        help="int8: with CTranslate2 a third faster; a few lines in a hundred differ",
    )
    shared.add_cores(parser)
    parser.add_argument(
        "-i",
        "--inspect",
        action="store_true",
        help="line by line, with pieces and attention (at a terminal also: type ? after a line)",
    )
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Translate lines of text; at a terminal each as it is typed."""
    from dragoman.serve.translate import translate

    return translate(options)
