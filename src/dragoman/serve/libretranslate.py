"""The interface of LibreTranslate, so that its clients work unchanged.

docs/how-to/serve.md lists what differs from LibreTranslate 1.9; tests/e2e/test_libretranslate.py
asks both servers.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dragoman.inference.documents import (
    TEXT_ENDINGS,
    Piece,
    TextDocument,
    TextDocumentFormat,
    cut_document,
)
from dragoman.inference.text import TextFormat
from dragoman.serve.bodies import (
    MOST_CHARACTERS,
    MOST_TEXTS,
    check_size,
    fields_of,
    in_thread_if_long,
    valid,
    while_connected,
)
from dragoman.serve.directions import (
    TEXT_FORMATS,
    DetectedLanguage,
    Direction,
    Source,
    Wanted,
    detected,
    directions,
    translate_document,
    translate_each,
)
from dragoman.serve.guard import check_key
from dragoman.serve.limits import Limits
from dragoman.serve.models import Models

_FORMATS_OF_FILES: Final[dict[str, Literal["text", TextDocumentFormat]]] = {
    ".txt": "text",
    **TEXT_ENDINGS,
}
_MEDIA_TYPES: Final = {"html": "text/html", "markdown": "text/markdown", "vtt": "text/vtt"}
_NOT_IN_NAMES: Final = re.compile(r"[^\w-]+")
_LONGEST_STEM: Final = 80
_FRONTEND_TIMEOUT_MS: Final = 500
_KEPT_S: Final = 1800.0
"""As long as LibreTranslate keeps translated files."""
_MOST_KEPT_BYTES: Final = 64_000_000
_BESIDE_BYTES: Final = 1000
"""What a file takes in memory beside its content."""

Asked = TypeVar("Asked", bound="DetectRequest | FileRequest")


class DetectRequest(BaseModel):
    """The fields of /detect; others are ignored, as LibreTranslate does."""

    q: str | Annotated[list[str], Field(max_length=MOST_TEXTS)]


class FileRequest(BaseModel):
    """The fields of /translate_file beside the file."""

    source: Source
    target: str


class TranslateRequest(DetectRequest, FileRequest):
    """The fields of /translate."""

    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, AfterValidator(lambda count: max(0, count)), Field(le=9)] = 0


@dataclass(frozen=True, slots=True)
class Download:
    """A translated file; until_s: by the monotonic clock."""

    name: str
    content: bytes
    media_type: str
    until_s: float


@dataclass
class Downloads:
    """Translated files by their keys, in memory. If all together are too large, the oldest go."""

    kept_s: float = _KEPT_S
    most_bytes: int = _MOST_KEPT_BYTES
    _files: dict[str, Download] = field(default_factory=dict)

    def keep(self, name: str, content: bytes, media_type: str) -> str:
        """Keep a file; returns its key, which nobody guesses."""
        key = secrets.token_urlsafe(32)
        self._files[key] = Download(name, content, media_type, time.monotonic() + self.kept_s)
        self._forget_old()
        return key

    def find(self, key: str) -> Download | None:
        """The file of this key; None if it is not there, or no longer."""
        self._forget_old()
        return self._files.get(key)

    def _forget_old(self) -> None:
        num_bytes = sum(len(file.content) + _BESIDE_BYTES for file in self._files.values())
        for key, file in list(self._files.items()):
            if num_bytes <= self.most_bytes and file.until_s > time.monotonic():
                return
            num_bytes -= len(file.content) + _BESIDE_BYTES
            del self._files[key]


@dataclass(frozen=True, slots=True)
class LibreTranslate:
    """The endpoints over a server's models."""

    models: Models
    limits: Limits
    downloads: Downloads = field(default_factory=Downloads)

    def routes(self) -> list[Route]:
        """All of them, below any path."""
        return [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/translate_file", self.translate_file, methods=["POST"]),
            Route("/download_file/{name}", self.download_file),
            Route("/detect", self.detect, methods=["POST"]),
            Route("/languages", self.languages),
            Route("/frontend/settings", self.frontend_settings),
            Route("/suggest", self.suggest, methods=["POST"]),
            Route("/health", self.health),
        ]

    async def translate(self, request: Request) -> Response:
        """Translate one text or many."""
        return await self.translate_fields(request, await fields_of(request))

    async def translate_fields(self, request: Request, fields: dict[str, Any]) -> Response:
        """As `translate`, if the body has been read."""
        asked = self._valid(request, TranslateRequest, fields)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        check_size(texts, 400)
        text_format = TEXT_FORMATS[asked.format]
        self.models.admit(texts, text_format)
        async with while_connected(request), asyncio.timeout(self.limits.request_s):
            chosen = await self._directions(asked, [[text] for text in texts], text_format)
            found = await translate_each(
                chosen, texts, text_format=text_format, num_hypotheses=1 + asked.alternatives
            )
        answer: dict[str, list[Any]] = {"translatedText": [best.text for best, *_ in found]}
        if asked.alternatives:
            answer["alternatives"] = [
                [text for text in dict.fromkeys(one.text for one in others) if text != best.text]
                for best, *others in found
            ]
        if asked.source == "auto":
            answer["detectedLanguage"] = [_described(one.detected) for one in chosen]
        if isinstance(asked.q, str):
            return JSONResponse({name: values[0] for name, values in answer.items()})
        return JSONResponse(answer)

    async def translate_file(self, request: Request) -> Response:
        """Translate a file; the answer has the address of the translation."""
        fields = await fields_of(request)
        asked, file = self._valid(request, FileRequest, fields), fields.get("file")
        if not isinstance(file, UploadFile):
            raise HTTPException(400, "file is missing; add it as a part with a file name")
        name = PurePath(file.filename or "")
        file_format = _FORMATS_OF_FILES.get(name.suffix.lower())
        if file_format is None:
            formats = ", ".join(_FORMATS_OF_FILES)
            raise HTTPException(400, f"this format of file is not supported; send one of {formats}")
        try:
            text = (await file.read()).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise HTTPException(400, "the file is not UTF-8; convert it") from error
        check_size([text], 400)
        async with while_connected(request), asyncio.timeout(self.limits.request_s):
            document = await _document(text, file_format)
            texts, text_format = document.texts(), document.text_format
            (direction,) = await self._directions(asked, [texts], text_format)
            translation = await translate_document(direction, document)
        stem = _NOT_IN_NAMES.sub("_", name.stem)[:_LONGEST_STEM] or "file"
        translated_name = f"{stem}_{direction.chain.pair.target}{name.suffix.lower()}"
        media_type = f"{_MEDIA_TYPES.get(file_format, 'text/plain')}; charset=utf-8"
        key = self.downloads.keep(translated_name, translation.encode(), media_type)
        base = str(request.url.replace(query="")).removesuffix("/translate_file")
        address = f"{base}/download_file/{key}.{quote(translated_name)}"
        return JSONResponse({"translatedFileUrl": address})

    async def download_file(self, request: Request) -> Response:
        """A translated file; its name is known to nobody but its sender."""
        found = self.downloads.find(request.path_params["name"].partition(".")[0])
        if found is None:
            raise HTTPException(404, "no such file; translate it again")
        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.name)}",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return Response(found.content, media_type=found.media_type, headers=headers)

    async def detect(self, request: Request) -> Response:
        """The languages that the text or texts may be in, likeliest first."""
        return await self.detect_fields(request, await fields_of(request))

    async def detect_fields(self, request: Request, fields: dict[str, Any]) -> Response:
        """As `detect`, if the body has been read."""
        q = self._valid(request, DetectRequest, fields).q
        texts = [q] if isinstance(q, str) else q
        check_size(texts, 400)
        return JSONResponse([_described(one) for one in await detected(self.models, texts)])

    async def languages(self, _request: Request) -> Response:
        """Each language with those that it can be translated into, itself included."""
        pairs = self.models.all_pairs()
        return JSONResponse(
            [
                {
                    "code": code,
                    "name": name,
                    "targets": sorted({code, *(one.target for one in pairs if one.source == code)}),
                    "via": {one.target: one.via for one in pairs if one.source == code and one.via},
                }
                for code, name in self.models.names.items()
            ]
        )

    async def frontend_settings(self, _request: Request) -> Response:
        """What a page that uses this interface must know."""
        target = self.models.all_pairs()[0].target
        has_token = self.limits.token is not None
        return JSONResponse(
            {
                "charLimit": MOST_CHARACTERS,
                "frontendTimeout": _FRONTEND_TIMEOUT_MS,
                "apiKeys": has_token,
                "keyRequired": has_token,
                "suggestions": False,
                "filesTranslation": True,
                "supportedFilesFormat": [*_FORMATS_OF_FILES],
                "language": {
                    "source": {"code": "auto", "name": "Auto Detect"},
                    "target": {"code": target, "name": self.models.names[target]},
                },
            }
        )

    async def suggest(self, _request: Request) -> Response:
        """Suggestions of better translations are not taken."""
        raise HTTPException(403, "suggestions are not taken by this server")

    async def health(self, _request: Request) -> Response:
        """Whether the process runs."""
        return JSONResponse({"status": "ok"})

    def _valid(self, request: Request, wanted: type[Asked], fields: dict[str, Any]) -> Asked:
        """The request; a field that is empty or null is missing, as in LibreTranslate."""
        check_key(request, fields.get("api_key"), self.limits.token)
        return valid(wanted, {name: value for name, value in fields.items() if value}, 400)

    async def _directions(
        self, asked: FileRequest, texts: Sequence[Sequence[str]], text_format: TextFormat
    ) -> list[Direction]:
        wanted = Wanted(asked.source, asked.target, keeps_target=True, missing=400)
        return await directions(self.models, wanted, texts, text_format)


async def _document(text: str, file_format: Literal["text", TextDocumentFormat]) -> TextDocument:
    if file_format == "text" or file_format == "html":  # one text, which the models cut
        pieces = [Piece(text, translated=True)]
        return TextDocument(pieces, TEXT_FORMATS[file_format], joins_lines=False)
    return await in_thread_if_long(len(text), cut_document, text, file_format)


def _described(language: DetectedLanguage | None) -> dict[str, Any]:
    assert language is not None
    return {"confidence": language.confidence, "language": language.language}
