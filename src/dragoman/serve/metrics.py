"""The counters of a server, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_MODEL = ("model", "source", "target")  # models of two directions may have one name
CLIENT_HAS_GONE = 499
"""The status of a request whose client did not wait for the answer, as nginx writes it."""


@dataclass(slots=True)
class Answer:
    """An answer on its way."""

    status: int = CLIENT_HAS_GONE


@dataclass
class Metrics:
    """Counters of one server.

    known_paths: the paths that are counted by name, of which the last part may be {name}, which
        stands for any; all others are counted as "other".
    """

    known_paths: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._requests = Counter("dragoman_requests", "Requests", ("path", "status"), registry=own)
        self._seconds = Histogram(
            "dragoman_request_seconds",
            "Time from request to answer",
            ("path",),
            buckets=_SECONDS,
            registry=own,
        )
        self._under_way = Gauge(
            "dragoman_requests_under_way", "Requests not yet answered", registry=own
        )
        self._rows = Counter("dragoman_rows", "Rows translated", _MODEL, registry=own)
        self._waiting = Gauge(
            "dragoman_waiting_pieces", "Pieces in the queue", _MODEL, registry=own
        )
        # Finding a counter by its labels takes longer than counting.
        self._answers = cache(self._requests.labels)
        self._times = cache(self._seconds.labels)
        self._seen_rows: dict[tuple[str, str, str], int] = {}

    @contextmanager
    def request(self, path: str) -> Iterator[Answer]:
        """Count a request, its status and its time."""
        pattern = f"{path.rpartition('/')[0]}/{{name}}"
        known = next((one for one in (path, pattern) if one in self.known_paths), "other")
        answer, started = Answer(), time.perf_counter()
        self._under_way.inc()
        try:
            yield answer
        finally:
            self._under_way.dec()
            self._answers(known, answer.status).inc()
            self._times(known).observe(time.perf_counter() - started)

    def see(self, model: tuple[str, str, str], num_rows: int, waiting_pieces: int) -> None:
        """Count a model's rows and queue; model: its name, source and target language."""
        self._rows.labels(*model).inc(num_rows - self._seen_rows.get(model, 0))
        self._seen_rows[model] = num_rows
        self._waiting.labels(*model).set(waiting_pieces)

    def text(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self._registry)
