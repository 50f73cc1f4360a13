"""Two systems on one test set: whether they differ by chance, and in which sentences they differ.

The tests are sacreBLEU's own. They test whether other sentences could have reversed the result.
They do not include the chance in training: the same recipe with another seed differs, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.base import Score as SacrebleuScore
from sacrebleu.significance import PairedTest, Result

from dragoman.base.errors import CorpusError
from dragoman.evaluation.metrics import Chrf, bleu_of

SIGNIFICANT: Final = 0.05
FEWEST: Final = 20
"""With fewer sentences no system is called better: resamples of so few repeat each other."""
FEWEST_DIFFERENT: Final = 6
"""With fewer sentences that differ no system is called better. If each of five is better, the exact
probability of that by chance is 2 / 2^5, above 0.05, yet the tests give a far smaller one."""
LENGTHS: Final = (0, 10, 20, 30, 50)
"""Words of a reference at which a group of sentences begins."""
FREQUENCIES: Final = (0, 1, 10, 100, 1000)
"""Occurrences in the training text at which a group of words begins."""
_SHOWN: Final = 5

Winner = Literal["first", "second"]
SIDES: Final[tuple[Winner, Winner]] = ("first", "second")


@dataclass(frozen=True, slots=True)
class PairedScore:
    """One metric of both systems, 0 to 100, and the probability of such a difference by chance.

    Both p-values are 1 for equal scores, for which sacreBLEU gives the smallest possible one.

    p_bootstrap: paired bootstrap resampling (Koehn 2004) with 1,000 resamples.
    p_randomisation: approximate randomisation (Riezler and Maxwell 2005) with 10,000 trials.
    signature: the metric's name and sacreBLEU's signature of the bootstrap, version included.
    """

    first: float
    second: float
    p_bootstrap: float
    p_randomisation: float
    signature: str

    @property
    def difference(self) -> float:
        """How much higher the second system scores."""
        return self.second - self.first

    @property
    def winner(self) -> Winner | None:
        """The system with the higher score; None if a test calls the difference insignificant."""
        if max(self.p_bootstrap, self.p_randomisation) >= SIGNIFICANT:
            return None
        return "second" if self.difference > 0 else "first"


@dataclass(frozen=True, slots=True)
class Group:
    """Scores of both systems on a part of the test set.

    name: such as "10 to 19".
    size: sentences or words of the references.
    first, second: BLEU of the sentences, or F1 of the words, 0 to 100.
    """

    name: str
    size: int
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class SentencePair:
    """A sentence as both systems translate it. line: counted from 1. Scores are chrF, 0 to 100."""

    line: int
    source: str
    reference: str
    first: str
    second: str
    first_chrf: float
    second_chrf: float


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Two systems on one test set.

    scores: by metric, "bleu", "chrf" and, if it was asked for, "comet".
    first_wins: sentences in which the first system has the higher chrF.
    ties: sentences with equal chrF.
    second_wins: sentences in which the second system has the higher chrF.
    by_length: BLEU by the number of words in the reference.
    by_frequency: F1 of words by how often they are in the training text (as compare-mt, Neubig et
        al. 2019); empty if that text is not known.
    first_best: the sentences in which the first system is furthest ahead.
    second_best: the sentences in which the second system is furthest ahead.
    """

    pairs: int
    scores: Mapping[str, PairedScore]
    first_wins: int
    ties: int
    second_wins: int
    by_length: tuple[Group, ...]
    by_frequency: tuple[Group, ...]
    first_best: tuple[SentencePair, ...]
    second_best: tuple[SentencePair, ...]

    @property
    def winner(self) -> Winner | None:
        """The better system if every metric and test says so, else None.

        None also if there are too few sentences, or too few with different chrF.
        """
        if self.pairs < FEWEST or self.pairs - self.ties < FEWEST_DIFFERENT:
            return None
        winners = {score.winner for score in self.scores.values()}
        return winners.pop() if len(winners) == 1 else None


@dataclass(frozen=True, slots=True)
class CometScores:
    """COMET's rating of every sentence as each system translates it; see `comet.py`."""

    first: Sequence[float]
    second: Sequence[float]
    signature: str


def compare_translations(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    sources: Sequence[str],
    language: str = "",
    lowercase: bool = False,
    training_words: Mapping[str, int] | None = None,
    comet: CometScores | None = None,
) -> PairedComparison:
    """Compare two translations of the same lines.

    language: the language of the translations; words are cut as `metrics.bleu_of` does.
    training_words: how often each word, as `words` cuts them, is in the training text.
    comet: the rating of each sentence of both.
    Raises CorpusError if the texts differ in length or are empty.
    """
    texts = {"first": first, "second": second, "sources": sources}
    for name, lines in texts.items():
        if len(lines) != len(references):
            raise CorpusError(
                f"{len(lines)} lines for {len(references)} references",
                place=name,
                remedy="all must have one line for each sentence",
            )
    if not references:
        raise CorpusError("no sentences to compare", remedy="give at least one")
    chrf = Chrf(lowercase=lowercase)
    metrics: dict[str, Metric] = {"bleu": bleu_of(language, lowercase=lowercase), "chrf": chrf}
    rows = [
        SentencePair(
            number, source, reference, one, other,
            chrf.sentence_score(one, [reference]).score,
            chrf.sentence_score(other, [reference]).score,
        )
        for number, (source, reference, one, other) in enumerate(
            zip(sources, references, first, second, strict=True), 1
        )
    ]  # fmt: skip
    ahead = sorted(rows, key=lambda row: row.second_chrf - row.first_chrf)
    first_best = [row for row in ahead[:_SHOWN] if row.first_chrf > row.second_chrf]
    second_best = [row for row in ahead[::-1][:_SHOWN] if row.second_chrf > row.first_chrf]
    first_wins = sum(row.first_chrf > row.second_chrf for row in rows)
    second_wins = sum(row.second_chrf > row.first_chrf for row in rows)
    scores = {name: _paired(metric, first, second, references) for name, metric in metrics.items()}
    if comet is not None:
        scores["comet"] = _paired_means(comet)
    return PairedComparison(
        pairs=len(rows),
        scores=scores,
        first_wins=first_wins,
        ties=len(rows) - first_wins - second_wins,
        second_wins=second_wins,
        by_length=tuple(_by_length(rows, language, lowercase)),
        by_frequency=tuple(_by_frequency(rows, training_words, language, lowercase))
        if training_words
        else (),
        first_best=tuple(first_best),
        second_best=tuple(second_best),
    )


def words(text: str, language: str = "") -> list[str]:
    """The words of a text as BLEU counts them; see `metrics.bleu_of`."""
    return _tokenizer(language)(text).split()


def word_counts(lines: Iterable[str], language: str = "") -> Counter[str]:
    """How often each word is in a text."""
    return Counter(word for line in lines for word in words(line, language))


@cache
def _tokenizer(language: str) -> Callable[[str], str]:
    tokenize: Callable[[str], str] = bleu_of(language).tokenizer
    return tokenize


def _paired(
    metric: Metric, first: Sequence[str], second: Sequence[str], references: Sequence[str]
) -> PairedScore:
    systems: list[tuple[str, Sequence[str]]] = [("first", first), ("second", second)]
    found: list[tuple[Result, Result]] = []
    signatures = []
    for kind in ("bs", "ar"):
        by_metric, columns = PairedTest(systems, {"": metric}, [list(references)], test_type=kind)()
        ((name, signature),) = by_metric.items()
        base, other = columns[name]
        assert isinstance(base, Result)
        assert isinstance(other, Result)
        found.append((base, other))
        signatures.append(f"{name}|{signature}")
    p_bootstrap, p_randomisation = (other.p_value for _, other in found)
    assert p_bootstrap is not None
    assert p_randomisation is not None
    base, other = found[0]
    if base.score == other.score:
        p_bootstrap = p_randomisation = 1.0
    return PairedScore(
        float(base.score),
        float(other.score),
        float(p_bootstrap),
        float(p_randomisation),
        signatures[0],
    )


class _Mean(Metric):
    """The mean over sentences, whose "translations" are their scores in digits."""

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {}

    def _compute_segment_statistics(
        self, hypothesis: str, ref_kwargs: dict[str, Any]
    ) -> list[float]:
        return [float(hypothesis), 1.0]

    def _aggregate_and_compute(self, stats: list[list[float]]) -> SacrebleuScore:
        return self._compute_score_from_stats(np.sum(stats, axis=0).tolist())

    def _compute_score_from_stats(self, stats: list[float]) -> SacrebleuScore:
        return SacrebleuScore("mean", float(stats[0]) / float(stats[1]))


def _paired_means(comet: CometScores) -> PairedScore:
    """The mean ratings, times 100, with the same tests."""
    first, second = (
        [repr(100 * score) for score in scores] for scores in (comet.first, comet.second)
    )
    mean = _Mean()  # type: ignore[no-untyped-call]
    found = _paired(mean, first, second, ["" for _ in first])
    tests = found.signature.removeprefix("mean|")
    return replace(found, signature=f"{comet.signature}|{tests}")


def _by_length(rows: Sequence[SentencePair], language: str, lowercase: bool) -> Iterable[Group]:
    lengths = [len(words(row.reference, language)) for row in rows]
    for name, low, high in _ranges(LENGTHS):
        group = [row for row, length in zip(rows, lengths, strict=True) if low <= length < high]
        if not group:
            continue
        references = [[row.reference for row in group]]
        first, second = (
            bleu_of(language, lowercase=lowercase).corpus_score(texts, references).score
            for texts in ([row.first for row in group], [row.second for row in group])
        )
        yield Group(name, len(group), first, second)


def _by_frequency(
    rows: Sequence[SentencePair],
    training_words: Mapping[str, int],
    language: str,
    lowercase: bool,
) -> Iterable[Group]:
    def counts(text: str) -> Counter[str]:
        return Counter(words(text.lower() if lowercase else text, language))

    texts = [(counts(row.reference), counts(row.first), counts(row.second)) for row in rows]
    for name, low, high in _ranges(FREQUENCIES):
        groups = [
            [_only(words_of, training_words, low, high) for words_of in sentence]
            for sentence in texts
        ]
        size = sum(reference.total() for reference, _, _ in groups)
        if size:
            first, second = (
                _f1([(group[0], group[system]) for group in groups]) for system in (1, 2)
            )
            yield Group(name, size, first, second)


def _only(
    counts: Counter[str], training_words: Mapping[str, int], low: float, high: float
) -> Counter[str]:
    return Counter(
        {word: count for word, count in counts.items() if low <= training_words.get(word, 0) < high}
    )


def _f1(sentences: Sequence[tuple[Counter[str], Counter[str]]]) -> float:
    """F1 of words, 0 to 100, from the counts of each reference and translation."""
    matched = sum((reference & found).total() for reference, found in sentences)
    wanted = sum(reference.total() for reference, _ in sentences)
    written = sum(found.total() for _, found in sentences)
    return 200 * matched / (wanted + written)


def _ranges(starts: Sequence[int]) -> Iterable[tuple[str, int, float]]:
    """(name, first number, the number after the last) of groups that begin at these numbers."""
    for low, high in pairwise(starts):
        yield (str(low) if high == low + 1 else f"{low} to {high - 1}", low, high)
    yield f"{starts[-1]} and more", starts[-1], math.inf
