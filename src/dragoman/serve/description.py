"""The description of the interface for programs, in OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from dragoman.base.version import VERSION

ERRORS: Final = {
    400: "A header is there twice, or a body that cannot be read",
    401: "The token is missing or wrong",
    403: "Sent by another site's page",
    404: "No model for these languages",
    408: "The body did not arrive in time",
    413: "Too much text",
    421: "Asked for under another name",
    422: "Not a valid request",
    429: "Too many requests of one client",
    500: "The server failed",
    501: "No language is detected here",
    503: "Busy; see Retry-After",
    504: "Not done in time",
}
_OF_READING: Final = (400, 401, 403, 421, 429, 500, 503)
Handler = Callable[[Request], Awaitable[Response]]
_REF: Final = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Operation:
    """What a path answers. request: the model of its body, if it takes one."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any
    request: type[BaseModel] | None = None
    media_type: str = "application/json"


def openapi(operations: Sequence[Operation], needs_token: bool) -> dict[str, Any]:
    """The whole description. needs_token: programs are told where the token goes."""
    kinds: list[tuple[str, Any, TypeAdapter[Any]]] = []
    for one in operations:
        kinds.append((one.path, "serialization", TypeAdapter(one.answer)))
        if one.request is not None:
            kinds.append((one.path, "validation", TypeAdapter(one.request)))
    schemas, definitions = TypeAdapter.json_schemas(kinds, ref_template=_REF)
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "dragoman", "version": VERSION},
        "paths": {},
        "components": {"schemas": {**definitions.get("$defs", {}), "Error": error}},
    }
    for one in operations:
        statuses = ERRORS if one.request is not None else _OF_READING
        responses: dict[str, Any] = {
            str(status): {
                "description": ERRORS[status],
                "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
            }
            for status in statuses
        }
        content = {one.media_type: {"schema": schemas[(one.path, "serialization")]}}
        responses["200"] = {"description": "The answer", "content": content}
        operation: dict[str, Any] = {"summary": one.summary, "responses": responses}
        if one.request is not None:
            schema = schemas[(one.path, "validation")]
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": schema}},
            }
        if needs_token and one.path == "/health":
            operation["security"] = []
        described["paths"][one.path] = {one.method: operation}
    if needs_token:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
    return described
