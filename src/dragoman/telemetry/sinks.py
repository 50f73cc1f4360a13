"""Events for TensorBoard and other tools: MLflow, Weights & Biases, a function of the user's.

Only TensorBoard is always on, and only its failure stops a run. Each other tool uses its own client
library and is off unless the recipe's `sinks` section names it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import MachineError
from dragoman.telemetry.config import SinksConfig
from dragoman.telemetry.events import (
    Alert,
    Event,
    EventListener,
    Recorder,
    RunFinished,
    RunStarted,
    SampleTranslation,
    scalars,
)

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_EVERY_S = 10
_EXPERIMENT = "dragoman"
_MOST_WAITING = 200
_LAST_S = 10.0
_ENDED_WELL = ("max_steps", "early_stop")


class TensorBoardSink(EventListener):
    """Writes the values that have a tag, and sample translations as text.

    After a resume TensorBoard hides the values of the interrupted process for the same steps.
    Raises MachineError if the disk is full.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None
        self._sample: tuple[int | None, int] = (None, 0)

    def __call__(self, event: Event) -> None:
        """Write the values of one event that TensorBoard shows."""
        if event.kind == RunStarted.kind:
            self._open(event.payload["resumed_from_step"])
            return
        with disk_errors_named(self._directory):
            if event.kind == SampleTranslation.kind:
                number = self._sample[1] + 1 if event.step == self._sample[0] else 0
                self._sample = (event.step, number)
                text = "\n\n".join(f"**{key}** {text_of}" for key, text_of in event.payload.items())
                tag = f"sample_translation/{number}"
                self._opened().add_text(tag, text, event.step, event.time)
            for tag, value in scalars(event).items():
                self._opened().add_scalar(tag, value, event.step or 0, event.time)

    def close(self) -> None:
        """Write what is left."""
        with disk_errors_named(self._directory):
            if self._writer is not None:
                self._writer.close()

    def _opened(self) -> SummaryWriter:
        return self._writer or self._open(None)

    def _open(self, resumed_from_step: int | None) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter  # takes a second

        _tell_errors_of_the_writer_once()
        purged = None if resumed_from_step is None else resumed_from_step + 1
        with disk_errors_named(self._directory):
            self._writer = SummaryWriter(
                str(self._directory), purge_step=purged, flush_secs=_FLUSH_EVERY_S
            )
        return self._writer


@cache
def _tell_errors_of_the_writer_once() -> None:
    """Keep the thread in which TensorBoard writes from printing its error.

    The error is raised at the next value that is written, and is told then.
    """
    others = threading.excepthook

    def print_unless_of_writer(failed: threading.ExceptHookArgs) -> None:
        if type(failed.thread).__name__ != "_AsyncWriterThread":
            others(failed)

    threading.excepthook = print_unless_of_writer


def subscribe_sinks(events: Recorder, config: SinksConfig, *, directory: Path) -> None:
    """Send the events written from now on to every tool that the config names.

    directory: the run's directory, for a library that keeps files of its own. Raises MachineError
    if a tool's library is missing or cannot begin.
    """
    sinks: dict[str, EventListener] = {}
    if config.mlflow:
        sinks["mlflow"] = MlflowSink(config.mlflow)
    if config.wandb:
        sinks["wandb"] = WandbSink(config.wandb, directory)
    if config.hook:
        sinks["hook"] = HookSink(config.hook)
    for name, sink in sinks.items():
        # The library of MLflow waits for its server, for minutes if the server does not answer.
        events.subscribe(OutsideSink(name, sink, events))


def check_hook(config: SinksConfig) -> None:
    """Import the hook, as the training does after its text is prepared; raises MachineError."""
    if config.hook:
        HookSink(config.hook)


def _library(module: str, *, key: str) -> Any:
    """A client library; MachineError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(
            f"the package {module} is missing",
            place=f"sinks.{key}",
            remedy=f"pip install 'dragoman[{key}]', or set it to nothing",
        ) from error


class OutsideSink(EventListener):
    """Calls the sink of another tool in a thread of its own, so that the run never waits for it.

    A sink that fails is switched off with an alert. While `_MOST_WAITING` events wait, further ones
    are dropped, with one alert.
    """

    def __init__(self, name: str, sink: EventListener, events: Recorder) -> None:
        self._name = name
        self._events = events
        self._told = False
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(sink,), name=f"sinks.{name}", daemon=True
        )
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Leave the event for the thread."""
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put(event)
        elif not self._told and self._thread.is_alive():
            self._told = True
            self._warn("is not as fast as the run: events for it are dropped", event.step)

    def close(self) -> None:
        """Wait up to 10 s for the last events and the sink's own end."""
        self._waiting.put(None)
        self._thread.join(_LAST_S)
        if self._thread.is_alive():
            self._warn("has not taken all events at the end of the run")

    def _warn(self, what: str, step: int | None = None) -> None:
        alert = Alert(
            severity="warning",
            cause=f"sinks.{self._name} {what}",
            remedy="the run's own record is whole; look at that tool",
        )
        self._events.write(alert, step=step)

    def _run(self, sink: EventListener) -> None:
        # The record may be full, or closed by now: there is nowhere left to report the sink.
        with suppress(MachineError, ValueError):
            while (event := self._waiting.get()) is not None:
                try:
                    sink(event)
                except Exception as error:  # a server that is away, a bug of a library
                    self._warn(f"has failed and is off: {error}", event.step)
                    break
        with suppress(Exception):
            sink.close()


class HookSink(EventListener):
    """Calls a function of the user's with each event. name: as "module:function"."""

    def __init__(self, name: str) -> None:
        module, _, function = name.partition(":")
        try:
            self._call = getattr(import_module(module), function)
            if not callable(self._call):
                raise TypeError("it cannot be called")
        except Exception as error:  # the module is the user's, and may raise anything
            raise MachineError(
                f"there is no such function: {error}",
                place=f"sinks.hook {name}",
                remedy="write module:function, and put the folder of the module into PYTHONPATH",
            ) from error

    def __call__(self, event: Event) -> None:
        """Give the function one event."""
        self._call(event)


class MlflowSink(EventListener):
    """One MLflow run each time a run starts: parameters, and metrics by step.

    store: a tracking store such as "sqlite:///mlflow.db", or a server's address.
    """

    def __init__(self, store: str) -> None:
        library = _library("mlflow", key="mlflow")
        self._metric = import_module("mlflow.entities").Metric
        try:
            self._client = library.MlflowClient(tracking_uri=store)
            experiment = self._client.get_experiment_by_name(_EXPERIMENT)
            self._experiment = (
                self._client.create_experiment(_EXPERIMENT)
                if experiment is None
                else experiment.experiment_id
            )
        except Exception as error:  # each kind of store raises errors of its own
            raise MachineError(
                f"MLflow cannot use this store: {error}",
                place="sinks.mlflow",
                remedy='name one such as "sqlite:///mlflow.db", or "" for none',
            ) from error
        self._run_id: str | None = None
        self._step = 0
        self._reason = "KILLED"

    def __call__(self, event: Event) -> None:
        """Send one event."""
        if event.kind == RunStarted.kind:
            self._begin(event)
        elif event.kind == RunFinished.kind:
            self._reason = "FINISHED" if event.payload["reason"] in _ENDED_WELL else "FAILED"
        # A sample of the host is of no step of its own: it belongs to the last one.
        self._step = self._step if event.step is None else event.step
        if self._run_id is not None:
            moment = int(event.time * 1000)
            metrics = [
                self._metric(name, value, moment, self._step)
                for name, value in scalars(event).items()
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


class WandbSink(EventListener):
    """One W&B run each time a run starts, its history by our own step.

    directory: where the library keeps its files. WANDB_MODE=offline sends nothing anywhere.
    """

    def __init__(self, project: str, directory: Path) -> None:
        self._library = _library("wandb", key="wandb")
        self._project = project
        self._directory = directory
        self._run: Any = None
        self._step = 0

    def __call__(self, event: Event) -> None:
        """Send one event."""
        if event.kind == RunStarted.kind:
            self._begin(event)
        self._step = self._step if event.step is None else event.step
        measured = scalars(event)
        if self._run is not None and measured:
            self._run.log(measured | {"step": self._step})

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
