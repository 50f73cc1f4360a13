"""`dragoman COMMAND ...`: from the words of a command line to the call of a function."""

from __future__ import annotations

import gc
import os
import re
import sys
import textwrap
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import Any

from dragoman.base.errors import DragomanError
from dragoman.base.interrupts import interrupts_raise
from dragoman.base.process import allow_open_files, prepare_streams, report
from dragoman.base.threads import thread_environment
from dragoman.base.version import VERSION
from dragoman.cli.commands import COMMANDS, GROUPS, command_of
from dragoman.cli.parser import FOR_PYTHON, Argument, Command, Parser, arguments_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: the command's own, or that of the error's class.

    An error is one line on standard error.
    """
    prepare_streams()
    allow_open_files()
    try:
        call = parsed(list(sys.argv[1:] if arguments is None else arguments))
        interrupts_raise()
        os.environ.update(thread_environment())
        gc.enable()
        code = call()
        sys.stdout.flush()  # when the process ends it would be too late for an error message
    except SystemExit:  # from the parser, which has printed its own message
        try:
            sys.stdout.flush()
        except OSError as error:
            return report(error)
        raise
    except BaseException as error:
        if isinstance(error, DragomanError):
            error.show_more()
        return report(error)
    return code


def root_parser() -> Parser:
    """The parser of `dragoman` itself, whose help lists the commands."""
    parser = Parser(
        prog="dragoman",
        usage="dragoman [-h] [--version] COMMAND ...",
        description="Parallel text in, a measured translation model out.",
        epilog="A first try: dragoman run demo --ranks 2\n"
        "The options of a command: dragoman COMMAND --help",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dragoman {VERSION}")
    parser.add_argument("command", metavar="COMMAND", help=SUPPRESS)
    for title, commands in GROUPS.items():
        listed = [
            f"{name:<12}{command.docstring.summary.removesuffix('.')}"
            for name, command in commands.items()
        ]
        parser.add_argument_group(title, "\n".join(listed))
    return parser


def command_parser(name: str, flag: str = "") -> tuple[Parser, list[Argument]]:
    """The parser of a command, or of the part of it that a flag calls; and its arguments."""
    command = COMMANDS[name].parts[flag] if flag else COMMANDS[name]
    listed = _arguments(command)
    if command.takes_all:
        listed = _arguments(COMMANDS[name]) + listed
    is_needed = flag and not any(flag in argument.flags for argument in listed)
    usage = ["dragoman", name, *([flag] if is_needed else ())]
    parts = [f"  {one}: {part.docstring.summary}" for one, part in command.parts.items()]
    parser = Parser(
        prog=" ".join(usage),
        description="\n\n".join(command.docstring.opening),
        epilog="\n".join(["instead, with options of their own:", *parts]) if parts else None,
        formatter_class=_Formatter,
    )
    for argument in listed:
        argument.add_to(parser)
    words = [argument.in_usage for argument in listed]
    rest = ["[OPTIONS]"] if "" in words else []
    parser.usage = " ".join([*usage, *filter(None, words), *rest])
    return parser, listed


class _Formatter(RawDescriptionHelpFormatter):
    """Fills paragraphs, and each line of the list of parts."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("instead,"):
            lines = text.splitlines()
            return "\n".join(textwrap.fill(line, width, subsequent_indent="    ") for line in lines)
        fill = super(RawDescriptionHelpFormatter, self)._fill_text
        return "\n\n".join(fill(one, width, indent) for one in text.split("\n\n"))


def _arguments(command: Command) -> list[Argument]:
    """The arguments of a command's function, and the options of its view."""
    listed = arguments_of(command.load(), command_of)
    if view := command.load_view():
        known = {*signature(command.load()).parameters, next(iter(signature(view).parameters))}
        listed += arguments_of(view, command_of, known)
    return listed


def parsed(words: list[str]) -> Callable[[], int]:
    """The call that a command line asks for; ends the process for help and for errors."""
    if not words or words[0] not in COMMANDS:
        root = root_parser()
        root.refuse_empty_words(words)
        name = root.parse_args(words[:1]).command
        of_parts = [f"{one} --{name}" for one in COMMANDS if f"--{name}" in COMMANDS[one].parts]
        near = of_parts or get_close_matches(name, COMMANDS, n=1)
        root.error(f"{name} is not a command" + (f"; did you mean {near[0]}?" if near else ""))
    name, *rest = words
    parts = COMMANDS[name].parts
    flag = next((one for one in parts for word in rest if word.partition("=")[0] == one), "")
    command = parts[flag] if flag else COMMANDS[name]
    parser, listed = command_parser(name, flag)
    if flag and not any(flag in argument.flags for argument in listed):
        if flag not in rest:
            parser.error(f"{flag} takes no value")
        rest.remove(flag)
    parser.refuse_empty_words(words)
    if "--help" in rest:  # also behind an option that has no value yet
        parser.parse_args(["--help"])
    options, unknown = parser.parse_known_args(rest)
    if unknown:  # the value of an unknown option may be a secret
        options_alone = [one.partition("=")[0] for one in unknown if one.startswith("-")]
        parser.error(f"unrecognized arguments: {' '.join(options_alone or unknown)}")
    call = partial(_call, command, vars(options))

    def with_options_named() -> int:
        try:
            return call()
        except DragomanError as error:
            error.set_words(
                place=_in_words_of_options(error.place, listed),
                remedy=in_words_of_options(error.remedy, listed),
            )
            raise

    return with_options_named


def in_words_of_options(text: str, arguments: Sequence[Argument]) -> str:
    """An error's words for somebody who types: settings such as n_best are options, --n-best.

    Only names that are no English words are replaced, and no keys of a recipe.
    """
    for one in arguments:
        if "_" in one.name and one.flags:
            text = re.sub(rf"(?<![\w.]){one.name}(?!\w|\s*=)", one.flags[-1], text)
    return text


def _in_words_of_options(place: str, arguments: Sequence[Argument]) -> str:
    """A place that begins with a setting, such as trusted_proxies 10.0.0.0/33, in the same words.

    Not if it is part of the name of a file.
    """
    name, space, rest = place.partition(" ")
    return f"{in_words_of_options(name, arguments)}{space}{rest}" if name.isidentifier() else place


def _call(command: Command, given: dict[str, Any]) -> int:
    """Call the function, then the view with its result; returns the exit code."""
    function, view = command.load(), command.load_view()
    several: list[Any] = []
    named: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        if name in FOR_PYTHON:
            named |= {"progress": True} if name == "progress" else {}
        elif name in given and parameter.kind is parameter.VAR_POSITIONAL:
            several = given[name]
        elif name in given:
            named[name] = given[name]
    if command.takes_all:
        named |= given
    if several:  # those before it have no names then
        first = [one for one in signature(function).parameters if one in named]
        before = [one for one in first if _is_positional(function, one)]
        several = [*(named.pop(one) for one in before), *several]
    result = function(*several, **named)
    if view is None:
        return result if isinstance(result, int) else 0
    parameters = [*signature(view).parameters][1:]
    shown = {name: given[name] for name in parameters if name in given}
    return view(result, **shown) or 0


def _is_positional(function: Callable[..., Any], name: str) -> bool:
    parameter = signature(function).parameters[name]
    return parameter.kind is parameter.POSITIONAL_OR_KEYWORD
