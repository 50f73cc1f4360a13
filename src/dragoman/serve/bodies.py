"""Bodies of requests: JSON and forms -> fields -> models."""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from python_multipart.multipart import parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from dragoman.base.printable import clipped, printable_line

LONG: Final = 2000
"""From this many characters on, a thread costs less than the wait of other clients."""
MOST_FIELDS: Final = 64
MOST_TEXTS: Final = 256
MOST_CHARACTERS: Final = 100_000
"""The most characters that one request may send to be translated."""
_MOST_PROBLEMS: Final = 5
_LONGEST_PROBLEM: Final = 200
_SHOULD_BE: Final = "Input should be "
"""How pydantic begins to say which values a field may have."""
_SAID: Final = {"missing": "is missing", "extra_forbidden": "is not a field of this request"}
"""Problems by their type in pydantic."""
_THREADS: Final = ThreadPoolExecutor(2, "long-text")
"""Few: each competes with the event loop for Python's global lock."""

# It warns of each malformed form, which would let clients fill the server's standard error.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

P = ParamSpec("P")
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)


async def in_thread_if_long(
    size: int, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs
) -> T:
    """The result of the function, which is called in a thread if the size is large."""
    if size <= LONG:
        return function(*arguments, **named)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, lambda: function(*arguments, **named))


def check_size(texts: Sequence[str], status: int) -> None:
    """Raises this answer if the texts are more than one request may bring."""
    if sum(map(len, texts)) > MOST_CHARACTERS:
        raise HTTPException(status, f"more than {MOST_CHARACTERS} characters; send it in parts")


def valid(model: type[Model], fields: dict[str, Any], status: int) -> Model:
    """The request of these fields; raises this answer, which repeats names and never values."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problems = [
            clipped(printable_line(problem), _LONGEST_PROBLEM) for problem in _problems(error)
        ]
        raise HTTPException(status, "; ".join(problems[:_MOST_PROBLEMS])) from error


def _problems(error: ValidationError) -> list[str]:
    """What is wrong with each field, such as "text should be a valid string or a valid list"."""
    wanted: dict[str, list[str]] = {}
    others: list[str] = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        # The name of a field, and places in its list; the other parts name types of a union.
        parts = problem["loc"]
        field = ".".join(str(part) for part in parts if part is parts[0] or isinstance(part, int))
        if problem["type"] in _SAID:
            others.append(f"{field} {_SAID[problem['type']]}")
        elif problem["msg"].startswith(_SHOULD_BE):
            wanted.setdefault(field, []).append(problem["msg"].removeprefix(_SHOULD_BE))
        else:
            others.append(f"{field}: {problem['msg']}")
    of_items = {field.partition(".")[0] for field in wanted if "." in field}  # it is a list, then
    return [
        f"{field} should be {' or '.join(kinds)}"
        for field, kinds in wanted.items()
        if field not in of_items
    ] + others


def is_json(request: Request) -> bool:
    """Whether the body is JSON by its type."""
    kind = _kind(request)
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


async def fields_of(request: Request) -> dict[str, Any]:
    """The fields of the query and of the body, JSON or a form; one may be a file.

    A field of the body replaces that of the query; of fields with one name in a form the first
    counts, in JSON the last. A body of another type has no fields. Raises the answer 400 if it
    cannot be read.
    """
    fields = _first_of_each(request.query_params.multi_items())
    if is_json(request):
        body = (await request.body()).removeprefix(codecs.BOM_UTF8)
        try:
            sent = await in_thread_if_long(len(body), from_json, body) if body else {}
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from error
        if not isinstance(sent, dict) or len(sent) > MOST_FIELDS:  # each would be an error
            raise HTTPException(400, f"the body must be an object of at most {MOST_FIELDS} fields")
        return fields | sent
    if _kind(request) == "application/x-www-form-urlencoded":
        # By the standard library: python-multipart takes a second for a megabyte of &.
        text = (await request.body()).decode("utf-8", "replace")
        try:
            return fields | _first_of_each(await in_thread_if_long(len(text), _pairs, text))
        except ValueError as error:
            raise HTTPException(400, f"the form has over {MOST_FIELDS} fields") from error
    if _kind(request) == "multipart/form-data":
        charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8")
        if charset.lower() not in (
            b"utf-8",
            b"utf8",
        ):  # Python has some that take minutes: punycode
            raise HTTPException(400, "the form is not in UTF-8")
        form = await request.form(max_files=1, max_fields=MOST_FIELDS)
        return fields | _first_of_each(form.multi_items())
    await request.body()  # its limits are those of all
    return fields


def _pairs(text: str) -> list[tuple[str, str]]:
    return parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)


def _first_of_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Leave the block, and so the queue, if the client disconnects; its body has been read."""
    task = asyncio.current_task()
    assert task is not None

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not watching.done() or task.uncancel():  # the server ends
            raise
        raise ClientDisconnect from None
    finally:
        watching.cancel()
