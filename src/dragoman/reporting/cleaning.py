"""The page of dropped pairs: scores, thresholds and the pairs near each threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import zstandard

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
from dragoman.reporting.svg import Axis, LinePlot, Series

PAGE: Final = "filters.html"
_FARTHEST: Final = 1e9
"""The end of an axis; scores beyond it are infinite."""


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
        "A curve shows which share of its pairs a filter would drop with each threshold; "
        "the pairs under a curve are those nearest to the threshold on both sides. "
        "Scores of the outermost hundredth of the pairs at each end are not shown."
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
    blocks: list[Block] = [Paragraph(says), Figures([_curve(survey)]), *nearest]
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


def _curve(survey: FilterSurvey) -> LinePlot:
    """The share of the pairs that each threshold would drop, and the threshold.

    The scores of the outermost hundredths of the pairs are left out, unless they are nearer than
    the threshold: a few of them would leave no room for the rest.
    """
    scores = np.array(sorted(survey.counts), dtype=np.float64)
    pairs = np.array([sum(survey.counts[score]) for score in scores], dtype=np.float64)
    up_to = np.cumsum(pairs) / max(pairs.sum(), 1.0)
    dropped = np.concatenate([[0.0], up_to[:-1]]) if survey.at_least else 1 - up_to
    ends = [survey.threshold, *scores[(up_to >= 0.01) & (up_to <= 0.99)]]
    shown = (min(ends) <= scores) & (scores <= max(ends)) & (np.abs(scores) <= _FARTHEST)
    curve = list(zip(scores[shown].tolist(), (dropped[shown] * 100).tolist(), strict=True))
    at = survey.threshold
    mark = [(at, 0.0), (at, 100.0)] if len(curve) > 1 and abs(at) <= _FARTHEST else []
    axes = Axis("score", "{:.4g}".format), Axis("% of the pairs that it would drop", "{:g}".format)
    return LinePlot([Series("each threshold", curve), Series("that of the recipe", mark)], *axes)
