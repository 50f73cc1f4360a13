"""Directories that appear whole: beside what killed processes left, behind links, for others."""

from __future__ import annotations

import errno
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dragoman.base.errors import MachineError
from dragoman.training.durable import publish, verify


def test_drafts_of_the_dead_do_not_stand_in_the_way_and_those_of_the_living_stay(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(["sleep", "600"]) as living, subprocess.Popen(["true"]) as dead:
        dead.wait()
        for pid in (living.pid, dead.pid, os.getpid()):
            (tmp_path / f".export.{pid}.draft").mkdir()
            (tmp_path / f".export.{pid}.draft" / "weights").write_bytes(b"half")
        publish(tmp_path / "export", lambda draft: write(draft, b"whole"))
        left = {path.name for path in tmp_path.iterdir()}
        living.kill()
    assert left == {"export", f".export.{living.pid}.draft"}
    verify(tmp_path / "export")


def test_an_export_that_fails_after_a_kill_leaves_the_older_one(tmp_path: Path) -> None:
    export = tmp_path / "export"
    publish(export, partial(write, content=b"older"))
    export.rename(tmp_path / ".export.older")  # killed between the two renames

    def fail(draft: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(MachineError, match="No space left"):
        publish(export, fail)
    verify(export)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/export")
    for content in (b"first", b"second"):
        publish(tmp_path / "link", partial(write, content=content))
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "disk/export/weights").read_bytes() == content
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    files = ("disk/export/weights", "disk/export/digests.json")
    assert found == {"link", "disk", "disk/export", *files}


def test_published_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    publish(tmp_path / "x", lambda draft: save_file({"a": torch.ones(2)}, draft / "weights"))
    modes = {file.name: oct(file.stat().st_mode) for file in (tmp_path / "x").iterdir()}
    assert modes["weights"] == modes["digests.json"]


def write(draft: Path, content: bytes) -> None:
    (draft / "weights").write_bytes(content)
