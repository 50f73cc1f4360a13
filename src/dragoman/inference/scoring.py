"""How good pairs of sentences are: their cross-entropies by models, or ratings by COMET."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.corpus.clean import MAX_MALFORMED_SHARE
from dragoman.corpus.directions import with_token
from dragoman.corpus.normalize import normalize
from dragoman.data.batch import make_batch
from dragoman.evaluation.comet import Comet
from dragoman.formats.trained_model import TranslationModel
from dragoman.model.incremental import inference

PAIRS_AT_A_TIME: Final = 16_384
_BATCH_CELLS: Final = 8_192
"""Rows times the pieces of the longest side of a batch, at most."""


def cross_entropies(
    model: TranslationModel, sources: Sequence[str], targets: Sequence[str], *, token: str = ""
) -> NDArray[np.float64]:
    """The cross-entropy of each pair: nats per target token, end of sentence included, no dropout.

    The texts are normalised as the model's training text was, and the token is put before the
    sources. NaN for a pair with a side that is empty or has more pieces than the model's
    max_pieces.
    """
    (network,) = model.models
    normalised = [
        [normalize(text, lowercase=model.lowercase) for text in texts]
        for texts in (sources, targets)
    ]
    normalised[0] = [with_token(token, text) for text in normalised[0]]
    rows = [
        vocabulary.encode(texts)
        for vocabulary, texts in zip(model.subwords, normalised, strict=True)
    ]
    source_lengths, target_lengths = (np.array([len(row) for row in side], int) for side in rows)
    scorable = np.maximum(source_lengths, target_lengths) <= model.max_source_pieces
    for vocabulary, texts in zip(model.subwords, normalised, strict=True):
        scorable &= np.array([vocabulary.prefix(text)[1].strip() != "" for text in texts], bool)
    found = np.full(len(sources), math.nan)
    order = np.flatnonzero(scorable)
    longest_sides = np.maximum(source_lengths, target_lengths)
    order = order[np.lexsort((-target_lengths[order], -longest_sides[order]))]
    with inference([network]):
        while len(order):
            size = longest_sides[order[0]] + 1
            batch, order = np.split(order, [max(1, _BATCH_CELLS // int(size))])
            found[batch] = _mean_nll(model, [[side[pair] for pair in batch] for side in rows])
    return found


def _mean_nll(model: TranslationModel, rows: Sequence[Sequence[list[int]]]) -> NDArray[np.float64]:
    lengths = [np.array([len(row) for row in side]) for side in rows]
    pieces = [np.array([*itertools.chain.from_iterable(side)], dtype=np.int64) for side in rows]
    batch = make_batch(pieces[0], lengths[0], pieces[1], lengths[1]).to(model.world.device)
    (network,) = model.models
    nll_N = network.token_nll(batch).double().cpu()
    tokens_B = torch.from_numpy(lengths[1] + 1)
    ends_B = torch.cumsum(tokens_B, 0)
    sums_N = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumsum(nll_N, 0)])
    mean_B: NDArray[np.float64] = ((sums_N[ends_B] - sums_N[ends_B - tokens_B]) / tokens_B).numpy()
    return mean_B


def dual_cross_entropy(
    forward: NDArray[np.float64], reverse: NDArray[np.float64]
) -> NDArray[np.float64]:
    """|forward - reverse| + (forward + reverse) / 2: low for good pairs (Junczys-Dowmunt 2018)."""
    return np.abs(forward - reverse) + (forward + reverse) / 2


def groups_of_pairs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in groups of PAIRS_AT_A_TIME, which are sorted by length and scored together."""
    rest = iter(lines)
    while group := [*itertools.islice(rest, PAIRS_AT_A_TIME)]:
        yield group


def columns_of(lines: Iterable[str], *, place: str) -> int:
    """The number of columns in the first pair of a file, for `PairScorer`.

    place: the name of the file, for errors.
    Raises CorpusError that names the first line that is no pair of so many columns, if over 1% of
    the lines are none, as `prepare` does: the file is of another kind then.
    """
    columns, number, malformed = 0, 0, 0
    fault = ("", "", "")
    for number, line in enumerate(lines, 1):
        num_cells = line.count("\t") + 1
        columns = columns or (num_cells if num_cells > 1 else 0)
        if 1 < num_cells <= columns:
            continue
        malformed += 1
        if malformed == 1:
            says = f"has {num_cells} columns, the first pair has {columns}"
            remedy = "remove the extra tabs of this line, or keep two columns of all: cut -f1,2"
            if num_cells == 1:
                says = "has no tab between source and target"
                remedy = "make such lines of two files: paste a.en a.de > pairs.tsv"
            fault = (f"{place}, line {number}", says, remedy)
    if malformed > MAX_MALFORMED_SHARE * number:
        where, says, remedy = fault
        others = f"; {malformed:,} of {number:,} lines are no pairs" if malformed > 1 else ""
        raise CorpusError(f"{says}{others}", place=where, remedy=remedy)
    return columns


Rate = Callable[[Sequence[str], Sequence[str]], list[NDArray[np.float64]]]
"""Sources and targets -> columns of scores, NaN for a pair that has none."""


def by_models(models: Sequence[TranslationModel], tokens: Sequence[str] = ("", "")) -> Rate:
    """Cross-entropies by a model that translates source to target; with one that translates back
    there are three columns: both, and `dual_cross_entropy`.

    tokens: the language token for each of the two models; "" for a model of one target language.
    Raises ConfigError if a model is an ensemble.
    """
    for model in models:
        if len(model.models) != 1:
            raise ConfigError(
                "an ensemble cannot score", place="score", remedy="give one checkpoint"
            )
    model, *reverse = models

    def rate(sources: Sequence[str], targets: Sequence[str]) -> list[NDArray[np.float64]]:
        columns = [cross_entropies(model, sources, targets, token=tokens[0])]
        for back in reverse:
            columns.append(cross_entropies(back, targets, sources, token=tokens[1]))
            columns.append(dual_cross_entropy(*columns))
        return columns

    return rate


def by_comet(comet: Comet) -> Rate:
    """COMET's rating of each pair, mostly 0 to 1; none if a side is blank.

    Raises ConfigError if the checkpoint needs references.
    """
    if comet.needs_references:
        raise ConfigError(
            "rates translations beside references, and pairs have none",
            place="model",
            remedy="name a COMET checkpoint that needs none, such as wmt22-cometkiwi-da",
        )

    def rate(sources: Sequence[str], targets: Sequence[str]) -> list[NDArray[np.float64]]:
        found = np.full(len(sources), math.nan)
        pairs = [*zip(sources, targets, strict=True)]
        scorable = [number for number, pair in enumerate(pairs) if all(map(str.strip, pair))]
        if scorable:
            rated = [pairs[number] for number in scorable]
            found[scorable] = comet.scores(*zip(*rated, strict=True))
        return [found]

    return rate


class PairScorer:
    """Adds columns of scores to lines of `source TAB target`.

    columns: the number in each line; a line with fewer gets empty ones, so that scores line up.
    counts: the numbers of "pairs", of "unscored" ones, and of "malformed" lines, which have no
        tab or too many; they stay, without a score.
    """

    def __init__(self, rate: Rate, *, columns: int, counts: Counter[str]) -> None:
        self._rate = rate
        self._columns = columns
        self._counts = counts

    def lines(self, lines: Iterable[str], _first: int) -> Iterator[list[str]]:
        """Each line with its scores, group by group."""
        for group in groups_of_pairs(lines):
            pairs = [line.split("\t") for line in group]
            is_pair = [1 < len(pair) <= self._columns for pair in pairs]
            texts = [pair if ok else ("", "") for pair, ok in zip(pairs, is_pair, strict=True)]
            sources, targets = [pair[0] for pair in texts], [pair[1] for pair in texts]
            columns = self._rate(sources, targets)
            malformed = is_pair.count(False)
            self._counts["malformed"] += malformed
            self._counts["unscored"] += int(np.isnan(columns[-1]).sum()) - malformed
            self._counts["pairs"] += len(group) - malformed
            yield [
                "\t".join([*self._cells(pair), *map(_cell, scores)]) + "\n"
                for pair, scores in zip(pairs, np.stack(columns, axis=1), strict=True)
            ]

    def _cells(self, pair: list[str]) -> list[str]:
        """The cells of a line, in the number of columns; spaces replace tabs that are too many."""
        last = self._columns - 1
        cells = [*pair[:last], " ".join(pair[last:])]
        return cells + [""] * (self._columns - len(cells))


def _cell(score: float) -> str:
    return "" if math.isnan(score) else f"{score:.6f}"
