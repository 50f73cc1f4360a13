"""Documents of two languages, sentence by sentence: aligned in rounds, and scored.

The first round goes by lengths and by words that are the same on both sides. The pairs that it
finds teach a lexicon, which decides the next rounds (as in Moore 2002 and hunalign). Scores come
from lexicons that were learnt from other pairs than those they judge.
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
_TRANSLATION: Final = 0.0
"""The least mean gain of the pairs of a document, in nats a word: that of chance. Of 212 documents,
alone or with others, 208 had more, of 120 that were aligned with another text all had -0.17 or
less (with lexicons of three quarters of the pairs)."""
_LOGIT: Final = np.array([2.8, -0.66, 2.85])
"""Logistic regression of whether a pair of these is right, on its gain, the cost of its lengths and
1; those with another text counted a twentieth. News, captions and manuals in three languages."""
DOUBTFUL: Final = 0.5
"""The score below which a pair is doubtful; all are in a document that seems to be another text."""


_BLOCK: Final = 100
_PARTS: Final = 8
"""The pairs are judged in so many parts, each of blocks of at most so many neighbours."""
_ENOUGH: Final = 1_000
"""Characters on each side of the pairs found from which the ratio of lengths is taken."""
_Pairs = list[tuple[Ends, Ends]]
"""The words of both sides of pairs."""


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
    """The parts of a document that all rounds share. characters: how many precede each sentence."""

    words: tuple[Words, Words]
    band: Band
    characters: tuple[Floats, Floats]

    def lengths(self, bead: Bead) -> list[float]:
        """The characters of both sides."""
        sums = zip(self.characters, bead, strict=True)
        return [float(before[part.stop] - before[part.start]) for before, part in sums]

    def words_of(self, bead: Bead) -> tuple[Ends, Ends]:
        """The distinct words of both sides, neither of which is empty."""
        source, target = (
            words[part.start]
            if part.stop - part.start == 1
            else np.unique(np.concatenate(words[part]))
            for words, part in zip(self.words, bead, strict=True)
        )
        return source, target


def align_documents(
    documents: Sequence[DocumentPair], *, known: tuple[Sequence[str], Sequence[str]] = ((), ())
) -> list[list[Scored]]:
    """The beads of each document, in order. known: further pairs to learn the lexicon from.

    A bead with an empty side has the score 0.
    """
    numbers = Numbers(), Numbers()
    given = [*zip(numbers[0].words(known[0]), numbers[1].words(known[1]), strict=True)]
    sides = [_sides(document, numbers) for document in documents]
    ratio = _usual_ratio(documents)
    found: _Pairs = given
    aligned: list[list[Bead]] = []
    for number in range(_ROUNDS):
        lexicon = _lexicon(numbers, found)
        found, aligned = [*given], []
        lengths = np.zeros(2)
        for one in sides:
            costs = _Costs(one, lexicon, ratio)
            beads = align(one.band, costs.of, _SHARES)
            aligned.append(beads)
            for bead in beads:
                if _taken(bead) != (1, 1):
                    continue
                gain = costs.gain(bead)
                if number == 0 or gain > 0.0:
                    found.append((one.words[0][bead.source.start], one.words[1][bead.target.start]))
                if gain > 0.0:
                    lengths += one.lengths(bead)
        if lengths.min() > _ENOUGH:
            ratio = float(lengths[1] / lengths[0])
    held_out = _held_out_gains(numbers, sides, aligned, given)
    return [
        [*map(Scored, beads, _scores(one, beads, gains, ratio).tolist())]
        for one, beads, gains in zip(sides, aligned, held_out, strict=True)
    ]


def _usual_ratio(documents: Sequence[DocumentPair]) -> float:
    """How much longer targets are than sources, from the usual length of a sentence in each: text
    that only one side has adds sentences, but does not change how long they are."""
    means = [
        [sum(map(len, texts)) / len(texts) for texts in (one.sources, one.targets)]
        for one in documents
        if one.sources and one.targets
    ]
    return float(np.median([target / max(1.0, source) for source, target in means] or [1.0]))


def _lexicon(numbers: tuple[Numbers, Numbers], pairs: _Pairs) -> Lexicon:
    """The lexicon of these pairs, or of enough of them."""
    some = pairs[:: len(pairs) // _MOST_LEARNT + 1]
    return learn_lexicon(numbers, ([one for one, _ in some], [other for _, other in some]))


def _held_out_gains(
    numbers: tuple[Numbers, Numbers],
    sides: Sequence[_Sides],
    aligned: Sequence[Sequence[Bead]],
    given: _Pairs,
) -> list[Floats]:
    """The gain of each bead in nats a word, in the worse direction; 0 if a side is empty.

    The lexicon that judges a bead was learnt from the other parts of the text: of its own pairs it
    would know even wrong ones by heart.
    """
    gains = [np.zeros(len(beads)) for beads in aligned]
    paired = [
        (number, place)
        for number, beads in enumerate(aligned)
        for place, bead in enumerate(beads)
        if all(_taken(bead))
    ]
    words = [sides[number].words_of(aligned[number][place]) for number, place in paired]
    single = [_taken(aligned[number][place]) == (1, 1) for number, place in paired]
    size = min(_BLOCK, len(paired) // _PARTS + 1)
    blocks = [range(start, min(start + size, len(paired))) for start in range(0, len(paired), size)]
    for part in range(_PARTS):
        judged = blocks[part::_PARTS]
        hidden = {place for block in judged for place in block}
        learnt = [pair for place, pair in enumerate(words) if single[place] and place not in hidden]
        lexicon = _lexicon(numbers, [*given, *learnt])
        for block in judged:
            for place, gain in zip(
                block, _gains_of([words[at] for at in block], lexicon), strict=True
            ):
                number, bead = paired[place]
                gains[number][bead] = gain
    return gains


def _gains_of(pairs: _Pairs, lexicon: Lexicon) -> list[float]:
    """The gain of each pair in nats a word, in the worse direction."""
    words = [one for one, _ in pairs], [other for _, other in pairs]
    gains = Gains(_in_step(len(pairs)), words, lexicon)
    found = []
    for place, pair in enumerate(pairs):
        both = gains.both((1, 1), place + 1, np.array([place + 1]))
        sums = zip(both, pair, strict=True)
        found.append(min(float(total[0]) / max(1, len(own)) for total, own in sums))
    return found


def _scores(sides: _Sides, beads: Sequence[Bead], gains: Floats, ratio: float) -> Floats:
    """The scores of the beads of a document; none is sure if it seems to be another text."""
    paired = np.array([all(_taken(bead)) for bead in beads], bool)
    lengths = np.array([sides.lengths(bead) for bead in beads]).reshape(-1, 2)
    costs = length_costs(lengths[:, 0], lengths[:, 1], ratio)
    scores = 1.0 / (1.0 + np.exp(-(np.stack([gains, costs], 1) @ _LOGIT[:2] + _LOGIT[2])))
    if paired.any() and gains[paired].mean() < _TRANSLATION:
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

    def gain(self, bead: Bead) -> float:
        """The gain of a pair of one sentence each, in nats a word, in the worse direction."""
        gains = self._gains.both((1, 1), bead.source.stop, np.array([bead.target.stop]))
        sums = zip(gains, self._sides.words_of(bead), strict=True)
        return min(float(total[0]) / max(1, len(words)) for total, words in sums)

    def _lengths(self, taken: Taken, end: int, ends: Ends) -> Floats:
        sources, targets = self._sides.characters
        source = sources[end] - sources[end - taken[0]]
        return length_costs(source, targets[ends] - targets[ends - taken[1]], self._ratio)


def _sides(document: DocumentPair, numbers: tuple[Numbers, Numbers]) -> _Sides:
    texts = document.sources, document.targets
    words = numbers[0].words(texts[0]), numbers[1].words(texts[1])
    if document.in_step:
        band = _in_step(len(texts[0]))
    else:
        band = Band.around_diagonal(len(texts[0]), len(texts[1]))
    return _Sides(
        words,
        band,
        (_sums([*map(len, texts[0])]), _sums([*map(len, texts[1])])),
    )


def _in_step(sentences: int) -> Band:
    """The band in which sentence N is that of the other side."""
    return Band(np.arange(sentences + 1), 1, sentences + 1)


def _sums(counts: Sequence[int]) -> Floats:
    return np.concatenate([[0.0], np.cumsum(counts, dtype=float)])


def _taken(bead: Bead) -> Taken:
    return bead.source.stop - bead.source.start, bead.target.stop - bead.target.start
