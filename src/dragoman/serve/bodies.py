"""Bodies of requests: JSON and forms, read with bounds on their cost.

The body has arrived already (see limits). A long one is read in a thread, so that other clients do
not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final, ParamSpec, TypeVar
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import from_json
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from dragoman.serve.refusals import fields_refusal, refusal

LONG: Final = 2000
"""From this many characters or bytes on, a thread costs less than the wait of other clients."""
MOST_FIELDS: Final = 64
MOST_TEXTS: Final = 256
MOST_CHARACTERS: Final = 100_000
"""The most characters that one request may send to be translated."""
_THREADS: Final = ThreadPoolExecutor(2, "long-text")
"""Few: each competes with the event loop for Python's global lock."""

# It warns of each malformed form, which would let clients fill the server's standard error.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


def _is_text(text: str) -> str:
    """The text; raises ValueError for half of a surrogate pair, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("has half of a surrogate pair; send whole characters") from error
    return text


Text = Annotated[str, AfterValidator(_is_text), Field(examples=["A man is singing."])]
P = ParamSpec("P")
T = TypeVar("T")


class RepeatedFieldError(ValueError):
    """A query or a form has a field more than once."""


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def check_size(texts: Sequence[str]) -> None:
    """Raises the answer 413 if the size is more than one request may bring."""
    if sum(map(len, texts)) > MOST_CHARACTERS:
        raise HTTPException(413, f"more than {MOST_CHARACTERS} characters; send it in parts")


async def in_thread_if_long(
    size: int, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs
) -> T:
    """The result of the function, which is called in a thread if the size is large."""
    if size <= LONG:
        return function(*arguments, **named)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, lambda: function(*arguments, **named))


class JsonRoute(APIRoute):
    """A route whose endpoint takes one model, the body, and answers with a model or a Response.

    pydantic passes once each way. FastAPI's own route parses a body, walks a tree of dependencies,
    and serialises an answer after validating it again: a third of a millisecond, which beside a
    small model is a tenth of the server's work. It describes the interface by the same signature.
    """

    def get_route_handler(self) -> Handler:
        """The handler of requests; FastAPI's own if there is no body."""
        if self.body_field is None:
            return super().get_route_handler()
        wanted = self.body_field.field_info.annotation
        assert isinstance(wanted, type)
        assert issubclass(wanted, BaseModel)
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            if not _is_json(request.headers.get("content-type", "")):
                raise refusal("the header Content-Type must be application/json; set it")
            body = await request.body()
            try:
                fields = await in_thread_if_long(len(body), from_json, body)
            except ValueError as error:
                raise refusal(f"the body is not JSON: {error}; correct it") from error
            if isinstance(fields, dict) and len(fields) > MOST_FIELDS:
                # pydantic would make an error of each, for seconds.
                raise refusal(f"the body has more than {MOST_FIELDS} fields; leave some out")
            try:
                asked = wanted.model_validate(fields)
            except ValidationError as error:
                raise fields_refusal(error, wanted) from error
            answer = await endpoint(asked)
            if isinstance(answer, Response):
                return answer
            return Response(answer.model_dump_json(), media_type="application/json")

        return handle


async def fields_of(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields of JSON or a form, by name.

    The body is read as its content type says, as LibreTranslate itself does; a body of another type
    has no fields. Files are refused. In JSON the last of several keys with one name counts.
    Raises ValueError if it cannot be read, RepeatedFieldError if a form has a field twice.
    """
    if not body:
        return {}
    if len(content_type) > LONG:
        raise ValueError("the content type is too long")
    kind = content_type.partition(";")[0].strip().lower()
    if _is_json(content_type):
        fields = await in_thread_if_long(len(body), from_json, body)
        if not isinstance(fields, dict) or len(fields) > MOST_FIELDS:
            raise ValueError(f"is not an object of at most {MOST_FIELDS} fields")
        return fields
    if kind == "multipart/form-data":
        return await in_thread_if_long(len(body), _multipart_fields, body, content_type)
    if kind == "application/x-www-form-urlencoded":
        # By the standard library: python-multipart takes a second for a megabyte of &.
        text = body.decode("utf-8", "replace")
        pairs = await in_thread_if_long(
            len(body), parse_qsl, text, keep_blank_values=True, max_num_fields=MOST_FIELDS
        )
        return by_name(pairs)
    return {}


def by_name(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name; raises RepeatedFieldError if two share one: others may take the other one."""
    found = dict(fields)
    if len(found) < len(fields):
        raise RepeatedFieldError("a field is given more than once; send each field once")
    return found


def _is_json(content_type: str) -> bool:
    """Whether a type is JSON; a page elsewhere can make a browser post others without asking us."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _multipart_fields(body: bytes, content_type: str) -> dict[str, Any]:
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8")
    if charset.lower() not in (b"utf-8", b"utf8"):  # Python has some that take minutes: punycode
        raise ValueError("the form is not in UTF-8")

    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        Headers({"content-type": content_type}),
        whole(),
        max_files=0,
        max_fields=MOST_FIELDS,
        max_part_size=len(body),
    )
    reading = parser.parse()
    try:
        reading.send(None)  # it waits for nothing: the body is there, and no file is written
    except StopIteration as done:
        return by_name(done.value.multi_items())
    except MultiPartException as error:
        raise ValueError(error.message) from error
    raise AssertionError("a whole body was waited for")
