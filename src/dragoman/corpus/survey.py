"""The scores that a filter gave, so that people can choose its threshold from examples.

A survey counts the pairs for each score, to three significant digits, and keeps the pairs nearest
to the threshold on both sides. Surveys of parts of a corpus add up to that of the whole, in bounded
memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base.files import read_regular, write_whole
from dragoman.base.printable import clipped

FILE_NAME: Final = "filters.json"
EXAMPLES: Final = 20
LONGEST: Final = 300
"""Characters of an example's side; the rest is cut."""
_LARGEST_FILE: Final = 1 << 26
LARGEST_SCORE: Final = float(np.finfo(np.float64).max)
"""Stands for infinity, which JSON does not have."""
_SMALLEST_UNIT: Final = -300
"""The least power of ten to which scores are rounded: that for 1e-322 is 0 as a float."""
_ODD: Final = 0x9E3779B97F4A7C15
"""Multiplying by it spreads line numbers evenly over 64 bits (Knuth, volume 3, section 6.4)."""


class Example(NamedTuple):
    """A pair near a threshold. order: decides between equal distances, nearly at random."""

    distance: float
    order: int
    score: float
    file: str
    line: int
    source: str
    target: str


@dataclass(slots=True)
class FilterSurvey:
    """The pairs and scores of one filter with one threshold.

    counts: pairs kept and dropped by score.
    unscored: pairs whose score is not a number.
    An infinite score counts as LARGEST_SCORE.
    kept, dropped: at most EXAMPLES pairs each, nearest to the threshold first.
    """

    name: str
    threshold: float
    at_least: bool
    counts: dict[float, tuple[int, int]] = field(default_factory=dict)
    unscored: int = 0
    kept: list[Example] = field(default_factory=list)
    dropped: list[Example] = field(default_factory=list)

    def see(
        self,
        scores: NDArray[np.float64],
        accepted: NDArray[np.bool_],
        lines: NDArray[np.int64],
        pair: Callable[[int], tuple[str, str, str]],
    ) -> None:
        """Add pairs with their scores.

        scores, accepted, lines: a value for each pair; accepted: whether it is kept.
        pair: returns file, source and target of the nth pair.
        """
        scores = np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE)
        known = ~np.isnan(scores)
        self.unscored += int((~known).sum())
        with np.errstate(over="ignore"):
            distances = np.minimum(np.abs(scores - self.threshold), LARGEST_SCORE)
            orders = lines.astype(np.uint64) * np.uint64(_ODD)
        counts: dict[float, list[int]] = {}
        for place, (keep, examples) in enumerate(
            ((accepted, self.kept), (~accepted, self.dropped))
        ):
            rows = np.flatnonzero(keep & known)
            values, numbers = np.unique(_rounded(scores[rows]), return_counts=True)
            for score, number in zip(values, numbers, strict=True):
                counts.setdefault(float(score), [0, 0])[place] = int(number)
            if len(rows) > EXAMPLES:  # sorting them all would take longer than the filter
                farthest = np.partition(distances[rows], EXAMPLES - 1)[EXAMPLES - 1]
                rows = rows[distances[rows] <= farthest]
            for row in rows[np.lexsort((orders[rows], distances[rows]))[:EXAMPLES]]:
                file, source, target = pair(int(row))
                examples.append(
                    Example(
                        float(distances[row]),
                        int(orders[row]),
                        float(scores[row]),
                        file,
                        int(lines[row]),
                        clipped(source, LONGEST),
                        clipped(target, LONGEST),
                    )
                )
        self._count(counts)

    def add(self, other: FilterSurvey) -> None:
        """Add another survey of the same filter."""
        self.unscored += other.unscored
        self.kept += other.kept
        self.dropped += other.dropped
        self._count(other.counts)

    def totals(self) -> FilterSurvey:
        """The same numbers of pairs, all under the score of the threshold, and no examples."""
        kept = sum(kept for kept, _ in self.counts.values())
        dropped = sum(dropped for _, dropped in self.counts.values())
        return replace(self, counts={self.threshold: (kept, dropped)}, kept=[], dropped=[])

    def _count(self, counts: Mapping[float, Sequence[int]]) -> None:
        for score, (kept, dropped) in counts.items():
            before = self.counts.get(score, (0, 0))
            self.counts[score] = (before[0] + kept, before[1] + dropped)
        self.kept = sorted(self.kept)[:EXAMPLES]
        self.dropped = sorted(self.dropped)[:EXAMPLES]


def write_surveys(path: Path, surveys: Iterable[FilterSurvey]) -> None:
    """Write surveys as JSON, with scores in ascending order.

    If surveys are too large for `read_surveys`, only their numbers of pairs are written.
    """
    texts = []
    left = _LARGEST_FILE // 2  # the other half is for short ones
    for one in surveys:
        text = _as_json(one)
        if (size := len(text.encode())) > left:
            text = _as_json(one.totals())
        else:
            left -= size
        texts.append(text)
    write_whole(path, f'{{"filters": [{", ".join(texts)}]}}')


def _as_json(one: FilterSurvey) -> str:
    values = asdict(one) | {
        "counts": [[score, *one.counts[score]] for score in sorted(one.counts)],
        "kept": [example._asdict() for example in one.kept],
        "dropped": [example._asdict() for example in one.dropped],
    }
    return json.dumps(values, ensure_ascii=False)


def read_surveys(path: Path) -> list[FilterSurvey]:
    """The surveys of a file that `write_surveys` wrote; raises OSError or ValueError."""
    surveys = []
    for values in json.loads(read_regular(path, limit=_LARGEST_FILE))["filters"]:
        counts = {score: (kept, dropped) for score, kept, dropped in values["counts"]}
        examples = {
            side: [Example(**example) for example in values[side]] for side in ("kept", "dropped")
        }
        surveys.append(FilterSurvey(**(values | {"counts": counts} | examples)))
    return surveys


def join_surveys(parts: Iterable[Path]) -> list[FilterSurvey]:
    """The surveys in these files, added up by filter and threshold; errors as `read_surveys`."""
    whole: dict[tuple[str, float, bool], FilterSurvey] = {}
    for part in parts:
        for one in read_surveys(part):
            key = (one.name, one.threshold, one.at_least)
            if key in whole:
                whole[key].add(one)
            else:
                whole[key] = one
    return list(whole.values())


def _rounded(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scores to three significant digits; those below 1e-298 to fewer."""
    sizes = np.abs(scores)
    digits = np.floor(np.log10(sizes, out=np.zeros_like(sizes), where=sizes > 0))
    unit = 10.0 ** np.maximum(digits - 2, _SMALLEST_UNIT)
    with np.errstate(over="ignore"):
        rounded: NDArray[np.float64] = np.round(scores / unit) * unit
    rounded.clip(-LARGEST_SCORE, LARGEST_SCORE, out=rounded)
    return rounded
