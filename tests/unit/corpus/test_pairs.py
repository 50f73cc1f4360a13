from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dragoman.base.errors import CorpusError
from dragoman.corpus.pairs import BlockReader, NamedPath, TextEntry


def entry(folder: Path, source: bytes, target: bytes) -> TextEntry:
    (folder / "a.en").write_bytes(source)
    (folder / "a.de").write_bytes(target)
    return TextEntry(NamedPath("a.en", folder / "a.en"), NamedPath("a.de", folder / "a.de"))


def test_blocks_hold_the_lines_of_both_files_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_bytes(gzip.compress(b"x\ty\nz\tw\n"))
    entries = [
        entry(tmp_path, b"a\nb\nc\n", b"1\n2\n3"),
        TextEntry(NamedPath("b", tmp_path / "b.tsv")),
    ]
    reader = BlockReader(entries, block_lines=2)
    blocks = [(b.index, b.first_line, b.num_lines, b.source, b.target) for b in reader]
    assert blocks == [
        (0, 1, 2, b"a\nb\n", b"1\n2\n"),
        (1, 3, 1, b"c\n", b"3\n"),
        (2, 1, 2, b"x\ty\nz\tw\n", None),
    ]
    assert [(facts.path.name, facts.lines) for facts in reader.facts] == [
        ("a.en", 3),
        ("a.de", 3),
        ("b.tsv", 2),
    ]


@pytest.mark.parametrize("block_lines", [3, 1000])
def test_misaligned_files_name_both_with_counts_and_the_line(
    tmp_path: Path, block_lines: int
) -> None:
    lines = [b"x" * (7 * i % 83) + b"\n" for i in range(200)]
    pair = entry(tmp_path, b"".join(lines), b"".join(lines[:49] + lines[50:]))
    with pytest.raises(CorpusError) as error:
        list(BlockReader([pair], block_lines=block_lines))
    message = str(error.value)
    assert "a.en" in message
    assert "a.de" in message
    assert "200 lines, the target 199" in message
    assert "from about line 50 on" in message
    assert "\n" not in message


def test_a_target_that_is_cut_off_is_reported_as_such(tmp_path: Path) -> None:
    lines = [b"x" * (7 * i % 83) + b"\n" for i in range(200)]
    pair = entry(tmp_path, b"".join(lines), b"".join(lines[:150]))
    with pytest.raises(CorpusError, match=r"200 lines, the target 150; the shorter one .* cut off"):
        list(BlockReader([pair], block_lines=50))


def test_surplus_target_lines_are_seen_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="2 lines, the target 3"):
        list(BlockReader([entry(tmp_path, b"a\nb\n", b"1\n2\n3\n")], block_lines=2))


def test_a_file_without_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"a\.en: holds no text"):
        list(BlockReader([entry(tmp_path, b"", b"")]))
