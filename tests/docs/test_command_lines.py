"""Every command line of a page is one that `dragoman` reads: command, options, number of arguments.

Nothing is run; test_commands.py runs the blocks that a reader can repeat.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.cli.command_line import command_parser, parsed
from dragoman.cli.commands import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "benchmarks/README.md")
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
NO_SHELL = ("caddy", "json", "nginx", "python", "toml", "yaml")
"""Languages of blocks that have commands in their comments alone."""
ENDS = {";", "&", "&&", "|", "||", "(", ")"}
"""What ends a command in a line of a shell."""
BUILT_IN = {"numpy": "onnx"}
"""The format that extend.md adds -> one that is there without its package."""
UNFINISHED = re.compile(r"arguments are required|expected (at least )?one argument|'\.\.\.'")
"""Complaints about a command in a sentence, which names only the words that it is about."""


def pages() -> list[str]:
    docs = sorted((REPOSITORY / "docs").rglob("*.md"))
    return [*PAGES, *(str(page.relative_to(REPOSITORY)) for page in docs)]


def commands(line: str) -> Iterator[list[str]]:
    """The words behind each `dragoman` in a line of a shell."""
    lexer = shlex.shlex(re.sub(r"\$\([^)]*\)", "VALUE", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for token in tokens:
        if token in ENDS:
            if "dragoman" in words and (found := words[words.index("dragoman") + 1 :]):
                yield found
            words = []
        elif set(token) <= set("<>&"):
            next(tokens)  # the file
        else:
            words.append(token)


def written(text: str) -> Iterator[tuple[list[str], bool]]:
    """The command lines of a page, and whether each is whole."""
    for language, block in FENCE.findall(text):
        if language not in NO_SHELL:
            for line in map(str.strip, re.sub(r"\\\n", " ", block).splitlines()):
                if re.search(r"\bdragoman [a-z]", line) and "dragoman:" not in line:
                    yield from ((words, True) for words in commands(line.removeprefix("$ ")))
        else:
            for line in re.findall(r"# (dragoman [a-z]+ .*)$", block, re.MULTILINE):
                yield from ((words, True) for words in commands(line))
    for code in re.findall(r"`(dragoman [^`]+)`", FENCE.sub("", text)):
        yield from ((words, False) for words in commands(" ".join(code.split())))


def complaint(words: list[str], *, is_whole: bool, capsys: pytest.CaptureFixture[str]) -> str:
    """What is wrong with a command line; "" if nothing is."""
    name, *rest = words
    if name in ("COMMAND", "--help"):
        return ""
    if name not in COMMANDS:
        return f"{name} is no command"
    known = {"--help", *COMMANDS[name].parts}
    for flag in ("", *COMMANDS[name].parts):
        known |= {one for argument in command_parser(name, flag)[1] for one in argument.flags}
    if unknown := {word.partition("=")[0] for word in rest if word.startswith("-")} - known:
        return f"{name} has no {', '.join(sorted(unknown))}"
    try:
        parsed([name, *(BUILT_IN.get(word, word) for word in rest)])
    except SystemExit as end:
        problem = capsys.readouterr().err if end.code else ""
        return "" if not is_whole and UNFINISHED.search(problem) else problem
    return ""


@pytest.mark.smoke
@pytest.mark.parametrize("page", pages())
def test_dragoman_reads_the_command_lines_of_a_page(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    wrong = {
        " ".join(words): problem
        for words, is_whole in written(text)
        if (problem := complaint(words, is_whole=is_whole, capsys=capsys))
    }
    assert wrong == {}


@pytest.mark.smoke
def test_the_pages_have_command_lines_of_nearly_every_command() -> None:
    texts = ((REPOSITORY / page).read_text(encoding="utf-8") for page in pages())
    named = [words[0] for text in texts for words, _ in written(text)]
    assert len(named) > 200
    assert set(COMMANDS) - set(named) == set()
