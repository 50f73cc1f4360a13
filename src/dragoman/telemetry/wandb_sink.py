"""Sends a run's numbers to Weights & Biases, through its own client library."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import Event, EventListener, RunStarted
from dragoman.telemetry.scalars import scalars


class WandbSink(EventListener):
    """One W&B run each time a run starts, its history by our own step.

    directory: where the library keeps its files. WANDB_MODE=offline sends nothing anywhere.
    """

    def __init__(self, project: str, directory: Path) -> None:
        self._library = _library()
        self._project = project
        self._directory = directory
        self._run: Any = None

    def __call__(self, event: Event) -> None:
        """Send one event."""
        if event.kind == RunStarted.kind:
            self._begin(event)
        found = scalars(event)
        if self._run is not None and found:
            self._run.log(found | ({} if event.step is None else {"step": event.step}))

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()

    def _begin(self, event: Event) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._run = self._library.init(
                project=self._project,
                name=event.payload["run_name"],
                config=dict(event.payload),
                dir=str(self._directory),
                settings=self._library.Settings(silent=True, x_disable_stats=True),
            )
        except self._library.Error as error:
            raise MachineError(
                f"Weights & Biases does not start: {error}",
                place="sinks.wandb",
                remedy='log in, set WANDB_MODE=offline, or "" for none',
            ) from error
        self._run.define_metric("*", step_metric="step")


def _library() -> Any:
    try:
        return import_module("wandb")
    except ImportError as error:
        raise MachineError(
            "the package wandb is missing",
            place="sinks.wandb",
            remedy="pip install 'dragoman[wandb]', or set it to nothing",
        ) from error
