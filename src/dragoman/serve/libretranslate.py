"""The interface of LibreTranslate, under /libretranslate/, so that its clients work unchanged."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dragoman.serve.bodies import (
    MOST_TEXTS,
    RepeatedFieldError,
    Text,
    by_name,
    check_size,
    fields_of,
)
from dragoman.serve.detection import choose, detected
from dragoman.serve.limits import Limits
from dragoman.serve.models import Models
from dragoman.serve.refusals import fields_refusal

Body = TypeVar("Body", bound=BaseModel)


class LibreDetectRequest(BaseModel):
    """The fields of LibreTranslate's /detect; others are ignored, as LibreTranslate does."""

    model_config = ConfigDict(extra="ignore")

    q: Text


class LibreRequest(BaseModel):
    """The fields of LibreTranslate's /translate."""

    model_config = ConfigDict(extra="ignore")

    q: Text | Annotated[list[Text], Field(max_length=MOST_TEXTS)]
    source: str = "auto"
    target: str
    format: Annotated[Literal["text", "html"], BeforeValidator(lambda given: given or "text")] = (
        "text"
    )
    """Clients that write every field they know send null or "" for the default."""
    alternatives: int = Field(default=0, ge=0, le=9)


def add_libretranslate(app: FastAPI, models: Models, limits: Limits) -> None:
    """Add the paths of LibreTranslate's interface."""

    @app.post("/libretranslate/translate", include_in_schema=False)
    async def translate(request: Request) -> dict[str, Any]:
        wanted = _valid(LibreRequest, await _fields(request))
        texts = [wanted.q] if isinstance(wanted.q, str) else wanted.q
        check_size(texts)
        # LibreTranslate answers 400 if there is no model.
        model, language = await choose(models, wanted.source, wanted.target, texts, missing=400)
        async with asyncio.timeout(limits.request_s):
            found = await model.translate(
                texts,
                text_format="markup" if wanted.format == "html" else "document",
                num_hypotheses=1 + wanted.alternatives,
            )
        best = [one[0].text for one in found]
        others = [[alternative.text for alternative in one[1:]] for one in found]
        single = isinstance(wanted.q, str)
        answer: dict[str, Any] = {"translatedText": best[0] if single else best}
        if wanted.alternatives:
            answer["alternatives"] = others[0] if single else others
        if language is not None:
            identified = language.model_dump()
            answer["detectedLanguage"] = identified if single else [identified] * len(texts)
        return answer

    @app.get("/libretranslate/languages", include_in_schema=False)
    async def languages() -> list[dict[str, Any]]:
        pairs = models.all_pairs()
        return [
            {
                "code": code,
                "name": code,
                "targets": [pair.target for pair in pairs if pair.source == code],
                "via": {
                    pair.target: pair.via for pair in pairs if pair.source == code and pair.via
                },
            }
            for code in models.languages()
        ]

    @app.post("/libretranslate/detect", include_in_schema=False)
    async def detect(request: Request) -> list[dict[str, Any]]:
        text = _valid(LibreDetectRequest, await _fields(request)).q
        check_size([text])
        return [language.model_dump() for language in await detected(models, [text])]


async def _fields(request: Request) -> dict[str, Any]:
    """The fields of the query and of the body, JSON or a form, as LibreTranslate takes them.

    A field of the body replaces that of the query. Raises the answer 400 if they cannot be read.
    """
    body, content_type = await request.body(), request.headers.get("content-type", "")
    try:
        return by_name(request.query_params.multi_items()) | await fields_of(body, content_type)
    except RepeatedFieldError as error:
        raise HTTPException(400, str(error)) from error
    except ValueError as error:
        raise HTTPException(400, "neither JSON nor a form, as its Content-Type says") from error


def _valid(wanted: type[Body], fields: dict[str, Any]) -> Body:
    try:
        return wanted.model_validate(fields)
    except ValidationError as error:
        raise fields_refusal(error, wanted) from error
