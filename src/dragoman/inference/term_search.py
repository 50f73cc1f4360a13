"""Makes a model use the terms it is given, whether or not it knows them.

The attention of the model shows which word of its translation stands for a term
(`inference.tags`). A second search begins with the translation up to that word and the term, and
the model writes the rest. Further searches begin with the term without its ending, so that the
model can inflect it. The likeliest result with a form of the term is the translation. A model that
does not know the term may end it like another word. So a form with another ending must be likelier
by far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Final, NamedTuple

from dragoman.corpus.shards import UNK
from dragoman.inference import inline
from dragoman.inference.tags import CLOSING, OPENING, AttendedRow, with_tags
from dragoman.inference.terms import Terms, count_term, has_other_ending, has_term, is_whole
from dragoman.model.config import SearchConfig, length_limit

if TYPE_CHECKING:
    from dragoman.corpus.vocabulary import Vocabulary
    from dragoman.inference.translator import Steps

_MOST_TERMS: Final = 8
"""Terms of a row, at most, that are searched for: each takes a search."""
_ENDING: Final = 2
_SHORTEST_STEM: Final = 4
"""Letters of an ending, and of what is left of a term without it."""


_BY_FAR: Final = 1.5
"""In score: what real forms are better by in most sentences of the demo, and invented ones not."""


class Found(NamedTuple):
    """A translation of a row. ids: its pieces. score: as that of a Candidate."""

    text: str
    score: float
    ids: list[int]


class _Term(NamedTuple):
    """The span of a term in the text of a row, and the words that shall translate it.

    number: how many terms of the row, up to this one, shall be translated by these words.
    """

    start: int
    end: int
    words: str
    number: int


class TermSearch:
    """The searches for the terms of rows, which an engine has translated.

    rows: the ids of their pieces. found: the translations of each, the best first.
    """

    def __init__(
        self,
        rows: Sequence[list[int]],
        found: Sequence[list[Found]],
        terms: Terms,
        subwords: tuple[Vocabulary, Vocabulary],
    ) -> None:
        self._rows, self._found = rows, [*found]
        self._source, self._target = subwords
        self._texts = self._source.decode([*rows])
        self._terms = [_numbered(terms.found(text)) for text in self._texts]
        self._open = [[*of_row] for of_row in self._terms]
        """The terms of each row that were not searched for yet."""

    def run(self, search: SearchConfig, num_hypotheses: int) -> Steps[list[list[Found]]]:
        """The translations of each row, with as many of its terms as the model can write."""
        for _ in range(_MOST_TERMS):
            missing = {
                row: term for row in range(len(self._rows)) if (term := self._next(row)) is not None
            }
            if not missing:
                break
            yield from self._search(missing, search, num_hypotheses)
        return self._found

    def _next(self, row: int) -> _Term | None:
        """The next term that the translation of a row lacks."""
        open_terms = self._open[row]
        while open_terms:
            term = open_terms.pop(0)
            if count_term(self._found[row][0].text, term.words) < term.number:
                return term
        return None

    def _search(
        self, missing: dict[int, _Term], search: SearchConfig, num_hypotheses: int
    ) -> Steps[None]:
        sources = [self._rows[row] for row in missing]
        best_ids = [self._found[row][0].ids for row in missing]
        attention = yield methodcaller("attention", sources, best_ids)
        begun = []
        replaced: dict[int, str] = {}
        for (row, term), weights in zip(missing.items(), attention, strict=True):
            best = self._found[row][0]
            pieces = self._source.pieces(self._rows[row]), self._target.pieces(best.ids)
            attended = AttendedRow(*pieces, best.text, weights)
            before, replaced[row], _ = self._around(row, term, attended)
            words = term.words
            if not before.strip() and self._texts[row][:1].isupper():
                words = words[:1].upper() + words[1:]
            limit = length_limit(len(self._rows[row]), search)
            begun += [(row, ids) for ids in self._beginnings(before, words) if len(ids) < limit]
        candidates: dict[int, list[Found]] = {row: [] for row in missing}
        sources = [self._rows[row] for row, _ in begun]
        results = yield methodcaller("go_on", sources, [ids for _, ids in begun], search)
        for (row, _), several in zip(begun, results, strict=True):
            texts = self._target.decode([one.ids for one in several])
            candidates[row] += [
                Found(text, one.score, one.ids) for text, one in zip(texts, several, strict=True)
            ]
        for row, term in missing.items():
            fitting = self._fitting(row, term, candidates[row])
            self._found[row] = fitting[:num_hypotheses] or self._found[row]
        doubled = [
            (row, rank)
            for row, term in missing.items()
            for rank, one in enumerate(self._found[row])
            if replaced[row] and has_term(one.text, f"{term.words} {replaced[row]}")
        ]
        if doubled:
            yield from self._take_out(doubled, missing, replaced)

    def _take_out(
        self,
        doubled: Sequence[tuple[int, int]],
        terms: Mapping[int, _Term],
        replaced: Mapping[int, str],
    ) -> Steps[None]:
        """Take out the words that a term replaced where they still follow it.

        doubled: the row of each translation that has them, and its rank. They are left if the model
        looks elsewhere there: "external data" may have been "Daten" before "externe Daten".
        """
        sources = [self._rows[row] for row, _ in doubled]
        targets = [self._found[row][rank].ids for row, rank in doubled]
        attention = yield methodcaller("attention", sources, targets)
        for (row, rank), weights in zip(doubled, attention, strict=True):
            one, term = self._found[row][rank], terms[row]
            pieces = self._source.pieces(self._rows[row]), self._target.pieces(one.ids)
            attended = AttendedRow(*pieces, one.text, weights)
            before, inner, after = self._around(row, term, attended)
            words, length = inner.split(" "), len(replaced[row].split(" "))
            for first in range(1, len(words) - length + 1):
                theirs = " ".join(words[first : first + length])
                if has_term(theirs, replaced[row]) and has_term(
                    " ".join(words[:first]), term.words
                ):
                    inner = " ".join([*words[:first], *words[first + length :]])
                    text = before + inner + after
                    found = Found(text, one.score, self._target.encode([text])[0])
                    self._found[row][rank] = found
                    break

    def _around(self, row: int, term: _Term, attended: AttendedRow) -> tuple[str, str, str]:
        """The translation of a row up to the words that stand for a term, these, and the rest."""
        placed = with_tags(_tagged(self._texts[row], term), [attended])
        before, _, rest = placed.partition(OPENING[0])
        inner, _, after = rest.partition(CLOSING[0])
        return before, inner, after

    def _beginnings(self, before: str, words: str) -> Iterator[list[int]]:
        """The pieces that a translation may begin with; none if the model has no such pieces."""
        ids, shorter = self._target.encode([before + words, before + words[:-_ENDING]])
        if UNK in ids:
            return
        yield ids
        last_word = len(words.split()[-1])
        if last_word >= _SHORTEST_STEM + _ENDING and UNK not in shorter:
            yield shorter
        last_piece = self._target.pieces(ids[-1:])[0]
        is_inside = not last_piece.startswith("▁")
        if is_inside and last_word - len(last_piece) >= _SHORTEST_STEM:
            yield ids[:-1]

    def _fitting(self, row: int, term: _Term, candidates: list[Found]) -> list[Found]:
        """The candidates with the term and all that the translation had, the likeliest first."""
        text, before = self._texts[row], self._found[row][0].text
        had = {
            one.words: min(one.number, count_term(before, one.words)) for one in self._terms[row]
        }
        good = [
            one
            for one in candidates
            if all(count_term(one.text, words) >= count for words, count in had.items())
            and (not self._target.stand_ins or inline.agree(text, one.text))
        ]

        def with_one_more(is_form: Callable[[str, str], bool]) -> list[Found]:
            count = count_term(before, term.words, is_form)
            return [one for one in good if count_term(one.text, term.words, is_form) > count]

        whole = with_one_more(is_whole)
        least = max((one.score + _BY_FAR for one in whole), default=math.inf)
        inflected = [one for one in with_one_more(has_other_ending) if one.score >= least]
        fitting = {one.text: one for one in sorted([*whole, *inflected], key=lambda one: one.score)}
        return sorted(fitting.values(), key=lambda one: -one.score)


def _numbered(spans: Sequence[tuple[int, int, str]]) -> list[_Term]:
    counts: Counter[str] = Counter()
    terms = []
    for start, end, words in spans:
        counts[words] += 1
        terms.append(_Term(start, end, words, counts[words]))
    return terms


def _tagged(text: str, term: _Term) -> str:
    inner = text[term.start : term.end]
    return f"{text[: term.start]}{OPENING[0]}{inner}{CLOSING[0]}{text[term.end :]}"
