"""Documents of two languages, sentence by sentence: aligned in rounds, and scored.

The first round goes by lengths and by words that are the same on both sides. The pairs that it
finds teach a lexicon, which decides the next rounds (as in Moore 2002 and hunalign).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dragoman.corpus.align import Band, Bead, Ends, Floats, Taken, align, length_costs
from dragoman.corpus.gains import Gains, Lexicon, Numbers, Words, learn_lexicon

_SHARES: Final[dict[Taken, float]] = {
    (1, 1): 0.695, (1, 0): 0.12, (0, 1): 0.12, (2, 1): 0.03, (1, 2): 0.03, (2, 2): 0.005,
}  # fmt: skip
"""How often a bead has so many sentences of both sides. Pages, whose headings and notes differ,
leave out more than the text of Gale and Church, of which 1% had no counterpart."""
_ROUNDS: Final = 3
_MOST_LEARNT: Final = 50_000
"""Pairs of which a lexicon is learnt at most; more would take memory and hardly add to it."""
_TRANSLATION: Final = 0.07
"""The least mean gain of the pairs of a document, in nats a word: 81 documents had 0.13 or more,
61 that were aligned with another text 0.02 or less."""
_LOGIT: Final = np.array([2.9, -1.0, 2.8])
"""Logistic regression of whether a pair of these 81 is right, on its gain, the cost of its lengths
and 1: news, captions and manuals in three languages, one document at a time or several."""
DOUBTFUL: Final = 0.5
"""The score below which a pair is doubtful; all are in a document that seems to be another text."""


@dataclass(frozen=True, slots=True)
class DocumentPair:
    """The sentences of a document in two languages. in_step: sentence N is that of the other."""

    sources: Sequence[str]
    targets: Sequence[str]
    in_step: bool = False


class Scored(NamedTuple):
    """A bead and its score: how likely it is that both sides say the same, 0 to 1."""

    bead: Bead
    score: float


class _Sides(NamedTuple):
    """What is computed of a document once. ends: characters and words before each sentence."""

    words: tuple[Words, Words]
    band: Band
    characters: tuple[Floats, Floats]
    num_words: tuple[Floats, Floats]


def align_documents(
    documents: Sequence[DocumentPair], *, known: tuple[Sequence[str], Sequence[str]] = ((), ())
) -> list[list[Scored]]:
    """The beads of each document, in order. known: further pairs to learn the lexicon from.

    A bead with an empty side has the score 0.
    """
    numbers = Numbers(), Numbers()
    given = [*zip(numbers[0].words(known[0]), numbers[1].words(known[1]), strict=True)]
    sides = [_sides(document, numbers) for document in documents]
    lengths = [sum(one.characters[side][-1] for one in sides) for side in range(2)]
    ratio = max(1.0, lengths[1]) / max(1.0, lengths[0])
    found = given
    aligned: list[list[Scored]] = []
    for number in range(_ROUNDS):
        pairs = found[:: len(found) // _MOST_LEARNT + 1]
        lexicon = learn_lexicon(numbers, ([one for one, _ in pairs], [two for _, two in pairs]))
        found, aligned = [*given], []
        for one in sides:
            costs = _Costs(one, lexicon, ratio)
            beads = align(one.band, costs.of, _SHARES)
            signs = np.array([costs.signs(bead) for bead in beads]).reshape(-1, 2)
            aligned.append([*map(Scored, beads, _scores(beads, signs).tolist())])
            found += [
                (one.words[0][bead.source.start], one.words[1][bead.target.start])
                for bead, (gain, _) in zip(beads, signs, strict=True)
                if _taken(bead) == (1, 1) and (number == 0 or gain > 0.0)
            ]
    return aligned


def _scores(beads: Sequence[Bead], signs: Floats) -> Floats:
    """The scores of the beads of a document; none is sure if it seems to be another text."""
    paired = np.array([all(_taken(bead)) for bead in beads], bool)
    scores = 1.0 / (1.0 + np.exp(-(signs @ _LOGIT[:2] + _LOGIT[2])))
    if paired.any() and signs[paired, 0].mean() < _TRANSLATION:
        scores *= 0.99 * DOUBTFUL
    return np.where(paired, scores, 0.0)


class _Costs:
    """The costs of the beads of a document, and the scores of those that are chosen."""

    def __init__(self, sides: _Sides, lexicon: Lexicon, ratio: float) -> None:
        self._sides = sides
        self._ratio = ratio
        self._gains = Gains(sides.band, sides.words, lexicon)

    def of(self, taken: Taken, end: int, ends: Ends) -> Floats:
        """-ln of how much likelier the texts are as translations than by chance."""
        source, target = self._gains.both(taken, end, ends)
        return self._lengths(taken, end, ends) - (source + target) / 2

    def signs(self, bead: Bead) -> tuple[float, float]:
        """The gain of a bead in nats a word, in the worse direction, and the cost of its lengths.

        Both are 0 if a side is empty.
        """
        taken = _taken(bead)
        if not all(taken):
            return 0.0, 0.0
        ends = np.array([bead.target.stop])
        gains = self._gains.both(taken, bead.source.stop, ends)
        sums = zip(gains, self._sides.num_words, bead, strict=True)
        gain = min(
            float(total[0]) / max(1.0, float(words[part.stop] - words[part.start]))
            for total, words, part in sums
        )
        return gain, float(self._lengths(taken, bead.source.stop, ends)[0])

    def _lengths(self, taken: Taken, end: int, ends: Ends) -> Floats:
        sources, targets = self._sides.characters
        source = sources[end] - sources[end - taken[0]]
        return length_costs(source, targets[ends] - targets[ends - taken[1]], self._ratio)


def _sides(document: DocumentPair, numbers: tuple[Numbers, Numbers]) -> _Sides:
    texts = document.sources, document.targets
    words = numbers[0].words(texts[0]), numbers[1].words(texts[1])
    if document.in_step:
        band = Band(np.arange(len(texts[0]) + 1), 1, len(texts[0]) + 1)
    else:
        band = Band.around_diagonal(len(texts[0]), len(texts[1]))
    return _Sides(
        words,
        band,
        (_sums([*map(len, texts[0])]), _sums([*map(len, texts[1])])),
        (_sums([*map(len, words[0])]), _sums([*map(len, words[1])])),
    )


def _sums(counts: Sequence[int]) -> Floats:
    return np.concatenate([[0.0], np.cumsum(counts, dtype=float)])


def _taken(bead: Bead) -> Taken:
    return bead.source.stop - bead.source.start, bead.target.stop - bead.target.start
