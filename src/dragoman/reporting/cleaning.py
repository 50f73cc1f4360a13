"""The page of dropped pairs: scores, thresholds and the pairs near each threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from dragoman.base import units
from dragoman.base.errors import CorpusError
from dragoman.corpus.clean import REJECTED
from dragoman.corpus.survey import FILE_NAME, Example, FilterSurvey, read_surveys
from dragoman.reporting.elements import escape, figures, whole_page
from dragoman.reporting.render import write_files
from dragoman.reporting.svg import Axis, Histogram

PAGE: Final = "filters.html"
_MOST_COLUMNS: Final = 40
_LARGEST_SHOWN: Final = 1e307
"""Larger scores are cut: an axis of twice this length, and a column more, must stay finite."""
_SMALLEST_RANGE: Final = 1e-290
"""The width of a page divided by this is still a finite number."""


def write_cleaning_page(prepared: Path) -> Path | None:
    """Write `rejected/filters.html` of a prepared corpus, if it has scores and no page yet.

    Raises: CorpusError if the scores are damaged, MachineError if the page cannot be written.
    """
    folder = prepared / REJECTED
    if (folder / PAGE).exists() or not (folder / FILE_NAME).is_file():
        return None
    try:
        page = cleaning_page(read_surveys(folder / FILE_NAME))
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise CorpusError(
            "is damaged", place=folder / FILE_NAME, remedy="remove it, or prepare another directory"
        ) from error
    (path,) = write_files(folder, {PAGE: page})
    return path


def cleaning_page(surveys: Sequence[FilterSurvey]) -> str:
    """The page, with the filters that dropped most first."""
    body = [
        "<header><h1>What the filters dropped</h1></header>",
        "<p class='method'>Each filter sees the pairs that the filters before it kept. "
        "Heights are logarithms. A dashed line is the threshold; "
        "the pairs under a histogram are those nearest to it on both sides.</p>",
    ]
    for one in sorted(surveys, key=lambda one: (-_dropped(one), one.name)):
        body += _section(one)
    return whole_page("What the filters dropped", f"<main>{''.join(body)}</main>")


def _section(one: FilterSurvey) -> Iterator[str]:
    seen = sum(kept + dropped for kept, dropped in one.counts.values()) + one.unscored
    dropped = units.COUNT.text(_dropped(one))
    bound = "at least" if one.at_least else "at most"
    yield f"<section><h2>{escape(one.name.replace('_', ' '))}</h2><p>"
    yield escape(f"keeps scores of {bound} {one.threshold:g}: dropped {dropped} of {seen:,} pairs")
    if one.unscored:
        yield escape(f", {one.unscored:,} of them without a score")
    yield "</p>"
    if len(one.counts) > 2:
        axis = Axis("score", "{:.4g}".format)
        yield figures([Histogram(_columns(one), ("kept", "dropped"), axis, one.threshold)])
    for title, examples in (("Dropped", one.dropped), ("Kept", one.kept)):
        if examples:
            yield f"<details><summary>{title}: {len(examples)} nearest to the threshold</summary>"
            yield from _table(examples)
            yield "</details>"
    yield "</section>"


def _table(examples: Sequence[Example]) -> Iterator[str]:
    yield "<table class='runs'><tr><th>score</th><th>source</th><th>target</th><th>line</th></tr>"
    for one in examples:
        cells = (f"{one.score:.4g}", one.source, one.target, f"{one.file}:{one.line}")
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"


def _dropped(one: FilterSurvey) -> int:
    return sum(dropped for _, dropped in one.counts.values()) + one.unscored


def _columns(one: FilterSurvey) -> list[tuple[float, tuple[float, float]]]:
    """The start of each column of a histogram, and the numbers of pairs kept and dropped in it.

    The first and the last column hold the outermost hundredths of the scores; otherwise a few
    outliers would leave no room for the rest.
    """
    scores = np.array(sorted(one.counts), dtype=np.float64)
    counts = np.array([one.counts[score] for score in scores], dtype=np.float64)
    shares = np.cumsum(counts.sum(axis=1)) / counts.sum()
    low = min(float(scores[np.searchsorted(shares, 0.01)]), one.threshold)
    high = max(float(scores[np.searchsorted(shares, 0.99)]), one.threshold)
    low, high = max(low, -_LARGEST_SHOWN), min(high, _LARGEST_SHOWN)
    high = max(high, low + _SMALLEST_RANGE)
    edges = np.linspace(low, high, _MOST_COLUMNS + 1)
    if len(scores) <= _MOST_COLUMNS and np.all(scores == np.round(scores)) and high - low < 40:
        edges = np.arange(low, high + 2)
    places = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, len(edges) - 2)
    columns = np.zeros((len(edges) - 1, 2))
    np.add.at(columns, places, counts)
    return [
        (float(edge), (float(kept), float(dropped)))
        for edge, (kept, dropped) in zip(edges[:-1], columns, strict=True)
    ]
