"""Threads of PyTorch sleep soon when they wait, as libgomp itself shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from dragoman.distributed.launch import rank_environment

COMMAND = "from dragoman import cli; cli.main(['run', '--recipes']); import torch"
BY_HAND = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}


def _spins(code: str, environment: dict[str, str]) -> set[str]:
    """The rounds of each libgomp that the code loads: PyTorch's, and maybe another."""
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"},
        check=True,
        capture_output=True,
        text=True,
    )
    return set(re.findall(r"GOMP_SPINCOUNT = '(\w+)'", shown.stderr))


@pytest.mark.system  # four processes that import PyTorch
@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch brings libgomp on Linux alone")
def test_threads_of_a_command_and_of_a_rank_soon_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BY_HAND:
        monkeypatch.delenv(name, raising=False)
    assert _spins(COMMAND, dict(os.environ)) == {"10000"}
    assert _spins("import torch", rank_environment(2)) == {"10000"}
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert _spins(COMMAND, dict(os.environ)) == {"7"}
    assert _spins("import torch", rank_environment(2)) == {"7"}
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in rank_environment(2)
