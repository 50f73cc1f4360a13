"""Scores of a text: BLEU and chrF of a test set, and metrics that came later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dragoman.telemetry.events import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class TestScored(Payload):
    """A test set was decoded and scored, at the end of a run or later.

    weights: SHA-256 of the list of the checkpoint's files. settings: what was said in place of the
    recipe's, as SECTION.KEY=VALUE, with spaces between them.
    """

    kind: ClassVar[str] = "test_scored"
    name: str
    weights: str
    settings: str
    bleu: float
    bleu_low: float | None
    bleu_high: float | None
    bleu_signature: str
    chrf: float
    chrf_low: float | None
    chrf_high: float | None
    chrf_signature: str
    pairs: int
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricScored(Payload):
    """What one more metric says of the translations that were just scored.

    text: "valid", or the name of the test set. low, high: its 95% interval; None where there is
    none.
    """

    kind: ClassVar[str] = "metric_scored"
    text: str
    metric: str
    value: float
    low: float | None
    high: float | None
    signature: str
