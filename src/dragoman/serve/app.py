"""The HTTP interface, described at /openapi.json, with that of LibreTranslate beside it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp

from dragoman.evaluation.confidence import Colour, colour_of
from dragoman.inference.documents import TextDocumentFormat, cut_document
from dragoman.inference.text import paragraphs
from dragoman.inference.translator import Segment, Translation
from dragoman.serve.batcher import OverloadedError
from dragoman.serve.bodies import (
    MOST_TEXTS,
    check_size,
    fields_of,
    in_thread_if_long,
    is_json,
    valid,
    while_connected,
)
from dragoman.serve.description import Handler, Operation, openapi
from dragoman.serve.directions import (
    TEXT_FORMATS,
    DetectedLanguage,
    Direction,
    Source,
    Wanted,
    can_detect,
    detected,
    directions,
    translate_document,
    translate_each,
)
from dragoman.serve.guard import (
    LIBRETRANSLATE,
    Guard,
    busy_response,
    check_token,
    error_response,
)
from dragoman.serve.libretranslate import LibreTranslate
from dragoman.serve.limits import Limits
from dragoman.serve.metrics import CLIENT_HAS_GONE, Metrics
from dragoman.serve.models import (
    LanguagePair,
    ModelDescription,
    Models,
    ServedModel,
)

_STREAMED_TOGETHER: Final = 8
_UNDER_WAY: Final = 3
_LIBRETRANSLATES: Final = frozenset(("source", "target", "format", "api_key"))
"""Fields that LibreTranslate's clients send beside q; ours send text with the first three."""
_CSS: Final = "text/css; charset=utf-8"
_JAVASCRIPT: Final = "text/javascript; charset=utf-8"
_SERVE: Final = "dragoman.serve", "page"
_EXPORT: Final = "dragoman.formats", "web_page"
_PAGE: Final = {
    "/": (*_SERVE, "index.html", "text/html; charset=utf-8"),
    "/common.css": (*_EXPORT, "common.css", _CSS),
    "/page.css": (*_SERVE, "page.css", _CSS),
    "/common.js": (*_EXPORT, "common.js", _JAVASCRIPT),
    "/page.js": (*_SERVE, "page.js", _JAVASCRIPT),
}
"""Package, folder, name and media type of each file; exports for the web share some."""
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # a page that is gone back to remembers no text
}
_LOG: Final = logging.getLogger(__name__)
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

_CODE: Final = Field(min_length=1, max_length=20, examples=["en"])
Language = Annotated[str, _CODE]
Text = Annotated[str, Field(examples=["A man is singing."])]
_MOST_TERMS: Final = 500
_TermText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


Asked = TypeVar("Asked", bound=BaseModel)


class StreamRequest(BaseModel):
    """A document whose translation is streamed."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    text: Text
    source: Annotated[Source, _CODE] | None = None
    """auto: the language is detected; left out: there must be one for the target."""
    target: Language | None = None
    beam_size: int | None = Field(default=None, ge=1, le=10)
    """The export's default if left out; 1 is greedy and fastest.

    For alternatives it is at least one more than their number."""
    format: Literal["text", "html"] = "text"
    """html: tags keep their places."""
    terms: Annotated[dict[_TermText, _TermText], Field(max_length=_MOST_TERMS)] = {}
    """Translations of words of the text. Two models in a row do without them."""
    context: Literal["sentence", "paragraph"] = "sentence"
    """paragraph: the sentences of a line are translated together; the model must have learnt it."""


class TranslateRequest(StreamRequest):
    """Text to translate: sentences, paragraphs or whole documents."""

    text: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]  # type: ignore[assignment]
    alternatives: int = Field(default=0, ge=0, le=9)
    """Further translations of each text."""
    segments: bool = False
    """Whether the translation is given sentence by sentence, too, each with its confidence."""
    format: Literal["text", TextDocumentFormat] = "text"  # type: ignore[assignment]
    """html: tags keep their places. markdown, srt, vtt: text is one file, in which all but the
    words stays; it has no score, no alternatives and no segments."""


class TextSegment(BaseModel):
    """A sentence of a translation, or what stands between two.

    confidence: the probability that it is right, 0 for words in letters that the model does not
    know; null if nobody has calibrated the model, or for what is kept as it is.
    """

    text: str
    confidence: float | None
    colour: Colour | None


class Alternative(BaseModel):
    """score: log-probability over the length penalty; nearer to 0 is likelier."""

    text: str
    score: float
    confidence: float | None = None
    """The probability that the least sure sentence is right; null if the model is not
    calibrated."""
    colour: Colour | None = None
    """green: at least two of three such sentences are right; red: at most one of three."""


class TranslatedText(Alternative):
    """The best translation of a text, further ones, and what translated it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    alternatives: list[Alternative]
    segments: list[TextSegment] | None
    """Put together they are the text; null if the request did not ask for them."""
    source: str
    """The target if the text is in that language already, which leaves it as it is."""
    target: str
    via: str | None
    """The language in between if two models translated, one after the other."""
    model: str
    """Empty if the text stays as it is."""
    detected: DetectedLanguage | None
    """If the source was auto."""
    unused_terms: list[str]
    """Terms that the model cannot use: it does not know a letter of their translation, or they have
    something that is kept, such as {name}. If two models translated, all of them."""


class TranslateResponse(BaseModel):
    """One translation for each text, in the order of the request."""

    translations: list[TranslatedText]
    seconds: float


class DetectRequest(BaseModel):
    """A text whose language is asked for."""

    model_config = ConfigDict(extra="forbid")

    text: Text


class DetectResponse(BaseModel):
    """The languages of the models, likeliest first."""

    languages: list[DetectedLanguage]


class LanguagePairs(BaseModel):
    """The directions that can be translated.

    names: the English name of each language, by its code. detects: whether a source may be auto if
    there are several.
    """

    pairs: list[LanguagePair]
    names: dict[str, str]
    detects: bool


class StreamLine(BaseModel):
    """A paragraph of the document, in its place; put together they are the translation."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    index: int
    source: str
    text: str
    detected: DetectedLanguage | None = None
    """In the first line, if the source was auto; other lines do not have it."""
    unused_terms: list[str] | None = None
    """In the first line: terms that the model cannot use, if there are any."""


class ErrorResponse(BaseModel):
    """The error, in one line."""

    error: str


class Health(BaseModel):
    """status: ok; a server that is not ok does not answer."""

    status: str


def create_app(
    served: Sequence[ServedModel], limits: Limits, ending_in_s: Callable[[], float]
) -> ASGIApp:
    """The server's application over models that are loaded.

    ending_in_s: seconds until answers must have ended; infinite before a signal has come.
    """
    models, metrics = Models(served), Metrics()
    libretranslate = LibreTranslate(models, limits)
    own = Interface(models, limits, metrics, ending_in_s, libretranslate).routes()
    paths = {route.path for route in own}
    routes = [
        *own,
        *(route for route in libretranslate.routes() if route.path not in paths),
        # A redirect, also of a slash at the end, would lead to http:// behind a proxy with TLS.
        Mount(LIBRETRANSLATE, Router(libretranslate.routes(), redirect_slashes=False)),
    ]
    metrics.known_paths |= {route.path for route in routes if isinstance(route, Route)}
    metrics.known_paths |= {LIBRETRANSLATE + route.path for route in libretranslate.routes()}
    cors = Middleware(
        CORSMiddleware,
        allow_origins=limits.allowed_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("Authorization", "Content-Type"),
    )

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        for _, batcher in models.batchers():
            batcher.close()

    app = Starlette(
        routes=routes,
        middleware=[
            *([cors] if limits.allowed_origins else []),
            Middleware(Guard, limits=limits, metrics=metrics, retry_s=models.retry_s),
        ],
        exception_handlers={
            HTTPException: _refused,
            OverloadedError: _busy,
            TimeoutError: _late,
            ClientDisconnect: _gone,
            Exception: _failed,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


@dataclass
class Interface:
    """Our own endpoints over a server's models."""

    models: Models
    limits: Limits
    metrics: Metrics
    ending_in_s: Callable[[], float]
    libretranslate: LibreTranslate

    def routes(self) -> list[Route]:
        """All of them, and the page."""
        operations = self._operations()
        description = JSONResponse(openapi(operations, self.limits.token is not None))
        return [
            *(Route(one.path, one.handler, methods=[one.method]) for one in operations),
            Route("/openapi.json", _always(description)),
            *(Route(path, _always(_page_file(*where))) for path, where in _PAGE.items()),
        ]

    def _operations(self) -> list[Operation]:
        """The paths of the interface, each with its handler and its models."""
        health = _always(_json(Health(status="ok")))
        return [
            Operation("post", "/translate", self.translate, "Translate one text or many",
                      TranslateResponse, TranslateRequest),
            Operation("post", "/translate/stream", self.stream,
                      "Translate a document; its lines come one by one, as JSON, in order",
                      StreamLine | ErrorResponse, StreamRequest, "application/x-ndjson"),
            Operation("post", "/detect", self.detect,
                      "Which of the models' languages a text is in", DetectResponse, DetectRequest),
            Operation("get", "/health", health, "Whether the process runs; asks for no token",
                      Health),
            Operation("get", "/ready", health,
                      "Whether it can translate: models are loaded before it listens", Health),
            Operation("get", "/models", self.list_models, "The models with their cards",
                      list[ModelDescription]),
            Operation("get", "/pairs", self.list_pairs,
                      "The pairs of languages, their names, and whether the source may be detected",
                      LanguagePairs),
            Operation("get", "/metrics", self.numbers, "Counters for Prometheus", str,
                      media_type="text/plain"),
        ]  # fmt: skip

    async def translate(self, request: Request) -> Response:
        """Translate one text or many, for our clients or those of LibreTranslate."""
        fields = await fields_of(request)
        if _is_libretranslates(fields):
            return await self.libretranslate.translate_fields(request, fields)
        asked = _own(request, TranslateRequest, fields)
        started = time.perf_counter()
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        check_size(texts, 413)
        if asked.format not in TEXT_FORMATS and (asked.alternatives or asked.segments):
            problem = f"a file of {asked.format} has no alternatives and no segments"
            raise HTTPException(422, f"{problem}; leave them out")
        self.models.admit(texts, TEXT_FORMATS.get(asked.format, "markup"))
        async with while_connected(request), asyncio.timeout(self.limits.request_s):
            chosen, found = await self._translations(asked, texts)
        answer = TranslateResponse(
            translations=[
                _translated(one, direction, has_segments=asked.segments)
                for one, direction in zip(found, chosen, strict=True)
            ],
            seconds=round(time.perf_counter() - started, 6),
        )
        return _json(answer)

    async def _translations(
        self, asked: TranslateRequest, texts: Sequence[str]
    ) -> tuple[list[Direction], list[list[Translation]]]:
        """What translates each text, and its translations, the best first."""
        wanted = _wanted(asked)
        if asked.format == "text" or asked.format == "html":
            text_format = TEXT_FORMATS[asked.format]
            chosen = await directions(self.models, wanted, [[text] for text in texts], text_format)
            found = await translate_each(
                chosen,
                texts,
                text_format=text_format,
                beam_size=asked.beam_size,
                num_hypotheses=1 + asked.alternatives,
            )
            return chosen, found
        documents = [
            await in_thread_if_long(len(text), cut_document, text, asked.format) for text in texts
        ]
        pieces = [document.texts() for document in documents]
        chosen = await directions(self.models, wanted, pieces, documents[0].text_format)
        translated = [
            await translate_document(direction, document, asked.beam_size)
            for direction, document in zip(chosen, documents, strict=True)
        ]
        return chosen, [[Translation(text, 0.0)] for text in translated]

    async def detect(self, request: Request) -> Response:
        """The languages of a text, for our clients or those of LibreTranslate."""
        fields = await fields_of(request)
        if _is_libretranslates(fields):
            return await self.libretranslate.detect_fields(request, fields)
        asked = _own(request, DetectRequest, fields)
        check_size([asked.text], 413)
        return _json(DetectResponse(languages=await detected(self.models, [asked.text])))

    async def stream(self, request: Request) -> Response:
        """Translate a document line by line."""
        asked = _own(request, StreamRequest, await fields_of(request))
        check_size([asked.text], 413)
        wanted = _wanted(asked)
        text_format = TEXT_FORMATS[asked.format]
        (direction,) = await directions(self.models, wanted, [[asked.text]], text_format)
        lines = self._streamed(direction, asked)
        async with while_connected(request):
            first = await anext(lines)  # an error at once is answered with its status

        async def all_lines() -> AsyncIterator[bytes]:
            yield first
            async for line in lines:
                yield line

        at_once = {"X-Accel-Buffering": "no"}  # nginx would hold the lines back
        return StreamingResponse(all_lines(), headers=at_once, media_type="application/x-ndjson")

    async def _streamed(self, direction: Direction, asked: StreamRequest) -> AsyncIterator[bytes]:
        """The lines of a document, a few of them under way at a time.

        If some cannot come, the last line is an error: an answer without one is whole.
        """
        text_format = TEXT_FORMATS[asked.format]
        sources = await in_thread_if_long(len(asked.text), paragraphs, asked.text, text_format)
        chain = await in_thread_if_long(
            len(asked.text), direction.chain.after, sources, text_format
        )
        starts = iter(range(0, len(sources), _STREAMED_TOGETHER))
        pending: list[asyncio.Task[list[list[Translation]]]] = []

        def begin_next() -> None:
            for start in starts:
                group = sources[start : start + _STREAMED_TOGETHER]
                work = chain.translate(group, text_format=text_format, beam_size=asked.beam_size)
                pending.append(asyncio.create_task(work))
                pending[-1].add_done_callback(_take_note)
                return

        for _ in range(_UNDER_WAY):
            begin_next()
        index = 0
        unused = [*direction.chain.unused_terms] or None
        try:
            while pending:
                async with asyncio.timeout(min(self.limits.request_s, self.ending_in_s())):
                    found = await pending.pop(0)
                begin_next()
                for best, *_ in found:
                    line = StreamLine(
                        index=index,
                        source=sources[index],
                        text=best.text,
                        detected=None if index else direction.detected,
                        unused_terms=None if index else unused,
                    )
                    yield line.model_dump_json(exclude_none=True).encode() + b"\n"
                    index += 1
        except (OverloadedError, TimeoutError) as error:
            if not index:
                raise
            ends = self.ending_in_s() < math.inf
            problem = str(error) or ("the server is ending" if ends else "not done in time")
            yield ErrorResponse(error=problem).model_dump_json().encode() + b"\n"
        finally:
            for task in pending:
                task.cancel()

    async def list_models(self, _request: Request) -> Response:
        """The models with their cards."""
        return JSONResponse([model.description.model_dump() for model in self.models])

    async def list_pairs(self, _request: Request) -> Response:
        """The pairs of languages and their names."""
        models = self.models
        pairs = LanguagePairs(pairs=models.all_pairs(), names=models.names, detects=can_detect())
        return _json(pairs)

    async def numbers(self, _request: Request) -> Response:
        """Counters for Prometheus."""
        for name, batcher in self.models.batchers():
            self.metrics.see(name, batcher.num_rows, batcher.waiting_pieces)
        return Response(self.metrics.text(), media_type=_PROMETHEUS)


def _is_libretranslates(fields: dict[str, Any]) -> bool:
    """Whether a request at the root, of which a part may be missing, is one of LibreTranslate."""
    return "q" in fields or ("text" not in fields and not _LIBRETRANSLATES.isdisjoint(fields))


def _wanted(asked: StreamRequest) -> Wanted:
    return Wanted(
        asked.source, asked.target, terms=asked.terms, is_joined=asked.context == "paragraph"
    )


def _own(request: Request, model: type[Asked], fields: dict[str, Any]) -> Asked:
    """A request of our interface, null for a default; raises the answers 401 and 422."""
    check_token(request)
    if not is_json(request):
        raise HTTPException(422, "the header Content-Type must be application/json; set it")
    return valid(model, {name: value for name, value in fields.items() if value is not None}, 422)


def _translated(
    found: Sequence[Translation], direction: Direction, *, has_segments: bool
) -> TranslatedText:
    pair = direction.chain.pair
    best, *others = map(_alternative, found)
    return TranslatedText(
        **best.model_dump(),
        alternatives=others,
        segments=[_segment(one) for one in found[0].segments] if has_segments else None,
        source=pair.source,
        target=pair.target,
        via=pair.via,
        model=" + ".join(pair.models),
        detected=direction.detected,
        unused_terms=[*direction.chain.unused_terms],
    )


def _alternative(found: Translation) -> Alternative:
    return Alternative(
        text=found.text, score=found.score, confidence=found.confidence, colour=found.colour
    )


def _segment(segment: Segment) -> TextSegment:
    sure = segment.confidence
    colour = None if sure is None else colour_of(sure)
    return TextSegment(text=segment.text, confidence=sure, colour=colour)


def _take_note(task: asyncio.Task[Any]) -> None:
    """Keep an error that no request waits for any more out of the server's log."""
    if not task.cancelled():
        task.exception()


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def _page_file(package: str, folder: str, name: str, media_type: str) -> Response:
    content = (files(package) / folder / name).read_bytes()
    return Response(content, media_type=media_type, headers=_PAGE_HEADERS)


def _always(response: Response) -> Handler:
    async def answer(_request: Request) -> Response:
        return response

    return answer


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, str(error.detail), dict(error.headers or {}))


async def _busy(_request: Request, error: Exception) -> Response:
    assert isinstance(error, OverloadedError)
    return busy_response(math.ceil(error.retry_s))


async def _late(_request: Request, _error: Exception) -> Response:
    return error_response(504, "not done in time; send less text at once")


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_HAS_GONE)


async def _failed(_request: Request, error: Exception) -> Response:
    _LOG.error("a request failed", exc_info=error)
    return error_response(500, "the server failed; its log says why")
