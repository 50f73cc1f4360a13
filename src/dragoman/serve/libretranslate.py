"""The interface of LibreTranslate, under /libretranslate/, so that its clients work unchanged.

No language is detected here: a text whose source is "auto" is taken for the one source language
there is, with confidence 0.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dragoman.serve.form import fields_of
from dragoman.serve.limits import Limits
from dragoman.serve.models import Models
from dragoman.serve.schemas import Text

Format = Annotated[Literal["text", "html"], BeforeValidator(lambda given: given or "text")]
"""Clients that write every field they know say null or nothing where they want the usual."""


class LibreRequest(BaseModel):
    """The fields of LibreTranslate's /translate; others are passed over, as it does itself."""

    model_config = ConfigDict(extra="ignore")

    q: Text | Annotated[list[Text], Field(max_length=256)]
    source: str = "auto"
    target: str
    format: Format = "text"
    alternatives: int = Field(default=0, ge=0, le=9)


def add_routes(app: FastAPI, models: Models, limits: Limits, max_characters: int) -> None:
    """Translate, languages and detect."""

    @app.post("/libretranslate/translate", include_in_schema=False)
    async def translate(request: Request) -> dict[str, Any]:
        wanted = await _read(request)
        source = None if wanted.source == "auto" else wanted.source
        model = models.choose(source, wanted.target)
        if model is None:
            raise HTTPException(400, f"no model for these languages; there is: {models.pairs()}")
        texts = [wanted.q] if isinstance(wanted.q, str) else wanted.q
        if sum(map(len, texts)) > max_characters:
            raise HTTPException(413, f"more than {max_characters} characters; send it in parts")
        async with asyncio.timeout(limits.request_s):
            found = await model.translate(
                texts,
                layout="markup" if wanted.format == "html" else "document",
                num_hypotheses=1 + wanted.alternatives,
            )
        best = [one[0].text for one in found]
        others = [[alternative.text for alternative in one[1:]] for one in found]
        single = isinstance(wanted.q, str)
        answer: dict[str, Any] = {"translatedText": best[0] if single else best}
        if wanted.alternatives:
            answer["alternatives"] = others[0] if single else others
        if source is None:
            language = {"confidence": 0, "language": model.description.source}
            answer["detectedLanguage"] = language if single else [language] * len(texts)
        return answer

    @app.get("/libretranslate/languages", include_in_schema=False)
    async def languages() -> list[dict[str, Any]]:
        targets: dict[str, list[str]] = {}
        for source, target in models.by_pair:
            targets.setdefault(source, []).append(target)
            targets.setdefault(target, [])
        return [{"code": code, "name": code, "targets": to} for code, to in targets.items()]

    @app.post("/libretranslate/detect", include_in_schema=False)
    async def detect() -> list[dict[str, Any]]:
        sources = dict.fromkeys(source for source, _ in models.by_pair)
        return [{"confidence": 0, "language": source} for source in sources]


async def _read(request: Request) -> LibreRequest:
    """From JSON, a form or the query, as LibreTranslate takes them; the body goes first."""
    body, content_type = await request.body(), request.headers.get("content-type", "")
    try:
        fields = {**request.query_params, **await fields_of(body, content_type)}
        return LibreRequest.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    except ValueError as error:
        raise HTTPException(400, "neither JSON nor a form, as its Content-Type says") from error
