"""The page of dropped pairs: scores, thresholds and the pairs near each threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray

from dragoman.base import units
from dragoman.base.errors import CorpusError, MachineError
from dragoman.base.printable import clipped
from dragoman.corpus.clean import RejectedPair, read_rejected
from dragoman.corpus.filters import key_of
from dragoman.corpus.survey import (
    EXAMPLES,
    FILE_NAME,
    LARGEST_SCORE,
    LONGEST,
    Example,
    FilterSurvey,
    read_surveys,
)
from dragoman.reporting.document import (
    Block,
    Document,
    Figures,
    Paragraph,
    Section,
    Table,
    write_files,
)
from dragoman.reporting.svg import Axis, Histogram

PAGE: Final = "filters.html"
_MOST_COLUMNS: Final = 40
_FARTHEST: Final = 1e9
"""The end of an axis; no filter has scores beyond it."""
_KEPT, _DROPPED = 0, 1
"""Indices into the counts of a score and into the legend."""


def write_cleaning_page(folder: Path) -> Path | None:
    """Write `filters.html` into a folder of rejected pairs, if it has scores and no page yet.

    Raises: CorpusError if the scores are damaged, MachineError if they cannot be read or the page
        cannot be written.
    """
    if (folder / PAGE).exists() or not (folder / FILE_NAME).is_file():
        return None
    read = folder / "train.tsv.zst"
    try:
        dropped = dropped_by_filter(read)
        read = folder / FILE_NAME
        page = cleaning_page(read_surveys(read), dropped)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        remedy = "check its permissions and its disk"
        raise MachineError(problem, place=read, remedy=remedy) from error
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        zstandard.ZstdError,
    ) as error:
        raise CorpusError(
            "is damaged", place=read, remedy="remove the prepared directory, and prepare it again"
        ) from error
    (path,) = write_files(folder, {PAGE: page})
    return path


@dataclass(slots=True)
class Dropped:
    """The pairs that a filter dropped. examples: the first EXAMPLES of them."""

    pairs: int = 0
    examples: list[RejectedPair] = field(default_factory=list)


def dropped_by_filter(path: Path) -> dict[str, Dropped]:
    """The pairs in a file of rejected pairs, by filter; none if the file has been removed."""
    by_filter: dict[str, Dropped] = {}
    for pair in read_rejected(path) if path.is_file() else ():
        dropped = by_filter.setdefault(pair.filter, Dropped())
        dropped.pairs += 1
        if len(dropped.examples) < EXAMPLES:
            dropped.examples.append(pair)
    return by_filter


def cleaning_page(surveys: Sequence[FilterSurvey], dropped: Mapping[str, Dropped]) -> str:
    """The page: first the filters with a threshold, then others, such as duplicates.

    In both parts those that dropped most come first.
    """
    about = Paragraph(
        "Each filter saw only the pairs that earlier filters had kept. "
        "Those that dropped most come first; each has the name of its key in the recipe. "
        "Heights are logarithms. A dashed line is the threshold; "
        "the pairs under a histogram are those nearest to it on both sides. "
        "The outermost columns hold the scores beyond the axis, too: infinite ones, and at most a "
        "hundredth of the pairs at each end."
    )
    filters = sorted(surveys, key=lambda survey: (-_dropped(survey), survey.name))
    others = dropped.keys() - {survey.name for survey in surveys}
    names = sorted(others, key=lambda name: (-dropped[name].pairs, name))
    without_threshold = (_plain_section(name, dropped[name]) for name in names)
    blocks: list[Block] = [about, *map(_section, filters), *without_threshold]
    return Document("Pairs that filters dropped", [], blocks).html()


def _section(survey: FilterSurvey) -> Section:
    pairs = sum(kept + dropped for kept, dropped in survey.counts.values()) + survey.unscored
    dropped = units.COUNT.text(_dropped(survey))
    bound = "at least" if survey.at_least else "at most"
    says = f"keeps scores of {bound} {survey.threshold:g}: dropped {dropped} of {pairs:,} pairs"
    if survey.unscored:
        says += f", {survey.unscored:,} of them without a score"
    nearest = (_nearest("Dropped", survey.dropped), _nearest("Kept", survey.kept))
    blocks: list[Block] = [Paragraph(says), Figures(_histograms(survey)), *nearest]
    return Section(_heading(survey.name), blocks)


def _nearest(title: str, examples: Sequence[Example]) -> Section:
    rows = [(_score(pair.score), pair.source, pair.target, _place(pair)) for pair in examples]
    heading = f"{title}: {len(rows)} nearest to the threshold"
    return Section(heading, [Table(rows, ("score", "source", "target", "line"))], folded=True)


def _plain_section(name: str, rejected: Dropped) -> Section:
    says = f"has no threshold: dropped {units.COUNT.text(rejected.pairs)} pairs"
    rows = [
        (clipped(pair.source, LONGEST), clipped(pair.target, LONGEST), _place(pair))
        for pair in rejected.examples
    ]
    table = Table(rows, ("source", "target", "line"))
    first = Section(f"Dropped: the first {len(rows)}", [table], folded=True)
    return Section(_heading(name), [Paragraph(says), first])


def _heading(name: str) -> str:
    """The key of the recipe that sets a filter, or the filter's name if none does."""
    return key_of(name) or name.replace("_", " ")


def _place(pair: Example | RejectedPair) -> str:
    """The file and line of a pair."""
    return f"{pair.file}:{pair.line}"


def _score(score: float) -> str:
    return f"{score:.4g}" if abs(score) < LARGEST_SCORE else f"{math.copysign(math.inf, score)}"


def _dropped(survey: FilterSurvey) -> int:
    return sum(dropped for _, dropped in survey.counts.values()) + survey.unscored


def _histograms(survey: FilterSurvey) -> list[Histogram]:
    """The scores of a filter, with an edge at the threshold: each column is kept or dropped.

    The outermost columns hold the scores beyond the axis, too. Nothing if there are too few scores,
    or if the threshold is so far out that no axis shows it.
    """
    if len(survey.counts) <= 2 or abs(survey.threshold) > _FARTHEST:
        return []
    scores = np.array(sorted(survey.counts), dtype=np.float64)
    counts = np.array([survey.counts[score] for score in scores], dtype=np.float64)
    edges, at = _edges(survey, scores, counts.sum(axis=1))
    # A column includes its lower edge with "at least", its upper edge with "at most".
    side: Literal["left", "right"] = "right" if survey.at_least else "left"
    places = np.clip(np.searchsorted(edges, scores, side=side) - 1, 0, len(edges) - 2)
    kinds = (_DROPPED, _KEPT) if survey.at_least else (_KEPT, _DROPPED)
    columns = np.zeros(len(edges) - 1)
    # A rounded score may be beyond the threshold although the exact one is not.
    np.add.at(columns, np.minimum(places, at - 1), counts[:, kinds[0]])
    np.add.at(columns, np.maximum(places, at), counts[:, kinds[1]])
    histogram = Histogram(
        edges=edges.tolist(),
        columns=[(kinds[place >= at], float(count)) for place, count in enumerate(columns)],
        names=("kept", "dropped"),
        x=Axis("score", "{:.4g}".format),
        mark=float(edges[at]),
    )
    return [histogram]


def _edges(
    survey: FilterSurvey, scores: NDArray[np.float64], pairs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], int]:
    """The edges of the columns, and the index of the threshold among them.

    scores: in ascending order. pairs: the number of each. The outermost hundredths of the pairs are
    beyond the axis: a few of them would leave no room for the rest. If all scores are whole
    numbers, each edge is midway between two of them.
    """
    centre = survey.threshold
    is_whole = bool(np.all(scores == np.round(scores)))
    if is_whole:
        centre = math.ceil(centre) - 0.5 if survey.at_least else math.floor(centre) + 0.5
    shares = np.cumsum(pairs) / pairs.sum()
    ends = (float(scores[np.searchsorted(shares, share)]) for share in (0.01, 0.99))
    low, high = (min(max(end, -_FARTHEST), _FARTHEST) for end in ends)
    low, high = min(low, centre), max(high, centre)
    # Scores were rounded to three digits: narrower columns would tell no more.
    width = max((high - low) / _MOST_COLUMNS, abs(centre) / 1000, 1 / _FARTHEST)
    if is_whole:
        width = max(1.0, math.ceil(width))
    below = max(1, math.ceil((centre - low) / width))
    above = max(1, math.ceil((high - centre) / width))
    return centre + width * np.arange(-below, above + 1, dtype=np.float64), below
