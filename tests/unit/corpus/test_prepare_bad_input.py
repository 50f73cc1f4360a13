"""Bad input: one line that names place and remedy, and what was there before stays."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from dragoman.base.errors import ConfigError, CorpusError, DragomanError
from dragoman.corpus.clean import read_rejected
from dragoman.corpus.config import SubwordConfig, TextFiles
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from dragoman.corpus.survey import EXAMPLES, read_surveys
from dragoman.corpus.survey import FILE_NAME as SURVEYS
from dragoman.corpus.workplace import FAILED
from parallel_text import sentences, small_corpus, write_lines, write_pairs

SOURCES, TARGETS = sentences(300)


def plain(source: bytes, target: bytes | None = None) -> Callable[[Path], dict[str, object]]:
    def write(folder: Path) -> dict[str, object]:
        (folder / "a.en").write_bytes(source)
        if target is None:
            write_lines(folder / "a.de", TARGETS)
        else:
            (folder / "a.de").write_bytes(target)
        return {"train": (TextFiles(source="a.en", target="a.de"),)}

    return write


def tsv(text: str) -> Callable[[Path], dict[str, object]]:
    def write(folder: Path) -> dict[str, object]:
        (folder / "a.tsv").write_text(text)
        return {"train": (TextFiles(tsv="a.tsv"),)}

    return write


def settings(**changes: object) -> Callable[[Path], dict[str, object]]:
    return lambda _: changes


def directory(folder: Path) -> dict[str, object]:
    (folder / "a.tsv").mkdir()
    return {"train": (TextFiles(tsv="a.tsv"),)}


def empty_test_set(folder: Path) -> dict[str, object]:
    return {"test": (write_pairs(folder, "t", (["", ""], ["eins", "zwei"])),)}


LINES = "".join(f"{source}\n" for source in SOURCES).encode()
BAD: dict[str, tuple[Callable[[Path], dict[str, object]], str]] = {
    "no training text": (settings(train=()), r"^corpus\.train: no training text.*add an entry"),
    "missing file": (
        settings(train=(TextFiles(tsv="absent.tsv"),)),
        r"absent\.tsv: does not exist; check the name in corpus\.train",
    ),
    "a directory": (directory, r"a\.tsv: is a directory; check the name"),
    "misaligned": (
        plain(LINES + b"one more\n"),
        r"a\.en, .*a\.de: the source has 301 lines, the target 300; the shorter one.*line N",
    ),
    "empty file": (plain(b"", b""), r"a\.en: holds no text; give a file"),
    "latin-1": (
        plain(LINES.decode().replace("tü", "tü ").encode("latin-1")),
        r"a\.en: line \d+ has \d+ byte\(s\) that are not UTF-8; convert the text to UTF-8",
    ),
    "the first of several bad lines": (
        plain(b"good\n" + b"b\xe4d\n" * 299),
        r"a\.en: line 2 has 1 byte\(s\) that are not UTF-8",
    ),
    "an endless line": (
        plain(LINES + gzip.compress(b"", mtime=0) + b"x" * (17 << 20)),
        r"a\.en: line 301 is longer than 16 MiB; give text with one sentence per line",
    ),
    "an endless line, packed": (
        plain(zstandard.compress(os.urandom(100_000).hex().encode() + b"x" * (1 << 24))),
        r"a\.en: line 1 is longer than 16 MiB; give text with one sentence per line",
    ),
    "a bomb": (
        plain(zstandard.compress(b"x" * (1 << 28))),
        r"a\.en: unpacks to more than 250 times its size, which text does not do; "
        r"if it is text, unpack it and name the unpacked file",
    ),
    "lines of very different lengths": (
        plain(b"short\n" * 9, (b"long" * (1 << 20) + b"\n" * 1) * 33),
        r"a\.en, .*a\.de: the source has 9 lines, the target 33",
    ),
    "lines far longer than the other side's": (
        plain(b"short\n" * 40, (b"long" * (1 << 20) + b"\n") * 40),
        r"a\.de: its lines are far longer than those of a\.en: 40 have more than 128 MiB",
    ),
    "utf-16": (
        plain("a\nb\n".encode("utf-16"), b"1\n2\n3\n"),
        r"a\.en: is UTF-16, not UTF-8; convert it, for example with: iconv -f utf-16 -t utf-8$",
    ),
    "utf-16, packed, on the other side": (
        plain(b"1\n2\n3\n", gzip.compress("a\nb\n".encode("utf-16"))),
        r"a\.de: is UTF-16, not UTF-8",
    ),
    "a missing column": (
        tsv("one\teins\nalone\ntwo\tzwei\n"),
        r"a\.tsv: line 2 has 1 column\(s\) instead of 2; .*one tab between them",
    ),
    "too many columns": (
        tsv("0.9\tone\teins\n"),
        r"a\.tsv: line 1 has 3 column\(s\) instead of 2; .*name one in scores",
    ),
    "cut-off gzip": (
        plain(gzip.compress(LINES)[:-10]),
        r"a\.en: the compressed file is damaged: it ends too early; fetch or pack it again",
    ),
    "a test set without text": (empty_test_set, r"^corpus\.test: none of 2 pairs is left"),
    "too large a vocabulary": (
        settings(subword=SubwordConfig(vocab_size=50_000)),
        r"^corpus\.subword\.vocab_size: 50000 is more .*; set it to \d+ or less",
    ),
    "too little to hold out": (
        settings(valid_pairs=10_000),
        r"^corpus\.train: too little text to hold out .*; lower valid_pairs",
    ),
}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_changes_nothing(tmp_path: Path, name: str, workers: int) -> None:
    before = prepare(small_corpus(tmp_path), tmp_path / "out", workers=1)
    write, message = BAD[name]
    config = small_corpus(tmp_path, **write(tmp_path))
    with pytest.raises(DragomanError, match=message) as error:
        prepare(config, tmp_path / "out", workers=workers)
    assert isinstance(error.value, CorpusError | ConfigError)
    assert "\n" not in str(error.value)
    assert error.value.place
    assert error.value.remedy
    assert Manifest.load(tmp_path / "out") == before
    assert not (tmp_path / "out/.unfinished").exists()
    with pytest.raises(DragomanError, match=message):
        prepare(config, tmp_path / "new", workers=workers)
    assert not (tmp_path / "new").exists()


def test_a_corpus_of_which_nothing_is_left_shows_its_dropped_pairs(tmp_path: Path) -> None:
    """They are out of the way of the next preparation, which removes them."""
    same_on_both_sides = plain(LINES, LINES)(tmp_path)
    failed = tmp_path / "out" / FAILED
    message = r"^corpus\.train: none of 300 pairs is left \(identical 300\); look at .*/out/failed"
    for _ in range(2):
        with pytest.raises(CorpusError, match=message):
            prepare(small_corpus(tmp_path, **same_on_both_sides), tmp_path / "out", workers=1)
        pairs = list(read_rejected(failed / "train.tsv.zst"))
        assert Counter(pair.filter for pair in pairs) == {"identical": 300}
        (survey,) = (one for one in read_surveys(failed / SURVEYS) if one.name == "identical")
        assert len(survey.dropped) == EXAMPLES
    prepare(small_corpus(tmp_path), tmp_path / "out", workers=1)
    assert not failed.exists()
    with pytest.raises(CorpusError, match=message):
        prepare(small_corpus(tmp_path, **same_on_both_sides), tmp_path / "out", workers=1)
    (failed / "notes.txt").write_text("of a user")
    prepare(small_corpus(tmp_path), tmp_path / "out", workers=1)  # the corpus is there already
    assert [path.name for path in failed.iterdir()] == ["notes.txt"]


def test_folders_of_somebody_else_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "data/train").mkdir(parents=True)
    precious = tmp_path / "data/train/text.en"
    precious.write_text("collected over years")
    with pytest.raises(ConfigError, match="train is there already and belongs to no"):
        prepare(small_corpus(tmp_path), tmp_path / "data", workers=1)
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == [precious]


@pytest.mark.parametrize(
    ("held_out", "problem"),
    [(10, "too little text to hold out"), (0, r"\d+ is (more than|too small)")],
    ids=["no text to hold out", "no text for the vocabulary"],
)
def test_too_little_text_is_blamed_on_the_filters_that_dropped_it(
    held_out: int, problem: str, tmp_path: Path
) -> None:
    lines = [f"a long sentence {n}\tein langer Satz {n}" for n in range(400)]
    (tmp_path / "a.tsv").write_text("\n".join([*lines, "hi\tja", "no\tso"]))
    config = small_corpus(
        tmp_path,
        train=({"tsv": str(tmp_path / "a.tsv")},),
        filters={"max_words": 2},
        valid_pairs=held_out,
        test_pairs=0,
    )
    blame = r"99\.5% of the .* were dropped \(400 of 402\): corpus\.filters\.max_words 400: look at"
    with pytest.raises(
        CorpusError, match=f"{problem}.*; {blame} .*/out/failed.*, and loosen the key"
    ):
        prepare(config, tmp_path / "out", workers=1)
    assert len(list(read_rejected(tmp_path / "out" / FAILED / "train.tsv.zst"))) == 400
