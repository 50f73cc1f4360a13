"""One process at a time translates a file, and resumes it if its record is sound."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.line_files import FileProgress, transform_file


def shouted(lines: Iterable[str], _first: int) -> Iterator[list[str]]:
    for line in lines:
        yield [f"{line.upper()}\n"]


def test_a_second_translation_into_a_file_is_refused_and_the_first_is_whole(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("one\ntwo\nthree\n")
    refused = 0

    def with_another(lines: Iterable[str], first: int) -> Iterator[list[str]]:
        nonlocal refused
        for group in shouted(lines, first):
            yield group
            with pytest.raises(MachineError, match="out: another process is writing it"):
                transform_file(source, output, shouted, identity={})
            refused += 1

    assert transform_file(source, output, with_another, identity={}) == 0
    assert refused == 3
    assert output.read_text() == "ONE\nTWO\nTHREE\n"
    assert transform_file(source, output, shouted, identity={}) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.parametrize(
    "damage",
    [
        {"lines": -1},
        {"size_bytes": -1},
        {"lines": float("inf")},
        {"lines": "1"},
        {"size_bytes": 4.5},
        {"size_bytes": None},
        {"lines": True},
        None,
    ],
    ids=str,
)
def test_a_damaged_record_starts_anew(tmp_path: Path, damage: dict[str, Any] | None) -> None:
    source, output, record = (tmp_path / name for name in ("in", "out", ".out.partial.json"))
    source.write_text("one\ntwo\nthree\n")

    def broken_off(lines: Iterable[str], first: int) -> Iterator[list[str]]:
        yield from (group for group, _ in zip(shouted(lines, first), range(1), strict=False))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transform_file(source, output, broken_off, identity={})
    known = json.loads(record.read_text())
    assert known["lines"] == 1
    record.write_text("[" * 100_000 if damage is None else json.dumps(known | damage))
    assert transform_file(source, output, shouted, identity={}) == 0
    assert output.read_text() == "ONE\nTWO\nTHREE\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


def test_a_draft_of_other_options_is_not_gone_on_with(tmp_path: Path) -> None:
    source, output, draft = (tmp_path / name for name in ("in", "out", ".out.partial"))
    source.write_text("one\ntwo\nthree\n")

    def broken_off(lines: Iterable[str], first: int) -> Iterator[list[str]]:
        yield from (group for group, _ in zip(shouted(lines, first), range(1), strict=False))
        raise KeyboardInterrupt

    def unwritable(_lines: Iterable[str], _first: int) -> Iterator[list[str]]:
        yield ["\udcff"]

    with pytest.raises(KeyboardInterrupt):
        transform_file(source, output, broken_off, identity={"n_best": 1})
    with pytest.raises(UnicodeEncodeError):
        transform_file(source, output, unwritable, identity={"n_best": 2})
    draft.write_text("what a full disk\nhad room for\n")
    assert transform_file(source, output, shouted, identity={"n_best": 1}) == 0
    assert output.read_text() == "ONE\nTWO\nTHREE\n"


def test_refused_options_leave_earlier_work_alone(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("one\ntwo\nthree\n")

    def stopped(lines: Iterable[str], first: int) -> Iterator[list[str]]:
        yield next(shouted(lines, first))
        raise KeyboardInterrupt

    def refused(lines: Iterable[str], _first: int) -> Iterator[list[str]]:
        for _ in lines:
            raise ValueError("such options are refused")
        yield []

    with pytest.raises(KeyboardInterrupt):
        transform_file(source, output, stopped, identity={"options": 1})
    with pytest.raises(ValueError, match="refused"):
        transform_file(source, output, refused, identity={"options": 2})
    assert transform_file(source, output, shouted, identity={"options": 1}) == 1
    assert output.read_text() == "ONE\nTWO\nTHREE\n"


def test_refused_options_leave_no_file(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("one\n")

    def refused(_lines: Iterable[str], _first: int) -> Iterator[list[str]]:
        raise ValueError("such options are refused")

    with pytest.raises(ValueError, match="refused"):
        transform_file(source, output, refused, identity={})
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_progress_is_of_finished_lines(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("one\ntwo\nthree\n")

    def read_ahead(lines: Iterable[str], _first: int) -> Iterator[list[str]]:
        one, *others = [f"{line.upper()}\n" for line in lines]
        yield [one]
        yield others

    seen: list[FileProgress] = []
    transform_file(source, output, read_ahead, identity={}, progress=seen.append)
    assert [(one.lines, one.done_bytes, one.text) for one in seen] == [
        (1, 4, "1 lines, 29%"),
        (3, 14, "3 lines, 100%"),
    ]


def test_finished_lines_of_another_engine_are_kept(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("one\ntwo\nthree\n")

    def broken_off(lines: Iterable[str], first: int) -> Iterator[list[str]]:
        yield from (group for group, _ in zip(shouted(lines, first), range(2), strict=False))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transform_file(source, output, broken_off, identity={}, engine="CTranslate2")
    with pytest.raises(
        ConfigError,
        match=r"\.out\.partial: CTranslate2 has made the 2 finished lines, and PyTorch would make",
    ):
        transform_file(source, output, shouted, identity={}, engine="PyTorch")
    assert transform_file(source, output, shouted, identity={}, engine="CTranslate2") == 2
    assert output.read_text() == "ONE\nTWO\nTHREE\n"
