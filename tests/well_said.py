"""The form of every verdict: sentences, words, and figures in its text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import get_args

from dragoman.base import units
from dragoman.reporting.verdict import Answer, Evidence, Verdict

_SHORT = {
    *("BLEU", "EUR", "FLOP", "FLOPs", "GFLOP", "GPU", "GPUs", "H", "MFU", "PFLOP", "TFLOP"),
    *("GB", "GiB", "KiB", "kB", "kW", "kWh", "MB", "MiB", "TB", "USD", "UTC"),
    "McCandlish",
}
"""Abbreviations, units and an author, the only words with capitals inside."""
_SHORT_LOWER = {"bleu", "flop", "flops", "gpu", "gpus", "mfu"}
_WORD = re.compile(r"[A-Za-z]+")
_NAME = re.compile(r"\S*[0-9_.=/@-]\S*")
"""A host, a setting, a file, a number: no word of a sentence."""
_BROKEN = re.compile(r"\s\s|\.\.|,,|;;|::| [.,;:?)]|\( |\bNone\b|\bnan\b")
_FIGURE = re.compile(r"(-?[0-9][0-9,]*(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)(?: ?([A-Za-zµ%/]+))?")
_DURATION = re.compile(r"-?[0-9,]+ h [0-9]+ min|[0-9]+ min [0-9]+ s")
_LAST_NUMBER = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)\s*([^\d\s]*)$")
_SCALES: dict[str, set[float]] = {"": {1.0}}
for _quantity in vars(units).values():
    if isinstance(_quantity, units.Quantity):
        for _symbol, _scale in _quantity.symbols:
            _SCALES.setdefault(_symbol, set()).add(_scale)


def last_digit(quantity: units.Quantity, text: str) -> float:
    """One step of the last printed digit of a text of the quantity, in base units."""
    ((number, symbol),) = _LAST_NUMBER.findall(text)
    scales = dict(quantity.symbols + quantity.also)
    place = Decimal(number.replace(",", "")).as_tuple().exponent
    return float(f"1e{place}") * scales[symbol]


def assert_well_said(verdict: Verdict) -> None:
    """One of the four answers; whole sentences, of words that are words; values in the text."""
    assert verdict.answer in get_args(Answer)
    assert verdict.question.endswith("?"), verdict.question
    sentences = [verdict.says, verdict.remedy, verdict.method]
    assert verdict.says
    assert all(isinstance(text, str) for text in sentences)
    for text in filter(None, sentences):
        assert text.endswith((".", "?")), text
    for text in filter(None, (verdict.question, *sentences)):
        assert text[0].isupper() or text[0].isdigit(), text
    names = [row.name for row in verdict.evidence]
    for text in (verdict.question, *sentences, *verdict.thresholds, *names):
        assert not _BROKEN.search(text), text
        for word in _WORD.findall(_NAME.sub(" ", text)):
            assert word in _SHORT or word[1:].islower() or len(word) == 1, (word, text)
            assert word not in _SHORT_LOWER, (word, text)
    for row in verdict.evidence:
        assert_shows_its_value(row)


def assert_shows_its_value(row: Evidence) -> None:
    """The text of a row has its value, to the last digit that is printed."""
    assert row.text
    assert not _BROKEN.search(row.text), row
    if isinstance(row.value, str):
        assert row.value == row.text, row
    elif row.value is not None and row.name != "machine time":  # hours, shown in minutes as well
        value = -row.value if row.text.startswith("lower ") else row.value
        assert any(abs(shown - value) <= step for shown, step in _figures(row.text)), row


def _figures(text: str) -> Iterator[tuple[float, float]]:
    """Each figure of a text in base units, with one step of its last digit."""
    if text in ("not finite", "none"):
        yield 0.0, math.inf
    for duration in _DURATION.findall(text):
        yield units.DURATION.parse(duration), last_digit(units.DURATION, duration)
    for amount, symbol in _FIGURE.findall(text):
        number = Decimal(amount.replace(",", ""))
        step = 10.0 ** int(number.as_tuple().exponent)
        for scale in _SCALES.get(symbol, set()) | {1.0}:
            yield float(number) * scale, step * scale
