"""Every whole line is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.telemetry.follower import Follower


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_are_read_as_they_are_finished(path: Path) -> None:
    follower = Follower(path)
    assert list(follower.lines()) == []
    _append(path, "one\ntw")
    assert list(follower.lines()) == [b"one"]
    assert list(follower.lines()) == []
    _append(path, "o")
    assert list(follower.lines()) == []
    _append(path, "\nthree\n")
    assert list(follower.lines()) == [b"two", b"three"]
    follower.close()


def test_a_follower_from_the_end_reads_only_added_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"old\n")
    follower = Follower(path, start=None)
    assert list(follower.lines()) == []
    with path.open("ab") as file:
        file.write(b"new\n")
    assert list(follower.lines()) == [b"new"]
    not_there = Follower(tmp_path / "later.jsonl", start=None)
    (tmp_path / "later.jsonl").write_bytes(b"first\n")
    assert list(not_there.lines()) == [b"first"]
