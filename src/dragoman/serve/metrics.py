"""The counters of a server, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(slots=True)
class AnswerStatus:
    """The status of an answer, 499 if there was none. answered: whether the whole answer was
    sent."""

    code: int = 499
    answered: bool = False


class Metrics:
    """Counters of one server.

    known_paths: the paths that are counted by name; all others are counted as "other".
    """

    def __init__(self) -> None:
        self.known_paths: set[str] = set()
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "dragoman_requests", "Requests", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "dragoman_request_seconds",
            "Time from request to answer",
            ["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._under_way = Gauge(
            "dragoman_requests_under_way", "Requests not yet answered", registry=self.registry
        )
        # Models of two directions may have one name: that of their recipe.
        labels = ["model", "source", "target"]
        self._rows = Counter("dragoman_rows", "Rows translated", labels, registry=self.registry)
        self._waiting = Gauge(
            "dragoman_waiting_pieces", "Pieces in the queue", labels, registry=self.registry
        )
        self._seen_rows: dict[tuple[str, str, str], int] = {}

    @contextmanager
    def request(self, path: str) -> Iterator[AnswerStatus]:
        """Count a request, its status and its time."""
        known = path if path in self.known_paths else "other"
        status, started = AnswerStatus(), time.perf_counter()
        self._under_way.inc()
        try:
            yield status
        finally:
            self._under_way.dec()
            self._requests.labels(known, str(status.code)).inc()
            self._seconds.labels(known).observe(time.perf_counter() - started)

    def see(self, model: tuple[str, str, str], num_rows: int, waiting_pieces: int) -> None:
        """Count a model's rows and queue; model: its name, source and target language."""
        self._rows.labels(*model).inc(num_rows - self._seen_rows.get(model, 0))
        self._seen_rows[model] = num_rows
        self._waiting.labels(*model).set(waiting_pieces)

    def text(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self.registry)
