"""What translates a text: a model, or two in a row, by the languages that were named or found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel
from starlette.exceptions import HTTPException

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.languages import closest_language, same_language
from dragoman.corpus.language import are_close, likely_languages
from dragoman.inference.documents import TextDocument
from dragoman.inference.text import TextFormat, beginning
from dragoman.inference.translator import Translation
from dragoman.serve.bodies import in_thread_if_long
from dragoman.serve.models import Chain, Models

_MOST_CHARACTERS: Final = 4000
TEXT_FORMATS: Final[dict[str, TextFormat]] = {"text": "document", "html": "markup"}
"""Formats of requests by the names that clients send."""
Source = Annotated[str, AfterValidator(lambda code: code.lower() if _is_auto(code) else code)]
"""A language in any spelling, or auto."""
_SURE_PERCENT: Final = 50.0
"""More than all other languages together. Of 4,500 words and beginnings of German and English
captions, two were taken so for another one of ten languages."""


class DetectedLanguage(BaseModel):
    """confidence: 0 to 100, the probability among all languages that py3langid knows."""

    language: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Direction:
    """What translates a text. detected: if the source was to be detected."""

    chain: Chain
    detected: DetectedLanguage | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The languages of a request; None: any, if there is only one. source: "auto" to detect it.

    keeps_target: the source may be the target, which leaves text as it is, as LibreTranslate does.
    missing: the status of the answer if no model fits, or several.
    terms: words of the source, and those that shall translate them.
    is_joined: the sentences of a paragraph are translated together.
    """

    source: str | None
    target: str | None
    keeps_target: bool = False
    missing: int = 404
    terms: Mapping[str, str] = field(default_factory=dict)
    is_joined: bool = False


def _is_auto(code: str) -> bool:
    return code.lower() == "auto"


async def directions(
    models: Models, wanted: Wanted, texts: Sequence[Sequence[str]], text_format: TextFormat
) -> list[Direction]:
    """What translates each text, which is given as the pieces that are translated.

    The source is detected out of all languages of the models. If none is sure, it is the likeliest
    that leads to the target. Text that is surely in the target language stays as it is.

    Raises the answer 501 if no language is identified, and that for missing models.
    """
    if wanted.source != "auto":
        return [_direction(models, wanted)] * len(texts)
    sources = models.sources(wanted.target)
    target = _target(models, wanted)
    leading = sources
    if wanted.keeps_target and target is not None:
        leading = [*dict.fromkeys([*sources, target])]
    if not leading:
        return [_direction(models, wanted)] * len(texts)
    ranked: list[list[DetectedLanguage]] = [[] for _ in texts]
    if len(sources) != 1 or can_detect():
        # Of regions of one language, which are equally likely, that of a source goes first.
        languages = dict.fromkeys([*leading, *models.languages()])
        ranked = await _ranked(texts, text_format, [*languages])
    found = [_source(languages_of_text, sources, leading, target) for languages_of_text in ranked]
    by_language: dict[str, Direction] = {}
    for number, language in enumerate(found, start=1):
        if language.language not in by_language:
            what = "the text" if len(texts) == 1 else f"text {number}"
            by_language[language.language] = _direction(models, wanted, language, what)
    return [replace(by_language[one.language], detected=one) for one in found]


def _direction(
    models: Models, wanted: Wanted, detected: DetectedLanguage | None = None, what: str = "the text"
) -> Direction:
    source = wanted.source if detected is None else detected.language
    fitting = models.fitting(source, wanted.target)
    if len(fitting) == 1:
        chain = fitting[0].with_terms(wanted.terms)
        try:
            return Direction(chain.with_context() if wanted.is_joined else chain, detected)
        except ConfigError as error:
            raise HTTPException(400, str(error)) from error
    target = _target(models, wanted)
    stays = wanted.keeps_target or detected is not None
    if stays and source is not None and target is not None and same_language(source, target):
        return Direction(Chain((), target), detected)
    problem = "no model for these languages"
    if fitting:
        unnamed = [side for side in ("source", "target") if getattr(wanted, side) is None]
        problem = f"several models fit: name the {' and the '.join(unnamed)}"
    elif detected is not None:
        problem += (
            f": {what} is in {detected.language}, by {detected.confidence:g}%; "
            "name the source if it is in another one"
        )
    pairs = ", ".join(map(str, models.all_pairs()))
    raise HTTPException(wanted.missing, f"{problem}; there is: {pairs}")


def _target(models: Models, wanted: Wanted) -> str | None:
    """The target as the models call it; None if it is not known."""
    if wanted.target is not None:
        return closest_language(wanted.target, models.languages())
    targets = {target for _, target in models.by_pair}
    return targets.pop() if len(targets) == 1 else None


def _source(
    ranked: Sequence[DetectedLanguage],
    sources: Sequence[str],
    leading: Sequence[str],
    target: str | None,
) -> DetectedLanguage:
    """The language of a text: the likeliest one if it is sure, or else the likeliest one out of
    `leading`, the sources and perhaps the target.

    A source in whose place the detector may have named a close variety goes first, as Croatian for
    Serbian. Raises the answer 501 if sources cannot be identified and there are several.
    """
    likeliest = next(iter(ranked), None)
    leads = next((language for language in ranked if language.language in leading), None)
    if likeliest is not None and likeliest.confidence > _SURE_PERCENT:
        if target is not None and same_language(likeliest.language, target):
            return likeliest
        if leads is None or not leads.confidence:  # it is in another script, then
            return likeliest
        if not are_close(leads.language, likeliest.language):
            return likeliest
    identified = sources or leading
    if leads is None or not any(language.language in identified for language in ranked):
        return _unidentified(identified)
    return leads


async def translate_each(
    directions: Sequence[Direction],
    texts: Sequence[str],
    *,
    text_format: TextFormat,
    beam_size: int | None = None,
    num_hypotheses: int = 1,
) -> list[list[Translation]]:
    """The translations of each text by what translates it, best first; raises OverloadedError."""
    translations: list[list[Translation]] = [[] for _ in texts]
    by_chain: dict[int, list[int]] = {}
    for number, direction in enumerate(directions):
        by_chain.setdefault(id(direction.chain), []).append(number)
    for numbers in by_chain.values():
        found = await directions[numbers[0]].chain.translate(
            [texts[number] for number in numbers],
            text_format=text_format,
            beam_size=beam_size,
            num_hypotheses=num_hypotheses,
        )
        for number, one in zip(numbers, found, strict=True):
            translations[number] = one
    return translations


async def translate_document(
    direction: Direction, document: TextDocument, beam_size: int | None = None
) -> str:
    """The translation of a document, in which all but its text stays; raises OverloadedError."""
    if not direction.chain.models:  # its lines would be joined, and broken elsewhere
        return "".join(piece.text for piece in document.pieces)
    texts = document.texts()
    found = await translate_each(
        [direction] * len(texts), texts, text_format=document.text_format, beam_size=beam_size
    )
    return document.put_together(best.text for best, *_ in found).decode()


def can_detect() -> bool:
    """Whether py3langid is installed."""
    return find_spec("py3langid") is not None


async def detected(models: Models, texts: Sequence[str]) -> list[DetectedLanguage]:
    """The languages of a server's models that texts together may be in, likeliest first.

    Tags are no text, whether it is HTML or not. Raises the answer 501 if none can be identified.
    """
    languages = models.languages()
    if len(languages) == 1 and not can_detect():
        return [_unidentified(languages)]
    (ranked,) = await _ranked([texts], "markup", languages)
    return ranked or [_unidentified(languages)]


async def _ranked(
    texts: Sequence[Sequence[str]], text_format: TextFormat, languages: Sequence[str]
) -> list[list[DetectedLanguage]]:
    """Those of the languages that can be identified, for each text, likeliest first.

    Raises the answer 501 without py3langid.
    """

    def begin() -> list[str]:
        return [beginning(pieces, text_format, _MOST_CHARACTERS) for pieces in texts]

    def rank() -> list[list[tuple[str, float]]]:
        return [likely_languages(text, languages) for text in beginnings]

    size = sum(len(piece) for pieces in texts for piece in pieces)
    beginnings = await in_thread_if_long(size, begin)
    try:
        # In a thread: the first call reads the detector from disk, most of a second.
        found = await asyncio.to_thread(rank)
    except MachineError as error:
        problem = f"{error.problem}; {error.remedy}; or name the source"
        raise HTTPException(501, problem) from error
    return [
        [
            DetectedLanguage(language=language, confidence=round(100 * probability, 1))
            for language, probability in ranked
        ]
        for ranked in found
    ]


def _unidentified(languages: Sequence[str]) -> DetectedLanguage:
    """The only one of languages that cannot be identified; raises the answer 501 for several."""
    if len(languages) == 1:
        return DetectedLanguage(language=languages[0], confidence=0.0)
    names = ", ".join(languages)
    problem = f"these languages cannot be identified in a text: {names}; or name the source"
    raise HTTPException(501, problem)
