"""docs/reference/commands.md: every command with its options, from the parsers themselves."""

from __future__ import annotations

import argparse
import re

from dragoman.cli.command_line import command_parser

HEADER = """# Commands

Every command and every option, written by `tools/write_reference.py` from the parsers; `dragoman
COMMAND --help` says the same. A value of the recipe is overridden with `--set section.key=value`
([recipe](recipe.md)). Exit codes: [errors](errors.md).
"""
HOW_TO = {
    "run": "../tutorial.md",
    "prepare": "../how-to/own-data.md",
    "plan": "../how-to/plan.md",
    "compare": "../how-to/monolingual.md#4-was-it-worth-it",
    "export": "../how-to/serve.md#export",
    "push": "../how-to/serve.md#put-it-on-the-hugging-face-hub",
    "import": "../how-to/import.md",
    "serve": "../how-to/serve.md",
    "synthesize": "../how-to/monolingual.md",
    "distill": "../how-to/monolingual.md#5-a-small-fast-model",
    "report": "../how-to/watch.md",
    "watch": "../how-to/watch.md",
    "doctor": "../how-to/two-machines.md",
    "setup": "../how-to/two-machines.md",
    "generate": "../how-to/schedulers.md",
    "join": "../how-to/schedulers.md",
}
"""The page that shows a command at work."""
DEFAULT = re.compile(r" ?\(default: ([^)]*)\)")
"""The words of a help for the value without the option."""
NO_VALUE = (argparse._StoreTrueAction, argparse._StoreFalseAction)


def page() -> str:
    """The whole page."""
    (commands,) = (
        action
        for action in command_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    assert set(HOW_TO) <= set(commands.choices), "HOW_TO names a command that is not there"
    summaries = {action.dest: action.help for action in commands._choices_actions}
    rows = "".join(
        f"| [`dragoman {name}`](#dragoman-{name}) | {cell(str(summaries[name]))} |\n"
        for name in commands.choices
    )
    return f"{HEADER}\n| command | work |\n|---|---|\n{rows}" + "".join(
        section(name, parser) for name, parser in commands.choices.items()
    )


def section(name: str, parser: argparse.ArgumentParser) -> str:
    """A command: what it does, how it is called, its options."""
    assert parser.description, f"dragoman {name} has no description"
    actions = [one for one in parser._actions if not isinstance(one, argparse._HelpAction)]
    words = [usage(one) for one in actions if not one.option_strings]
    needed = [f"{called(one)}" for one in actions if one.option_strings and one.required]
    options = (
        ["[OPTIONS]"] if any(one.option_strings and not one.required for one in actions) else []
    )
    call = " ".join(["dragoman", name, *words, *needed, *options])
    rows = "".join(
        f"| `{escaped(called(one))}` | {meaning(name, one)} | {default(one)} |\n" for one in actions
    )
    shown = f" See [how]({HOW_TO[name]})." if name in HOW_TO else ""
    table = f"\n| argument | meaning | default |\n|---|---|---|\n{rows}" if rows else ""
    return f"\n## dragoman {name}\n\n{parser.description}{shown}\n\n```\n{call}\n```\n{table}"


def usage(action: argparse.Action) -> str:
    """A positional argument as it stands in a call."""
    word = called(action)
    several = {"+": f"{word} [{word} ...]", "*": f"[{word} ...]", "?": f"[{word}]"}
    return several.get(str(action.nargs), word)


def called(action: argparse.Action) -> str:
    """How an argument is written, with what it takes."""
    metavar = str(action.metavar or action.dest.upper())
    value = "|".join(map(str, action.choices)) if action.choices else metavar
    if not action.option_strings:
        return value
    flag = ", ".join(action.option_strings)
    return flag if isinstance(action, NO_VALUE) else f"{flag} {value}"


def meaning(command: str, action: argparse.Action) -> str:
    """The help of an argument, without the default, which has its own column."""
    assert action.help, f"{called(action)} of dragoman {command} has no help"
    return cell(DEFAULT.sub("", action.help % {"default": action.default}).strip("; "))


def default(action: argparse.Action) -> str:
    """The value that an option has if it is left out."""
    if defaults := DEFAULT.findall(str(action.help)):
        assert len(defaults) == 1, f"{called(action)} has two defaults"
        return cell(defaults[0])
    if action.required and action.nargs != "*":
        return "required"
    if isinstance(action, NO_VALUE):
        return ""
    return "" if action.default in (None, "", []) else f"`{action.default}`"


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return escaped(text).replace("<", "&lt;")


def escaped(text: str) -> str:
    """A bar would end the cell."""
    return text.replace("|", "\\|")
