"""Errors in the words of Python: the arguments of a function in place of a command's options.

The packages below name the options of the command line, which most people use. Functions that are
called from Python name their own arguments.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_NAMES: Final = {
    "from": ("origin",),
    "input": ("text", "pairs"),
    "prepared": ("prepared", "directory"),
    "sample": ("sampling",),
    "set": ("overrides",),
    "target": ("target_language",),
    "test": ("tests",),
    "to": ("to", "hub_id", "output"),
}
"""The arguments that an option's name stands for; others have the option's own name."""
_COMMAND: Final = r"\bdragoman [a-z]+ [^;,:`]*"
"""A line to be typed into a shell, whose options stay."""
_OPTION: Final = (
    r"(?<![\w-])--(?:set(?: (?P<override>[^;]+))?(?![\w-])|(?P<option>[a-z][a-z-]*)"
    r"(?:[ =](?P<value>[^\s;]+?)(?=[,:]?(?:[\s;]|$)))?)"
)
_WORDS: Final = re.compile(f"(?P<command>{_COMMAND})|{_OPTION}")
_NO_VALUES: Final = frozenset({
    "and", "cannot", "for", "has", "is", "needs", "or", "says", "that", "to", "where", "which",
    "with", "without",
})  # fmt: skip
"""Words after an option that are no value of it."""
_FLAGS: Final = ("fresh", "private")


def in_python(words: str, parameters: Collection[str]) -> str:
    """The words with the names of a function's parameters in place of options.

    `--to onnx` becomes `to="onnx"`, and `--set key=value` becomes `overrides=["key=value"]`.
    """

    def argument(found: re.Match[str]) -> str:
        option, value = found["option"] or "set", found["override"] or found["value"]
        if found["command"]:
            return found[0]
        names = _NAMES.get(option, (option.replace("-", "_"),))
        name = next((one for one in names if one in parameters), names[0])
        if value is None and option in _FLAGS:
            return f"{name}=True"
        if value is None or value in _NO_VALUES:
            rest = found[0].removeprefix(f"--{option}")
            return name if found[0] == words else f"`{name}`{rest}"
        if option == "set":
            made = f"[{_quoted(value)}]"
            return f"{name}={made}" if name in parameters else f"load_recipe(..., {made})"
        if option == "test":
            return f"{name}=[({value.replace(',', ', ')})]"
        return f"{name}={_quoted(value)}"

    return _WORDS.sub(argument, words)


def _quoted(value: str) -> str:
    return f"{value!r}" if '"' in value else f'"{value}"'
