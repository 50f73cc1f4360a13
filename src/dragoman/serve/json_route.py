"""JSON in, JSON out, with one pass of pydantic each way.

FastAPI parses a body, walks a tree of dependencies, and serialises an answer after validating it
again: a third of a millisecond, which beside a small model is a tenth of the server's work. Its
description of the interface is made of the same signature.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from dragoman.serve.aside import aside
from dragoman.serve.form import MOST_FIELDS, is_json

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """A route whose endpoint takes one model, the body, and answers with a model or a Response."""

    def get_route_handler(self) -> Handler:
        """The handler of requests; that of FastAPI where there is no body."""
        if self.body_field is None:
            return super().get_route_handler()
        wanted = self.body_field.field_info.annotation
        assert isinstance(wanted, type)
        assert issubclass(wanted, BaseModel)
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            if not is_json(request.headers.get("content-type", "")):
                raise _invalid("header", "content-type", "must be application/json")
            body = await request.body()
            try:
                fields = await aside(len(body), from_json, body)
            except ValueError as error:
                raise _invalid("body", "JSON", str(error)) from error
            if isinstance(fields, dict) and len(fields) > MOST_FIELDS:
                # pydantic would make an error of each, for seconds.
                raise _invalid("body", "JSON", f"more than {MOST_FIELDS} fields")
            try:
                asked = wanted.model_validate(fields)
            except ValidationError as error:
                found = error.errors(include_url=False, include_context=False, include_input=False)
                raise RequestValidationError(
                    [{**one, "loc": ("body", *one["loc"])} for one in found]
                ) from error
            answer = await endpoint(asked)
            if isinstance(answer, Response):
                return answer
            return Response(answer.model_dump_json(), media_type="application/json")

        return handle


def _invalid(where: str, name: str, problem: str) -> RequestValidationError:
    return RequestValidationError([{"loc": (where, name), "msg": problem}])
