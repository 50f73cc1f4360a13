"""The models of a server, and how a text goes through one of them, or through two in a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from pydantic import BaseModel

from dragoman.base.errors import ConfigError
from dragoman.base.languages import closest_language, language_name, same_language
from dragoman.formats.bundle import Bundle
from dragoman.formats.card import card_html
from dragoman.formats.ctranslate2_engine import CTranslate2Engine
from dragoman.inference.text import TextFormat
from dragoman.inference.translator import Answers, TextTranslator, Translation, advanced
from dragoman.model.config import SearchConfig
from dragoman.serve.batcher import Batcher, OverloadedError
from dragoman.serve.bodies import in_thread_if_long
from dragoman.serve.limits import Limits

_MOST_PIVOTS: Final = 100_000
_ROWS_OF_A_STEP: Final = 8
"""Rows whose terms or tags are worked on in one turn; other requests wait so long."""
_LONGEST_CARDS: Final = 100_000_000
"""Characters of the cards of all directions; each direction has its model's card."""


class ModelDescription(BaseModel):
    """A model that this server has, or one direction of a model of several languages.

    card: in Markdown. card_html: the same for a page; HTML in the card is text there.
    zero_shot: whether the model had no training text for it.
    """

    name: str
    source: str
    target: str
    parameters: int
    quantization: str
    licence: str
    beam_size: int
    card: str
    card_html: str = ""
    zero_shot: bool = False


class LanguagePair(BaseModel):
    """A pair of languages that this server translates.

    via: the language in between, if two models translate it in turn.
    """

    source: str
    target: str
    via: str | None
    models: list[str]

    def __str__(self) -> str:
        """In words, for an error message."""
        return f"{self.source} to {self.target}" + (f" via {self.via}" if self.via else "")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A bundle, ready to answer."""

    description: ModelDescription
    translator: TextTranslator
    search: SearchConfig
    batcher: Batcher

    @classmethod
    def of(cls, bundle: Bundle, translator: TextTranslator, limits: Limits) -> list[ServedModel]:
        """Every direction of a bundle over its translator, which must be one of CTranslate2."""
        assert isinstance(translator.engine, CTranslate2Engine)
        info, search = bundle.info, bundle.recipe.search
        card = bundle.card()
        description = ModelDescription(
            name=info.name,
            source=info.source_language,
            target=info.target_language,
            parameters=info.num_parameters,
            quantization=info.quantization,
            licence=info.licence,
            beam_size=search.beam_size,
            card=card,
            card_html=card_html(card),
        )
        batcher = Batcher(translator.engine, limits.max_waiting_pieces, limits.request_s)
        served = [cls(description, translator, search, batcher)]
        for one in info.directions:
            update = {"source": one.source, "target": one.target, "zero_shot": one.zero_shot}
            served.append(
                cls(
                    description.model_copy(update=update),
                    replace(translator, token=one.token),
                    search,
                    batcher,
                )
            )
        return served[1:] or served

    async def translate(
        self,
        texts: Sequence[str],
        *,
        text_format: TextFormat,
        beam_size: int | None = None,
        num_hypotheses: int = 1,
    ) -> list[list[Translation]]:
        """The translations of each text, best first; raises OverloadedError."""
        size = sum(map(len, texts))
        self.batcher.admit_text(_known_characters(size, text_format))
        search = _search(self.search, beam_size, num_hypotheses)
        encoded = await in_thread_if_long(size, self.translator.encode, texts, text_format)
        pieces = sum(len(row) + 1 for row in encoded.rows)
        self.batcher.learn(_known_characters(size, text_format), pieces)
        answers = Answers(encoded, search, num_hypotheses)
        with self.batcher.with_turns(len(encoded.rows) if self.translator.terms else 0) as turn:
            while (wanted := answers.wanted()) is not None:
                rows, settings, most = wanted
                found = await self.batcher.translate(rows, settings, num_hypotheses=most)
                await in_thread_if_long(size, answers.take, found)
            steps = answers.steps(_ROWS_OF_A_STEP)
            step, translations = await in_thread_if_long(size, advanced, steps)
            while step is not None:
                answer = await turn(step)
                step, translations = await in_thread_if_long(size, advanced, steps, answer)
        assert translations is not None
        return translations


def _known_characters(size: int, text_format: TextFormat) -> int:
    """The characters that become pieces, as far as that is known: markup may be tags alone."""
    return 0 if text_format == "markup" else size


@cache
def _search(search: SearchConfig, beam_size: int | None, num_hypotheses: int) -> SearchConfig:
    """The search of a request; the same object each time, which makes settings cheap to compare."""
    if beam_size is not None:
        search = search.with_beam(beam_size)
    return search.model_copy(update={"beam_size": max(search.beam_size, num_hypotheses)})


@dataclass(frozen=True, slots=True)
class Chain:
    """A model or two in a row, from one language into another; no model for text that is in the
    target language already.

    unused_terms: those that no model can use.
    """

    models: tuple[ServedModel, ...]
    target: str
    unused_terms: Sequence[str] = ()

    @classmethod
    def of(cls, *models: ServedModel) -> Chain:
        """One model, or the second after the first."""
        return cls(models, models[-1].description.target)

    @property
    def pair(self) -> LanguagePair:
        """The languages at both ends, and the one in between."""
        passed = [model.description for model in self.models]
        return LanguagePair(
            source=passed[0].source if passed else self.target,
            target=self.target,
            via=passed[0].target if len(passed) > 1 else None,
            models=[one.name for one in passed],
        )

    def after(self, texts: Iterable[str], text_format: TextFormat) -> Chain:
        """This chain for the parts of one text: a code that begins the first applies to all."""
        if not self.models:
            return self
        first, *others = self.models
        translator = first.translator.after(texts, text_format)
        return replace(self, models=(replace(first, translator=translator), *others))

    def with_terms(self, targets: Mapping[str, str]) -> Chain:
        """This chain with translations of words of the source.

        Two models use none: neither of them has both the words and their translations.
        """
        if not targets or len(self.models) != 1:
            return replace(self, unused_terms=[*targets])
        (model,) = self.models
        translator = model.translator.with_terms(targets)
        unused = translator.terms.unused if translator.terms else []
        return replace(self, models=(replace(model, translator=translator),), unused_terms=unused)

    def with_context(self) -> Chain:
        """This chain for paragraphs; raises ConfigError if a model has learnt none."""
        models = (replace(one, translator=one.translator.with_context()) for one in self.models)
        return replace(self, models=tuple(models))

    async def translate(
        self,
        texts: Sequence[str],
        *,
        text_format: TextFormat,
        beam_size: int | None = None,
        num_hypotheses: int = 1,
    ) -> list[list[Translation]]:
        """The translations of each text, best first; raises OverloadedError.

        Alternatives and scores are those of the last model. No translation is surer than the one
        that it was made from.
        """
        found = [[Translation(text, 0.0)] for text in texts]
        for number, model in enumerate(self.models, start=1):
            before = [best for best, *_ in found]
            found = await model.translate(
                [one.text for one in before],
                text_format=text_format,
                beam_size=beam_size,
                num_hypotheses=num_hypotheses if number == len(self.models) else 1,
            )
            if number > 1:
                found = [
                    [one.no_surer_than(best.confidence) for one in translations]
                    for best, translations in zip(before, found, strict=True)
                ]
        return found


class Models:
    """All models of a server, by their languages, and the pairs of languages that two make.

    Two models make a pair only if no single model translates it; of several such, those that were
    named first.

    names: the English name of every language, by its code. The tables of names take seconds to
        load, so they are read here, before anybody asks.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Raises ConfigError if two models translate the same pair of languages, if a language is
        called "auto", or if the list of the pairs would be too long to send."""
        self.by_pair: dict[tuple[str, str], Chain] = {}
        out_of: dict[str, list[ServedModel]] = {}
        for model in models:
            pair = (model.description.source, model.description.target)
            if pair in self.by_pair:
                problem = f"two models translate {pair[0]} to {pair[1]}"
                raise _refusal(model, problem, "serve one of them")
            if "auto" in pair:
                raise _refusal(
                    model, 'a language is called "auto", which stands for one to be detected'
                )
            self.by_pair[pair] = Chain.of(model)
            out_of.setdefault(pair[0], []).append(model)
        self.names = {code: language_name(code) for pair in self.by_pair for code in pair}
        self._each_batcher = [*{id(model.batcher): model.batcher for model in models}.values()]
        if sum(len(model.description.card) for model in models) > _LONGEST_CARDS:
            raise _refusal(models[0], f"the cards of {len(models):,} directions are too long")
        follow = {
            target: [one for code in out_of if same_language(code, target) for one in out_of[code]]
            for target in {model.description.target for model in models}
        }
        self.pivots: dict[tuple[str, str], Chain] = {}
        for first in models:
            for second in follow[first.description.target]:
                pair = (first.description.source, second.description.target)
                if not same_language(*pair) and pair not in self.by_pair:
                    self.pivots.setdefault(pair, Chain.of(first, second))
            if len(self.pivots) > _MOST_PIVOTS:
                raise _refusal(first, f"{len(models):,} directions make too many pairs")

    def fitting(self, source: str | None, target: str | None) -> list[Chain]:
        """Every chain for a pair of languages; None stands for any language.

        A model in another region's form of a language fits if there is none in the wanted one. Two
        models in a row are returned only if no single one translates the pair.
        """
        for chains in (self.by_pair, self.pivots):
            if pairs := _closest_pairs(chains, (source, target)):
                return [chains[pair] for pair in pairs]
        return []

    def all_pairs(self) -> list[LanguagePair]:
        """Every pair of languages that can be translated."""
        return [chain.pair for chain in (*self.by_pair.values(), *self.pivots.values())]

    def sources(self, target: str | None = None) -> list[str]:
        """The languages that can be translated into this one, or into any."""
        pairs = _closest_pairs((*self.by_pair, *self.pivots), (None, target))
        return list(dict.fromkeys(source for source, _ in pairs))

    def languages(self) -> list[str]:
        """Every language that is translated from or into."""
        return [*self.names]

    def admit(self, texts: Sequence[str], text_format: TextFormat) -> None:
        """Raises OverloadedError if every model has too much to do to take these texts."""
        characters = _known_characters(sum(map(len, texts)), text_format)
        refusal = None
        for batcher in self._each_batcher:
            try:
                batcher.admit_text(characters)
            except OverloadedError as error:
                refusal = error
            else:
                return
        if refusal is not None:
            raise refusal

    def retry_s(self) -> float:
        """When to try again, if no model has room for a single piece; else 0."""
        return min(batcher.retry_s() for batcher in self._each_batcher)

    def batchers(self) -> Iterator[tuple[tuple[str, str, str], Batcher]]:
        """Each batcher, by its model's name, sources and targets; several are joined by commas."""
        for batcher in self._each_batcher:
            own = [model.description for model in self if model.batcher is batcher]
            sources, targets = (
                ",".join(dict.fromkeys(getattr(one, side) for one in own))
                for side in ("source", "target")
            )
            yield (own[0].name, sources, targets), batcher

    def __iter__(self) -> Iterator[ServedModel]:
        """Every model."""
        return (model for chain in self.by_pair.values() for model in chain.models)


def _closest_pairs(
    pairs: Iterable[tuple[str, str]], wanted: tuple[str | None, str | None]
) -> list[tuple[str, str]]:
    """The pairs of the wanted languages, each in the closest form that there is; None: of any."""
    found = [*pairs]
    sides = [(side, code) for side, code in enumerate(wanted) if code is not None]
    for side, code in sides:
        codes = {one for one in {pair[side] for pair in found} if same_language(code, one)}
        found = [pair for pair in found if pair[side] in codes]
    for side, code in sides:
        closest = closest_language(code, dict.fromkeys(pair[side] for pair in found))
        found = [pair for pair in found if pair[side] == closest]
    return found


def _refusal(model: ServedModel, problem: str, remedy: str = "leave this model out") -> ConfigError:
    return ConfigError(problem, place=model.description.name, remedy=remedy)
