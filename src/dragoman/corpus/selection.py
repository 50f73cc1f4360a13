"""Which of the cleaned training pairs stay, once all of them can be seen together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.clean import DUPLICATE
from dragoman.corpus.config import FilterConfig
from dragoman.corpus.dedup import HeldOutSides, Keys, repeated
from dragoman.corpus.filters import Rejection
from dragoman.corpus.runs import SortedPairs, SortedRuns

HELD_OUT = "held_out"
OVERLAP = "overlap"


class Selector:
    """Finds duplicates, pairs that were held out, and pairs that share a side with dev or test.

    held_out: keys of the pairs that were moved from the training text to dev or test.
    sides: of all dev and test pairs.
    """

    def __init__(self, config: FilterConfig, *, held_out: Keys, sides: HeldOutSides) -> None:
        self._config = config
        self._held_out = held_out
        self._sides = sides

    def reject(self, found: SortedPairs, sources: list[str], targets: list[str]) -> list[Rejection]:
        """The rows to drop, each once. The score of an overlap is the number of shared sides."""
        held_out = np.isin(found.keys, self._held_out)
        duplicate = np.zeros(len(found.keys), dtype=np.bool_)
        shared = np.zeros(len(found.keys), dtype=np.int64)
        if self._config.drop_duplicates:
            duplicate = repeated(found.keys)
        if self._config.drop_overlap:
            overlap = map(self._sides.overlap, sources, targets)
            shared = np.fromiter(overlap, dtype=np.int64, count=len(sources))
        reasons = np.select([duplicate, held_out, shared > 0], [1, 2, 3])
        names = ("", DUPLICATE, HELD_OUT, OVERLAP)
        return [
            Rejection(int(row), names[reasons[row]], max(1.0, float(shared[row])))
            for row in np.flatnonzero(reasons)
        ]


def split_sides(found: SortedPairs) -> tuple[list[str], list[str]]:
    """The two sides of pairs as they lie in runs."""
    cells = [pair.split("\t") for pair in found.pairs]
    return [source for source, _ in cells], [target for _, target in cells]


def keep_mask(num_rows: int, rejections: list[Rejection]) -> NDArray[np.bool_]:
    """False at the rejected rows."""
    keep = np.ones(num_rows, dtype=np.bool_)
    keep[[rejection.row for rejection in rejections]] = False
    return keep


def sample(
    runs: SortedRuns, selector: Selector, *, max_pairs: int
) -> Iterator[tuple[list[str], list[str]]]:
    """Sources and targets of a uniform sample of the pairs that stay, in parts."""
    for found in runs.in_order():
        sources, targets = split_sides(found)
        keep = keep_mask(len(sources), selector.reject(found, sources, targets)).tolist()
        sources, targets = list(compress(sources, keep)), list(compress(targets, keep))
        yield sources[:max_pairs], targets[:max_pairs]
        max_pairs -= len(sources)
        if max_pairs <= 0:
            return
