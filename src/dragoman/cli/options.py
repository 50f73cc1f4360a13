"""Commands and their options, as data; the options that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, TypeAlias

from dragoman.formats.kinds import NOT_STATED

Options: TypeAlias = argparse.Namespace
"""The values of a command's options."""
CommandFunction: TypeAlias = Callable[[Options], int | None]
"""The function of a command; it returns the exit code, or None for 0."""


class _HelpFormatter(argparse.HelpFormatter):
    """The formatter of argparse with a width of its own: to find it, argparse imports `shutil` and
    with it four compression modules, which takes 6% of `dragoman --help`."""

    def __init__(self, prog: str) -> None:
        columns = 0
        with contextlib.suppress(ValueError):
            columns = int(os.environ.get("COLUMNS", ""))
        if columns <= 0:
            try:
                columns = os.get_terminal_size().columns or 80
            except OSError:  # standard output is no terminal
                columns = 80
        super().__init__(prog, width=columns - 2)


class Parser(argparse.ArgumentParser):
    """A parser that prints its errors on one line, as all of dragoman does."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=_HelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line, and end with exit code 2."""
        if message.endswith(" expected one argument"):
            message += "; if it begins with a dash, write OPTION=VALUE"
        self.exit(2, f"dragoman: {message}; see: {self.prog} --help\n")

    def refuse_empty_words(self, words: Sequence[str]) -> None:
        """End with exit code 2 if a word is empty: as a path it would mean the current folder."""
        for number, word in enumerate(words, 1):
            name, has_value, value = word.partition("=")
            is_empty = has_value and name.startswith("--") and not value.strip()
            if not word.strip() or is_empty:
                self.error(
                    f"word {number} after dragoman, {word!r}, is empty; if a variable of the shell "
                    "stands there, it is not set"
                )


class Option:
    """An option or a positional argument, with the settings of `ArgumentParser.add_argument`.

    An option that is passed unchanged to a function of `dragoman.api` has its parameter's name.
    """

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings

    def but(self, **settings: Any) -> Option:
        """The same option with other settings."""
        return Option(*self.names, **(self.settings | settings))


class Command:
    """A command; as a decorator it takes the function that does the work.

    summary: for the list of all commands. description: for the command's own help.
    options: those that the command accepts; only one of the options in a tuple can be given.
    """

    def __init__(
        self, name: str, summary: str, description: str, *options: Option | tuple[Option, ...]
    ) -> None:
        self.name = name
        self.summary = summary
        self.description = description
        self.options = options

    def __call__(self, run: CommandFunction) -> Self:
        """Take the function that does the work."""
        self.run = run
        return self

    def add_to(self, commands: argparse._SubParsersAction[Parser], *, options: bool) -> None:
        """Add the parser of this command to that of `dragoman`. options: whether it gets any."""
        parser = commands.add_parser(
            self.name, help=self.summary, description=self.description, add_help=options
        )
        parser.set_defaults(run_command=self.run, refuse=parser.error)
        for option in self.options if options else ():
            if isinstance(option, Option):
                parser.add_argument(*option.names, **option.settings)
                continue
            group = parser.add_mutually_exclusive_group()
            for one in option:
                group.add_argument(*one.names, **one.settings)


def keywords(options: Options, *but: str) -> dict[str, Any]:
    """The values of all options except these, for the parameters of the same names."""
    return {name: value for name, value in vars(options).items() if name not in but}


def positive(text: str) -> int:
    """A whole number above 0; raises ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if (value := int(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")


def models(text: str) -> list[str]:
    """Names of models, separated by commas; raises ArgumentTypeError if one is empty."""
    names = text.split(",")
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name between commas")
    return names


RECIPE = Option(
    "recipe",
    metavar="RECIPE",
    help="a shipped recipe (see: dragoman recipes), or a TOML file",
)
SET = Option(
    "--set",
    action="append",
    default=[],
    dest="overrides",
    metavar="SECTION.KEY=VALUE",
    help="override a value of the recipe; may be given again",
)
FROM = Option(
    "--from",
    dest="origin",
    type=Path,
    metavar="BUNDLE|RUN|FOLDER",
    help="start from the weights and vocabulary of a bundle, a run or a model in Hugging Face form "
    "(exported by dragoman or not)",
)
RUN = Option("run", type=Path, metavar="RUN", help="a run directory")
RUN_OR_BUNDLE = RUN.but(metavar="RUN|BUNDLE", help="a run directory, or an export")
CHECKPOINT = Option(
    "--checkpoint",
    default="best",
    help="best (by BLEU if measured, else by dev loss), last, a step, or a directory of a "
    "checkpoint (write ./best for one of that name); a run stands for its best checkpoint; "
    "for translate and synthesize, several joined by commas make an ensemble",
)
TARGET = Option(
    "--target",
    default="",
    dest="target_language",
    metavar="LANGUAGE",
    help="the language to translate into, if the model has several",
)
LICENCE = Option("--licence", default=NOT_STATED, help="the licence of the model, for its card")
SENTENCES = Option(
    "--sentences", type=Path, help="source text for the check (default: the run's dev set)"
)
HOSTS = Option("--hosts", help="hosts.toml, or the inline form 10.0.0.1:2,10.0.0.2:1")
RUNS = Option(
    "--runs", type=Path, default=Path("runs"), help="the folder of all runs (default: runs)"
)
PREPARED = Option(
    "--prepared", type=Path, help="the folder of the shards (default: prepared/NAME-DIGEST)"
)
WORKERS = Option("--workers", type=positive, help="processes that prepare (default: one per core)")
PLACES = (RUNS, PREPARED, WORKERS)
"""The folders of runs and shards, and the number of processes that prepare."""
RANKS = Option("--ranks", type=positive, help="processes that train (default: one per GPU, or 1)")
FRESH = Option("--fresh", action="store_true", help="start again, resume nothing")
PRICE = Option("--price", help='the price of one machine for an hour, such as "3 USD"')
ANY_LANGUAGE = Option(
    "--any-language",
    action="store_true",
    help="accept text even if it seems to be in another language",
)
THREADS = Option("--threads", type=positive, help="cores (default: all)")
BATCH_CELLS = Option(
    "--batch-cells",
    type=positive,
    help="rows x longest source x beam searched together on a core (default: 2048 for "
    "Transformer-base, more for a smaller model); fewer take less memory",
)
QUANTIZATION = Option(
    "--quantization",
    choices=["float32", "int8"],
    help="the type of the weights; int8 with CTranslate2 is 10 to 40%% faster, and changes about "
    "a tenth of the lines",
)
RAY = Option(
    "--ray",
    metavar="ADDRESS",
    help="let the nodes of a Ray cluster do the work: HOST:PORT of its head, or auto for the "
    "cluster of this machine",
)
JSON = Option("--json", action="store_true", help="print JSON")
