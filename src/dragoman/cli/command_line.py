"""`dragoman COMMAND ...`: one parser, one module per command.

In the module of a command, `@Command` gives its name and options; the function below it does the
work. The function itself imports heavy modules, so that `dragoman --help` starts at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from dragoman.base.errors import NAMES_OPTIONS
from dragoman.base.interrupts import interrupts_raise
from dragoman.base.process import prepare_streams, report
from dragoman.base.threads import thread_environment
from dragoman.base.version import VERSION
from dragoman.cli import (
    average,
    build,
    compare,
    distill,
    doctor,
    evaluate,
    export,
    generate,
    import_model,
    inspect,
    join,
    plan,
    prepare,
    push,
    recipes,
    resume,
    score,
    serve,
    setup,
    status,
    stop,
    synthesize,
    train,
    translate,
    watch,
)
from dragoman.cli import report as report_command
from dragoman.cli import run as run_command
from dragoman.cli.options import Options, Parser

_COMMANDS: Final = (
    *(run_command, build, prepare, train, recipes, plan),
    *(evaluate, compare, translate, export, push, import_model, serve, average),
    *(synthesize, score, distill),
    *(report_command, watch, inspect),
    *(doctor, setup, resume, stop, status),
    *(generate, join),
)
"""The modules of the commands, in the order of `dragoman --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: the command's own, or that of the error's class.

    An error is one line on standard error.
    """
    prepare_streams()
    options_before = NAMES_OPTIONS.set(True)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        parser = command_parser(words)
        parser.refuse_empty_words(words)
        options, unknown = parser.parse_known_args(words)
        run: Callable[[Options], int | None] = vars(options).pop("run_command")
        refuse: Callable[[str], NoReturn] = vars(options).pop("refuse")
        if unknown:  # the parser would name its own help, not that of the command
            refuse(f"unrecognized arguments: {' '.join(unknown)}")
        interrupts_raise()
        os.environ.update(thread_environment())
        gc.enable()
        code = run(options) or 0
        sys.stdout.flush()  # when the process ends it would be too late for an error message
    except SystemExit:  # from the parser, which has printed its own message
        try:
            sys.stdout.flush()
        except OSError as error:
            return report(error)
        raise
    except BaseException as error:
        return report(error)
    finally:
        NAMES_OPTIONS.reset(options_before)
    return code


def command_parser(words: Sequence[str] | None = None) -> Parser:
    """The parser of `dragoman`, with that of each command.

    words: only the commands among these get their options, because adding those of all takes longer
    than the rest of the parser. None: all commands get them.
    """
    parser = Parser(
        prog="dragoman",
        description="Parallel text in, a measured translation model out.",
        epilog="A first try: dragoman run demo --ranks 2",
    )
    parser.add_argument("--version", action="version", version=f"dragoman {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for module in _COMMANDS:
        module.run.add_to(commands, options=words is None or module.run.name in words)
    return parser
