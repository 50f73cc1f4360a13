from __future__ import annotations

import numpy as np
import pytest

from dragoman.base.errors import ConfigError
from dragoman.corpus.filters import (
    FILTERS,
    Columns,
    Filter,
    FilterConfig,
    Rejection,
    key_of,
    reject,
)
from dragoman.recipe.recipe import load_recipe

GOOD = ("A good sentence of some length.", "Ein guter Satz von einiger Länge.")
BAD = {
    "empty": (("", "Ein Satz."), 1),
    "control_characters": (("A\x00 bell\x07 rings.", "Eine Glocke läutet.\ue000"), 3),
    "over_long": ((" ".join(["a"] * 251), " ".join(["b"] * 200)), 251),
    "length_ratio": (("Short one.", "x" * 100), 10),
    "identical": (GOOD[:1] * 2, 1),
}


@pytest.mark.parametrize("name", BAD)
def test_each_filter_drops_its_kind_with_a_score(name: str) -> None:
    (source, target), score = BAD[name]
    pairs = Columns([GOOD[0], source, GOOD[0]], [GOOD[1], target, GOOD[1]])
    assert reject(pairs, FilterConfig()) == [Rejection(1, name, score)]


def test_every_filter_is_covered_here() -> None:
    assert [known.name for known in FILTERS] == [*BAD, "numbers", "ending", "language"]


def test_each_key_of_the_section_belongs_to_one_filter() -> None:
    others = ("duplicate", "near_duplicate", "overlap", "lexical")
    keys = [key_of(name) for name in (*(one.name for one in FILTERS), *others)]
    assert sorted(filter(None, keys)) == sorted(
        f"corpus.filters.{name}" for name in FilterConfig.model_fields if name != "added"
    )


@pytest.mark.parametrize("pair", [(GOOD[1], GOOD[1]), (GOOD[0], GOOD[0]), GOOD[::-1]])
def test_a_side_in_another_language_is_dropped(pair: tuple[str, str]) -> None:
    pairs = Columns([GOOD[0], pair[0]], [GOOD[1], pair[1]], languages=("en", "de"))
    config = FilterConfig(max_language_log_odds=1.5, drop_identical=False)
    (rejection,) = reject(pairs, config)
    assert rejection[:2] == (1, "language")
    at_threshold = config.model_copy(update={"max_language_log_odds": rejection.score})
    assert reject(pairs, at_threshold) == []
    assert reject(pairs, FilterConfig(drop_identical=False)) == []


def test_sides_with_other_numbers_are_dropped() -> None:
    pairs = Columns(["Page 12 of 30.", "Page 1."], ["Seite 21 von 30.", "Seite 1."])
    assert reject(pairs, FilterConfig(max_number_differences=1)) == [Rejection(0, "numbers", 2)]
    assert reject(pairs, FilterConfig(max_number_differences=2)) == []
    assert reject(pairs, FilterConfig()) == []


def test_sides_that_end_otherwise_are_dropped() -> None:
    pairs = Columns(["Where is it?", "He left."], ["Wo ist es?", "Er ging und"])
    assert reject(pairs, FilterConfig(drop_other_ending=True)) == [Rejection(1, "ending", 1)]
    assert reject(pairs, FilterConfig()) == []


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("control_characters", {"max_control_characters": 3}),
        ("over_long", {"max_words": 251}),
        ("length_ratio", {"max_length_ratio": 10.0}),
        ("identical", {"drop_identical": False}),
    ],
)
def test_the_threshold_itself_is_accepted(name: str, settings: dict[str, float]) -> None:
    source, target = BAD[name][0]
    config = FilterConfig.model_validate(settings)
    assert reject(Columns([source], [target]), config) == []


def test_short_sides_may_differ_much() -> None:
    assert reject(Columns(["OK"], ["In Ordnung"]), FilterConfig()) == []


def test_joiners_and_soft_hyphens_are_not_control_characters() -> None:
    pairs = Columns(["می\u200cخواهم"], ["Donau\u00addampf"])
    assert reject(pairs, FilterConfig()) == []


def test_only_the_first_filter_that_fails_is_named_and_malformed_rows_come_first() -> None:
    pairs = Columns(["", "same"], ["", "same"])
    malformed = [Rejection(1, "invalid_utf8", 2)]
    assert reject(pairs, FilterConfig(), malformed=malformed) == [
        Rejection(1, "invalid_utf8", 2),
        Rejection(0, "empty", 2),
    ]


def test_a_new_filter_is_a_score_and_a_line() -> None:
    def question_marks(pairs: Columns) -> np.ndarray:
        sides = zip(pairs.sources, pairs.targets, strict=True)
        marks = [abs(source.count("?") - target.count("?")) for source, target in sides]
        return np.array(marks, dtype=np.float64)

    asked = Filter("question", question_marks, lambda _: 0)
    pairs = Columns(["Why?", "So."], ["Darum.", "Also."])
    assert reject(pairs, FilterConfig(), filters=(asked,)) == [Rejection(0, "question", 1)]


def test_an_added_filter_that_is_not_there_is_named_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"corpus\.filters\.added\.nope = ") as refused:
        load_recipe("demo", ["corpus.filters.added.nope=2"])
    assert "[key]" not in str(refused.value)
