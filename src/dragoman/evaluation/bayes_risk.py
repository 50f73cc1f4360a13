"""Which of several translations of a sentence is most like the others: minimum Bayes risk.

The likeliest translation is often not the best one (Eikema and Aziz 2020). Kumar and Byrne (2004)
choose the one with the highest expected score, where each counts as a reference by its probability:
here by exp(log-probability / length penalty), as short ones would count too much without it. The
score is chrF (Popović 2015), as sacreBLEU has it for one sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_ORDERS: Final = range(1, 7)
_BETA: Final = 2
"""Recall counts this many times as much as precision."""


def expected_chrf(texts: Sequence[str], scores: Sequence[float]) -> NDArray[np.float64]:
    """The expected chrF of each translation of one sentence, from 0 to 1.

    scores: their log-probabilities, each over its length penalty.
    """
    weights: NDArray[np.float64] = np.exp(np.asarray(scores) - max(scores))
    expected: NDArray[np.float64] = pairwise_chrf(texts) @ (weights / weights.sum())
    return expected


def best_first(texts: Sequence[str], scores: Sequence[float]) -> list[int]:
    """The numbers of the translations, from the highest expected chrF to the lowest."""
    if len(texts) == 1:
        return [0]
    expected = expected_chrf(texts, scores)
    return sorted(range(len(texts)), key=lambda number: -expected[number])


def pairwise_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """chrF of each text (row) against each (column) as its reference, from 0 to 1."""
    shape = (len(texts), len(texts))
    precision, recall, orders = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    letters = ["".join(text.split()) for text in texts]
    for order in _ORDERS:
        counts = _counts(letters, order)
        totals = counts.sum(axis=1)
        # Row by row: all at once would take memory for each pair and sequence.
        matches = np.stack([np.minimum(row, counts).sum(axis=1) for row in counts])
        # An order counts if both texts are that long.
        counted = np.minimum(totals[:, None], totals[None]) > 0
        precision += np.divide(matches, totals[:, None], where=counted, out=np.zeros(shape))
        recall += np.divide(matches, totals[None], where=counted, out=np.zeros(shape))
        orders += counted
    precision /= np.maximum(orders, 1)
    recall /= np.maximum(orders, 1)
    bottom = _BETA**2 * precision + recall
    return np.divide(
        (1 + _BETA**2) * precision * recall, bottom, where=bottom > 0, out=np.zeros(shape)
    )


def _counts(texts: Sequence[str], order: int) -> NDArray[np.int64]:
    """How often each sequence of so many characters is in each text: (text, sequence)."""
    found = [
        Counter(text[start : start + order] for start in range(len(text) - order + 1))
        for text in texts
    ]
    grams_of_all = dict.fromkeys(gram for grams in found for gram in grams)
    columns = {gram: column for column, gram in enumerate(grams_of_all)}
    counts = np.zeros((len(texts), len(columns)), np.int64)
    for row, grams in enumerate(found):
        for gram, count in grams.items():
            counts[row, columns[gram]] = count
    return counts
