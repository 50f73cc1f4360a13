"""Turn the payloads of events into typed facts. Nothing here trusts a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")
_LARGEST = 1e21
"""Larger than any count of bytes, tokens or FLOP/s; a larger value counts as not measured."""


def from_payload(kind: type[T], payload: Mapping[str, Any]) -> T | None:
    """A dataclass from those of its fields that the payload has, each of the right type.

    A field of another type counts as missing. None if a missing field has no default and cannot be
    None. Annotations are int, float or str, each perhaps `| None`.
    """
    # pydantic is faster, but rejects a whole payload for one field, which here counts as missing.
    values: dict[str, Any] = {}
    for wanted in fields(kind):  # type: ignore[arg-type]  # a TypeVar cannot say "a dataclass"
        value = _typed(payload.get(wanted.name), str(wanted.type))
        if value is not None:
            values[wanted.name] = value
        elif not _may_be_missing(wanted):
            return None
        elif wanted.default is MISSING:
            values[wanted.name] = None
    return kind(**values)


def number(value: object) -> float | None:
    """The value if it is a number that a run can have, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None


def _typed(value: object, annotation: str) -> object:
    kind = annotation.removesuffix(" | None")
    if kind == "str":
        return value if isinstance(value, str) else None
    found = number(value)
    if kind == "float":
        return found
    return int(found) if kind == "int" and found is not None and found == int(found) else None


def _may_be_missing(wanted: Field[Any]) -> bool:
    return wanted.default is not MISSING or str(wanted.type).endswith("| None")
