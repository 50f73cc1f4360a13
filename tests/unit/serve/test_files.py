"""A file is translated by one process at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dragoman.errors import MachineError
from dragoman.serve.files import translate_file


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
            with pytest.raises(MachineError, match="out: another process translates into it"):
                translate_file(source, output, shouted, identity={})
            refused += 1

    assert translate_file(source, output, with_another, identity={}) == 0
    assert refused == 3
    assert output.read_text() == "ONE\nTWO\nTHREE\n"
    assert translate_file(source, output, shouted, identity={}) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}
