"""A signal ends a command even in a callback, whose exceptions Python drops, and in an import."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

_IN_A_CALLBACK = """
import os, signal, time, weakref
from dragoman.base import interrupts
from dragoman.base.errors import ConfigError
from dragoman.base.process import explain

class Referent: ...

def send(_reference):
    os.kill(os.getpid(), signal.{name})
    for _ in range(10):
        pass

interrupts.end_at_once_on_interrupt()
interrupts.interrupts_raise()
referent = Referent()
reference = weakref.ref(referent, send)
try:
    del referent  # calls `send`, whose exception Python drops
    for _ in range(1000):
        time.sleep(0.01)
except KeyboardInterrupt:
    # A library that drops the exception may say that a setting is wrong.
    print(explain(ConfigError("is wrong", place="a setting", remedy="mend it")))
"""

_IN_AN_IMPORT = """
import time
from dragoman.base import interrupts

interrupts.end_at_once_on_interrupt()
interrupts.interrupts_raise()
try:
    import interrupted
    for _ in range(1000):
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_a_callback_interrupts_the_work_after_it(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_CALLBACK.format(name=name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("('interrupted', 130)\n", "", 0)


@pytest.mark.parametrize(
    ("times", "output", "error", "code"),
    [
        (1, "begun\nwhole\ninterrupted\n", "", 0),
        (2, "begun\n", "dragoman: interrupted\n", 130),
    ],
)
def test_a_signal_waits_for_the_end_of_an_import_and_a_second_one_does_not(
    times: int, output: str, error: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "interrupted.py").write_text(
        f"import os, time\nprint('begun', flush=True)\n"
        f"for _ in range({times}):\n    os.kill(os.getpid(), {signal.SIGINT})\n"
        "time.sleep(0.1)\nprint('whole', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", _IN_AN_IMPORT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr, done.returncode) == (output, error, code)
