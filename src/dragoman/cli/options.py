"""Options that several commands share, and the parser they are added to."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

RECIPE_HELP = "a shipped recipe (see: dragoman recipes), or a TOML file"


class Parser(argparse.ArgumentParser):
    """Prints its errors on one line, as all other parts do."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line, and end with exit code 2."""
        if message.endswith(" expected one argument"):
            message += "; one that begins with a dash is written OPTION=VALUE"
        self.exit(2, f"dragoman: {message}; see: {self.prog} --help\n")

    def refuse_empty_words(self, words: Sequence[str]) -> None:
        """End with exit code 2 if a word is empty: as a path it would mean the current folder."""
        for number, word in enumerate(words, 1):
            if not word.strip() or re.fullmatch(r"--[a-z-]+=\s*", word):
                self.error(
                    f"word {number} after dragoman, {word!r}, is empty; if a variable of the shell "
                    "stands there, it is not set"
                )


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""The object to which each command adds its parser."""


def positive(text: str) -> int:
    """A whole number above 0."""
    with contextlib.suppress(ValueError):
        if (value := int(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")


def add_recipe(parser: Parser) -> None:
    """RECIPE and --set."""
    parser.add_argument("recipe", metavar="RECIPE", help=RECIPE_HELP)
    add_overrides(parser)


def add_overrides(parser: Parser) -> None:
    """--set SECTION.KEY=VALUE, any number of times."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        help="override a value of the recipe; may be given again",
    )


def add_model(parser: Parser, name: str = "RUN", meaning: str = "a run directory") -> None:
    """A run, the checkpoint of it that is meant, and --set."""
    parser.add_argument("run", type=Path, metavar=name, help=meaning)
    parser.add_argument(
        "--checkpoint",
        default="best",
        help="best (by BLEU if measured, else dev loss), last, a step or a directory; "
        "for translate several, joined by commas, make an ensemble",
    )
    add_overrides(parser)


def add_target(parser: Parser) -> None:
    """--target, for models of several languages."""
    parser.add_argument(
        "--target",
        default="",
        metavar="LANGUAGE",
        help="the language to translate into, of a model of several",
    )


def add_hosts(parser: Parser, *, required: bool = False) -> None:
    """--hosts, a file or the inline form."""
    parser.add_argument(
        "--hosts", required=required, help="hosts.toml, or the inline form 10.0.0.1:2,10.0.0.2:1"
    )


def add_places(parser: Parser) -> None:
    """Where runs and shards lie, and how many processes prepare."""
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="the folder of all runs (default: runs)"
    )
    parser.add_argument("--prepared", type=Path, help="shards (default: prepared/NAME-DIGEST)")
    parser.add_argument(
        "--workers", type=positive, default=None, help="processes that prepare (default: cores)"
    )


def add_training(parser: Parser) -> None:
    """The number of ranks, and whether to start again."""
    parser.add_argument(
        "--ranks", type=positive, default=None, help="processes that train (default: GPUs, or 1)"
    )
    parser.add_argument("--fresh", action="store_true", help="start again, resume nothing")


def add_cores(parser: Parser) -> None:
    """How much of the machine translation may take."""
    parser.add_argument("--threads", type=positive, help="cores (default: all)")
    parser.add_argument(
        "--batch-cells", type=positive,
        help="rows x longest source x beam searched together on a core (default: 2048 for "
        "Transformer-base, more for a smaller model); fewer take less memory",
    )  # fmt: skip
