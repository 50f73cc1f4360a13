"""Bounds on scores that others' tools or `dragoman score` wrote beside pairs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dragoman.base.errors import CorpusError
from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from real_text import real_lines
from rejected_pairs import read_rejected

PAIRS = 400


def scored(folder: Path, header: str = "", cell: str = "{}") -> None:
    """Pair n has the scores n and -n."""
    rows = [header] if header else []
    sides = zip(real_lines("train", "en"), real_lines("train", "de"), strict=True)
    for number, (source, target) in zip(range(PAIRS), sides, strict=False):
        rows.append(f"{source} {number}\t{target} {number}\t{cell.format(number)}\t{-number}\n")
    (folder / "scored.tsv").write_text("".join(rows), "utf-8")


def prepared(folder: Path, *scores: dict[str, Any], workers: int = 1) -> Manifest:
    config = CorpusConfig.model_validate(
        {
            "folder": str(folder),
            "train": [{"tsv": "scored.tsv", "scores": scores}],
            "source_language": "en",
            "target_language": "de",
            "subword": {"vocab_size": 300},
        }
    )
    return prepare(config, folder / "prepared", workers=workers)


def test_pairs_out_of_bounds_are_dropped_with_their_score(tmp_path: Path) -> None:
    scored(tmp_path)
    limits = {"column": 3, "at_least": 100.0, "at_most": 299.0}, {"column": 4, "at_most": -150.0}
    manifest = prepared(tmp_path, *limits)
    assert manifest.train.dropped == {"column_3": 200, "column_4": 50}
    rejected = read_rejected(tmp_path / "prepared", "train")
    assert all(pair.source.endswith(f" {abs(pair.score):.0f}") for pair in rejected)
    kept = {line + 1 for line in range(PAIRS)} - {pair.line for pair in rejected}
    assert kept == {*range(151, 301)}


def test_a_column_is_found_by_its_name_whose_line_is_no_pair(tmp_path: Path) -> None:
    scored(tmp_path, "\ufeffsource\ttarget\tbicleaner_score\tlaser\r\n")
    manifest = prepared(tmp_path, {"column": "laser", "at_least": -99.0})
    assert (manifest.train.pairs_in, manifest.train.pairs) == (PAIRS, 100)
    assert manifest.train.dropped == {"column_laser": 300}
    assert read_rejected(tmp_path / "prepared", "train")[0].line == 102


def test_a_pair_without_a_number_is_dropped(tmp_path: Path) -> None:
    scored(tmp_path, cell="")
    sides = zip(real_lines("test", "en"), real_lines("test", "de"), strict=True)
    more = "".join(f"{source}\t{target}\t1\n" for source, target in sides)
    text = (tmp_path / "scored.tsv").read_text("utf-8")
    (tmp_path / "scored.tsv").write_text(text + more + "One more.\tNoch eins.\n", "utf-8")
    manifest = prepared(tmp_path, {"column": 3, "at_most": 5.0})
    assert manifest.train.dropped["column_3"] == PAIRS + 1
    assert manifest.train.pairs > 400
    assert math.isnan(read_rejected(tmp_path / "prepared", "train")[0].score)


def test_a_few_cells_of_text_are_dropped_and_counted_apart(tmp_path: Path) -> None:
    scored(tmp_path)
    text = (tmp_path / "scored.tsv").read_text("utf-8")
    (tmp_path / "scored.tsv").write_text(text + "Yes.\tJa.\t0,5\t1\nNo.\tNein.\t\t1\n", "utf-8")
    manifest = prepared(tmp_path, {"column": 3, "at_most": 1000.0})
    assert manifest.train.dropped == {"column_3": 1, "not_a_number": 1}
    pair = read_rejected(tmp_path / "prepared", "train")[0]
    assert (pair.filter, pair.score, pair.line) == ("not_a_number", 3, PAIRS + 1)


@pytest.mark.parametrize("cell", ["{},52", "50%", "abc", "{} 1"])
def test_a_column_without_numbers_is_refused_with_its_first_line(cell: str, tmp_path: Path) -> None:
    scored(tmp_path, cell=cell)
    problem = r"scored\.tsv: line 1 has text instead of a number in column 3; write numbers such as"
    with pytest.raises(CorpusError, match=problem):
        prepared(tmp_path, {"column": 3, "at_most": 1000.0})


def test_a_tab_in_a_text_does_not_shift_the_scores(tmp_path: Path) -> None:
    """A line of Multi30k has one: its target would be cut, and be judged by another score."""
    scored(tmp_path)
    text = (tmp_path / "scored.tsv").read_text("utf-8")
    line = "Two play in a fountain.\tZwei spielen in einer \tWasserfontäne.\t5\t-500\n"
    (tmp_path / "scored.tsv").write_text(text + line, "utf-8")
    manifest = prepared(tmp_path, {"column": 4, "at_least": -1000.0, "at_most": 1000.0})
    assert manifest.train.dropped == {"column_4": 1}
    assert read_rejected(tmp_path / "prepared", "train")[0].line == PAIRS + 1


@pytest.mark.parametrize(
    ("header", "column", "problem"),
    [
        ("", 5, r"scored.tsv: its first line has no column 5, only 4"),
        ("", "laser", "scored.tsv: its first line names no column 'laser'"),
        ("laser\tsource\tx\ty\n", "laser", "names no column 'laser' after source and target"),
    ],
)
def test_a_column_that_is_not_there_is_named(
    header: str, column: int | str, problem: str, tmp_path: Path
) -> None:
    scored(tmp_path, header)
    with pytest.raises(CorpusError, match=problem):
        prepared(tmp_path, {"column": column, "at_most": 5.0})


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"tsv": "a", "scores": [{"column": 2, "at_most": 1}]}, "scores begin at column 3"),
        ({"tsv": "a", "scores": [{"column": "a\tb", "at_most": 1}]}, "control characters"),
        ({"tsv": "a", "scores": [{"column": 3}]}, "needs at_least, at_most or both"),
        ({"mtdata": "a", "scores": [{"column": 3, "at_most": 1}]}, "columns of a tsv"),
    ],
)
def test_entries_that_make_no_sense_are_refused(entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TextFiles.model_validate(entry)


def test_every_pair_of_a_test_set_counts() -> None:
    entry = {"tsv": "a", "scores": [{"column": 3, "at_most": 1}]}
    with pytest.raises(ValidationError, match="for entries of train"):
        CorpusConfig.model_validate(
            {"valid": [entry], "source_language": "en", "target_language": "de"}
        )


def test_older_entries_keep_their_digest() -> None:
    assert "scores" not in TextFiles(tsv="a").model_dump()
