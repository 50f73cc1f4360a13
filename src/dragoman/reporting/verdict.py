"""An answer and its evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from dragoman.base import units
from dragoman.base.printable import first_of
from dragoman.base.units import Quantity

_MOST_NAMED: Final = 8
Answer = Literal["yes", "no", "cannot tell", "measured"]
"""Questions for an amount are answered "measured" or "cannot tell"."""
Judgement = tuple[Answer, str, str]
"""The answer, the same in a sentence, and the remedy; see `Verdict`."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured value: its name, the value in base units, and the value as text."""

    name: str
    value: float | str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to one question about a run.

    key: a short name that stays the same between versions.
    says: the answer in one sentence; for each earlier configuration a line more.
    thresholds: the limits that decided, in words and numbers.
    method: how it was measured and computed.
    remedy: what to change; "" if nothing needs to change.
    """

    key: str
    question: str
    answer: Answer
    says: str
    evidence: tuple[Evidence, ...] = ()
    thresholds: tuple[str, ...] = ()
    method: str = ""
    remedy: str = ""


def evidence(name: str, quantity: Quantity, value: float | None, more: str = "") -> Evidence:
    """A value in its unit, and the text `more` after it; "not measured" if it is None."""
    if quantity is units.COUNT and value is not None:
        value = int(value)
    return Evidence(name, value, quantity.optional_text(value) + more)


def named(culprits: Iterable[str], *, between: str = "; ") -> str:
    """All that an answer blames, in order; a long list ends with how many more there are."""
    return first_of(culprits, _MOST_NAMED, between)


def at_step(step: int) -> str:
    """The step of a value, as text after it."""
    return f" at step {units.COUNT.text(step)}"


def in_words(name: str, text: str) -> Evidence:
    """Evidence that is a text, not a number."""
    return Evidence(name, text, text)
