"""Which sentences of two texts say the same, in order: the path of least cost.

A step of the path, a bead, takes up to two sentences of each side, at the costs of Gale and Church
(1993): how rare such a step is, and how unusual the lengths are. What the words of both sides say
is for the caller to add, because lengths alone do not tell which sentence was left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Taken = tuple[int, int]
"""How many sentences of both sides a bead takes."""
GALE_CHURCH: Final[dict[Taken, float]] = {
    (1, 1): 0.89, (1, 0): 0.005, (0, 1): 0.005, (2, 1): 0.045, (1, 2): 0.045, (2, 2): 0.011,
}  # fmt: skip
"""How often a step takes so many sentences of both sides (their table 5)."""
_VARIANCE: Final = 6.8
"""The variance of a translation's length for each character of its source (the same paper)."""
_BAND: Final = 30
_WIDEST: Final = 400
"""Sentences that a path may be away from the diagonal: the first number, and as many more as one
side has more, but at most the second. So time and memory grow with the number of sentences alone.
"""
_FARTHEST: Final = 8.0
_FAR: Final = np.linspace(0.0, _FARTHEST, 801)
_TAIL: Final = np.array([-math.log(max(1e-12, math.erfc(far / math.sqrt(2)))) for far in _FAR])
Floats = NDArray[np.float64]
Ends = NDArray[np.int64]


class Bead(NamedTuple):
    """Sentences of both sides that say the same; one side is empty if the other says more."""

    source: slice
    target: slice


class Band(NamedTuple):
    """The part of the table of costs that is computed. lows: of each row, the first column.

    Row N stands for the first N sentences of the source, a column for those of the target.
    """

    lows: Ends
    width: int
    columns: int

    @classmethod
    def around_diagonal(cls, sources: int, targets: int) -> Band:
        """The band of two texts of so many sentences."""
        half = min(_BAND + abs(targets - sources), _WIDEST)
        middle = np.arange(sources + 1) * targets // max(1, sources)
        width = min(2 * half + 1, targets + 1)
        return cls(np.clip(middle - half, 0, targets + 1 - width), width, targets + 1)


def align(
    band: Band,
    cost: Callable[[Taken, int, Ends], Floats],
    shares: Mapping[Taken, float] = GALE_CHURCH,
) -> list[Bead]:
    """The beads of two texts, in order; each sentence is in one.

    cost: of beads of so many sentences on both sides, the last of which is before this sentence of
        the source and before each of these of the target. shares: how often each kind of bead is.
    """
    priors = {taken: -math.log(share) for taken, share in shares.items()}
    kinds = tuple(priors)
    steps = np.zeros((len(band.lows), band.width), np.uint8)
    rows = [np.full(band.columns + 2, np.inf) for _ in range(3)]  # two columns before the first
    for end, low in enumerate(band.lows.tolist()):
        columns = np.arange(low, low + band.width)
        best, step = np.full(band.width, np.inf), steps[end]
        if not end:
            best[0] = 0.0
        for number, (taken, prior) in enumerate(priors.items()):
            if taken[0] == 0 or taken[0] > end:
                continue
            first = max(0, taken[1] - low)
            ends = columns[first:]
            costs = rows[-taken[0]][ends - taken[1] + 2] + prior
            if taken[1]:
                costs += cost(taken, end, ends)
            better = costs < best[first:]
            best[first:][better], step[first:][better] = costs[better], number
        # Leaving out targets costs the same each, so the cheapest start is a running minimum.
        left_out = priors[0, 1] * np.arange(band.width)
        running = np.minimum.accumulate(best - left_out) + left_out
        step[running < best - 1e-9] = kinds.index((0, 1))
        row = np.full(band.columns + 2, np.inf)
        row[low + 2 : low + 2 + band.width] = np.minimum(best, running)
        rows = [*rows[1:], row]
    beads = []
    source, target = len(band.lows) - 1, band.columns - 1
    while source or target:
        taken = kinds[steps[source, target - band.lows[source]]]
        before = source - taken[0], target - taken[1]
        beads.append(Bead(slice(before[0], source), slice(before[1], target)))
        source, target = before
    return beads[::-1]


def length_costs(sources: Floats, targets: Floats, ratio: float) -> Floats:
    """-ln of the probability that a translation has a length as far from the usual one.

    ratio: how much longer targets are than their sources, in characters.
    """
    far = np.abs(targets - sources * ratio) / np.sqrt(np.maximum(1, sources) * ratio * _VARIANCE)
    costs: Floats = np.interp(far, _FAR, _TAIL)
    return costs
