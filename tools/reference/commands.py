"""Every command with its options, from the functions themselves."""

from __future__ import annotations

from dragoman.cli.command_line import command_parser
from dragoman.cli.commands import COMMANDS, GROUPS
from dragoman.cli.parser import Argument

HEADER = """# Commands

Every command and every option; `dragoman COMMAND --help` says the same. `--set section.key=value`
overrides a value of the [recipe](recipe.md). [Errors](../errors.md) lists the exit codes. Each
command is a function of [Python](python.md) with the same parameters.
"""
HOW_TO = {
    "run": "../tutorial.md",
    "prepare": "../how-to/own-data.md",
    "plan": "../how-to/plan.md",
    "compare": "../how-to/monolingual.md#4-was-it-worth-it",
    "export": "../how-to/serve.md#export",
    "export --push": "../how-to/serve.md#put-it-on-the-hugging-face-hub",
    "import": "../how-to/import.md",
    "serve": "../how-to/serve.md",
    "synthesize": "../how-to/monolingual.md",
    "distill": "../how-to/monolingual.md#5-a-small-fast-model",
    "report": "../how-to/watch.md",
    "watch": "../how-to/watch.md",
    "doctor": "../how-to/two-machines.md",
    "setup": "../how-to/two-machines.md",
    "jobs": "../how-to/schedulers.md",
    "join": "../how-to/schedulers.md",
}
"""The page that shows a command at work."""


def page() -> str:
    """The whole page."""
    rows = "".join(
        f"| [`dragoman {name}`](#dragoman-{name}) | {cell(command.docstring.summary)} | {title} |\n"
        for title, commands in GROUPS.items()
        for name, command in commands.items()
    )
    return f"{HEADER}\n| command | work | for |\n|---|---|---|\n{rows}" + "".join(
        section(name, flag) for name, command in COMMANDS.items() for flag in ("", *command.parts)
    )


def section(name: str, flag: str) -> str:
    """A command, or a part of one: what it does, how it is called, its options."""
    parser, arguments = command_parser(name, flag)
    whole = f"{name} {flag}".strip()
    shown = f" See [how]({HOW_TO[whole]})." if whole in HOW_TO else ""
    rows = "".join(
        f"| `{escaped(called(one))}` | {cell(one.meaning)} | {default(one)} |\n"
        for one in arguments
    )
    table = f"\n| argument | meaning | default |\n|---|---|---|\n{rows}" if rows else ""
    return (
        f"\n{'###' if flag else '##'} dragoman {whole}\n\n{parser.description}{shown}\n\n"
        f"```\n{parser.usage}\n```\n{table}"
    )


def called(argument: Argument) -> str:
    """How an argument is written, with what it takes."""
    settings = argument.settings
    value = (
        "|".join(settings.get("choices", ())) or settings.get("metavar") or argument.name.upper()
    )
    if not argument.flags:
        return str(value)
    flags = ", ".join(argument.flags)
    return flags if settings.get("action") == "store_true" else f"{flags} {value}"


def default(argument: Argument) -> str:
    """The value without the argument."""
    return cell(argument.default) or ("required" if argument.is_required else "")


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return escaped(text).replace("<", "&lt;")


def escaped(text: str) -> str:
    """A bar would end the cell."""
    return text.replace("|", "\\|")
