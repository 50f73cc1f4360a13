"""The body of a request to LibreTranslate's interface: JSON, or a form of either kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import parse_qsl

from pydantic_core import from_json
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from dragoman.serve.aside import aside

MOST_FIELDS: Final = 64


async def fields_of(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields by name.

    The body is read as its content type says, as LibreTranslate itself does; of another type it
    has no fields. Of several fields with one name the last counts. Files are refused.
    Raises ValueError if it cannot be read.
    """
    if not body:
        return {}
    kind = content_type.partition(";")[0].strip().lower()
    if is_json(content_type):
        fields = await aside(len(body), from_json, body)
        if not isinstance(fields, dict) or len(fields) > MOST_FIELDS:
            raise ValueError(f"not an object of at most {MOST_FIELDS} fields")
        return fields
    if kind == "multipart/form-data":
        return await aside(len(body), _parts, body, content_type)
    if kind == "application/x-www-form-urlencoded":
        return await aside(len(body), _pairs, body)
    return {}


def is_json(content_type: str) -> bool:
    """A page elsewhere can make a browser post other types without asking us first."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _pairs(body: bytes) -> dict[str, Any]:
    """With the standard library: python-multipart takes a second for a megabyte of &."""
    text = body.decode("utf-8", "replace")
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))


def _parts(body: bytes, content_type: str) -> dict[str, Any]:
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
        return dict(done.value)
    except MultiPartException as error:
        raise ValueError(error.message) from error
    raise AssertionError("a whole body was waited for")
