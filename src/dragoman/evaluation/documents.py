"""Scores of whole documents, whose sentences need not be those of their references.

The sentences of a translation are aligned with those of its reference, by length and by what
characters they share (`corpus.align`). A sentence of the reference without a counterpart was left
out; one of the translation was added. SEGALE (arXiv 2509.17249) counts them in this way, with
embeddings in place of characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

import numpy as np

from dragoman.base.errors import ConfigError
from dragoman.corpus.align import Band, Bead, Ends, Floats, align, length_costs
from dragoman.evaluation.metrics import Score, chrf
from dragoman.evaluation.sentences import split_sentences

_CHARACTERS = 4
"""Those of an n-gram: sentences about different things share few."""
_UNLIKE = 10.0
"""The cost of two sentences that share nothing: about that of leaving both out."""


@dataclass(frozen=True, slots=True)
class DocumentScores:
    """The scores of translated documents.

    chrf: with a document as a segment. sentences: those of the references. omitted: those of them
    that the translations lack. added: sentences of the translations that the references lack.
    """

    chrf: Score
    sentences: int
    omitted: int
    added: int


def score_documents(translations: Sequence[str], references: Sequence[str]) -> DocumentScores:
    """The scores of whole documents, and how many sentences they lack or have in addition.

    translations, references: a text for each document, of any number of sentences.
    Raises ConfigError if their numbers differ, or there is none.
    """
    if isinstance(translations, str) or isinstance(references, str):
        raise ConfigError(
            "is one text", place="translations", remedy="give a list with a text for each document"
        )
    if len(translations) != len(references) or not references:
        raise ConfigError(
            f"{len(translations)} translations for {len(references)} references",
            place="translations",
            remedy="give one text for each document",
        )
    sentences = omitted = added = 0
    for translation, reference in zip(translations, references, strict=True):
        for bead in aligned(reference, translation):
            wanted, found = (side.stop - side.start for side in bead)
            sentences += wanted
            omitted += 0 if found else wanted
            added += 0 if wanted else found
    score = chrf([*map(_in_a_line, translations)], [*map(_in_a_line, references)])
    return DocumentScores(score, sentences, omitted, added)


def aligned(reference: str, translation: str) -> list[Bead]:
    """The beads of the sentences of a reference and of a translation."""
    texts = [
        [sentence for sentence, _ in split_sentences(text) if sentence]
        for text in (reference, translation)
    ]
    grams = [[_grams(sentence) for sentence in side] for side in texts]
    units = [{1: side, 2: [Counter[str](), *map(add, side, side[1:])]} for side in grams]
    lengths = [
        {taken: np.array([of.total() for of in found], float) for taken, found in side.items()}
        for side in units
    ]
    ratio = max(1.0, lengths[1][1].sum()) / max(1.0, lengths[0][1].sum())

    def cost(taken: tuple[int, int], end: int, ends: Ends) -> Floats:
        wanted, length = units[0][taken[0]][end - 1], lengths[0][taken[0]][end - 1]
        others, others_lengths = units[1][taken[1]], lengths[1][taken[1]][ends - 1]
        shared = np.array([(wanted & others[place - 1]).total() for place in ends.tolist()])
        differ = 1.0 - 2 * shared / np.maximum(1, length + others_lengths)
        costs = length_costs(length, others_lengths, ratio)
        costs += _UNLIKE * differ * sum(taken) / 2
        return costs

    return align(Band.around_diagonal(*map(len, texts)), cost)


def _grams(sentence: str) -> Counter[str]:
    text = f" {sentence.casefold()} "
    return Counter(text[place : place + _CHARACTERS] for place in range(len(text)))


def _in_a_line(text: str) -> str:
    return " ".join(text.split())
