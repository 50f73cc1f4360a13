"""The body of a request to LibreTranslate's interface: JSON, or a form of either kind."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import parse_qsl

_MOST_PARTS: Final = 64
_MULTIPART: Final = re.compile(
    r'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]+)"|([^;\s"]+))', re.I
)
_NAME: Final = re.compile(rb'^content-disposition:[^\r\n]*[; ]name="([^"\r\n]*)"', re.I | re.M)


def fields_of(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields by name.

    A form is multipart/form-data (RFC 7578; its files are fields too) where its type says so, else
    urlencoded. Of several fields with one name the last counts.
    Raises ValueError or RecursionError where JSON cannot be read.
    """
    multipart = _MULTIPART.match(content_type)
    if multipart:
        boundary = multipart[1] or multipart[2]
        return _parts(body, b"\r\n--" + boundary.encode("latin-1", "replace"))
    text = body.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        values: dict[str, Any] = json.loads(text)
        return values
    return dict(parse_qsl(text, keep_blank_values=True))


def _parts(body: bytes, delimiter: bytes) -> dict[str, Any]:
    """Fields of a multipart body; what is before the first delimiter or after 64 parts is not."""
    fields = {}
    for part in (b"\r\n" + body).split(delimiter, _MOST_PARTS + 1)[1 : _MOST_PARTS + 1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if name:
            fields[name[1].decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return fields
