"""`dragoman push`: a model to the Hugging Face Hub."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman push`."""
    parser = commands.add_parser(
        "push",
        help="a model to the Hugging Face Hub, with its card",
        description="Export a model in Hugging Face form and send it to the Hugging Face Hub with"
        " its card, in one commit.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "--to", required=True, dest="hub_id", metavar="OWNER/NAME", help="of the model on the Hub"
    )
    parser.add_argument("--checkpoint", default="best", help="as for translate")
    parser.add_argument(
        "--licence", default="Not stated.", help="of the model, for its card, such as CC-BY-4.0"
    )
    parser.add_argument(
        "--sentences", type=Path, help="source text to check it on (default: the run's dev set)"
    )
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Export a checkpoint in Hugging Face form, checked, and send it to the Hub."""
    from dragoman.api.translation import push

    pushed = push(
        options.run,
        options.hub_id,
        checkpoint=options.checkpoint,
        licence=options.licence,
        sentences=options.sentences,
        private=options.private,
    )
    print(f"{pushed.url}\n{pushed.commit}")
    return 0
