"""Texts -> rows of pieces -> texts: with CTranslate2 if that is possible, else with PyTorch.

Free of torch until PyTorch is the engine.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar

from dragoman.base.errors import ConfigError
from dragoman.base.files import file_sha256
from dragoman.base.languages import closest_language, same_language
from dragoman.corpus.augment import DOTTED_I
from dragoman.corpus.directions import Direction, token_for, with_token
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.normalize import normalize
from dragoman.corpus.shards import UNK
from dragoman.corpus.stand_ins import PLACEHOLDERS, SEPARATOR
from dragoman.corpus.vocabulary import Vocabulary
from dragoman.evaluation.bayes_risk import best_first
from dragoman.evaluation.confidence import Colour, Confidence, Signs, colour_of, read_confidence
from dragoman.evaluation.sentences import cut_into_chunks
from dragoman.formats.argos import ARGOS_SEARCH, unpack_model
from dragoman.formats.bundle import Bundle, is_bundle, refuse_checkpoint_of_export
from dragoman.formats.ctranslate2 import write_ctranslate2
from dragoman.formats.ctranslate2_engine import (
    Candidate,
    CTranslate2Engine,
    Results,
    Sampling,
    fitting_cells,
)
from dragoman.formats.kinds import Kind, Quantization
from dragoman.inference import inline
from dragoman.inference.tags import AttendedRow, with_tags, without_tags
from dragoman.inference.term_search import Found, TermSearch
from dragoman.inference.terms import Term, Terms, targets_for
from dragoman.inference.text import TextFormat, TextPart, cut, on_one_line
from dragoman.model.config import SearchConfig
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.host import cpu_cores
from dragoman.training.durable import DIGESTS_FILE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dragoman.formats.trained_model import TranslationModel
    from dragoman.model.transformer import Transformer

T = TypeVar("T")
EngineName = Literal["auto", "ctranslate2", "torch"]

_FOR_CTRANSLATE2: Final[tuple[Kind, ...]] = ("ctranslate2", "argos")
"""Exports that hold a model for CTranslate2 alone."""
LINES_AT_A_TIME: Final = 2048
CHARACTERS_AT_A_TIME: Final = 400_000
"""Characters of texts that are searched together, while as many again are prepared."""
_WINDOW: Final = 8000
"""Characters that are encoded at once; SentencePiece needs a hundred bytes for each."""
_ROWS_OF_A_STEP: Final = 512
"""Rows whose terms or tags are worked on at once: a signal waits until it is done."""
_WIDE_BEAM: Final = 8
"""Hypotheses, at least, among which one with all that must be kept is looked for."""
_FILLERS: Final = "\u115f\u1160"
"""Letters of Hangul that are blank outside a syllable."""


class Segment(NamedTuple):
    """A sentence of a translation, or what stands between two.

    signs: what the search knows of it; None if it was not translated. confidence: the probability
        that it is right: 0 for words that stay as they are because the model knows none of their
        letters. None for what is kept, or if the model is not calibrated.
    """

    text: str
    signs: Signs | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """score: length-normalised log-probability; the mean over the parts of a longer text.

    segments: the text, cut into its sentences and what stands between them.
    """

    text: str
    score: float
    segments: tuple[Segment, ...] = ()

    @property
    def confidence(self) -> float | None:
        """The probability that its least sure sentence is right; None if there is none."""
        found = [one.confidence for one in self.segments if one.confidence is not None]
        return min(found, default=None)

    def no_surer_than(self, confidence: float | None) -> Translation:
        """This translation of a text of which so much is known; None: nothing."""
        segments = [
            one
            if one.confidence is None
            else one._replace(confidence=confidence and min(confidence, one.confidence))
            for one in self.segments
        ]
        return replace(self, segments=tuple(segments))

    @property
    def colour(self) -> Colour | None:
        """The colour of its confidence."""
        return None if self.confidence is None else colour_of(self.confidence)


class Engine(Protocol):
    """Searches for translations of rows of pieces."""

    def submit(
        self,
        sources: Sequence[list[int]],
        search: SearchConfig,
        *,
        num_hypotheses: int = 1,
        scored: bool = True,
    ) -> Results:
        """Begin; the results are in the order of the sources. scored: whether scores are used."""

    def go_on(
        self,
        sources: Sequence[list[int]],
        beginnings: Sequence[list[int]],
        search: SearchConfig,
    ) -> list[list[Candidate]]:
        """As many translations as the beam has, each with the beginning of its source."""

    def attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        """The attention of each piece of the targets to those of its source: (target, source)."""


Steps = Generator[Callable[[Engine], Any], Any, T]
"""Asks an engine one thing after another, and returns what comes of the answers."""


def advanced(
    steps: Steps[T], answer: Any = None
) -> tuple[Callable[[Engine], Any] | None, T | None]:
    """Give the steps an answer; returns their next question and None, at the end None and their
    result."""
    try:
        return steps.send(answer), None
    except StopIteration as end:
        return None, end.value


@dataclass(frozen=True, slots=True)
class TorchEngine:
    """Search with PyTorch by one model, or by several as an ensemble.

    threads: cores; None: as many as PyTorch takes by itself.
    batch_cells: rows x longest source x beam of one batch; None: `search.batch_tokens`.
    """

    models: Sequence[Transformer]
    threads: int | None = None
    batch_cells: int | None = None

    def submit(
        self,
        sources: Sequence[list[int]],
        search: SearchConfig,
        *,
        num_hypotheses: int = 1,
        scored: bool = True,  # the scores are there in any case
    ) -> Results:
        """The search runs when its results are asked for."""
        return Results(lambda: self._search(sources, search, num_hypotheses))

    def go_on(
        self,
        sources: Sequence[list[int]],
        beginnings: Sequence[list[int]],
        search: SearchConfig,
    ) -> list[list[Candidate]]:
        """As many translations as the beam has, each with the beginning of its source."""
        return self._search(sources, search, search.beam_size, beginnings)

    def _search(
        self,
        sources: Sequence[list[int]],
        search: SearchConfig,
        num_hypotheses: int,
        beginnings: Sequence[list[int]] | None = None,
    ) -> list[list[Candidate]]:
        import torch

        from dragoman.model.search import translate_batch

        if self.batch_cells is not None:
            search = search.model_copy(update={"batch_tokens": self.batch_cells})
        before = torch.get_num_threads()
        torch.set_num_threads(min(self.threads or before, cpu_cores()))
        try:
            found = translate_batch(
                self.models, sources, search, num_hypotheses=num_hypotheses, beginnings=beginnings
            )
        finally:
            torch.set_num_threads(before)
        return [[Candidate(one.ids, one.score) for one in row] for row in found]

    def attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        """As `model.alignment.attention_to_source`."""
        from dragoman.model.alignment import attention_to_source

        return attention_to_source(self.models, sources, targets)


class EncodedPart(NamedTuple):
    """A part of a text, the number of its rows, and its normalised text if it has tags, else "".

    in_capitals: its translation is put into capitals.
    """

    part: TextPart
    num_rows: int
    tagged: str
    in_capitals: bool


class Paragraph(NamedTuple):
    """Sentences that are searched together: the numbers of their rows, and one row of them all."""

    sentences: list[int]
    row: list[int]


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """Texts cut into rows for an engine, and how to put their translations together.

    rows: the ids of the pieces of each row, without the end of sentence.
    texts: for each text its parts. terms: those that translations shall have.
    paragraphs: all rows, those that are searched together as one; empty: each is alone.
    """

    rows: list[list[int]]
    texts: list[list[EncodedPart]]
    subwords: tuple[Vocabulary, Vocabulary]
    paragraphs: Sequence[Paragraph] = ()
    terms: Terms | None = None
    calibration: Confidence | None = None

    def apart(self, found: Sequence[list[Candidate]]) -> list[list[Candidate]]:
        """The translations of each row, from those of the paragraphs that have as many sentences as
        their sources."""
        between = self.subwords[1].separator_id
        apart: list[list[Candidate]] = [[] for _ in self.rows]
        for paragraph, candidates in zip(self.paragraphs, found, strict=True):
            for one in candidates:
                ends = [place for place, piece in enumerate(one.ids) if piece == between]
                starts = [0, *(end + 1 for end in ends)]
                spans = [
                    one.ids[start:end] for start, end in zip(starts, [*ends, None], strict=True)
                ]
                # Beside an empty one, another says what two sentences of the source say.
                if len(spans) == len(paragraph.sentences) and all(spans):
                    for row, ids in zip(paragraph.sentences, spans, strict=True):
                        if all(ids != other.ids for other in apart[row]):
                            apart[row].append(Candidate(ids, one.score))
        return apart

    def assemble(
        self, found: Sequence[list[Found]], num_hypotheses: int, most_rows: int
    ) -> Steps[list[list[Translation]]]:
        """The translations of each text, best first, from those of the rows.

        most_rows: translations of rows, at most, whose attention is asked for at once.
        """
        numbers = iter(range(len(self.rows)))
        of_parts = [
            [(part, [next(numbers) for _ in range(part.num_rows)]) for part in parts]
            for parts in self.texts
        ]
        tagged = [row for parts in of_parts for part, rows in parts if part.tagged for row in rows]
        attended = yield from self._attended(tagged, found, most_rows)
        translations = []
        for parts in of_parts:
            available = [len(found[row]) for _, rows in parts for row in rows]
            alternatives = min(num_hypotheses, max(available, default=1))
            translations.append(
                [self._alternative(parts, found, attended, rank) for rank in range(alternatives)]
            )
        return translations

    def _attended(
        self, rows: Sequence[int], found: Sequence[list[Found]], most_rows: int
    ) -> Steps[dict[int, list[AttendedRow]]]:
        """Each of these rows with each of its translations."""
        all_pairs = [(row, one) for row in rows for one in found[row]]
        source, target = self.subwords
        attended: dict[int, list[AttendedRow]] = {row: [] for row in rows}
        for start in range(0, len(all_pairs), most_rows):
            pairs = all_pairs[start : start + most_rows]
            sources = [self.rows[row] for row, _ in pairs]
            attention = yield methodcaller("attention", sources, [one.ids for _, one in pairs])
            for (row, one), weights in zip(pairs, attention, strict=True):
                pieces = source.pieces(self.rows[row]), target.pieces(one.ids)
                attended[row].append(AttendedRow(*pieces, one.text, weights))
        return attended

    def _alternative(
        self,
        parts: Sequence[tuple[EncodedPart, Sequence[int]]],
        found: Sequence[list[Found]],
        attended: Mapping[int, list[AttendedRow]],
        rank: int,
    ) -> Translation:
        """The text made of the rank-th translation of each row, the last if there are fewer."""
        segments, scores = [], []
        for (part, _, tagged, in_capitals), rows in parts:
            if not rows:
                wrong = 0.0 if part.is_unknown and self.calibration is not None else None
                kept = part.text if not part.translated else ""
                segments.append(Segment(kept, confidence=wrong))
                continue
            ranks = [min(rank, len(found[row]) - 1) for row in rows]
            chosen = [found[row][own] for row, own in zip(rows, ranks, strict=True)]
            translation = " ".join(one.text for one in chosen)
            if tagged:
                places = [attended[row][own] for row, own in zip(rows, ranks, strict=True)]
                translation = with_tags(tagged, places)
            if in_capitals:
                translation = translation.upper()
            of_rows = [
                Signs(one.score, len(self.rows[row]), len(one.ids))
                for row, one in zip(rows, chosen, strict=True)
            ]
            score = sum(one.score for one in chosen) / len(chosen)
            signs = Signs(
                score,
                sum(one.source_pieces for one in of_rows),
                sum(one.target_pieces for one in of_rows),
            )
            sure = None
            if self.calibration is not None:  # it knows no rows as long as several together
                sure = min(map(self.calibration.of, of_rows))
            segments.append(Segment(part.written(translation), signs, sure))
            scores += [one.score for one in chosen]
        text = "".join(one.text for one in segments)
        return Translation(text, sum(scores) / len(scores) if scores else 0.0, tuple(segments))


_Way = Literal["together", "alone", "wider", "without placeholders"]


class Search(NamedTuple):
    """Rows to be searched, and how."""

    rows: Sequence[list[int]]
    settings: SearchConfig
    num_hypotheses: int


class Answers:
    """The searches that texts need, one after another, and the translations that come of them.

    First all rows are searched: those of a paragraph together, and then each alone if the
    translation has not as many sentences. Rows of which no translation has their placeholders (see
    `inference.inline`) are searched again with a wider beam, and at last without them.
    """

    def __init__(self, encoded: EncodedTexts, search: SearchConfig, num_hypotheses: int) -> None:
        self._encoded = encoded
        self._search = search
        self._num_hypotheses = num_hypotheses
        self._found: list[list[Found]] = [[] for _ in encoded.rows]
        self._left = [*range(len(encoded.rows))]
        """The rows that have no translation yet."""
        self._ways: list[_Way] = ["alone", "wider", "without placeholders"]
        """The ways to search that were not tried yet, in their order."""
        if encoded.paragraphs:
            self._ways.insert(0, "together")

    def wanted(self) -> Search | None:
        """The next search; None if there is nothing left to search."""
        if not self._left or not self._ways:
            return None
        rows = [self._encoded.rows[row] for row in self._left]
        settings = self._search.for_candidates()
        most = max(self._num_hypotheses, settings.candidates)
        if self._ways[0] == "together":
            rows = [paragraph.row for paragraph in self._encoded.paragraphs]
        elif self._ways[0] == "wider":
            beam = max(_WIDE_BEAM, 2 * settings.beam_size)
            return Search(rows, settings.model_copy(update={"beam_size": beam}), beam)
        elif self._ways[0] == "without placeholders":
            rows = [without_placeholders(row, self._encoded.subwords[0]) for row in rows]
        return Search(rows, settings, most)

    def take(self, found: Sequence[list[Candidate]]) -> None:
        """Take the results of the search that was wanted."""
        source, target = self._encoded.subwords
        way = self._ways.pop(0)
        if way == "together":
            found = self._encoded.apart(found)
        decoded = iter(target.decode([one.ids for row in found for one in row]))
        texts = [[Found(next(decoded), one.score, one.ids) for one in row] for row in found]
        if not target.stand_ins:
            self._found, self._left = [self._best(row) for row in texts], []
            return
        sources = source.decode([self._encoded.rows[row] for row in self._left])
        lost = []
        for row, text, candidates in zip(self._left, sources, texts, strict=True):
            good = [one for one in candidates if inline.agree(text, one.text)]
            if way == "together":  # alone, it may have a translation
                good = [one for one in good if one.text.strip()]
            if not good and not self._ways:
                good = [
                    one._replace(text=inline.placed(text, inline.without_placeholders(one.text)))
                    for one in candidates
                ]
            self._found[row] = self._best(good)
            if not good:
                lost.append(row)
        self._left = lost

    def _best(self, candidates: Sequence[Found]) -> list[Found]:
        """As many of the candidates as are wanted, best first."""
        order: Sequence[int] = range(len(candidates))
        if self._search.candidates > 1 and len(candidates) > 1:
            texts, scores = [one.text for one in candidates], [one.score for one in candidates]
            order = best_first(texts, scores)
        return [candidates[number] for number in order[: self._num_hypotheses]]

    def translations(self, engine: Engine) -> list[list[Translation]]:
        """The translations of each text, best first. engine: the one that has searched."""
        steps = self.steps(most_rows=_ROWS_OF_A_STEP)
        step, found = advanced(steps)
        while step is not None:
            step, found = advanced(steps, step(engine))
        assert found is not None
        return found

    def steps(self, most_rows: int) -> Steps[list[list[Translation]]]:
        """As `translations`, with no more rows than this in anything that the engine is asked."""
        encoded, found = self._encoded, self._found
        if encoded.terms is not None:
            terms, found = encoded.terms, []
            for start in range(0, len(encoded.rows), most_rows):
                part = slice(start, start + most_rows)
                own = TermSearch(encoded.rows[part], self._found[part], terms, encoded.subwords)
                found += yield from own.run(self._search, self._num_hypotheses)
        return (yield from encoded.assemble(found, self._num_hypotheses, most_rows))


def _is_in_capitals(text: str) -> bool:
    """Whether all of a sentence is in capitals. One word, or few letters, may be an abbreviation,
    and what is kept is not to be changed."""
    letters = [one for one in text if one.isalpha() and one != "ß"]  # hardly anyone writes ẞ
    words = [word for word in text.split() if any(map(str.isalpha, word))]
    is_plain = text == without_tags(text) and not any(one in text for one in PLACEHOLDERS)
    return is_plain and len(words) > 1 and len(letters) > 5 and all(map(str.isupper, letters))


def _as_sentence(text: str) -> str:
    """A text in capitals, in small letters but for the first."""
    first = next(number for number, one in enumerate(text) if one.isalpha())
    return text[:first] + text[first:].capitalize()


def without_placeholders(row: list[int], subword: Vocabulary) -> list[int]:
    """A row without placeholders, and the spaces before them."""
    pieces = subword.pieces(row)
    are_signs = [piece in PLACEHOLDERS for piece in pieces]
    kept = [
        number
        for number, piece, is_sign, before_sign in zip(
            row, pieces, are_signs, [*are_signs[1:], False], strict=True
        )
        if not (is_sign or (piece == "▁" and before_sign))
    ]
    return kept or row


@dataclass(frozen=True, slots=True)
class TextTranslator:
    """An engine with the subwords it was trained with.

    max_source_pieces: the longest row that is translated in one go.
    token: the token of the target language, put before every row; "" if the model has none.
    code: a language code such as `>>fra<<`, for texts that do not begin with one; "" if there is
        none.
    terms: words of the source and those that shall translate them.
    calibration: how likely a translation is right by its signs; None if nobody has measured it.
    learnt_sentences: those of the longest paragraph that the model has learnt; 1: none.
    most_sentences: those that are searched together, at most.
    restores_capitals: a sentence in capitals is translated as one in small letters, of which models
        know more; false for languages that write i in capitals with a dot.
    """

    engine: Engine
    subwords: tuple[Vocabulary, Vocabulary]
    lowercase: bool
    max_source_pieces: int
    token: str = ""
    code: str = ""
    terms: Terms | None = None
    calibration: Confidence | None = None
    learnt_sentences: int = 1
    most_sentences: int = 1
    restores_capitals: bool = True

    def with_context(self) -> TextTranslator:
        """This translator for paragraphs; raises ConfigError if the model has learnt none."""
        if self.learnt_sentences == 1:
            raise ConfigError(
                "the model was not trained on paragraphs",
                place="context",
                remedy="leave it out, or train with corpus.context.sentences = 4",
            )
        # How sure the model is was measured sentence by sentence.
        return replace(self, most_sentences=self.learnt_sentences, calibration=None)

    def with_terms(self, targets: Mapping[str, str]) -> TextTranslator:
        """This translator with terms: translations of words of the source."""
        if not targets:
            return replace(self, terms=None)
        target = self.subwords[1]

        def can_write(text: str) -> bool:
            return bool(text) and UNK not in target.encode([text])[0]

        return replace(self, terms=Terms(targets, lowercase=self.lowercase, can_write=can_write))

    def after(self, texts: Iterable[str], text_format: TextFormat) -> TextTranslator:
        """This translator for the parts of one text: a code that begins the first applies to
        all."""
        parts = (part for text in texts for part in cut(text, text_format) if part.translated)
        first = on_one_line(next(parts, TextPart("", translated=True)).source())
        normalized = normalize(without_tags(first), lowercase=self.lowercase)
        return replace(self, code=self._code(normalized))

    def encode(self, texts: Iterable[str], text_format: TextFormat) -> EncodedTexts:
        """Cut texts into rows; nothing is lost. A language's code applies to all text after it."""
        rows: list[list[int]] = []
        paragraphs = _Paragraphs(self)
        parts_of_texts = []
        for text in texts:
            parts = []
            code = self.code
            if text_format != "line" or not text.strip():
                paragraphs.end()
            for part in cut(text, text_format, stand_ins=self.stand_ins):
                own_rows: list[list[int]] = []
                tagged = normalized = ""
                in_capitals = False
                if part.translated:
                    source = on_one_line(part.source()).replace(SEPARATOR, "")
                    tagged = normalize(source, lowercase=self.lowercase)
                    normalized = without_tags(tagged)
                    in_capitals = self.restores_capitals and _is_in_capitals(tagged)
                    if in_capitals:
                        tagged = normalized = _as_sentence(normalized)
                    plain = ""
                    for window in _windows(normalized):
                        own = self._code(window)
                        plain += window[len(own) :]
                        code = own or code
                        before = own or with_token(self.token or code, "")
                        own_rows += self._rows(before, window[len(own) :])
                    # A code goes into the search with marks alone: kept with them it would be seen.
                    words = plain if any(map(str.isalnum, plain)) else normalized
                    if not self._has_sense(own_rows, words):
                        is_unknown = any(map(str.isalpha, words))
                        part = replace(part, translated=False, is_unknown=is_unknown)
                        own_rows = []
                paragraphs.add(own_rows, part.text)
                rows += own_rows
                has_tags = bool(own_rows) and tagged != normalized
                shown = tagged if has_tags else ""
                parts.append(EncodedPart(part, len(own_rows), shown, in_capitals))
            parts_of_texts.append(parts)
        return EncodedTexts(
            rows, parts_of_texts, self.subwords, paragraphs.found(), self.terms, self.calibration
        )

    def _rows(self, before: str, text: str) -> list[list[int]]:
        """The rows of a normalised text behind a token or a code, which may be ""."""
        return cut_into_chunks(before + text, self.subwords[0], max_pieces=self.max_source_pieces)

    @property
    def stand_ins(self) -> frozenset[str]:
        """The pieces that the model has for what is kept."""
        source, target = self.subwords
        return source.stand_ins & target.stand_ins

    def _has_sense(self, rows: list[list[int]], normalized: str) -> bool:
        """Whether the model can know what a normalised text says.

        It cannot if the text is blank, or has unknown pieces or bytes and fewer known letters than
        unknown ones: then it would invent a translation.
        """
        if not any(one.isalnum() and one not in _FILLERS for one in normalized):
            return False
        unknown, num_letters = self.subwords[0].unknown_ids, self.subwords[0].num_letters
        if not any(piece in unknown for row in rows for piece in row):
            return True
        known = sum(num_letters[piece] for row in rows for piece in row)
        return known > 0 and 2 * known >= sum(map(str.isalpha, normalized))

    def _code(self, text: str) -> str:
        """The language's code that a normalised text begins with, if the model knows it."""
        if self.token:
            return ""
        ids, rest = self.subwords[0].prefix(text)
        return "" if UNK in ids else text[: len(text) - len(rest)]

    def translate(
        self,
        texts: Sequence[str],
        search: SearchConfig,
        *,
        text_format: TextFormat,
        num_hypotheses: int = 1,
    ) -> list[list[Translation]]:
        """The translations of each text, best first."""
        return self._finished(Answers(self.encode(texts, text_format), search, num_hypotheses))

    def _finished(self, answers: Answers) -> list[list[Translation]]:
        while (wanted := answers.wanted()) is not None:
            rows, search, num_hypotheses = wanted
            answers.take(self.engine.submit(rows, search, num_hypotheses=num_hypotheses)())
        return answers.translations(self.engine)

    def stream(
        self,
        texts: Iterable[str],
        search: SearchConfig,
        *,
        text_format: TextFormat,
        num_hypotheses: int = 1,
        scored: bool = True,
    ) -> Iterator[list[list[Translation]]]:
        """As `translate` for any number of texts, of which a bounded number is in memory at a time.

        Yields the translations of as many texts as were searched together. The groups depend on the
        texts and the cores; in another group a score may differ in its last digits. scored: False
        if the scores are not used.
        """
        waiting: deque[tuple[Answers, Results]] = deque()

        def translations() -> list[list[Translation]]:
            answers, results = waiting.popleft()
            answers.take(results())
            return self._finished(answers)

        try:
            for group in groups_of(texts):
                answers = Answers(self.encode(group, text_format), search, num_hypotheses)
                rows, settings, most = answers.wanted() or Search([], search, num_hypotheses)
                results = self.engine.submit(
                    rows, settings, num_hypotheses=most, scored=scored or search.candidates > 1
                )
                waiting.append((answers, results))
                if len(waiting) > 1:
                    yield translations()
            while waiting:
                yield translations()
        finally:
            for _, results in waiting:
                results.give_up()


class _Paragraphs:
    """Puts the rows of neighbouring sentences together.

    Sentences are neighbours if at most one line end stands between them. Text that is kept, or a
    sentence of several rows, ends a paragraph.
    """

    def __init__(self, translator: TextTranslator) -> None:
        self._most_sentences = translator.most_sentences
        self._most_pieces = translator.max_source_pieces
        source = translator.subwords[0]
        self._prefix = len(source.prefix(with_token(translator.token, ""))[0])
        self._between = UNK if source.separator_id is None else source.separator_id
        self._paragraphs: list[Paragraph] = []
        self._num_rows = 0
        self._is_open = False

    def end(self) -> None:
        """No further sentence belongs to the last paragraph."""
        self._is_open = False

    def add(self, rows: Sequence[list[int]], text: str) -> None:
        """Add the rows of a part with this text; none if it is kept."""
        if not rows:
            self._is_open &= text.isspace() and text.count("\n") <= 1
        for row in rows:
            more = [self._between, *row[self._prefix :]]
            if self._is_open and len(rows) == 1 and self._has_room(more):
                last = self._paragraphs[-1]
                last.sentences.append(self._num_rows)
                last.row.extend(more)
            else:
                self._paragraphs.append(Paragraph([self._num_rows], [*row]))
            self._num_rows += 1
            self._is_open = len(rows) == 1

    def _has_room(self, more: list[int]) -> bool:
        last = self._paragraphs[-1]
        fits = len(last.row) + len(more) <= self._most_pieces
        return len(last.sentences) < self._most_sentences and fits

    def found(self) -> list[Paragraph]:
        """All paragraphs; empty if each is a single row."""
        return self._paragraphs if len(self._paragraphs) < self._num_rows else []


def groups_of(texts: Iterable[str]) -> Iterator[list[str]]:
    """Groups of texts that are searched together."""
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
    """A long text in parts that end at spaces if there are any."""
    start = 0
    while len(text) - start > _WINDOW:
        space = text.rfind(" ", start + _WINDOW // 2, start + _WINDOW)
        end = space if space > 0 else start + _WINDOW
        yield text[start:end]
        start = end + (space > 0)
    yield text[start:]


@dataclass(frozen=True, slots=True)
class Opened:
    """A translator, the recipe with its search settings, and all that its translations depend on.

    directions: those of the model into the target language that was chosen.
    """

    translator: TextTranslator
    recipe: Recipe
    identity: dict[str, Any]
    directions: tuple[Direction, ...]

    def best(self, lines: Iterable[str], *, scored: bool = True) -> Iterator[Translation]:
        """The best translation of each line. scored: whether the scores are used."""
        for group in self.translator.stream(
            lines, self.recipe.search, text_format="line", scored=scored
        ):
            for best, *_ in group:
                yield best

    def with_context(self) -> Opened:
        """This translator for paragraphs; raises ConfigError if the model has learnt none."""
        translator = self.translator.with_context()
        context = {"context": translator.most_sentences}
        return replace(self, translator=translator, identity={**self.identity, **context})

    def with_terms(self, terms: Iterable[Term]) -> Opened:
        """This translator with those of the terms that are for its directions."""
        targets = targets_for(terms, self.directions)
        return replace(
            self,
            translator=self.translator.with_terms(targets),
            identity={**self.identity, **({"terms": targets} if targets else {})},
        )


@contextmanager
def open_translator(
    path: Path,
    *,
    checkpoints: Sequence[str] = ("best",),
    overrides: Sequence[str] = (),
    engine: EngineName = "auto",
    threads: int | None = None,
    batch_cells: int | None = None,
    quantization: Quantization | None = None,
    sampling: Sampling | None = None,
    target: str = "",
) -> Iterator[Opened]:
    """The translator of a run or an export.

    batch_cells: rows x longest source x beam that are searched together; None: as many as suit the
        model, or with PyTorch the recipe's `search.batch_tokens`.
    quantization: the type of the weights, for CTranslate2; None: as they are.
    sampling: draw pieces at random, which needs CTranslate2 and a beam of 1; None: search for the
        likeliest translation.
    target: the language to translate into, if there are several.
    Raises CheckpointError if the run or export is damaged; ConfigError if the engine cannot run the
    model, if the model has no such target, or if a checkpoint of an export is named; MachineError
    if CTranslate2 is needed and not installed.
    """
    refuse_checkpoint_of_export(path, checkpoints)
    if is_bundle(path) and (bundle := Bundle.open(path)).info.kind in _FOR_CTRANSLATE2:
        if engine == "torch":
            raise ConfigError(
                "this export holds no weights for PyTorch",
                place="engine",
                remedy="leave it out, or name the run",
            )
        if quantization not in (None, bundle.info.quantization):
            raise ConfigError(
                f"this export was written in {bundle.info.quantization}",
                place=f"quantization {quantization}",
                remedy="leave it out, or name the run",
            )
        search = ARGOS_SEARCH if bundle.info.kind == "argos" else ()
        token = _token_of(bundle, target)
        translator = translator_of(
            bundle, threads=threads, batch_cells=batch_cells, sampling=sampling
        )
        recipe = load_recipe(path / "recipe.toml", [*search, *overrides], is_recorded=True)
        yield Opened(
            replace(
                translator,
                token=token,
                calibration=translator.calibration if _is_same_scale(overrides) else None,
            ),
            recipe,
            _identity(path, [path], overrides, bundle.info.quantization, token),
            _into(recipe, target),
        )
        return
    from dragoman.distributed.world import join_world
    from dragoman.formats.load import load_translation_model
    from dragoman.formats.trained_model import checkpoint_path

    with join_world() as world:
        model = load_translation_model(path, checkpoints, world)
        token = _token(
            load_recipe(path / "recipe.toml", is_recorded=True), target, model.subwords[0]
        )
        arithmetic = _arithmetic(model, engine, quantization)
        if sampling is not None and arithmetic == "torch":
            lack, remedy = _lack(model, engine)
            raise ConfigError(f"needs CTranslate2, but {lack}", place="sample", remedy=remedy)
        searching: Engine = TorchEngine(model.models, threads, batch_cells)
        if arithmetic != "torch":
            cells = batch_cells or fitting_cells(model.models[0].config)
            with tempfile.TemporaryDirectory(prefix="dragoman-") as name:
                directory = Path(name)
                write_ctranslate2(
                    model.models[0], model.subwords, directory, quantization=arithmetic
                )
                searching = CTranslate2Engine(
                    directory,
                    model.subwords,
                    threads=threads,
                    batch_cells=cells,
                    sampling=sampling,
                )
        weights = [path]
        if not is_bundle(path):  # the best checkpoint changes while a run trains
            run = RunDirectory.open(path)
            weights = [checkpoint_path(run, which, run.recipe()) for which in checkpoints]
        recipe = load_recipe(path / "recipe.toml", overrides, is_recorded=True)
        yield Opened(
            TextTranslator(
                searching,
                model.subwords,
                lowercase=model.lowercase,
                max_source_pieces=model.max_source_pieces,
                token=token,
                calibration=_calibration(path, weights) if _is_same_scale(overrides) else None,
                learnt_sentences=recipe.corpus.context.sentences,
                restores_capitals=_restores_capitals(recipe),
            ),
            recipe,
            _identity(path, weights, overrides, arithmetic, token),
            _into(recipe, target),
        )


def _is_same_scale(overrides: Sequence[str]) -> bool:
    """Whether scores are on the scale of the calibration."""
    return not any(one.strip().startswith("search.length_penalty") for one in overrides)


def _calibration(path: Path, weights: Sequence[Path]) -> Confidence | None:
    """The calibration of a model, unless it is that of other weights of the run."""
    found = read_confidence(path)
    if found is None or is_bundle(path):
        return found
    return found if [found.checkpoint] == [weights_digest(one) for one in weights] else None


def weights_digest(checkpoint: Path) -> str:
    """What tells the weights of one checkpoint from those of another."""
    return file_sha256(checkpoint / DIGESTS_FILE)


def _into(recipe: Recipe, target: str) -> tuple[Direction, ...]:
    """The directions of a model into a language; all if none is named."""
    directions = recipe.corpus.directions
    return tuple(one for one in directions if not target or same_language(one.target, target))


def _token_of(bundle: Bundle, target: str) -> str:
    """The token of the target language; a package for Argos Translate has one language."""
    is_package = bundle.info.kind == "argos"
    if is_package and target and not same_language(target, bundle.info.target_language):
        raise ConfigError(
            f"this package translates into {bundle.info.target_language!r} alone",
            place="target language",
            remedy="leave it out, or name the run",
        )
    chosen = bundle.info.target_language if is_package else target
    return _token(bundle.recipe, chosen, bundle.subwords()[0])


def _token(recipe: Recipe, target: str, source: Vocabulary) -> str:
    """The token of the target language; raises ConfigError.

    source: the source vocabulary; an imported one may know further languages than the model's.
    """
    corpus = recipe.corpus
    targets = {one.target for one in corpus.directions}
    is_other = bool(target) and closest_language(target, targets) is None
    if isinstance(source, ImportedVocabulary) and is_other:
        pieces = {f">>{target}<<", f"__{target}__"} | ({target} if "_" in target else set())
        if pieces & {*source.all_pieces()}:
            again = "import the model again for that language"
            raise ConfigError(
                f"the model was not imported for {target!r}",
                place="target language",
                remedy=f"write >>{target}<< at the start of each text, or {again}"
                if source.file.codes
                else again,
            )
    return token_for(target, corpus.directions, corpus.language_tokens)


def _arithmetic(
    model: TranslationModel, engine: EngineName, quantization: Quantization | None
) -> Quantization | Literal["torch"]:
    """The type of the weights for CTranslate2, or "torch"; raises ConfigError if it cannot be."""
    several = len(model.models) > 1
    if engine == "ctranslate2" and several:
        raise ConfigError(
            "CTranslate2 has no ensembles", place="engine", remedy="use the engine torch"
        )
    on_cpu = model.world.device.type == "cpu"
    possible = not several and on_cpu and find_spec("ctranslate2") is not None
    if engine == "ctranslate2" or (engine == "auto" and possible):
        return quantization or "float32"
    if quantization not in (None, "float32"):
        lack, remedy = _lack(model, engine)
        raise ConfigError(
            f"weights in {quantization} need CTranslate2, but {lack}",
            place=f"quantization {quantization}",
            remedy=remedy,
        )
    return "torch"


def _lack(model: TranslationModel, engine: EngineName) -> tuple[str, str]:
    """The reason why PyTorch searches and not CTranslate2, and a remedy."""
    if len(model.models) > 1:
        return "CTranslate2 has no ensembles", "leave it out, or name one checkpoint"
    if engine == "torch":
        return "the engine is torch", "leave it out, or leave out the engine"
    if find_spec("ctranslate2") is None:
        return "CTranslate2 is not installed", "install it: pip install 'dragoman[serve]'"
    remedy = 'leave it out, or hide the GPU: CUDA_VISIBLE_DEVICES=""'
    return "this machine has a GPU, on which PyTorch searches", remedy


def translator_of(
    bundle: Bundle,
    *,
    threads: int | None,
    batch_cells: int | None = None,
    sampling: Sampling | None = None,
) -> TextTranslator:
    """The translator of an export for CTranslate2 or Argos; PyTorch is not imported."""
    subwords = bundle.subwords()
    cells = batch_cells or fitting_cells(bundle.recipe.model)
    with tempfile.TemporaryDirectory(prefix="dragoman-") as name:
        folder = bundle.path
        if bundle.info.kind == "argos":
            folder = Path(name)
            unpack_model(bundle, folder)
        engine = CTranslate2Engine(
            folder, subwords, threads=threads, batch_cells=cells, sampling=sampling
        )
    return TextTranslator(
        engine,
        subwords,
        lowercase=bundle.recipe.corpus.lowercase,
        max_source_pieces=bundle.recipe.corpus.max_pieces,
        calibration=read_confidence(bundle.path),
        learnt_sentences=bundle.recipe.corpus.context.sentences,
        restores_capitals=_restores_capitals(bundle.recipe),
    )


def _restores_capitals(recipe: Recipe) -> bool:
    """Whether the capital of i is I in all its languages."""
    languages = {language for direction in recipe.corpus.directions for language in direction}
    return not any(same_language(one, dotted) for one in languages for dotted in DOTTED_I)


def _identity(
    path: Path, weights: Sequence[Path], overrides: Sequence[str], arithmetic: str, token: str
) -> dict[str, Any]:
    digests = [weights_digest(one) for one in weights]
    return {
        "path": str(path.resolve()),
        "weights": digests,
        "set": [*overrides],
        "arithmetic": arithmetic,
        **({"token": token} if token else {}),
    }
