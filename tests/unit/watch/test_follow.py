"""Every whole line is read once, whatever happens to the file meanwhile."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from dragoman.telemetry.follower import Follower


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-0000.jsonl"


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


def test_a_file_that_was_moved_away_is_read_to_its_end(path: Path) -> None:
    follower = Follower(path)
    _append(path, "one\n")
    assert list(follower.lines()) == [b"one"]
    _append(path, "two\n")
    path.rename(path.with_suffix(".1"))
    assert list(follower.lines()) == [b"two"]
    _append(path, "three\n")
    assert list(follower.lines()) == [b"three"]
    follower.close()


def test_a_writer_that_goes_on_in_the_moved_file_is_followed_until_there_is_a_new_one(
    path: Path,
) -> None:
    follower = Follower(path)
    _append(path, "one\n")
    assert list(follower.lines()) == [b"one"]
    moved = path.rename(path.with_suffix(".1"))
    for text in ("two", "and more"):
        _append(moved, f"{text}\n")
        assert list(follower.lines()) == [text.encode()]
    _append(path, "three\n")
    assert list(follower.lines()) == [b"three"]
    follower.close()


def test_a_file_that_was_cut_short_is_read_from_its_beginning(path: Path) -> None:
    follower = Follower(path)
    _append(path, "one\ntwo\nthr")
    assert list(follower.lines()) == [b"one", b"two"]
    path.write_text("new\n")
    assert list(follower.lines()) == [b"new"]
    follower.close()


def test_a_file_that_went_away_may_come_back(path: Path) -> None:
    follower = Follower(path)
    _append(path, "one\n")
    assert list(follower.lines()) == [b"one"]
    path.unlink()
    assert list(follower.lines()) == []
    assert list(follower.lines()) == []
    _append(path, "two\n")
    assert list(follower.lines()) == [b"two"]
    follower.close()


def test_a_line_without_end_is_not_kept_in_memory(path: Path) -> None:
    follower = Follower(path)
    with path.open("wb") as file:
        file.truncate(200 << 20)
    tracemalloc.start()
    assert list(follower.lines()) == []
    _append(path, "\none\n")
    assert list(follower.lines())[1:] == [b"one"]
    _now, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50 << 20
    follower.close()


def test_a_follower_from_the_end_reads_only_added_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"old\n")
    follower = Follower(path, from_end=True)
    assert list(follower.lines()) == []
    with path.open("ab") as file:
        file.write(b"new\n")
    assert list(follower.lines()) == [b"new"]
    not_there = Follower(tmp_path / "later.jsonl", from_end=True)
    (tmp_path / "later.jsonl").write_bytes(b"first\n")
    assert list(not_there.lines()) == [b"first"]
