"""Events of metrics that came later than the events in which BLEU and chrF have their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dragoman.telemetry.events import Payload


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
