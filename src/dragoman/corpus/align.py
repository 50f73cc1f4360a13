"""Which sentences of two texts say the same, in order: the path of least cost.

A step of the path takes up to two sentences of each side, at the costs of Gale and Church (1993):
how rare such a step is, and how unusual the lengths are. To these it adds how few words of one side
the other side has, which lengths alone do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_PRIORS: Final = {
    (1, 1): 0.89, (1, 0): 0.005, (0, 1): 0.005, (2, 1): 0.045, (1, 2): 0.045, (2, 2): 0.011,
}  # fmt: skip
"""How often a step takes so many sentences of both sides (Gale and Church, table 5)."""
_VARIANCE: Final = 6.8
"""The variance of a translation's length for each character of its source (the same paper)."""
_LEXICON: Final = 10.0
"""The cost of two sentences that share nothing: about that of leaving both out."""
_SMALLEST: Final = 1e-12
_BAND: Final = 30
"""Sentences that a path may be away from the diagonal, and as many more as one side has more."""


class Bead(NamedTuple):
    """Sentences of both sides that say the same; one side is empty if the other says more."""

    source: slice
    target: slice


def align(
    source_lengths: Sequence[int],
    target_lengths: Sequence[int],
    match: Callable[[Bead], float],
) -> list[Bead]:
    """The beads of two texts, in order; each sentence is in one.

    source_lengths, target_lengths: characters of each sentence. match: how much of the words on one
    side of a bead the other side has, 0 to 1. The time grows with the number of sentences.
    """
    slope = len(target_lengths) / max(1, len(source_lengths))
    band = _BAND + abs(len(target_lengths) - len(source_lengths))
    ratio = max(1, sum(target_lengths)) / max(1, sum(source_lengths))
    best: dict[tuple[int, int], tuple[float, Bead | None]] = {(0, 0): (0.0, None)}
    for source in range(len(source_lengths) + 1):
        middle = round(source * slope)
        for target in range(max(0, middle - band), min(len(target_lengths), middle + band) + 1):
            for taken, prior in _PRIORS.items():
                before = (source - taken[0], target - taken[1])
                if before not in best:
                    continue
                bead = Bead(slice(before[0], source), slice(before[1], target))
                cost = best[before][0] - math.log(prior)
                if all(taken):
                    lengths = sum(source_lengths[bead.source]), sum(target_lengths[bead.target])
                    cost += _length_cost(*lengths, ratio)
                    cost += _LEXICON * (1.0 - match(bead)) * sum(taken) / 2
                if (source, target) not in best or cost < best[source, target][0]:
                    best[source, target] = (cost, bead)
    beads = []
    end = (len(source_lengths), len(target_lengths))
    while (last := best[end][1]) is not None:
        beads.append(last)
        end = (last.source.start, last.target.start)
    return beads[::-1]


def _length_cost(source: int, target: int, ratio: float) -> float:
    """-ln of the probability that a translation has a length as far from the usual one."""
    far = abs(target - source * ratio) / math.sqrt(max(1, source) * ratio * _VARIANCE)
    return -math.log(max(_SMALLEST, math.erfc(far / math.sqrt(2))))
