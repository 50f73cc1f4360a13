"""The HTTP interface. Its description for programs is at /openapi.json."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp

from dragoman import __version__
from dragoman.serve import libretranslate
from dragoman.serve.aside import aside
from dragoman.serve.batcher import OverloadedError
from dragoman.serve.ending import Ending
from dragoman.serve.json_route import JsonRoute
from dragoman.serve.layout import Layout, paragraphs
from dragoman.serve.limits import Guard, Limits
from dragoman.serve.metrics import Metrics
from dragoman.serve.models import Models, ServedModel
from dragoman.serve.schemas import (
    Alternative,
    ErrorResponse,
    Health,
    ModelDescription,
    StreamLine,
    StreamRequest,
    TranslatedText,
    TranslateRequest,
    TranslateResponse,
)

MAX_CHARACTERS: Final = 100_000
_STREAMED_TOGETHER: Final = 8
_UNDER_WAY: Final = 3
_LONGEST_NAME: Final = 100
_LAYOUTS: Final[dict[str, Layout]] = {"text": "document", "html": "markup"}
_PAGE: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
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
    503: {"model": ErrorResponse, "description": "Busy; see Retry-After"},
    504: {"model": ErrorResponse, "description": "Not done in time"},
}
_OF_FACTS: Final[dict[int | str, dict[str, Any]]] = {
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
        for model in models:
            model.batcher.close()

    app = FastAPI(
        title="dragoman",
        version=__version__,
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
    libretranslate.add_routes(app, models, limits, MAX_CHARACTERS)
    if limits.token is not None:
        _describe_token(app)
    return Guard(app, limits, metrics)


def _add_translation(app: FastAPI, models: Models, limits: Limits, ending: Ending) -> None:
    @app.post("/translate", responses=ERRORS)
    async def translate(request: TranslateRequest) -> TranslateResponse:
        """Translate one text or many."""
        started = time.perf_counter()
        texts = [request.text] if isinstance(request.text, str) else request.text
        model = _model(models, request.source, request.target)
        check_size(texts)
        async with asyncio.timeout(limits.request_s):
            found = await model.translate(
                texts,
                layout=_LAYOUTS[request.format],
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
            source=model.description.source,
            target=model.description.target,
            model=model.description.name,
            seconds=round(time.perf_counter() - started, 6),
        )

    @app.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses=ERRORS | {200: {"content": {"application/x-ndjson": {"schema": _STREAMED}}}},
    )
    async def stream(request: StreamRequest) -> StreamingResponse:
        """Translate a document; its lines come one by one, as JSON, in order."""
        model = _model(models, request.source, request.target)
        check_size([request.text])
        lines = _streamed(model, request, limits, ending)
        first = await anext(lines)  # what fails at once is told by its status

        async def all_lines() -> AsyncIterator[bytes]:
            yield first
            async for line in lines:
                yield line

        return StreamingResponse(all_lines(), media_type="application/x-ndjson")


async def _streamed(
    model: ServedModel, request: StreamRequest, limits: Limits, ending: Ending
) -> AsyncIterator[bytes]:
    """The lines of a document, a few of them under way at a time.

    What keeps the rest from coming is the last line: an answer without one is whole.
    """
    sources = await aside(len(request.text), paragraphs, request.text, _LAYOUTS[request.format])
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
                    groups.pop(0), layout=_LAYOUTS[request.format], beam_size=request.beam_size
                )
                pending.append(asyncio.create_task(work))
                pending[-1].add_done_callback(_take_note)
            async with asyncio.timeout(min(limits.request_s, ending.left_s)):
                found = await pending.pop(0)
            for best, *_ in found:
                line = StreamLine(index=index, source=sources[index], text=best.text)
                yield line.model_dump_json().encode() + b"\n"
                index += 1
    except (OverloadedError, TimeoutError) as error:
        if not index:
            raise
        too_long = "the server is ending" if ending.has_begun else "not done in time"
        problem = str(error) or too_long
        yield ErrorResponse(error=problem).model_dump_json().encode() + b"\n"
    finally:
        for task in pending:
            task.cancel()


def _take_note(task: asyncio.Task[Any]) -> None:
    """An error of what nobody waits for any more is not written to the server's log."""
    if not task.cancelled():
        task.exception()


def _add_facts(app: FastAPI, models: Models, metrics: Metrics) -> None:
    @app.get("/health", responses={status: ERRORS[status] for status in (400, 408, 413, 429, 503)})
    async def health() -> Health:
        """Whether the process runs; asks for no token."""
        return Health(status="ok")

    @app.get("/ready", responses=_OF_FACTS)
    async def ready() -> Health:
        """Whether it can translate: models are loaded before it listens."""
        return Health(status="ok")

    @app.get("/models", responses=_OF_FACTS)
    async def list_models() -> list[ModelDescription]:
        """The models with their cards."""
        return [model.description for model in models]

    as_text: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
    }

    @app.get("/metrics", response_class=Response, responses=_OF_FACTS | as_text)
    async def numbers() -> Response:
        """Counters for Prometheus."""
        for model in models:
            what = model.description
            metrics.see(
                (what.name, what.source, what.target),
                model.batcher.num_rows,
                model.batcher.waiting_pieces,
            )
        return Response(metrics.text(), media_type=_PROMETHEUS)


def _describe_token(app: FastAPI) -> None:
    """So that programs which read the description know where it goes."""
    described = app.openapi()
    described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    described["security"] = [{"token": []}]
    described["paths"]["/health"]["get"]["security"] = []


def _add_page(app: FastAPI) -> None:
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    folder = files("dragoman.serve") / "page"
    for path, (name, media_type) in _PAGE.items():
        content = (folder / name).read_bytes()
        app.add_route(path, _plain(content, media_type, headers), include_in_schema=False)


def _plain(content: bytes, media_type: str, headers: dict[str, str]) -> Any:
    async def answer(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=headers)

    return answer


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        # What was sent is not sent back: it may be large, and not even text.
        problems = [
            f"{'.'.join(map(str, one['loc']))[:_LONGEST_NAME]}: {one['msg']}"
            for one in error.errors()[:5]
        ]
        return error_response(422, "; ".join(problems))

    @app.exception_handler(StarletteHTTPException)
    async def refused(_request: Request, error: StarletteHTTPException) -> JSONResponse:
        return error_response(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(OverloadedError)
    async def busy(_request: Request, error: OverloadedError) -> JSONResponse:
        return error_response(503, str(error), {"Retry-After": str(math.ceil(error.retry_s))})

    @app.exception_handler(TimeoutError)
    async def late(_request: Request, _error: TimeoutError) -> JSONResponse:
        return error_response(504, "not done in time; send less text at once")


def error_response(status: int, problem: str, headers: Any = None) -> JSONResponse:
    """An error in our words; characters that are no text are replaced."""
    text = problem.encode("utf-8", "replace").decode()
    return JSONResponse({"error": text}, status_code=status, headers=headers)


def check_size(texts: Sequence[str]) -> None:
    """Raises the answer 413 where that is more than one request may bring."""
    if sum(map(len, texts)) > MAX_CHARACTERS:
        raise HTTPException(413, f"more than {MAX_CHARACTERS} characters; send it in parts")


def _model(models: Models, source: str | None, target: str | None) -> ServedModel:
    model = models.choose(source, target)
    if model is None:
        raise HTTPException(404, f"no model for these languages; there is: {models.pairs()}")
    return model
