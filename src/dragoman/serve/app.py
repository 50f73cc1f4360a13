"""The HTTP interface, described at /openapi.json; that of LibreTranslate is beside it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from dragoman.base.version import VERSION
from dragoman.serve.batcher import OverloadedError
from dragoman.serve.bodies import MOST_TEXTS, JsonRoute, Text, check_size, in_thread_if_long
from dragoman.serve.detection import DetectedLanguage, can_detect, choose, detected
from dragoman.serve.libretranslate import add_libretranslate
from dragoman.serve.limits import Guard, Limits
from dragoman.serve.metrics import Metrics
from dragoman.serve.models import LanguagePair, ModelDescription, Models, Pivot, ServedModel
from dragoman.serve.protocol import Ending
from dragoman.serve.text import TextFormat, paragraphs

_STREAMED_TOGETHER: Final = 8
_UNDER_WAY: Final = 3
_FORMATS: Final[dict[str, TextFormat]] = {"text": "document", "html": "markup"}
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
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


Language = Annotated[str, Field(min_length=1, max_length=20, examples=["en"])]


class TranslateRequest(BaseModel):
    """Text to translate: sentences, paragraphs or whole documents."""

    model_config = ConfigDict(extra="forbid")

    text: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
    source: Language | None = None
    """auto: the language is detected; left out: there must be one for the target."""
    target: Language | None = None
    alternatives: int = Field(default=0, ge=0, le=9)
    """Further translations of each text."""
    beam_size: int | None = Field(default=None, ge=1, le=10)
    """The export's default if left out; 1 is greedy and fastest.

    For alternatives it is at least one more than their number."""
    format: Literal["text", "html"] = "text"
    """html: tags keep their places."""


class StreamRequest(BaseModel):
    """A document whose translation is streamed."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    source: Language | None = None
    target: Language | None = None
    beam_size: int | None = Field(default=None, ge=1, le=10)
    format: Literal["text", "html"] = "text"


class Alternative(BaseModel):
    """score: log-probability over the length penalty; nearer to 0 is likelier."""

    text: str
    score: float


class TranslatedText(Alternative):
    """The best translation of a text, and further ones."""

    alternatives: list[Alternative]


class TranslateResponse(BaseModel):
    """One translation for each text, in the order of the request."""

    translations: list[TranslatedText]
    source: str
    target: str
    via: str | None
    """The language in between if two models translated, one after the other."""
    model: str
    detected: DetectedLanguage | None
    """If the source was auto."""
    seconds: float


class DetectRequest(BaseModel):
    """A text whose language is asked for."""

    model_config = ConfigDict(extra="forbid")

    text: Text


class DetectResponse(BaseModel):
    """The languages of the models, likeliest first."""

    languages: list[DetectedLanguage]


class LanguageList(BaseModel):
    """The directions that can be translated. detects: whether a source may be auto if there are
    several."""

    pairs: list[LanguagePair]
    detects: bool


class StreamLine(BaseModel):
    """A paragraph of the document, in its place; put together they are the translation."""

    index: int
    source: str
    text: str
    detected: DetectedLanguage | None = None
    """In the first line, if the source was auto; other lines do not have it."""


class ErrorResponse(BaseModel):
    """The error, in one line."""

    error: str


class Health(BaseModel):
    """status: ok; a server that is not ok does not answer."""

    status: str


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorResponse, "description": "More than one Host, or none"},
    401: {"model": ErrorResponse, "description": "The token is missing or wrong"},
    403: {"model": ErrorResponse, "description": "Sent by another site's page"},
    404: {"model": ErrorResponse, "description": "No model for these languages"},
    408: {"model": ErrorResponse, "description": "The body did not arrive in time"},
    413: {"model": ErrorResponse, "description": "Too much text"},
    421: {"model": ErrorResponse, "description": "Asked for under another name"},
    422: {"model": ErrorResponse, "description": "Not a valid request"},
    429: {"model": ErrorResponse, "description": "Too many requests of one client"},
    501: {"model": ErrorResponse, "description": "No language is detected here"},
    503: {"model": ErrorResponse, "description": "Busy; see Retry-After"},
    504: {"model": ErrorResponse, "description": "Not done in time"},
}
_READING_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: ERRORS[status] for status in (400, 401, 403, 408, 413, 421, 429, 503)
}
_STREAMED: Final = {"anyOf": [one.model_json_schema() for one in (StreamLine, ErrorResponse)]}
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


def create_app(served: Sequence[ServedModel], limits: Limits, ending: Ending) -> ASGIApp:
    """The server's application over models that are loaded."""
    models, metrics = Models(served), Metrics()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        for _, batcher in models.batchers():
            batcher.close()

    app = FastAPI(
        title="dragoman",
        version=VERSION,
        redirect_slashes=False,  # behind a proxy with TLS it would lead to http://
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.router.route_class = JsonRoute
    _add_translation(app, models, limits, ending)
    _add_facts(app, models, metrics)
    _add_page(app)
    _add_errors(app)
    add_libretranslate(app, models, limits)
    metrics.known_paths |= {route.path for route in app.routes if isinstance(route, Route)}
    if limits.token is not None:
        # So that programs which read the description know where the token goes.
        described = app.openapi()
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
        described["paths"]["/health"]["get"]["security"] = []
    return Guard(app, limits, metrics)


def _add_translation(app: FastAPI, models: Models, limits: Limits, ending: Ending) -> None:
    @app.post("/translate", responses=ERRORS)
    async def translate(request: TranslateRequest) -> TranslateResponse:
        """Translate one text or many."""
        started = time.perf_counter()
        texts = [request.text] if isinstance(request.text, str) else request.text
        check_size(texts)
        model, language = await choose(models, request.source, request.target, texts)
        async with asyncio.timeout(limits.request_s):
            found = await model.translate(
                texts,
                text_format=_FORMATS[request.format],
                beam_size=request.beam_size,
                num_hypotheses=1 + request.alternatives,
            )
        return TranslateResponse(
            translations=[
                TranslatedText(
                    text=best.text,
                    score=best.score,
                    alternatives=[Alternative(text=one.text, score=one.score) for one in others],
                )
                for best, *others in found
            ],
            source=model.pair.source,
            target=model.pair.target,
            via=model.pair.via,
            model=" + ".join(model.pair.models),
            detected=language,
            seconds=round(time.perf_counter() - started, 6),
        )

    @app.post("/detect", responses=ERRORS)
    async def detect_language(request: DetectRequest) -> DetectResponse:
        """Which of the models' languages a text is in."""
        check_size([request.text])
        return DetectResponse(languages=await detected(models, [request.text]))

    @app.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses=ERRORS | {200: {"content": {"application/x-ndjson": {"schema": _STREAMED}}}},
    )
    async def stream(request: StreamRequest) -> StreamingResponse:
        """Translate a document; its lines come one by one, as JSON, in order."""
        check_size([request.text])
        model, language = await choose(models, request.source, request.target, [request.text])
        lines = _streamed(model, language, request, limits, ending)
        first = await anext(lines)  # an error at once is answered with its status

        async def all_lines() -> AsyncIterator[bytes]:
            yield first
            async for line in lines:
                yield line

        return StreamingResponse(all_lines(), media_type="application/x-ndjson")


async def _streamed(
    model: ServedModel | Pivot,
    language: DetectedLanguage | None,
    request: StreamRequest,
    limits: Limits,
    ending: Ending,
) -> AsyncIterator[bytes]:
    """The lines of a document, a few of them under way at a time.

    If some cannot come, the last line is an error: an answer without one is whole.
    """
    text, text_format = request.text, _FORMATS[request.format]
    sources = await in_thread_if_long(len(text), paragraphs, text, text_format)
    model = await in_thread_if_long(len(text), model.after, sources, text_format)
    groups = [
        sources[start : start + _STREAMED_TOGETHER]
        for start in range(0, len(sources), _STREAMED_TOGETHER)
    ]
    index = 0
    pending: list[asyncio.Task[Any]] = []
    try:
        while groups or pending:
            while groups and len(pending) < _UNDER_WAY:
                work = model.translate(
                    groups.pop(0), text_format=text_format, beam_size=request.beam_size
                )
                pending.append(asyncio.create_task(work))
                pending[-1].add_done_callback(_take_note)
            async with asyncio.timeout(min(limits.request_s, ending.left_s)):
                found = await pending.pop(0)
            for best, *_ in found:
                line = StreamLine(
                    index=index,
                    source=sources[index],
                    text=best.text,
                    detected=None if index else language,
                )
                yield line.model_dump_json(exclude_none=True).encode() + b"\n"
                index += 1
    except (OverloadedError, TimeoutError) as error:
        if not index:
            raise
        problem = str(error) or ("the server is ending" if ending.has_begun else "not done in time")
        yield ErrorResponse(error=problem).model_dump_json().encode() + b"\n"
    finally:
        for task in pending:
            task.cancel()


def _take_note(task: asyncio.Task[Any]) -> None:
    """Keep an error that no request waits for any more out of the server's log."""
    if not task.cancelled():
        task.exception()


def _add_facts(app: FastAPI, models: Models, metrics: Metrics) -> None:
    @app.get("/health", responses={status: ERRORS[status] for status in (400, 408, 413, 429, 503)})
    async def health() -> Health:
        """Whether the process runs; asks for no token."""
        return Health(status="ok")

    @app.get("/ready", responses=_READING_ERRORS)
    async def ready() -> Health:
        """Whether it can translate: models are loaded before it listens."""
        return Health(status="ok")

    @app.get("/models", responses=_READING_ERRORS)
    async def list_models() -> list[ModelDescription]:
        """The models with their cards."""
        return [model.description for model in models]

    @app.get("/languages", responses=_READING_ERRORS)
    async def list_languages() -> LanguageList:
        """The pairs of languages, and whether the source may be detected."""
        return LanguageList(pairs=models.all_pairs(), detects=can_detect())

    as_text: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
    }

    @app.get("/metrics", response_class=Response, responses=_READING_ERRORS | as_text)
    async def numbers() -> Response:
        """Counters for Prometheus."""
        for name, batcher in models.batchers():
            metrics.see(name, batcher.num_rows, batcher.waiting_pieces)
        return Response(metrics.text(), media_type=_PROMETHEUS)


def _add_page(app: FastAPI) -> None:
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    for path, (package, folder, name, media_type) in _PAGE.items():
        content = (files(package) / folder / name).read_bytes()
        app.add_route(path, _plain(content, media_type, headers), include_in_schema=False)


def _plain(content: bytes, media_type: str, headers: dict[str, str]) -> Any:
    async def answer(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=headers)

    return answer


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(StarletteHTTPException)
    async def refused(_request: Request, error: StarletteHTTPException) -> JSONResponse:
        return _error_response(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(OverloadedError)
    async def busy(_request: Request, error: OverloadedError) -> JSONResponse:
        return _error_response(503, str(error), {"Retry-After": str(math.ceil(error.retry_s))})

    @app.exception_handler(TimeoutError)
    async def late(_request: Request, _error: TimeoutError) -> JSONResponse:
        return _error_response(504, "not done in time; send less text at once")


def _error_response(status: int, problem: str, headers: Any = None) -> JSONResponse:
    """An error as JSON; half of a surrogate pair is replaced."""
    text = problem.encode("utf-8", "replace").decode()
    return JSONResponse({"error": text}, status_code=status, headers=headers)
