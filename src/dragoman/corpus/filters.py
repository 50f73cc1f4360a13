"""Scores and thresholds: why a pair is kept or dropped.

A filter gives every pair a score; a pair is dropped by the first filter that does not accept its
score. A filter is a line of FILTERS, and a field of FilterConfig if a recipe may set its threshold.
Costly filters come last, because they see fewer pairs there. Another package adds one as an entry
point of the group `dragoman.filters` (base/extensions.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from dragoman.base.extensions import Parts
from dragoman.base.settings import Section
from dragoman.corpus.agreement import endings_differ, number_differences
from dragoman.corpus.language import check_languages, other_language_log_odds
from dragoman.corpus.pairs import ColumnLimit

_RATIO_MIN_CHARACTERS = 20
_CONTROL_CATEGORIES = frozenset({"Cc", "Cn", "Co", "Cs"})


class FilterConfig(Section):
    """Thresholds of the filters; a pair is dropped by the first filter that it fails."""

    max_words: int = Field(default=250, ge=1)
    """Longest side, in white-space separated words."""
    max_length_ratio: float = Field(default=4.0, ge=1.0)
    """Longer over shorter side in characters, applied if either side has over 20 characters."""
    max_control_characters: int = Field(default=0, ge=0)
    """Control and unassigned characters that are left after normalisation."""
    drop_identical: bool = True
    """Drop pairs whose two sides are equal."""
    drop_duplicates: bool = True
    """Keep only the first of equal pairs."""
    drop_near_duplicates: bool = False
    """Keep only the first of pairs that differ in nothing but case, numbers, punctuation, symbols
    and spaces; `drop_overlap` then compares texts in the same way."""
    drop_overlap: bool = True
    """Drop training pairs if either side occurs in the dev or test set."""
    max_number_differences: int | None = Field(default=None, ge=0)
    """Numbers that occur on one side only, by their digits: separators and leading zeros do not
    count."""
    drop_other_ending: bool = False
    """Drop pairs whose sides end in different ways: in a full stop or exclamation mark, in a
    question mark, in a colon, or in none of these."""
    max_language_log_odds: float | None = Field(default=None, ge=0.0)
    """ln(p of the likeliest other language / p of the side's own) of the worse side; 1.5 drops few
    short sentences by mistake."""

    min_lexical_gain: float | None = None
    """Mean over pieces of ln(p(piece, given the other side) / p(piece)), by a model of words that
    is learnt from the corpus itself, in the worse direction; -0.4 drops most wrong pairs."""
    added: dict[Annotated[str, AfterValidator(lambda name: ADDED.known(name))], float] = Field(
        default_factory=dict
    )
    """Thresholds of filters that other packages add, by the names of the filters."""


Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Normalised pairs of one block, side by side.

    given_scores: scores from further columns of the file, by the column's index; nan if one is
        not a number.
    """

    sources: list[str]
    targets: list[str]
    languages: tuple[str, str] = ("", "")
    given_scores: Mapping[int, Scores] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources)

    def only(self, rows: NDArray[np.int64]) -> Columns:
        """The pairs of these rows, which must ascend."""
        if len(rows) == len(self):
            return self
        sources, targets = ([side[row] for row in rows] for side in (self.sources, self.targets))
        given_scores = {index: scores[rows] for index, scores in self.given_scores.items()}
        return Columns(sources, targets, self.languages, given_scores)


@dataclass(frozen=True, slots=True)
class Filter:
    """A named score and its threshold, the highest accepted value; None: the filter is off.

    at_least: the threshold is the lowest accepted value instead.
    key: of the recipe, that sets the threshold; "" if none does.
    """

    name: str
    score: Callable[[Columns], Scores]
    threshold: Callable[[FilterConfig], float | None]
    at_least: bool = False
    key: str = ""

    def accepts(self, scores: Scores, threshold: float) -> NDArray[np.bool_]:
        """True for each score on the right side of the threshold, and never for nan."""
        return scores >= threshold if self.at_least else scores <= threshold


class Rejection(NamedTuple):
    """A row of a block that a filter dropped, and its score.

    file: the file at fault; "" if the pair itself is.
    """

    row: int
    filter: str
    score: float
    file: str = ""


def empty_sides(pairs: Columns) -> Scores:
    """How many sides are empty."""
    sides = zip(pairs.sources, pairs.targets, strict=True)
    return _array((not source) + (not target) for source, target in sides)


def control_characters(pairs: Columns) -> Scores:
    """Control, private and unassigned characters on both sides."""
    sides = zip(pairs.sources, pairs.targets, strict=True)
    return _array(_count_controls(source) + _count_controls(target) for source, target in sides)


def longest_words(pairs: Columns) -> Scores:
    """Words of the longer side."""
    words = ([text.count(" ") for text in side] for side in (pairs.sources, pairs.targets))
    return np.maximum(*map(_array, words)) + 1.0


def length_ratio(pairs: Columns) -> Scores:
    """Characters of the longer side over those of the shorter; 1 if both are short."""
    sides = [_array(map(len, side)) for side in (pairs.sources, pairs.targets)]
    longer, shorter = np.maximum(*sides), np.minimum(*sides)
    return np.where(longer > _RATIO_MIN_CHARACTERS, longer / np.maximum(shorter, 1), 1.0)


def identical_sides(pairs: Columns) -> Scores:
    """1 if source and target are the same text."""
    sides = zip(pairs.sources, pairs.targets, strict=True)
    return _array(source == target for source, target in sides)


def differing_numbers(pairs: Columns) -> Scores:
    """Numbers that occur on one side only."""
    return _array(map(number_differences, pairs.sources, pairs.targets))


def differing_endings(pairs: Columns) -> Scores:
    """1 if the sides end in different kinds of punctuation."""
    return _array(map(endings_differ, pairs.sources, pairs.targets))


def other_language(pairs: Columns) -> Scores:
    """Log odds of the likeliest other language on the worse side."""
    sides = zip((pairs.sources, pairs.targets), pairs.languages, strict=True)
    return np.maximum(*(_array(other_language_log_odds(texts, code)) for texts, code in sides))


EMPTY = Filter("empty", empty_sides, lambda _: 0)
FILTERS: tuple[Filter, ...] = (
    EMPTY,
    Filter(
        "control_characters",
        control_characters,
        lambda c: c.max_control_characters,
        key="corpus.filters.max_control_characters",
    ),
    Filter("over_long", longest_words, lambda c: c.max_words, key="corpus.filters.max_words"),
    Filter(
        "length_ratio",
        length_ratio,
        lambda c: c.max_length_ratio,
        key="corpus.filters.max_length_ratio",
    ),
    Filter(
        "identical",
        identical_sides,
        lambda c: 0 if c.drop_identical else None,
        key="corpus.filters.drop_identical",
    ),
    Filter(
        "numbers",
        differing_numbers,
        lambda c: c.max_number_differences,
        key="corpus.filters.max_number_differences",
    ),
    Filter(
        "ending",
        differing_endings,
        lambda c: 0 if c.drop_other_ending else None,
        key="corpus.filters.drop_other_ending",
    ),
    Filter(
        "language",
        other_language,
        lambda c: c.max_language_log_odds,
        key="corpus.filters.max_language_log_odds",
    ),
)
ADDED: Final = Parts[Filter]("filters", {})
"""The filters of other packages."""
_KEYS_OF_OTHERS: Final = {
    "duplicate": "corpus.filters.drop_duplicates",
    "near_duplicate": "corpus.filters.drop_near_duplicates",
    "overlap": "corpus.filters.drop_overlap",
    "lexical": "corpus.filters.min_lexical_gain",
}
"""The keys of filters that need the whole corpus, by their names."""
_OF_COLUMN: Final = "column_"
OTHER_SCRIPT: Final = "other_script_"
"""Begins the reason of a translation unit that has a language only in another script; the language
and that script follow, such as sr-Cyrl. No filter gives it."""


def key_of(name: str) -> str:
    """The key of the recipe that sets a filter; "" if none does, as for lines that are no pairs."""
    if name.startswith(_OF_COLUMN):
        return f"corpus.train.scores, column {name.removeprefix(_OF_COLUMN)}"
    of_rows = next((one.key for one in (*FILTERS, *ADDED.values()) if one.name == name), "")
    return of_rows or _KEYS_OF_OTHERS.get(name, "")


def filters_of(config: FilterConfig) -> tuple[Filter, ...]:
    """Our filters, and those of other packages that a recipe names."""
    return (*FILTERS, *(ADDED[name] for name in config.added))


def column_filters(limits: Iterable[ColumnLimit]) -> list[Filter]:
    """Filters by the scores in further columns of a TSV file."""

    def by_column(limit: ColumnLimit, bound: float, *, at_least: bool) -> Filter:
        name = f"{_OF_COLUMN}{limit.name}"
        return Filter(
            name, lambda pairs: pairs.given_scores[limit.index], lambda _: bound, at_least
        )

    return [
        by_column(limit, bound, at_least=at_least)
        for limit in limits
        for bound, at_least in ((limit.at_least, True), (limit.at_most, False))
        if bound is not None
    ]


def check_filters(config: FilterConfig, *, languages: Sequence[str]) -> None:
    """Raise ConfigError or MachineError if a filter that is on cannot work."""
    if config.max_language_log_odds is not None:
        check_languages(*languages, place="corpus.filters.max_language_log_odds")


OnScores = Callable[[Filter, float, NDArray[np.int64], Scores, NDArray[np.bool_]], None]
"""Called with a filter, its threshold, rows, their scores and whether they are accepted."""


def reject(
    pairs: Columns,
    config: FilterConfig,
    *,
    malformed: Sequence[Rejection] = (),
    filters: Sequence[Filter] | None = None,
    on_scores: OnScores | None = None,
) -> list[Rejection]:
    """The rows to drop, each once, with the first filter that it fails.

    malformed: rows that are dropped in any case; they come first in the result.
    on_scores: called for each active filter with its scores of the rows that earlier filters kept.
    """
    rejections = list(malformed)
    accepted = np.ones(len(pairs), dtype=np.bool_)
    for rejection in malformed:
        accepted[rejection.row] = False
    for chosen in filters_of(config) if filters is None else filters:
        threshold = chosen.threshold(config)
        if threshold is None:
            continue
        rows = np.flatnonzero(accepted)
        scores = chosen.score(pairs.only(rows))
        failed = ~chosen.accepts(scores, threshold)
        if on_scores is not None:
            on_scores(chosen, threshold, rows, scores, ~failed)
        accepted[rows[failed]] = False
        rejections += [
            Rejection(int(row), chosen.name, float(score))
            for row, score in zip(rows[failed], scores[failed], strict=True)
        ]
    return rejections


def _count_controls(text: str) -> int:
    if text.isprintable():
        return 0
    return sum(unicodedata.category(character) in _CONTROL_CATEGORIES for character in text)


def _array(values: Iterable[float]) -> Scores:
    return np.fromiter(values, dtype=np.float64)
