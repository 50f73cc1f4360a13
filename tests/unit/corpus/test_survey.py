"""The scores that filters gave, and the pairs near their thresholds."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import dragoman
from dragoman.base.errors import CorpusError, MachineError
from dragoman.corpus.clean import REJECTED
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.prepare import prepare
from dragoman.corpus.survey import (
    EXAMPLES,
    FILE_NAME,
    FilterSurvey,
    join_surveys,
    read_surveys,
    write_surveys,
)
from dragoman.corpus.workplace import FAILED
from dragoman.reporting.cleaning import PAGE, _curve, cleaning_page, write_cleaning_page
from dragoman.reporting.svg import LinePlot
from real_text import write_real_text
from rejected_pairs import read_rejected

LARGEST = sys.float_info.max


def survey(scores: list[float], first_line: int = 1) -> FilterSurvey:
    made = FilterSurvey("words", 10.0, at_least=False)
    values = np.array(scores)
    lines = np.arange(first_line, first_line + len(scores))
    made.see(values, values <= 10.0, lines, lambda row: ("a", f"{scores[row]}", "target"))
    return made


def test_scores_are_counted_to_three_digits_and_examples_are_the_nearest() -> None:
    made = survey([*range(100), 10.001, 10.002, np.nan, np.inf])
    assert made.counts[10.0] == (1, 2)
    assert made.counts[99.0] == (0, 1)
    assert made.unscored == 1
    assert made.counts[LARGEST] == (0, 1)
    assert [one.score for one in made.kept] == [float(score) for score in range(10, -1, -1)]
    assert [one.score for one in made.dropped][:3] == [10.001, 10.002, 11.0]
    assert len(made.dropped) == EXAMPLES


@pytest.mark.parametrize(
    "scores",
    [
        [5e-324, 1.0, 2.0, 1e-320],
        [1.7e308, -1.7e308, 1.0, 0.0, 1.7976e308],
        [math.inf, 1.0, 2.0, -math.inf],
        [0.0] * 320 + [1e-310, 1e-300, 2e-300],
    ],
)
@pytest.mark.parametrize("threshold", [1.5, 1e-310, 1e308, -math.inf])
def test_the_smallest_and_largest_numbers_have_a_place_on_the_page(
    scores: list[float], threshold: float, tmp_path: Path
) -> None:
    made = FilterSurvey("column_3", threshold, at_least=True)
    values = np.array(scores * 3)
    accepted = values >= threshold
    made.see(values, accepted, np.arange(len(values)), lambda _: ("a", "source", "target"))
    assert sum(dropped for _, dropped in made.counts.values()) == (~accepted).sum()
    write_surveys(tmp_path / FILE_NAME, [made])
    write_cleaning_page(tmp_path)
    page = (tmp_path / PAGE).read_text("utf-8")
    assert f"dropped {(~accepted).sum()} of {len(values):,} pairs" in page
    assert not re.search(r'"-?(nan|inf)"', page)


def curve(scores: list[float], threshold: float, *, at_least: bool) -> LinePlot:
    """The curve of a filter with these scores."""
    made = FilterSurvey("ratio", threshold, at_least=at_least)
    values = np.array(scores)
    accepted = values >= threshold if at_least else values <= threshold
    made.see(values, accepted, np.arange(len(values)), lambda _: ("a", "source", "target"))
    return _curve(made)


@pytest.mark.parametrize("at_least", [True, False])
@pytest.mark.parametrize("threshold", [-3, 0, 4])
def test_a_curve_tells_what_a_threshold_drops(threshold: float, at_least: bool) -> None:
    scores = np.random.default_rng(1).normal(1, 6, 3000).round()
    shares, mark = curve(scores.tolist(), threshold, at_least=at_least).series
    dropped = scores < threshold if at_least else scores > threshold
    assert dict(shares.points)[threshold] == pytest.approx(100 * dropped.mean())
    assert mark.points == [(threshold, 0.0), (threshold, 100.0)]


def test_infinite_scores_leave_room_for_the_others() -> None:
    scores = np.random.default_rng(1).normal(0, 1, 5000).tolist()
    shares, _ = curve([*scores, *[math.inf] * 400], 0.5, at_least=False).series
    places = [score for score, _ in shares.points]
    assert max(places) < 10
    always = 100 * 400 / 5400
    assert min(share for _, share in shares.points) == pytest.approx(always, rel=0.3)


def test_parts_add_up_to_the_whole(tmp_path: Path) -> None:
    scores = np.random.default_rng(1).normal(10, 5, 3000).round(1).tolist()
    whole = survey(scores)
    for number in range(3):
        part = survey(scores[number * 1000 : number * 1000 + 1000], number * 1000 + 1)
        write_surveys(tmp_path / f"{number}", [part])
    assert join_surveys(tmp_path / f"{number}" for number in range(3)) == [whole]


def test_surveys_that_are_written_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.corpus.survey._LARGEST_FILE", 40_000)
    few, many = survey([1.0, 20.0]), survey(np.geomspace(1, 1e300, 3000).tolist())
    write_surveys(tmp_path / "part", [few, many, many, survey([])])
    read = read_surveys(tmp_path / "part")
    assert read == [few, many.totals(), many.totals(), survey([])]
    assert read[1].counts == {10.0: (10, 2990)}


@pytest.mark.system
@pytest.mark.parametrize("workers", [1, 2])
def test_a_prepared_corpus_has_the_counts_and_a_page_of_its_filters(
    workers: int, tmp_path: Path
) -> None:
    write_real_text(tmp_path, "valid")
    for language in ("en", "de"):  # 21 pairs occur twice
        copied = tmp_path / f"valid.{language}"
        lines = copied.read_text("utf-8").splitlines(keepends=True)
        copied.write_text("".join(lines + lines[:21]), "utf-8")
    with (tmp_path / "valid.de").open("a", encoding="utf-8") as german:
        german.write(f"<script>alert(1)</script>\x1b[31m {'x' * 999}\n")
    with (tmp_path / "valid.en").open("a", encoding="utf-8") as english:
        english.write("Cut\n")
    config = CorpusConfig.model_validate(
        {
            "folder": str(tmp_path),
            "train": [{"source": "valid.en", "target": "valid.de"}],
            "subword": {"vocab_size": 300},
            "filters": {"drop_other_ending": True, "max_control_characters": 9},
        }
    )
    place = tmp_path / "prepared"
    manifest = prepare(config, place, workers=workers)
    filters = json.loads((place / REJECTED / FILE_NAME).read_text("utf-8"))["filters"]
    dropped = {one["name"]: sum(n for _, _, n in one["counts"]) for one in filters}
    rejected = [pair.filter for pair in read_rejected(place, "train")]
    assert {name: n for name, n in dropped.items() if n} == {
        name: rejected.count(name) for name in dropped if name in rejected
    }
    assert manifest.train.dropped["length_ratio"] == dropped["length_ratio"] == 1
    assert write_cleaning_page(place / REJECTED) == place / REJECTED / PAGE
    page = (place / REJECTED / PAGE).read_text("utf-8")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "\x1b" not in page
    duplicates = rejected.count("duplicate")
    assert duplicates >= 21
    said = f"<p class='method'>has no threshold: dropped {duplicates} pairs</p>"
    assert f"<h2>corpus.filters.drop_duplicates</h2>{said}" in page
    assert "Dropped: the first 20" in page
    assert write_cleaning_page(place / REJECTED) is None
    (place / REJECTED / PAGE).unlink()
    for change in ({"unknown": 1}, {"counts": [[1, "a", 2]]}, {"name": 1}):
        (place / REJECTED / FILE_NAME).write_text(json.dumps({"filters": [filters[0] | change]}))
        with pytest.raises(CorpusError, match=r"filters\.json: is damaged"):
            write_cleaning_page(place / REJECTED)
    (place / REJECTED / FILE_NAME).write_text(json.dumps({"filters": filters}))
    (place / REJECTED / "train.tsv.zst").write_bytes(b"\x28\xb5\x2f\xfd torn")
    with pytest.raises(CorpusError, match=r"train\.tsv\.zst: is damaged"):
        write_cleaning_page(place / REJECTED)
    (place / REJECTED / "train.tsv.zst").unlink()
    (place / REJECTED / FILE_NAME).rename(place / "elsewhere")
    (place / REJECTED / FILE_NAME).symlink_to("/proc/self/mem")  # an error of the disk
    with pytest.raises(MachineError, match=r"filters\.json: cannot be read: Input/output error"):
        write_cleaning_page(place / REJECTED)
    (place / "elsewhere").rename(place / REJECTED / FILE_NAME)
    assert write_cleaning_page(place / REJECTED)


def test_a_page_shows_the_pairs_of_a_corpus_of_which_nothing_is_left(tmp_path: Path) -> None:
    write_real_text(tmp_path, "valid")
    corpus = {
        "folder": str(tmp_path),
        "train": [{"source": "valid.en", "target": "valid.de"}],
        "valid_pairs": 10,
        "filters": {"max_words": 1},
    }
    with pytest.raises(
        CorpusError, match=r"none of \d+ pairs is left .*; look at .*/failed-preparation"
    ):
        dragoman.prepare({"corpus": corpus}, prepared=tmp_path / "prepared")
    page = (tmp_path / "prepared" / FAILED / PAGE).read_text("utf-8")
    assert "<h2>corpus.filters.max_words</h2>" in page


def test_a_filter_that_saw_nothing_has_a_place_on_the_page() -> None:
    page = cleaning_page([survey([]), survey([1.0, 2.0, 3.0, 30.0])], {})
    assert "dropped 0 of 0 pairs" in page
    assert page.count("<svg") == 2
