"""Events for TensorBoard and other tools: Prometheus, MLflow, Weights & Biases.

Only TensorBoard is always on, and only its failure stops a run. Each other tool uses its own client
library and is off unless the recipe's `sinks` section names it.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, get_args

from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import MachineError
from dragoman.telemetry.config import SinksConfig
from dragoman.telemetry.events import (
    Alert,
    DirectionScored,
    Event,
    EventListener,
    EventWriter,
    GpuSampled,
    HostSampled,
    MetricScored,
    NetworkSampled,
    RunFinished,
    RunStarted,
    SampleTranslation,
    TestScored,
    TrainInterval,
    Validated,
)
from dragoman.telemetry.timers import Phase

_TENSORBOARD_FORMAT = "brain.Event:2"
_num_files = itertools.count()
_TAKEN = {
    TrainInterval.kind: ("train_loss", "learning_rate", "gradient_norm", "padding_share"),
    Validated.kind: ("dev_loss", "train_slice_loss", "bleu", "chrf"),
    TestScored.kind: ("bleu", "chrf"),
    DirectionScored.kind: ("loss", "bleu", "chrf"),
    HostSampled.kind: ("cpu_share", "memory_used_bytes", "queued_batches"),
    GpuSampled.kind: ("utilisation_share", "power_w", "memory_bytes"),
}
_OF = {
    TestScored.kind: "{name}_",
    DirectionScored.kind: "{text}_{source}_{target}_",
    GpuSampled.kind: "gpu_{gpu}_",
}
"""Prefixes of the names of values that several texts, directions or GPUs have."""
_TENSORBOARD_NAMES = {
    TrainInterval.kind: {
        "train_loss": "train_loss",
        "learning_rate": "learning_rate",
        "gradient_norm": "global_gradient_norm",
        "padding_share": "padding_share",
        "steps_per_s": "global_step_per_s",
        "tokens_per_s": "tokens_per_s",
    },
    Validated.kind: {"dev_loss": "eval_loss", "bleu": "eval_bleu"},
}

_LOOPBACK: Final = "127.0.0.1"
_COUNTED: Final = {
    "steps": "updates made by this process",
    "pairs": "sentence pairs trained on by this process",
    "source_tokens": "source tokens trained on by this process",
    "target_tokens": "target tokens trained on by this process",
    "sync_bytes": "bytes that rank 0 sent for gradients",
}
_EXPERIMENT = "dragoman"
_MOST_WAITING = 200
_LAST_S = 10.0
_ENDED_WELL = ("max_steps", "early_stop")


def scalars(event: Event) -> dict[str, float]:
    """Name -> value of the measurements in one event; empty for kinds without any."""
    seen = event.payload
    found = {name: seen.get(name) for name in _TAKEN.get(event.kind, ())}
    if event.kind == NetworkSampled.kind and seen["seconds_s"]:
        for way in ("sent", "received"):
            found[f"{way}_bytes_per_s"] = seen[f"{way}_bytes"] / seen["seconds_s"]
    elif event.kind == TrainInterval.kind and (interval_s := seen["interval_s"]):
        found |= {f"{name}_share": seen[f"{name}_s"] / interval_s for name in get_args(Phase)}
        found["tokens_per_s"] = (seen["source_tokens"] + seen["target_tokens"]) / interval_s
        found["step_s"] = interval_s / seen["steps"]
    elif event.kind == MetricScored.kind:
        text = "" if seen["text"] == "valid" else f"{seen['text']}_"
        found[re.sub(r"\W", "_", f"{text}{seen['metric']}")] = seen["value"]
    of = re.sub(r"\W", "_", _OF.get(event.kind, "").format(**seen))
    return {f"{of}{name}": float(value) for name, value in found.items() if value is not None}


class TensorBoardSink(EventListener):
    """Writes the scalars that TensorBoard shows, and sample translations as text.

    After a resume TensorBoard hides the values of the interrupted process for the same steps.
    Raises MachineError if the disk is full. No thread writes, because it could only print a
    traceback of that error.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # TensorBoard reads files whose names begin so; the other parts separate the processes.
        parts = (int(time.time()), socket.gethostname(), os.getpid(), next(_num_files))
        name = ".".join(["events.out.tfevents", *map(str, parts)])
        with disk_errors_named(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = (directory / name).open("xb")
        self._writer = RecordWriter(self._file)
        self._write(TensorBoardEvent(wall_time=time.time(), file_version=_TENSORBOARD_FORMAT))
        self._sample: tuple[int | None, int] = (None, 0)

    def __call__(self, event: Event) -> None:
        """Write the values of one event that TensorBoard shows."""
        if event.kind == RunStarted.kind:
            if (resumed := event.payload["resumed_from_step"]) is not None:
                log = SessionLog(status=SessionLog.START)
                self._add(event, step=resumed + 1, session_log=log)
        elif event.kind == SampleTranslation.kind:
            self._text(event)
        elif found := _tensorboard_scalars(event):
            values = [Summary.Value(tag=tag, simple_value=one) for tag, one in found.items()]
            self._add(event, summary=Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # each write was flushed, so this only repeats an error
            self._file.close()

    def _text(self, event: Event) -> None:
        number = self._sample[1] + 1 if event.step == self._sample[0] else 0
        self._sample = (event.step, number)
        lines = (f"**{key}** {event.payload[key]}" for key in ("source", "hypothesis", "reference"))
        value = Summary.Value(
            tag=f"sample_translation/{number}",
            metadata=create_summary_metadata(display_name=None, description=None),
            tensor=TensorProto(
                dtype=DT_STRING,
                string_val=["\n\n".join(lines).encode()],
                tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
            ),
        )
        self._add(event, summary=Summary(value=[value]))

    def _add(self, event: Event, *, step: int | None = None, **what: object) -> None:
        at = (event.step or 0) if step is None else step
        self._write(TensorBoardEvent(wall_time=event.time, step=at, **what))

    def _write(self, event: TensorBoardEvent) -> None:
        with disk_errors_named(self._directory):
            self._writer.write(event.SerializeToString())
            self._writer.flush()


def _tensorboard_scalars(event: Event) -> dict[str, float]:
    """The values that TensorBoard shows, by tag. Tags stay the same, so runs share their plots."""
    seen = event.payload
    if event.kind == DirectionScored.kind and seen["text"] == "valid":
        return scalars(event)
    if event.kind == MetricScored.kind and event.payload["text"] == "valid":
        return {f"eval_{event.payload['metric']}": event.payload["value"]}
    found = scalars(event)
    if event.kind == TrainInterval.kind and found.get("step_s"):
        found["steps_per_s"] = event.payload["steps"] / event.payload["interval_s"]
    names = _TENSORBOARD_NAMES.get(event.kind, {})
    return {tag: found[name] for name, tag in names.items() if name in found}


def subscribe_sinks(events: EventWriter, config: SinksConfig, *, directory: Path) -> None:
    """Send the events written from now on to every tool that the config names.

    directory: the run's directory, for a library that keeps files of its own. Raises MachineError
    if a tool's library is missing or cannot begin.
    """
    sinks: dict[str, EventListener] = {}
    if config.prometheus_port:
        sinks["prometheus_port"] = PrometheusSink(config.prometheus_port)
    if config.mlflow:
        sinks["mlflow"] = MlflowSink(config.mlflow)
    if config.wandb:
        sinks["wandb"] = WandbSink(config.wandb, directory)
    for name, sink in sinks.items():
        failsafe = FailsafeSink(name, sink, events)
        # The library of MLflow waits for its server, for minutes if the server does not answer.
        events.subscribe(ThreadedSink(name, failsafe, events) if name == "mlflow" else failsafe)


def _library(module: str, *, key: str, off: str = "nothing") -> Any:
    """A client library; MachineError if it is not installed. off: the value of `key` without it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(
            f"the package {module.replace('_', '-')} is missing",
            place=f"sinks.{key}",
            remedy=f"pip install 'dragoman[{key.removesuffix('_port')}]', or set it to {off}",
        ) from error


class FailsafeSink(EventListener):
    """A sink that is switched off, with an alert, when it fails."""

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
        """Close the sink; if it then fails, only the sink loses data."""
        sink, self._sink = self._sink, None
        if sink is not None:
            with suppress(Exception):
                sink.close()


class ThreadedSink(EventListener):
    """Calls a sink in a thread of its own, so that the run never waits for it.

    While `_MOST_WAITING` events wait, further ones are dropped, with one alert.
    """

    def __init__(self, name: str, sink: EventListener, events: EventWriter) -> None:
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
        elif not self._told:
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
                sink(event)
            sink.close()


class PrometheusSink(EventListener):
    """Gauges `dragoman_<name>` of the last values, and counters of amounts used.

    They are served on the loopback interface of rank 0's host for as long as the run lasts.
    """

    def __init__(self, port: int) -> None:
        self._client = _library("prometheus_client", key="prometheus_port", off="0")
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
        """Read one event."""
        if event.kind == RunStarted.kind:
            names = ("run_name", "recipe_digest", "device", "precision")
            self._run.info({name: str(event.payload[name]) for name in names})
        if event.step is not None:
            self._step.set(event.step)
        if event.kind == TrainInterval.kind:
            for name, counter in self._counters.items():
                counter.inc(event.payload[name])
        for name, value in scalars(event).items():
            if name not in self._gauges:
                meaning = f"{name.replace('_', ' ')}, the last value"
                self._gauges[name] = self._client.Gauge(
                    f"dragoman_{name}", meaning, registry=self._registry
                )
            self._gauges[name].set(value)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MlflowSink(EventListener):
    """One MLflow run each time a run starts: parameters, and metrics by step.

    store: a tracking store such as "sqlite:///mlflow.db", or a server's address.
    """

    def __init__(self, store: str) -> None:
        library = _library("mlflow", key="mlflow")
        self._metric = import_module("mlflow.entities").Metric
        try:
            self._client = library.MlflowClient(tracking_uri=store)
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


class WandbSink(EventListener):
    """One W&B run each time a run starts, its history by our own step.

    directory: where the library keeps its files. WANDB_MODE=offline sends nothing anywhere.
    """

    def __init__(self, project: str, directory: Path) -> None:
        self._library = _library("wandb", key="wandb")
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
