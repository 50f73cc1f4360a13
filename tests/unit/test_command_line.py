"""Commands are typed functions: help, errors and the reference come from their signatures."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from dragoman import cli
from dragoman.api import training
from dragoman.api.checks import checked
from dragoman.base.errors import ConfigError
from dragoman.cli.command_line import command_parser, in_words_of_options
from dragoman.cli.commands import COMMANDS, GROUPS
from dragoman.cli.parser import Command, Parser, arguments_of

REPOSITORY = Path(__file__).resolve().parents[2]
ALL = [(name, flag) for name, one in COMMANDS.items() for flag in ("", *one.parts)]


def sections(printed: str) -> dict[str, str]:
    """The text of each section of a help, by its title."""
    parts = re.split(r"^(\S.*):\n", printed, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_help_of_dragoman_names_every_command_once_in_its_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) < 80
    shown = sections(printed)
    for title, commands in GROUPS.items():
        names = re.findall(r"^  ([a-z]+) ", shown[title], re.MULTILINE)
        assert names == [*commands], title


@pytest.mark.parametrize(("name", "flag"), ALL)
def test_a_command_explains_all_that_it_takes(
    name: str, flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        cli.main([name, *filter(None, [flag]), "--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    (usage,) = re.findall(r"^usage: (.*)\n\n", printed)
    assert usage.startswith(f"dragoman {name}")
    assert not flag or flag in usage
    _, arguments = command_parser(name, flag)
    for argument in arguments:
        assert argument.meaning, argument.name
        assert "None" not in argument.meaning, argument
        assert not argument.meaning.startswith("as for"), argument
        word = argument.flags[-1] if argument.flags else argument.settings.get("metavar", "")
        assert word in printed
        assert (word in usage) or not argument.is_required
    for part in COMMANDS[name].parts:
        assert flag or part in printed


ADDED = '''
def halve(number: Count, *, note: str = "none", rounds: Count = 3) -> str:
    """Halve a number.

    number: what is halved.
    note: said beside it.
    rounds: how often it is halved.
    """
    return f"{number / 2**rounds} {note}\\n"
'''


def test_a_parameter_of_a_function_is_in_help_reference_and_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the function says that there is such a parameter."""
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    pages = [import_module(f"reference.{name}") for name in ("commands", "python")]
    earlier = ADDED.replace(", rounds: Count = 3", ", rounds: str = ''")
    monkeypatch.setitem(COMMANDS, "halve", Command("api.training:halve", "cli.views:show_text"))
    for source, is_number in ((earlier, False), (ADDED, True)):
        space = vars(training)
        exec(f"from __future__ import annotations\n{source}", space)
        monkeypatch.setattr(training, "halve", checked(space["halve"]), raising=False)
        table = pages[0].section("halve", "")
        assert f"`--rounds {'N' if is_number else 'ROUNDS'}` | how often it is halved" in table
        assert ("| 3 |" in table) == is_number
        signature = pages[1].described("dragoman.halve", vars(training)["halve"])
        assert ("rounds: int = 3" in signature) == is_number
        with pytest.raises(SystemExit):
            cli.main(["halve", "--help"])
        assert ("how often it is halved (default: 3)" in capsys.readouterr().out) == is_number
    assert cli.main(["halve", "8", "--rounds", "2", "--note", "left"]) == 0
    assert capsys.readouterr().out == "2.0 left\n"
    with pytest.raises(SystemExit) as end:
        cli.main(["halve", "8", "--rounds", "none"])
    assert end.value.code == 2
    assert "argument --rounds: 'none' is not a whole number above 0" in capsys.readouterr().err
    assert vars(training)["halve"](8) == "1.0 none\n"
    with pytest.raises(ConfigError, match=r"^rounds: 0 cannot be used"):
        vars(training)["halve"](8, rounds=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "demo", "--colour"], "unrecognized arguments: --colour; see: dragoman train"),
        (["serve", "b", "--token", "SuperSecret123"], "unrecognized arguments: --token; see: drag"),
        (
            ["serve", "b", "--token=SuperSecret123"],
            "unrecognized arguments: --token; see: dragoman",
        ),
        (["serve", "b", "--port", "\N{FULLWIDTH DIGIT ONE}2"], "is not a whole number from 0 to"),
        (["serve", "b", "--port", "8_0"], "--port: '8_0' is not a whole number from 0 to 65535"),
        (["trian", "demo"], "trian is not a command; did you mean train?; see: dragoman --help"),
        (["status"], "status is not a command; did you mean report --status?; see: dragoman"),
        ([], "the following arguments are required: COMMAND; see: dragoman --help"),
        (["train"], "the following arguments are required: RECIPE|RUN; see: dragoman train"),
        (["serve", "bundle", "--port=-1"], "--port: '-1' is not a whole number from 0 to 65535"),
        (["serve", "bundle", "--port=65536"], "--port: '65536' is not a whole number"),
        (["watch", "run", "--port=http"], "--port: 'http' is not a whole number"),
        (["watch", "run", "--port=1.5"], "--port: '1.5' is not a whole number"),
        (["plan", "demo", "--tflops", "nan"], "--tflops: 'nan' is not a number; give one such as"),
        (["plan", "demo", "--tflops=-inf"], "--tflops: '-inf' is not a number"),
        (["plan", "demo", "--tflops", "fast"], "--tflops: 'fast' is not a number"),
        (["export", "run", "--to", "zip"], "--to: invalid choice: 'zip'"),
        (["compare", "a", "b", "--test", "c"], "'c' is not of the form SOURCE,REFERENCE"),
        (["synthesize", "m", "--input", "i", "--output", "o", "--sample", "few"], "nor all"),
        (["train", "demo", "--ranks"], "if it begins with a dash, write OPTION=VALUE"),
        (["run", "demo", "--dry-run=yes"], "--dry-run takes no value; see: dragoman run --dry-run"),
        (["train", "--stop", "run", "--ranks", "2"], "see: dragoman train --stop --help"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert said in line


def test_a_remedy_names_options_where_the_core_names_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("# A")
    words = ["translate", "nowhere", "--input", str(tmp_path / "a.md"), "--n-best", "2"]
    assert cli.main(words) == 2
    assert "leave out scores, confidence and --n-best, or set --format to line" in (
        capsys.readouterr().err
    )
    _, arguments = command_parser("translate")
    for text in ("search.n_best", "n_best = 2", "n_best_list", "set beam and text"):
        assert in_words_of_options(text, arguments) == text


def test_garbage_is_collected_while_a_command_works_and_not_while_it_starts() -> None:
    program = """
import gc, sys
from dragoman.api import training
from dragoman.api.checks import checked
from dragoman.base.errors import ConfigError
training.recipes = lambda: print(gc.isenabled()) or []
sys.argv = ["dragoman", "run", "--recipes"]
from dragoman.__main__ import main
main()
print(gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert [done.stdout.split()[0], done.stdout.split()[-1]] == [b"True", b"False"]


def test_help_imports_nothing_heavy() -> None:
    program = """
import contextlib, io, sys
from dragoman import cli
from dragoman.cli.commands import COMMANDS
for name, command in COMMANDS.items():
    for flag in ("", *command.parts):
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            cli.main([name, *filter(None, [flag]), "--help"])
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert not {b"torch", b"numpy", b"pydantic", b"rich"} & {*done.stdout.split()}


def shown(
    *, loud: bool = True, port: int = 0, parts: Sequence[str] = ("a", "b"), kind: str = "one"
) -> None:
    """Do nothing.

    loud: whether it is heard.
    port: where.
    parts: of what.
    kind: one: the first. two: the second, as another sentence says.
    """


def test_defaults_and_the_meanings_of_values_are_shown() -> None:
    found = {one.name: one for one in arguments_of(shown, lambda _name: None)}
    defaults = {name: one.default for name, one in found.items()}
    assert defaults == {"loud": "on", "port": "0", "parts": "a, b", "kind": "one"}
    assert found["kind"].meaning == "one: the first. two: the second, as another sentence says."
    parser = Parser()
    for argument in found.values():
        argument.add_to(parser)
    assert parser.parse_args(["--no-loud"]).loud is False


def test_errors_name_settings_and_never_options() -> None:
    """Python and the command line call the same functions, so their errors are the same."""
    found = []
    for path in Path(cli.__file__).parents[1].rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == "place":
                    texts = [
                        one for one in ast.walk(keyword.value) if isinstance(one, ast.Constant)
                    ]
                    found += [f"{path}: {one.value!r}" for one in texts if "--" in str(one.value)]
    assert found == []


WITH_OPTIONS = re.compile(
    r"(?P<program>dragoman \w+|sacrebleu|http\.server|ray start|#SBATCH)"
    r"(?P<words>(?:(?![.;:]\s).)*)"
)
"""A command in a text, up to the end of its sentence: of dragoman, or of another program."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def told(tree: ast.AST) -> list[str]:
    """The texts of a module that may be shown: those with a space, and no docstrings."""
    passed: set[int] = set()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            passed.add(id(node.value))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Option":
            passed |= {id(argument) for argument in node.args}
        if id(node) in passed:
            continue
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in node.values}
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return [text for text in found if " " in text.strip()]


def test_texts_of_the_core_name_settings_and_only_whole_commands_have_options() -> None:
    options = {name: {*one.parts} for name, one in COMMANDS.items()}
    for name, part in ALL:
        options[name] |= {flag for one in command_parser(name, part)[1] for flag in one.flags}
    of_dragoman = set().union(*options.values())
    wrong = []
    for path in sorted(Path(cli.__file__).parents[1].rglob("*.py")):
        if path.parent.name == "cli":
            continue
        for text in told(ast.parse(path.read_text(encoding="utf-8"))):
            bare = WITH_OPTIONS.sub("", text)
            wrong += [f"{path.name}: {text}" for one in OPTION.findall(bare) if one in of_dragoman]
            for command in WITH_OPTIONS.finditer(text):
                name = command["program"].removeprefix("dragoman ")
                for one in OPTION.findall(command["words"]) if name in options else ():
                    if one not in options[name]:
                        wrong.append(f"{path.name}: {text}")
    assert wrong == []
