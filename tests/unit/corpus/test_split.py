from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dragoman.base.errors import CorpusError
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.directions import Direction
from dragoman.corpus.pairs import NamedPath, TextEntry
from dragoman.corpus.runs import HeldOutSides, SortedRuns, pair_keys, write_run
from dragoman.corpus.split import hold_out, read_split, read_text, write_text

EN_DE = Direction("en", "de")


def runs_of(folder: Path, pairs: list[tuple[str, str]]) -> SortedRuns:
    keys = pair_keys([s for s, _ in pairs], [t for _, t in pairs], seed=1)
    lines = np.arange(1, len(pairs) + 1)
    write_run(folder / "0.txt", keys, lines, [f"{s}\t{t}" for s, t in pairs], block=0)
    return SortedRuns([folder / "0.txt"])


def test_held_out_sets_share_no_side_with_each_other_or_with_given_ones(tmp_path: Path) -> None:
    pairs = [(f"s{number % 300}", f"t{number // 2}") for number in range(2000)]
    given = HeldOutSides()
    given.add(EN_DE, "s7", "t9")
    taken, keys = hold_out(
        runs_of(tmp_path, pairs), {"valid": 60, "test": 90}, given, directions=[EN_DE]
    )
    assert (len(taken["valid"]), len(taken["test"]), len(keys)) == (60, 90, 150)
    both = taken["valid"] + taken["test"]
    assert len({source for source, _, _ in both} | {"s7"}) == 151
    assert len({target for _, target, _ in both} | {"t9"}) == 151
    sources, targets = [s for s, _, _ in both], [t for _, t, _ in both]
    assert sorted(pair_keys(sources, targets, seed=1)) == sorted(keys)


def test_a_source_is_taken_once_with_or_without_a_tag(tmp_path: Path) -> None:
    words = ["", "<2de> ", "<bt> ", "<2de> <bt> "]
    pairs = [(f"{word}s{n}", f"t{n} {word}") for n in range(20) for word in words]
    taken, _ = hold_out(
        runs_of(tmp_path, pairs),
        {"valid": 10, "test": 10},
        HeldOutSides(),
        directions=[EN_DE],
        words=[["<2de>"], ["<bt>"]],
    )
    plain = [source.rpartition(" ")[2] for split in taken.values() for source, _, _ in split]
    assert sorted(plain) == sorted(f"s{n}" for n in range(20))


@pytest.mark.parametrize("written", [(True, False), (False, True), (False, False)])
def test_pairs_that_a_model_translated_are_held_out_only_if_there_are_no_others(
    tmp_path: Path, written: tuple[bool, bool]
) -> None:
    for run in range(2):
        pairs = [(f"s{run}-{n}", f"t{run}-{n}") for n in range(50)]
        keys = pair_keys([s for s, _ in pairs], [t for _, t in pairs], seed=1)
        lines = [f"{s}\t{t}" for s, t in pairs]
        write_run(tmp_path / f"{run}.txt", keys, np.arange(1, 51), lines, block=run)
    taken, _ = hold_out(
        SortedRuns([tmp_path / "0.txt", tmp_path / "1.txt"]),
        {"valid": 15, "test": 15},
        HeldOutSides(),
        directions=[EN_DE, EN_DE],
        written=written,
    )
    runs = {int(source[1]) for split in taken.values() for source, _, _ in split}
    assert runs == ({written.index(True)} if any(written) else {0, 1})


def test_nothing_wanted_takes_nothing(tmp_path: Path) -> None:
    taken, keys = hold_out(
        runs_of(tmp_path, [("a", "b")]), {"valid": 0}, HeldOutSides(), directions=[EN_DE]
    )
    assert (taken, len(keys)) == ({"valid": []}, 0)


def test_too_little_text_to_hold_out_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        CorpusError, match=r"corpus\.train: too little.*needed: 1 of en to de.*lower valid_pairs"
    ):
        hold_out(
            runs_of(tmp_path, [("a", "b")]),
            {"valid": 1, "test": 1},
            HeldOutSides(),
            directions=[EN_DE],
        )


def test_a_given_set_keeps_order_and_all_that_can_be_scored(tmp_path: Path) -> None:
    long = " ".join(["lang"] * 400)
    (tmp_path / "dev.tsv").write_bytes(f"same\tsame\n{long}\tkurz\nsame\tsame\n\tleer\n".encode())
    given = read_split([TextEntry(NamedPath("dev.tsv", tmp_path / "dev.tsv"))], CorpusConfig())
    assert given.pairs == [("same", "same"), (long, "kurz"), ("same", "same")]
    assert [(pair.filter, pair.line) for pair in given.rejected] == [("empty", 4)]


def test_text_comes_back_as_written(tmp_path: Path) -> None:
    pairs = [("a\x0bb\x85c", "\u2028"), ("ä", "ö")]
    write_text(tmp_path / "dev", pairs)
    assert read_text(tmp_path / "dev") == pairs
    assert read_text(tmp_path / "absent") == []
