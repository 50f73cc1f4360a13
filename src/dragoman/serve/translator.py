"""Texts -> rows of pieces -> texts, over any engine. Free of torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dragoman.corpus.normalize import normalize
from dragoman.corpus.subword import Subword
from dragoman.evaluate.sentences import cut_into_chunks
from dragoman.export.ctranslate2_engine import Candidate, Results
from dragoman.model.config import SearchConfig
from dragoman.serve.layout import Layout, Part, cut

LINES_AT_A_TIME: Final = 2048
CHARACTERS_AT_A_TIME: Final = 400_000
"""So much is sorted by length and searched together, while as much again is made ready."""
_WINDOW: Final = 8000
"""Characters that are encoded in one go; SentencePiece needs a hundred bytes for each."""


@dataclass(frozen=True, slots=True)
class Translation:
    """score: length-normalised log-probability; the mean over the parts of a longer text."""

    text: str
    score: float


class Engine(Protocol):
    """What searches for translations of rows of pieces."""

    def submit(
        self,
        sources: Sequence[list[int]],
        search: SearchConfig,
        *,
        num_hypotheses: int = 1,
        scored: bool = True,
    ) -> Results:
        """Begin; the results are in the order of the sources. scored: whether scores are used."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Texts cut into rows for an engine, and the way back.

    rows: pieces without end of sentence, of all texts.
    texts: of each text its parts, each with the number of rows that it became.
    """

    rows: list[list[int]]
    texts: list[list[tuple[Part, int]]]
    target: Subword

    def assemble(
        self, found: list[list[Candidate]], num_hypotheses: int
    ) -> list[list[Translation]]:
        """The translations of each text, best first, from those of the rows."""
        flat = [candidate.ids for candidates in found for candidate in candidates]
        decoded = iter(self.target.decode(flat))
        rows = iter([[(next(decoded), one.score) for one in candidates] for candidates in found])
        return [self._text(parts, rows, num_hypotheses) for parts in self.texts]

    def _text(
        self,
        parts: list[tuple[Part, int]],
        rows: Iterator[list[tuple[str, float]]],
        num_hypotheses: int,
    ) -> list[Translation]:
        own = [(part, [next(rows) for _ in range(count)]) for part, count in parts]
        available = [len(row) for _, part_rows in own for row in part_rows]
        alternatives = min(num_hypotheses, max(available, default=1))
        return [self._alternative(own, rank) for rank in range(alternatives)]

    def _alternative(
        self, own: list[tuple[Part, list[list[tuple[str, float]]]]], rank: int
    ) -> Translation:
        """The text made of the rank-th translation of each row, the last where there are fewer."""
        written, scores = [], []
        for part, part_rows in own:
            if not part_rows:
                written.append(part.text if not part.translated else "")
                continue
            chosen = [row[min(rank, len(row) - 1)] for row in part_rows]
            written.append(part.written(" ".join(text for text, _ in chosen)))
            scores += [score for _, score in chosen]
        return Translation("".join(written), sum(scores) / len(scores) if scores else 0.0)


@dataclass(frozen=True, slots=True)
class Translator:
    """An engine with the subwords it was trained with.

    max_source_pieces: the longest row that is translated in one go.
    """

    engine: Engine
    subwords: tuple[Subword, Subword]
    lowercase: bool
    max_source_pieces: int

    def plan(self, texts: Iterable[str], layout: Layout) -> Plan:
        """Cut texts into rows; nothing of them is lost."""
        rows: list[list[int]] = []
        planned = []
        for text in texts:
            parts = []
            for part in cut(text, layout):
                chunks = self._chunks(part) if part.translated else []
                rows += chunks
                parts.append((part, len(chunks)))
            planned.append(parts)
        return Plan(rows, planned, self.subwords[1])

    def translate(
        self, texts: Sequence[str], search: SearchConfig, *, layout: Layout, num_hypotheses: int = 1
    ) -> list[list[Translation]]:
        """The translations of each text, best first."""
        plan = self.plan(texts, layout)
        found = self.engine.submit(plan.rows, search, num_hypotheses=num_hypotheses)()
        return plan.assemble(found, num_hypotheses)

    def stream(
        self,
        texts: Iterable[str],
        search: SearchConfig,
        *,
        layout: Layout,
        num_hypotheses: int = 1,
        scored: bool = True,
    ) -> Iterator[list[list[Translation]]]:
        """The same for any number of texts, of which a bounded number is held at a time.

        Yields the translations of as many texts as were searched together. Which those are follows
        from the texts and the cores; in other company a score may differ in its last digits.
        scored: False where nobody looks at the scores.
        """
        waiting: deque[tuple[Plan, Results]] = deque()
        for group in _groups(texts):
            plan = self.plan(group, layout)
            results = self.engine.submit(
                plan.rows, search, num_hypotheses=num_hypotheses, scored=scored
            )
            waiting.append((plan, results))
            if len(waiting) > 1:
                plan, results = waiting.popleft()
                yield plan.assemble(results(), num_hypotheses)
        for plan, results in waiting:
            yield plan.assemble(results(), num_hypotheses)

    def _chunks(self, part: Part) -> list[list[int]]:
        text = normalize(part.source().replace("\n", " "), lowercase=self.lowercase)
        source = self.subwords[0]
        return [
            chunk
            for window in _windows(text)
            for chunk in cut_into_chunks(window, source, max_pieces=self.max_source_pieces)
        ]


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts that are searched together."""
    group: list[str] = []
    characters = 0
    for text in texts:
        group.append(text)
        characters += len(text)
        if len(group) == LINES_AT_A_TIME or characters >= CHARACTERS_AT_A_TIME:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _windows(text: str) -> Iterator[str]:
    """A long text in parts that end at spaces where there are any."""
    start = 0
    while len(text) - start > _WINDOW:
        space = text.rfind(" ", start + _WINDOW // 2, start + _WINDOW)
        end = space if space > 0 else start + _WINDOW
        yield text[start:end]
        start = end + (space > 0)
    yield text[start:]
