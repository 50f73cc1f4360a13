"""Which of the cleaned training pairs stay, once all of them can be seen together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.clean import DUPLICATE
from dragoman.corpus.dedup import HeldOutSides, Keys, repeated
from dragoman.corpus.filters import FilterConfig, Rejection
from dragoman.corpus.runs import SortedPairs

HELD_OUT = "held_out"
OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class Selected:
    """The pairs of a range that stay, and those that do not.

    rows: int64, shape (pairs that stay,): where each lies in its range.
    """

    sources: list[str]
    targets: list[str]
    rows: NDArray[np.int64]
    rejections: list[Rejection]

    def keep(self, keep: NDArray[np.bool_]) -> Selected:
        """The pairs where keep, one value for each, is true."""
        chosen = keep.tolist()
        return Selected(
            list(compress(self.sources, chosen)),
            list(compress(self.targets, chosen)),
            self.rows[keep],
            self.rejections,
        )


class Selector:
    """Finds duplicates, pairs that were held out, and pairs that share a side with dev or test.

    held_out: keys of the pairs that were moved from the training text to dev or test.
    sides: of all dev and test pairs.
    """

    def __init__(self, config: FilterConfig, *, held_out: Keys, sides: HeldOutSides) -> None:
        self._config = config
        self._held_out = held_out
        self._sides = sides

    def select(self, found: SortedPairs) -> Selected:
        """Both sides of the pairs that stay."""
        cells = [pair.split("\t") for pair in found.pairs]
        sources, targets = [source for source, _ in cells], [target for _, target in cells]
        rejections = self._reject(found.keys, sources, targets)
        keep = np.ones(len(cells), dtype=np.bool_)
        keep[[rejection.row for rejection in rejections]] = False
        return Selected(sources, targets, np.arange(len(cells)), rejections).keep(keep)

    def _reject(self, keys: Keys, sources: list[str], targets: list[str]) -> list[Rejection]:
        """The rows to drop, each once. The score of an overlap is the number of shared sides."""
        held_out = np.isin(keys, self._held_out)
        duplicate = np.zeros(len(keys), dtype=np.bool_)
        shared = np.zeros(len(keys), dtype=np.int64)
        if self._config.drop_duplicates:
            duplicate = repeated(keys)
        if self._config.drop_overlap:
            overlap = map(self._sides.overlap, sources, targets)
            shared = np.fromiter(overlap, dtype=np.int64, count=len(sources))
        reasons = np.select([duplicate, held_out, shared > 0], [1, 2, 3])
        names = ("", DUPLICATE, HELD_OUT, OVERLAP)
        return [
            Rejection(int(row), names[reasons[row]], max(1.0, float(shared[row])))
            for row in np.flatnonzero(reasons)
        ]
