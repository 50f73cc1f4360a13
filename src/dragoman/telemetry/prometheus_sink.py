"""Lets Prometheus read a run, through its own client library."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import Event, EventListener, RunStarted, TrainInterval
from dragoman.telemetry.scalars import scalars

_LOOPBACK: Final = "127.0.0.1"
_COUNTED: Final = {
    "steps": "updates made by this process",
    "pairs": "sentence pairs trained on by this process",
    "source_tokens": "source tokens trained on by this process",
    "target_tokens": "target tokens trained on by this process",
    "sync_bytes": "bytes that rank 0 sent for gradients",
}


class PrometheusSink(EventListener):
    """Gauges `dragoman_<name>` of the last values and counters of what was used.

    They are answered on the loopback interface of rank 0's host for as long as the run lasts.
    """

    def __init__(self, port: int) -> None:
        self._client = _client()
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._run = self._client.Info("dragoman_run", "the run", registry=self._registry)
        self._step = self._client.Gauge("dragoman_step", "the step", registry=self._registry)
        self._counters = {
            name: self._client.Counter(f"dragoman_{name}", meaning, registry=self._registry)
            for name, meaning in _COUNTED.items()
        }
        try:
            self._server, self._thread = self._client.start_http_server(
                port, addr=_LOOPBACK, registry=self._registry
            )
        except OSError as error:
            raise MachineError(
                f"cannot answer Prometheus on port {port}: {error.strerror}",
                place="sinks.prometheus_port",
                remedy="choose another port, or 0 for none",
            ) from error

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if event.kind == RunStarted.kind:
            names = ("run_name", "recipe_digest", "device", "precision")
            self._run.info({name: str(event.payload[name]) for name in names})
        if event.step is not None:
            self._step.set(event.step)
        if event.kind == TrainInterval.kind:
            for name, counter in self._counters.items():
                counter.inc(event.payload[name])
        for name, value in scalars(event).items():
            self._gauge(name).set(value)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            said = f"{name.replace('_', ' ')}, the last value"
            made = self._client.Gauge(f"dragoman_{name}", said, registry=self._registry)
            self._gauges[name] = made
        return self._gauges[name]


def _client() -> Any:
    try:
        return import_module("prometheus_client")
    except ImportError as error:
        raise MachineError(
            "the package prometheus-client is missing",
            place="sinks.prometheus_port",
            remedy="pip install 'dragoman[prometheus]', or set it to 0",
        ) from error
