"""The environment is what the machine itself says, asked another way."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dragoman
from dragoman.telemetry import environment, host
from dragoman.telemetry.environment import read_environment


def test_versions_and_hardware() -> None:
    found = read_environment()
    assert found.python_version == platform.python_version()
    assert found.torch_version == torch.__version__
    assert found.threads == torch.get_num_threads()
    assert found.gpu_count == torch.cuda.device_count()
    assert 1 <= found.cpu_cores <= (os.cpu_count() or 1)
    assert 2**28 < found.memory_bytes <= host.memory_bytes()
    assert found.cpu_model
    assert platform.release() in found.os


def _git(*arguments: str, directory: Path) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_commit_of_a_checkout_and_whether_it_was_changed(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    _git("init", "-q", directory=tmp_path)
    _git("add", ".", directory=tmp_path)
    _git("commit", "-qm", "one", directory=tmp_path)
    commit = _git("rev-parse", "HEAD", directory=tmp_path)
    assert environment._git_state(tmp_path) == (commit, False)
    (tmp_path / "untracked.txt").write_text("")
    assert environment._git_state(tmp_path) == (commit, False)
    (tmp_path / "__init__.py").write_text("changed")
    assert environment._git_state(tmp_path) == (commit, True)


def test_a_package_installed_inside_somebody_elses_repository_has_no_commit(tmp_path: Path) -> None:
    _git("init", "-q", directory=tmp_path)
    (tmp_path / "__init__.py").write_text("")
    assert environment._git_state(tmp_path) == (None, None)


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment._git_state(Path(dragoman.__file__).parent) == (None, None)


def test_peak_memory_rises_with_held_memory_and_never_falls() -> None:
    code = """
from dragoman.telemetry.host import peak_memory_bytes
before = peak_memory_bytes()
held = bytearray(64 * 2**20)
held[::4096] = bytes(len(held[::4096]))
during = peak_memory_bytes()
del held
print(before, during, peak_memory_bytes())
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    before, during, after = map(int, output.stdout.split())
    assert 60 * 2**20 < during - before < 80 * 2**20
    assert after >= during - 2**20
    assert before > 2**20
