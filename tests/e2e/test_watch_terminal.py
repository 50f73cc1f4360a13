"""`dragoman watch` in a real terminal: it is drawn, follows, takes another size and ends."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from example_events import HOST_SAMPLED as HOST
from recorded_runs import Recorded

DEADLINE_S = 15.0


class Terminal:
    """A terminal of 80 x 24 in which one command runs; the user's own tmux is not touched."""

    def __init__(self, place: Path, command: list[str]) -> None:
        self._tmux = ["tmux", "-S", str(place / "tmux"), "-f", os.devnull]
        self.code = place / "code"
        script = f"{shlex.join(command)}; echo $? > {shlex.quote(str(self.code))}; sleep 100"
        self._do("new-session", "-d", "-x", "80", "-y", "24", script)

    def text(self) -> str:
        return self._do("capture-pane", "-p").stdout

    def resize(self, width: int, height: int) -> None:
        self._do("resize-window", "-x", str(width), "-y", str(height))

    def press(self, key: str) -> None:
        self._do("send-keys", key)

    def wait(self, until: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while not until(text := self.text()):
            assert time.monotonic() < deadline, text
            time.sleep(0.2)
        return text

    def close(self) -> None:
        self._do("kill-server")

    def _do(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self._tmux, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The place of a future run; nothing is there yet."""
    return tmp_path / "run"


@pytest.fixture
def terminal(run: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    run.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "dragoman", "watch", str(run), "--price", "3 USD"]
    opened = Terminal(run, command)
    yield opened
    opened.close()


def _hosts(count: int) -> Recorded:
    return Recorded(
        steps=2000,
        reason=None,
        world_size=count,
        compute_s=(0.4,) * count,
        sync_s=(0.01,) * count,
        extra=[(rank, HOST) for rank in range(count)],
    )


STATES = {
    "finished": (Recorded(), ["finished", "8,000 of 8,000 steps", "USD spent"]),
    "crashed": (Recorded(steps=2000, reason=None), ["silent: crashed, killed or cut off"]),
    "stopped": (Recorded(steps=2000, reason="signal"), ["stopped by a signal"]),
    "eight hosts": (_hosts(8), ["host-a", "host-b", *(f"host-{n}" for n in range(2, 8))]),
}


@pytest.mark.parametrize("state", STATES)
def test_every_state_fits_a_small_terminal(state: str, run: Path, terminal: Terminal) -> None:
    terminal.wait(lambda text: "not started" in text)
    made, parts = STATES[state]
    written = made.write(run.parent / "written")
    (written / "events").rename(run / "events")
    text = terminal.wait(lambda text: all(part in text for part in parts))
    assert max(map(len, text.splitlines())) <= 80
    assert "Traceback" not in text


def test_a_terminal_follows_the_run(run: Path, terminal: Terminal) -> None:
    begun = Recorded(steps=2000, reason=None).write(run.parent / "begun")
    (begun / "events").rename(run / "events")
    text = terminal.wait(lambda text: "2,000 of 8,000 steps" in text)
    assert len(text.splitlines()) <= 24
    for part in ("demo", "training", "BLEU", "learning rate", "a step", "USD spent"):
        assert part in text
    longer = Recorded(steps=3000, reason=None).write(run.parent / "longer")
    for path in (run / "events").iterdir():
        whole = (longer / "events" / path.name).read_bytes()
        with path.open("ab") as file:
            file.write(whole[path.stat().st_size :])
    terminal.wait(lambda text: "3,000 of 8,000 steps" in text)
    terminal.resize(120, 40)
    wide = terminal.wait(lambda text: max(map(len, text.splitlines())) > 100)
    assert "3,000 of 8,000 steps" in wide
    terminal.resize(40, 10)
    terminal.wait(lambda text: "steps" in text and max(map(len, text.splitlines())) <= 40)
    terminal.press("C-c")
    terminal.wait(lambda _text: terminal.code.exists() and terminal.code.read_text() == "0\n")
