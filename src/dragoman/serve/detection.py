"""Which of a server's languages a text is in, and what translates it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from fastapi import HTTPException
from pydantic import BaseModel

from dragoman.base.errors import MachineError
from dragoman.corpus.language import likely_languages
from dragoman.serve.models import Models, Pivot, ServedModel

_MOST_CHARACTERS: Final = 4000
_TAG: Final = re.compile("<[^<>]*>")


class DetectedLanguage(BaseModel):
    """confidence: 0 to 100, the probability among all languages that py3langid knows."""

    language: str
    confidence: float


def can_detect() -> bool:
    """Whether py3langid is installed."""
    return find_spec("py3langid") is not None


async def choose(
    models: Models,
    source: str | None,
    target: str | None,
    texts: Sequence[str],
    *,
    missing: int = 404,
) -> tuple[ServedModel | Pivot, DetectedLanguage | None]:
    """The model for the texts; if the source is "auto", also their language, out of those that can
    be translated into the target.

    Raises the answer `missing` if no model fits or several do, 501 if no language is identified.
    """
    found = None
    if source == "auto" and (languages := models.sources(target)):
        found = (await _likely(texts, languages))[0]
        source = found.language
    fitting = models.fitting(source, target)
    if len(fitting) == 1:
        return fitting[0], found
    problem = "no model for these languages"
    if fitting:
        unnamed = [side for side, one in (("source", source), ("target", target)) if one is None]
        problem = f"several models fit: name the {' and the '.join(unnamed)}"
    raise HTTPException(missing, f"{problem}; there is: {models.pairs()}")


async def detected(models: Models, texts: Sequence[str]) -> list[DetectedLanguage]:
    """The languages of a server's models that texts of one language may be in, likeliest first."""
    return await _likely(texts, models.languages())


async def _likely(texts: Sequence[str], languages: Sequence[str]) -> list[DetectedLanguage]:
    """The languages that texts may be in, likeliest first; a single one is the answer anyway.

    Raises the answer 501 if none of several can be identified.
    """
    text = _TAG.sub(" ", "\n".join(texts)[:_MOST_CHARACTERS])
    try:
        # In a thread: the first call reads the detector from disk, most of a second.
        found = await asyncio.to_thread(likely_languages, text, languages)
    except MachineError as error:
        found, problem = [], f"{error.problem}; {error.remedy}"
    else:
        problem = "these languages cannot be identified in a text: " + ", ".join(languages)
    if not found:
        if len(languages) > 1:
            raise HTTPException(501, f"{problem}; or name the source")
        found = [(languages[0], 0.0)]
    return [
        DetectedLanguage(language=language, confidence=round(100 * probability, 1))
        for language, probability in found
    ]
