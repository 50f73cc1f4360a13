from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dragoman.base.errors import CorpusError
from dragoman.corpus.clean import BlockCleaner, BlockReport, clean_block, refuse_malformed
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.filters import FilterConfig
from dragoman.corpus.pairs import Block, NamedPath, TextEntry
from dragoman.corpus.runs import KEY_SPACE, KeyRange, SortedRuns


def block(source: bytes, target: bytes | None = None, first_line: int = 1) -> Block:
    entry = TextEntry(*(NamedPath(name, Path(name)) for name in ("corpus.en", "corpus.de")))
    return Block(0, entry, first_line, source.count(b"\n"), source, target)


def test_both_sides_are_normalised_and_lines_remembered() -> None:
    source = "\ufeffOne\u00a0 day\r\n\r\nTwo days\r\n".encode()
    cleaned = clean_block(block(source, b"Ein Tag\nleer\nZwei Tage\n", 100), CorpusConfig())
    assert cleaned.sources == ["One day", "Two days"]
    assert cleaned.targets == ["Ein Tag", "Zwei Tage"]
    assert cleaned.lines.tolist() == [100, 102]
    assert cleaned.rejected == [("empty", 1.0, "corpus.en", 101, "", "leer")]


def test_lines_that_are_not_utf8_are_dropped_and_readable() -> None:
    source, target = b"good\nb\xe4\xf6d\nfine\n", b"gut\nschlecht\nsch\xf6n\n"
    cleaned = clean_block(block(source, target), CorpusConfig())
    assert cleaned.sources == ["good"]
    assert sorted(cleaned.rejected) == [
        ("invalid_utf8", 1, "corpus.de", 3, "fine", "sch\ufffdn"),
        ("invalid_utf8", 2, "corpus.en", 2, "b\ufffd\ufffdd", "schlecht"),
    ]


def test_only_newlines_end_lines() -> None:
    text = "a\u2028b c\x85d\n".encode()
    config = CorpusConfig(filters=FilterConfig(max_control_characters=5))
    cleaned = clean_block(block(text, b"x\n"), config)
    assert cleaned.sources == ["a b c\x85d"]


@pytest.mark.parametrize(("line", "columns"), [(b"alone", 1), (b"a\tb\tc", 3)])
def test_tsv_lines_need_two_columns(line: bytes, columns: int) -> None:
    cleaned = clean_block(block(b"one\teins\n" + line + b"\n"), CorpusConfig())
    assert (cleaned.sources, cleaned.targets) == (["one"], ["eins"])
    assert cleaned.rejected[0][:4] == ("columns", columns, "corpus.en", 2)


def report(pairs: int, malformed: int, line: int = 3) -> BlockReport:
    dropped = {"columns": malformed} if malformed else {}
    problem = ["a.tsv", f"line {line} is odd", "mend it"] if malformed else []
    return BlockReport("a.tsv", pairs, pairs, dropped, 0, 0, problem)


def test_few_malformed_lines_pass_and_many_do_not() -> None:
    reports = [report(1000, 10), report(10, 0), report(1000, 10)]
    assert list(refuse_malformed(reports)) == reports
    with pytest.raises(CorpusError, match=r"a\.tsv: line 3 is odd; mend it"):
        list(refuse_malformed([report(1000, 5), report(1000, 16, 1003)]))


def test_a_file_in_another_encoding_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    task = BlockCleaner(CorpusConfig(), tmp_path)
    latin = task(block(b"bigger\nsmaller\n", "größer\nkleiner\n".encode("latin-1")))
    with pytest.raises(CorpusError) as error:
        list(refuse_malformed([latin]))
    assert str(error.value).startswith(
        "corpus.de: line 1 has 2 byte(s) that are not UTF-8; convert the text to UTF-8"
    )


def test_a_run_holds_each_pair_once_and_a_second_call_does_nothing(tmp_path: Path) -> None:
    task = BlockCleaner(CorpusConfig(), tmp_path)
    raw = block(b"b\ta\nc\td\nb\ta\n")
    assert task(raw).dropped == {"duplicate": 1}
    found = SortedRuns([tmp_path / "000000.txt"]).read(KeyRange(0, 0, KEY_SPACE))
    assert dict(zip(found.pairs, found.lines.tolist(), strict=True)) == {"b\ta": 1, "c\td": 2}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert task(raw) == task(raw)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_duplicates_stay_if_wanted_and_are_spread_out(tmp_path: Path) -> None:
    config = CorpusConfig(filters=FilterConfig(drop_duplicates=False))
    lines = b"".join(b"%d\tx%d\n" % (number % 500, number % 500) for number in range(2000))
    assert BlockCleaner(config, tmp_path)(block(lines)).pairs_out == 2000
    pairs = SortedRuns([tmp_path / "000000.txt"]).read(KeyRange(0, 0, KEY_SPACE)).pairs
    together = np.mean([left == right for left, right in pairwise(pairs)])
    assert together < 0.02


def test_the_first_malformed_line_is_named() -> None:
    lines = [b"good", b"b\xe4d", b"good", b"b\xe4\xe4d", b"\xff"]
    text = b"".join(line + b"\n" for line in lines)
    cleaned = clean_block(block(text, b"eins\n\xe4\nzwei\n\xe4\ndrei\n"), CorpusConfig())
    assert cleaned.report().malformed[1] == "line 2 has 1 byte(s) that are not UTF-8"
    assert [pair.line for pair in cleaned.rejected] == [2, 4, 5]
