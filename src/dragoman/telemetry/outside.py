"""Tools beside ours that a recipe's sinks section names; one that fails never stops a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dragoman.telemetry.config import SinksConfig
from dragoman.telemetry.events import Alert, Event, EventListener, EventWriter
from dragoman.telemetry.mlflow_sink import MlflowSink
from dragoman.telemetry.prometheus_sink import PrometheusSink
from dragoman.telemetry.wandb_sink import WandbSink


def subscribe_sinks(events: EventWriter, config: SinksConfig, *, directory: Path) -> None:
    """Send what is written from now on to every tool that the config names.

    directory: of the run, for a library that keeps files of its own.
    Raises MachineError where a tool's library is missing or cannot begin.
    """
    for name, sink in _sinks(config, directory):
        events.subscribe(Guarded(name, sink, events))


def _sinks(config: SinksConfig, directory: Path) -> Iterator[tuple[str, EventListener]]:
    if config.prometheus_port:
        yield "prometheus_port", PrometheusSink(config.prometheus_port)
    if config.mlflow:
        yield "mlflow", MlflowSink(config.mlflow)
    if config.wandb:
        yield "wandb", WandbSink(config.wandb, directory)


class Guarded(EventListener):
    """A sink that is given up, with an alert, when it fails."""

    def __init__(self, name: str, sink: EventListener, events: EventWriter) -> None:
        self._name = name
        self._sink: EventListener | None = sink
        self._events = events

    def __call__(self, event: Event) -> None:
        """Pass the event on."""
        if self._sink is None:
            return
        try:
            self._sink(event)
        except Exception as error:  # a server that is away, a full disk, a bug of a library
            self._sink = None
            self._events.write(
                Alert(
                    severity="warning",
                    cause=f"sinks.{self._name} has failed and is off: {error}",
                    remedy="the run's own record is whole; look at that tool",
                ),
                step=event.step,
            )

    def close(self) -> None:
        """Close the sink; what it then fails to send is lost to it alone."""
        sink, self._sink = self._sink, None
        if sink is not None:
            with suppress(Exception):
                sink.close()
