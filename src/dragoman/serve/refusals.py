"""Answers to requests that are not valid: each wrong field by its name, with the remedy."""

from __future__ import annotations

from typing import Final

from fastapi import HTTPException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dragoman.base.printable import printable_line

_MOST_PROBLEMS: Final = 5
_LONGEST_NAME: Final = 100
_TYPE_ERRORS: Final = ("string_type", "list_type")
_PROBLEMS: Final = {
    "missing": "is missing; add this field",
    "string_type": "must be text; put it in quotes",
    "list_type": "must be a list of texts; put them in brackets",
    "string_too_short": "must have at least {min_length} character; leave the field out for none",
    "string_too_long": "must have at most {max_length} characters; shorten it",
    "too_short": "must have at least {min_length} text; add one",
    "too_long": "must have at most {max_length} texts; send them in parts",
    "greater_than_equal": "must be at least {ge}; give such a number",
    "less_than_equal": "must be at most {le}; give such a number",
    "finite_number": "must be a finite number; give such a number",
    "literal_error": "must be {expected}; choose one of them",
}
"""Our words for pydantic's types of errors, with the names of its context."""


def refusal(problem: str) -> HTTPException:
    """The answer to a request that is not valid: status 422."""
    return HTTPException(422, problem)


def fields_refusal(error: ValidationError, wanted: type[BaseModel]) -> HTTPException:
    """The answer 422 to fields that do not make such a request; it repeats names, never values."""
    by_field: dict[str, list[ErrorDetails]] = {}
    for one in error.errors(include_url=False, include_input=False):
        name = str(one["loc"][0]) if one["loc"] else ""
        by_field.setdefault(name, []).append(one)
    known = ", ".join(wanted.model_fields)
    problems = [
        _problem(printable_line(name)[:_LONGEST_NAME], found, known)
        for name, found in by_field.items()
    ]
    return refusal("; ".join(problems[:_MOST_PROBLEMS]))


def _problem(name: str, found: list[ErrorDetails], known: str) -> str:
    """The problem of a field, in words. found: the errors of every type that it may have."""
    if not name:
        return f"the body must be a JSON object; send one with the fields {known}"
    # The type that went furthest is the one that was meant.
    one = max(found, key=lambda one: (_position(one) is not None, one["type"] not in _TYPE_ERRORS))
    place = name if _position(one) is None else f"{name}[{_position(one)}]"
    if one["type"] == "extra_forbidden":
        return f"{place} is not a field of this request; leave it out: the fields are {known}"
    if len(found) > 1 and place == name and one["type"] in _TYPE_ERRORS:
        return f"{place} must be text or a list of texts; put each text in quotes"
    if one["type"].startswith("int_"):
        return f"{place} must be a whole number; write it without quotes"
    if one["type"] in _PROBLEMS:
        return f"{place} {_PROBLEMS[one['type']].format(**one.get('ctx', {}))}"
    if one["type"] == "value_error":
        return f"{place} {one['msg'].removeprefix('Value error, ')}"
    return f"{place}: {one['msg']}; change it"


def _position(error: ErrorDetails) -> int | None:
    """The place in a list that an error is about."""
    return next((part for part in error["loc"] if isinstance(part, int)), None)
