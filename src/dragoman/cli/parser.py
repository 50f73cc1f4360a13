"""A typed function with a docstring -> a command: its options, their types, defaults and help."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

from dragoman.api.kinds import Between, Option, kinds_of
from dragoman.base.docstrings import Docstring

FOR_PYTHON: Final = ("on_event", "progress")
"""Parameters that are no options: a command shows its progress."""
_NONE: Final = re.compile(r'[;.] (?:None|none|""): (.+?)(?=\. |\.$|$)')
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_LEAST: Final = -(1 << 62)
_WORDS: Final = (({int}, "N"), ({float}, "NUMBER"), ({str, Path}, "PATH"))
"""The words for values that have no word of their own, by their types."""
_AS_FOR: Final = re.compile(r"as for `(\w+)`\.?")


class Command(NamedTuple):
    """A function that is a command, and one that shows the result.

    function, view: module and name, such as "api.training:train". The view gets the result, the
        arguments of the function whose names it has, and options of its own: its other keywords.
    parts: functions that a flag calls in place of this one. One that takes any keywords gets all
        options of the whole command.
    """

    function: str
    view: str = ""
    parts: Mapping[str, Command] = {}

    def load(self) -> Callable[..., Any]:
        """The function."""
        return _load(self.function)

    def load_view(self) -> Callable[..., int | None] | None:
        """The function that shows the result, if there is one."""
        return _load(self.view) if self.view else None

    @property
    def takes_all(self) -> bool:
        """Whether the function takes any keywords."""
        parameters = signature(self.load()).parameters.values()
        return any(one.kind is Parameter.VAR_KEYWORD for one in parameters)

    @property
    def docstring(self) -> Docstring:
        """The docstring of the function."""
        function = self.load()
        return Docstring.of(function, signature(function).parameters)


def _load(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"dragoman.{module}"), name)
    return found


class Parser(argparse.ArgumentParser):
    """A parser that prints its errors on one line, as all of dragoman does.

    No option can be shortened: --token would be --token-file, and print the token as its name.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

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


class Argument(NamedTuple):
    """A parameter as the command line has it.

    flags: none for a positional argument. settings: for `ArgumentParser.add_argument`.
    default: in words; "" if there is none to tell. meaning: without the default.
    """

    name: str
    flags: tuple[str, ...]
    settings: dict[str, Any]
    meaning: str
    default: str

    @property
    def is_required(self) -> bool:
        """Whether a command line without it is refused."""
        return self.settings.get("required", False) or (
            not self.flags and self.settings.get("nargs") not in ("?", "*")
        )

    @property
    def in_usage(self) -> str:
        """How the usage of the command has it; "" if it is optional and has a flag."""
        word = self.settings.get("metavar") or self.name.upper()
        if self.flags:
            return f"{self.flags[-1]} {word}" if self.is_required else ""
        several = {"+": f"{word} [{word} ...]", "*": f"[{word} ...]", "?": f"[{word}]"}
        return several.get(self.settings.get("nargs", ""), word)

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add it to a parser; without a value on the command line, the function's default holds."""
        text = f"{self.meaning} (default: {self.default})" if self.default else self.meaning
        settings = self.settings | {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
        if self.flags:
            settings["dest"] = self.name
        parser.add_argument(*(self.flags or (self.name,)), **settings)


def arguments_of(
    function: Callable[..., Any],
    known: Callable[[str], Command | None],
    but: Collection[str] = FOR_PYTHON,
) -> list[Argument]:
    """The arguments of a command, from the signature and the docstring of its function.

    but: parameters that are none. known: the command whose function has a name; a docstring refers
        to it with "as for `train`".
    """
    parameters = signature(function).parameters
    names = [
        name
        for name, one in parameters.items()
        if name not in but and one.kind is not Parameter.VAR_KEYWORD
    ]
    docstring, kinds = Docstring.of(function, parameters), kinds_of(function, names)
    found = []
    for name in names:
        parameter = parameters[name]
        option, settings, is_flag = _settings(kinds[name], parameter)
        is_option = parameter.kind is Parameter.KEYWORD_ONLY or bool(option.flag)
        flags: tuple[str, ...] = ()
        if is_option:
            flags = tuple((option.flag or f"--{name.replace('_', '-')}").split(", "))
            if parameter.default is Parameter.empty:
                settings["required"] = True
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            settings["nargs"] = "*"
        elif parameter.default is not Parameter.empty:
            settings["nargs"] = "?"
        if option.metavar and not is_flag:
            settings["metavar"] = option.metavar
        elif not is_option and "choices" not in settings:
            settings["metavar"] = name.upper()
        meaning = docstring.meaning(name)
        if (reference := _AS_FOR.fullmatch(meaning)) and (other := known(reference[1])):
            meaning = other.docstring.meaning(name)
        meaning, default = _split_default(meaning, parameter.default)
        found.append(Argument(name, flags, settings, meaning, default))
    return found


def _split_default(meaning: str, default: object) -> tuple[str, str]:
    """The meaning without the words for None, and the default in words."""
    words = ""
    if told := _NONE.search(meaning):
        words = told[1]
        meaning = meaning[: told.start()] + meaning[told.end() :]
    elif isinstance(default, tuple):
        words = ", ".join(map(str, default))
    elif default is True:
        words = "on"
    elif default is not None and default is not False and default is not Parameter.empty:
        words = str(default)
    return meaning.removesuffix(".") if ". " not in meaning else meaning, words


def _settings(kind: Any, parameter: Parameter) -> tuple[Option, dict[str, Any], bool]:
    """How the command line writes a parameter, the settings of argparse, whether it is a flag."""
    kinds = list(_unwrapped(kind))
    # Of annotations inside each other, the last is the outermost.
    extras = [one for outer in kinds for one in reversed(getattr(outer, "__metadata__", ()))]
    option = next((one for one in extras if isinstance(one, Option)), Option())
    bounds = next((one for one in extras if isinstance(one, Between)), None)
    plain = [one for one in kinds if get_origin(one) is not Annotated]
    if plain == [bool]:
        turns_off = parameter.default is True
        action = argparse.BooleanOptionalAction if turns_off else "store_true"
        return option, {"action": action}, True
    settings: dict[str, Any] = {}
    if option.choices is not None:
        settings["choices"] = option.choices()
    for one in plain:
        origin = get_origin(one)
        if origin is Sequence and parameter.kind is Parameter.KEYWORD_ONLY:
            settings["action"] = "append"
        elif origin is Sequence and not option.flag:
            settings["nargs"] = "+"
        if origin is tuple:
            settings["type"] = _pair(option.metavar)
    items = [item for one in plain if get_origin(one) is Sequence for item in get_args(one)]
    items = [item for one in items for item in _unwrapped(one)] or plain
    if any(get_origin(one) is tuple for one in items):
        settings["type"] = _pair(option.metavar)
    literals = [value for one in items if get_origin(one) is Literal for value in get_args(one)]
    types = {one for one in items if isinstance(one, type)}
    if literals and not types:
        settings["choices"] = literals
    elif types == {float}:
        settings["type"] = _finite
    elif types == {int}:
        settings["type"] = _number(bounds or Between(_LEAST), literals)
    if word := next((word for kinds, word in _WORDS if types == kinds), ""):
        settings["metavar"] = word
    return option, settings, False


def _unwrapped(kind: Any) -> Iterator[Any]:
    """The members of a union, the annotations and what they annotate; without None."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield kind
        yield from _unwrapped(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for member in get_args(kind):
            yield from _unwrapped(member)
    elif kind is not type(None):
        yield kind


def _finite(text: str) -> float:
    """A number; nan and inf, which `float` reads, too, are none that a setting can have."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; give one such as 0.5")
    return value


def _number(bounds: Between, words: Sequence[Any]) -> Callable[[str], int | str]:
    """A function that reads a whole number in a range, or one of these words."""

    def read(text: str) -> int | str:
        if text in words:
            return text
        # Python reads 8_0 and digits of other scripts, too.
        value = int(text) if _WHOLE.fullmatch(text) else bounds.least - 1
        if value < bounds.least or (bounds.most is not None and value > bounds.most):
            least, most = bounds
            within = f" from {least} to {most}" if most is not None else f" above {least - 1}"
            within = within if least > _LEAST else ""
            other = "".join(f", nor {word}" for word in words)
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number{within}{other}")
        return value

    return read


def _pair(metavar: str) -> Callable[[str], tuple[str, str]]:
    """A function that reads two words with a comma between them."""

    def read(text: str) -> tuple[str, str]:
        first, _, second = text.partition(",")
        if not (first and second):
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form {metavar}")
        return first, second

    return read
