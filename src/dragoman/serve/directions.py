"""What translates a text: a model, or two in a row, by the languages that were named or found."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from dragoman.base.errors import MachineError
from dragoman.base.languages import closest_language, same_language
from dragoman.corpus.language import likely_languages
from dragoman.inference.documents import TextDocumentFormat, cut_document
from dragoman.inference.text import TextFormat
from dragoman.inference.translator import Translation
from dragoman.serve.bodies import in_thread_if_long
from dragoman.serve.models import Models, Pivot, ServedModel

_MOST_CHARACTERS: Final = 4000
_TAG: Final = re.compile("<[^<>]*>")


class DetectedLanguage(BaseModel):
    """confidence: 0 to 100, the probability among all languages that py3langid knows."""

    language: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Direction:
    """What translates a text. model: None if the text is in the target language already.

    detected: if the source was to be detected.
    """

    model: ServedModel | Pivot | None
    target: str
    detected: DetectedLanguage | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The languages of a request; None: any, if there is only one. source: "auto" to detect it.

    keeps_target: text in the target language is left as it is, as LibreTranslate does.
    missing: the status of the answer if no model fits, or several.
    """

    source: str | None
    target: str | None
    keeps_target: bool = False
    missing: int = 404


async def directions(models: Models, wanted: Wanted, texts: Sequence[str]) -> list[Direction]:
    """What translates each text; the source is detected out of those that lead to the target.

    Raises the answer 501 if no language is identified, and that for missing models.
    """
    if wanted.source != "auto" or not (languages := models.sources(wanted.target)):
        return [_direction(models, wanted)] * len(texts)
    target = _target_if_kept(models, wanted)
    if target and can_detect() and not any(same_language(target, one) for one in languages):
        languages.append(target)
    found = [ranked[0] for ranked in await _likely(texts, languages)]
    of_language = {
        language: _direction(models, replace(wanted, source=language))
        for language in {one.language: None for one in found}
    }
    return [replace(of_language[one.language], detected=one) for one in found]


def _direction(models: Models, wanted: Wanted) -> Direction:
    fitting = models.fitting(wanted.source, wanted.target)
    if len(fitting) == 1:
        return Direction(fitting[0], fitting[0].pair.target)
    target = _target_if_kept(models, wanted)
    if target and wanted.source is not None and same_language(wanted.source, target):
        return Direction(None, target)
    problem = "no model for these languages"
    if fitting:
        unnamed = [side for side in ("source", "target") if getattr(wanted, side) is None]
        problem = f"several models fit: name the {' and the '.join(unnamed)}"
    pairs = ", ".join(map(str, models.all_pairs()))
    raise HTTPException(wanted.missing, f"{problem}; there is: {pairs}")


def _target_if_kept(models: Models, wanted: Wanted) -> str | None:
    """The target as the models call it, if text in it is left as it is."""
    if not wanted.keeps_target or wanted.target is None:
        return None
    return closest_language(wanted.target, models.languages())


async def translate_each(
    directions: Sequence[Direction],
    texts: Sequence[str],
    *,
    text_format: TextFormat,
    beam_size: int | None = None,
    num_hypotheses: int = 1,
) -> list[list[Translation]]:
    """The translations of each text by what translates it, best first; raises OverloadedError."""
    translations = [[Translation(text, 0.0)] for text in texts]
    by_model: dict[int, list[int]] = {}
    for number, direction in enumerate(directions):
        by_model.setdefault(id(direction.model), []).append(number)
    for numbers in by_model.values():
        model = directions[numbers[0]].model
        if model is None:
            continue
        found = await model.translate(
            [texts[number] for number in numbers],
            text_format=text_format,
            beam_size=beam_size,
            num_hypotheses=num_hypotheses,
        )
        for number, one in zip(numbers, found, strict=True):
            translations[number] = one
    return translations


async def translate_document(direction: Direction, text: str, form: TextDocumentFormat) -> str:
    """The translation of a document, in which all but its text stays; raises OverloadedError."""
    document = await in_thread_if_long(len(text), cut_document, text, form)
    texts = document.texts()
    found = await translate_each([direction] * len(texts), texts, text_format=document.text_format)
    return document.put_together(best.text for best, *_ in found).decode()


def can_detect() -> bool:
    """Whether py3langid is installed."""
    return find_spec("py3langid") is not None


async def detected(models: Models, text: str) -> list[DetectedLanguage]:
    """The languages of a server's models that a text may be in, likeliest first."""
    (found,) = await _likely([text], models.languages())
    return found


async def _likely(texts: Sequence[str], languages: Sequence[str]) -> list[list[DetectedLanguage]]:
    """The languages that each text may be in, likeliest first; a single one is the answer anyway.

    Raises the answer 501 if none of several can be identified.
    """

    def rank() -> list[list[tuple[str, float]]]:
        shown = (_TAG.sub(" ", text[:_MOST_CHARACTERS]) for text in texts)
        return [likely_languages(text, languages) for text in shown]

    try:
        # In a thread: the first call reads the detector from disk, most of a second.
        found = await asyncio.to_thread(rank)
    except MachineError as error:
        found, problem = [], f"{error.problem}; {error.remedy}"
    else:
        problem = "these languages cannot be identified in a text: " + ", ".join(languages)
    if not all(found) or not found:
        if len(languages) > 1:
            raise HTTPException(501, f"{problem}; or name the source")
        found = [[(languages[0], 0.0)]] * len(texts)
    return [
        [
            DetectedLanguage(language=language, confidence=round(100 * probability, 1))
            for language, probability in ranked
        ]
        for ranked in found
    ]
