"""Sends a run's numbers to an MLflow tracking store, through its own client library."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import Event, EventListener, RunFinished, RunStarted
from dragoman.telemetry.scalars import scalars

_EXPERIMENT = "dragoman"
_ENDED_WELL = ("max_steps", "early_stop")


class MlflowSink(EventListener):
    """One MLflow run each time a run starts: parameters, and metrics by step.

    store: a tracking store such as "sqlite:///mlflow.db", or a server's address.
    """

    def __init__(self, store: str) -> None:
        client, self._metric = _library()
        try:
            self._client = client(tracking_uri=store)
            found = self._client.get_experiment_by_name(_EXPERIMENT)
            self._experiment = (
                self._client.create_experiment(_EXPERIMENT)
                if found is None
                else found.experiment_id
            )
        except Exception as error:  # each kind of store raises errors of its own
            raise MachineError(
                f"MLflow cannot use this store: {error}",
                place="sinks.mlflow",
                remedy='name one such as "sqlite:///mlflow.db", or "" for none',
            ) from error
        self._run_id: str | None = None
        self._reason = "KILLED"

    def __call__(self, event: Event) -> None:
        """Send one event."""
        if event.kind == RunStarted.kind:
            self._begin(event)
        elif event.kind == RunFinished.kind:
            self._reason = "FINISHED" if event.payload["reason"] in _ENDED_WELL else "FAILED"
        if self._run_id is not None:
            moment, step = int(event.time * 1000), event.step or 0
            metrics = [
                self._metric(name, value, moment, step) for name, value in scalars(event).items()
            ]
            if metrics:
                self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        """Say how the run ended."""
        if self._run_id is not None:
            self._client.set_terminated(self._run_id, status=self._reason)

    def _begin(self, event: Event) -> None:
        name = event.payload["run_name"]
        self._run_id = self._client.create_run(self._experiment, run_name=name).info.run_id
        for key, value in event.payload.items():
            self._client.log_param(self._run_id, key, value)


def _library() -> tuple[Any, Any]:
    try:
        client = import_module("mlflow").MlflowClient
        return client, import_module("mlflow.entities").Metric
    except ImportError as error:
        raise MachineError(
            "the package mlflow is missing",
            place="sinks.mlflow",
            remedy="pip install 'dragoman[mlflow]', or set it to nothing",
        ) from error
