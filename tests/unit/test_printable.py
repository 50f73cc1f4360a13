"""No text of a host or of a file steers the terminal: every way out, with the same hostile text."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.base.errors import MachineError
from dragoman.base.printable import printable, printable_line
from dragoman.base.terminal import Terminal, plain_table
from dragoman.cli import main
from dragoman.cluster import ssh
from dragoman.cluster.checks import Finding
from dragoman.cluster.doctor_view import findings_as_json, print_findings
from dragoman.cluster.facts import ClusterFacts
from dragoman.cluster.hosts import Host
from dragoman.telemetry.console import ConsoleSink
from dragoman.telemetry.events import Alert, EventWriter, RunStarted

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\x7f\u202e\u2028end"
STEERING = "\x1b\x07\x9b\r\x08\x7f\u202e\u2028"


def is_harmless(shown: str) -> bool:
    return "end" in shown and not set(shown) & set(STEERING)


@given(st.text())
def test_only_characters_that_steer_a_terminal_are_replaced(text: str) -> None:
    line = printable_line(text)
    assert len(line) == len(text)
    assert all(new in (old, "�") for new, old in zip(line, text, strict=True))
    assert len(line.splitlines()) <= 1
    assert printable(text).count("\n") == text.count("\n")
    line.encode()


def test_joiners_and_letters_of_every_script_stay() -> None:
    text = "می\u200cخواهم 👩\u200d💻 grün 日本 עברית\u200f"
    assert printable_line(text) == printable(text) == text


def test_an_error_that_quotes_a_host_is_one_harmless_line() -> None:
    host = Host(address="10.0.0.1", name="alpha", slots=1)
    for exit_code in (ssh.NO_LOGIN, 1):
        error = ssh.failure(host, exit_code, f"first\n{HOSTILE}".encode())
        assert is_harmless(str(error)), str(error)
        assert is_harmless(error.problem)
    assert str(MachineError(f"a\nb{HOSTILE}", place=HOSTILE, remedy=HOSTILE)).isprintable()


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """A run whose record holds what a host has said."""
    (tmp_path / "recipe.toml").touch()
    session = {"pid": 1, "machine": HOSTILE, "started": 0.0, "state": "failed", "problem": HOSTILE}
    (tmp_path / "session.json").write_text(json.dumps(session))
    with EventWriter(tmp_path / "events") as events:
        events.write(Alert(severity="error", cause=HOSTILE, remedy=HOSTILE))
    return tmp_path


def test_status_shows_a_hostile_record_harmlessly(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["report", "--status"], ["report", "--status", "--json"], ["watch", "--once"]):
        assert main([*words, str(failed)]) == 0
        assert is_harmless(capsys.readouterr().out.replace("\\r", "")), words


def test_status_at_a_terminal_has_our_colours_alone(failed: Path) -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "dragoman", "report", "--status", str(failed)]
    subprocess.run(command, stdout=terminal, check=True, env=os.environ | {"TERM": "xterm"})
    os.close(terminal)
    parts = []
    with contextlib.suppress(OSError):  # how a terminal that nobody writes to any more ends
        while part := os.read(screen, 1 << 16):
            parts.append(part)
    os.close(screen)
    shown = b"".join(parts).decode()
    assert "\x1b[31mfailed" in shown
    assert "�[2J�]0;title" in shown
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_console_of_a_training_shows_a_hostile_alert_harmlessly(
    is_terminal: bool, tmp_path: Path
) -> None:
    shown = io.StringIO()
    with EventWriter(tmp_path) as events:
        events.subscribe(
            ConsoleSink(Terminal(file=shown, force_terminal=is_terminal, no_color=True, width=200))
        )
        events.write(Alert(severity="error", cause=HOSTILE, remedy=HOSTILE))
        events.write(
            RunStarted(
                run_name=HOSTILE,
                recipe_digest="",
                world_size=1,
                device=HOSTILE,
                precision=HOSTILE,
                num_parameters=1,
                max_steps=1,
                train_pairs=1,
                resumed_from_step=None,
            )
        )
    said = shown.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[1;31m", "")
    assert is_harmless(said), said


def test_doctor_shows_a_hostile_fact_harmlessly() -> None:
    findings = [Finding("login", "failure", "alpha", HOSTILE, HOSTILE)]
    facts = ClusterFacts(hosts=(), unreachable={"alpha": HOSTILE})
    shown = io.StringIO()
    print_findings(findings, facts, Terminal(file=shown, width=200, markup=False))
    assert is_harmless(shown.getvalue())
    assert is_harmless(findings_as_json(findings, facts))


def test_only_two_files_use_a_plain_console() -> None:
    """A plain one shows only the user's own text, or a progress bar."""
    source = Path(sys.modules["dragoman"].__file__ or "").parent
    plain = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if " Console(" in path.read_text() or "=Console(" in path.read_text()
    }
    assert plain <= {"inference/translate.py", "base/line_files.py"}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_only_a_terminal_gets_lines_that_are_filled_up_with_spaces(is_terminal: bool) -> None:
    table = plain_table("name", "licence", right=["pairs"])
    table.add_row("a", "", "1")
    table.add_row("a longer name", "CC0", "")
    output = io.StringIO()
    console = Terminal(file=output, force_terminal=is_terminal, width=80)
    console.print(table)
    console.print("in  the  middle  ", "and at the end", end=" ")
    lines = output.getvalue().split("\n")
    assert len(lines) == 4
    assert lines[-1] == "in  the  middle   and at the end "
    assert any(line.endswith(" ") for line in lines[:-1]) is is_terminal
