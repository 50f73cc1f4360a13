"""Events, each written once: one flat JSON object per line, one file for a run.

Envelope: v (schema version), kind, time (UTC seconds since 1970, by the clock of rank 0), mono_s
(the steady clock of the writer's machine), host, rank, step. The rest is the payload of the kind,
flat, with units in its names. A new kind of event is one class here; readers ignore kinds that they
do not know. A new field needs a default, or older lines count as damaged.

Sampled values are means over the last `seconds_s`, and amounts are totals; shares are fractions of
1. None: not measured, or not known to this machine. A field that TensorBoard, MLflow and Weights &
Biases show has a `Tag`; those of rates and of scores by name are made in `scalars`.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from dragoman.base.errors import CheckpointError, MachineError

SCHEMA_VERSION: Final = 2
LOG: Final = "log.jsonl"
"""The file of events in the directory of a run's events, or of a preparation's."""
OUTSIDE_STEPS: Final = ("validating", "saving", "measuring")
"""Phases between steps in which a rank can pause."""
PASSING_SHARE: Final = 0.9
"""A model stands a subject of an exam if it translates so large a share of its texts right."""
STRAGGLER_RATIO: Final = 1.25
"""If a rank's own work takes more than this multiple of the median rank's, others wait for it. The
alert counts its wait for data as work (`training.guard`), the report names that wait apart
(`reporting.stragglers`)."""
_STEADY_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On macOS the monotonic clock of C goes on while the machine is asleep; on Linux it does not."""
LASTS_S: Final = 5.0
"""Steps or ranks are slow when they have been for so long: what slows fast steps for a moment, as a
command that starts beside them, is no news."""
POWER_CAP: Final = "power_cap"
"""A reason for a lowered clock that is not a fault: the GPU draws all the power it may."""
KINDS: dict[str, type[Payload]] = {}


@dataclass(frozen=True, slots=True)
class Tag:
    """The name under which TensorBoard, MLflow and Weights & Biases show a field.

    It may name other fields of the event in braces: "{name}_bleu".
    """

    name: str


class Payload(BaseModel):
    """The values of one kind of event, frozen, and made with keywords.

    Values are str, int, float, bool or None (not measured), or a tuple of numbers, one for each
    rank.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)
    kind: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str = "", **_: Any) -> None:
        """Register the kind; "" for a class that extends one."""
        if kind:
            cls.kind = kind
            KINDS[kind] = cls


Real = float | None
"""A number that may come out NaN or infinite, which is written as null."""
Reals = tuple[Real, ...] | None
"""A number of each rank, in their order."""


class RunStarted(Payload, kind="run_started"):
    """Training began. On resume, resumed_from_step is the checkpoint's step.

    hosts: the machine of each rank; machines of the same name have a number.
    best_dev_loss, best_bleu: the best so far, and their steps; None if there is none.
    price_per_hour: the price of all machines that take part, in `currency`; None if unknown.
    """

    run_name: str
    world_size: int | None
    hosts: tuple[str, ...] = ()
    device: str | None = None
    recipe_digest: str = ""
    precision: str | None = None
    num_parameters: int | None = None
    max_steps: int | None = None
    train_pairs: int | None = None
    resumed_from_step: int | None = None
    best_dev_loss: float | None = None
    best_dev_loss_step: int | None = None
    best_bleu: float | None = None
    best_bleu_step: int | None = None
    price_per_hour: float | None = None
    currency: str | None = None


class Environment(Payload, kind="environment"):
    """Versions, git state and hardware of rank 0."""

    dragoman_version: str
    python_version: str
    torch_version: str
    git_commit: str | None
    git_dirty: bool | None
    os: str
    cpu_model: str
    cpu_cores: int
    threads: int
    memory_bytes: int
    gpu_name: str | None
    gpu_count: int
    gpu_memory_bytes: int | None
    cuda_version: str | None
    driver_version: str | None


class RunFinished(Payload, kind="run_finished"):
    """Training ended. reason: max_steps, early_stop, signal or diverged."""

    reason: str
    best_dev_loss: float | None
    best_dev_loss_step: int | None
    best_bleu: float | None
    best_bleu_step: int | None
    wall_s: float


class CorpusStage(Payload, kind="corpus_stage"):
    """A stage of `prepare` ended."""

    split: str
    stage: str
    pairs_in: int
    pairs_out: int
    seconds_s: float


class CorpusPrepared(Payload, kind="corpus_prepared"):
    """The corpus is ready; seconds_s is the time that this process took."""

    digest: str
    train_pairs: int
    seconds_s: float


PHASE_FIELDS: Final = ("data_wait_s", "forward_s", "backward_s", "sync_s", "optimizer_s")
"""The fields of phases, which do not overlap."""


class TrainInterval(Payload, kind="train_interval"):
    """The updates since the last event of this kind.

    Losses are nats per target token over the global batches. Pairs and tokens are those of the
    global batches. All are totals. Times, sync_bytes and peak_memory_bytes have one value for each
    rank.

    train_loss: with label smoothing.
    gradient_signal: estimated square of the norm of the true gradient, a mean over the updates in
        which it was measured; None if an update has neither micro-batches nor ranks to compare.
    gradient_noise: estimated square of the norm of the noise of one target token, a mean as well;
        None if gradient_signal is.
    interval_s: the sum of the step times, without validations and checkpoints between them.
    sync_s: waiting for other ranks and for the wire.
    wire_s: waiting for the wire alone, the same for every rank: in each step, the wait of the rank
        that came last. The rest of a rank's sync_s is how early it was.
    """

    steps: int
    train_loss: Annotated[Real, Tag("train_loss")]
    epoch: int | None = None
    learning_rate: Annotated[Real, Tag("learning_rate")] = None
    gradient_norm: Annotated[Real, Tag("global_gradient_norm")] = None
    gradient_signal: float | None = None
    gradient_noise: float | None = None
    pairs: int | None = None
    source_tokens: int | None = None
    target_tokens: int | None = None
    padding_share: Annotated[float | None, Tag("padding_share")] = None
    skipped_steps: int | None = None
    loss_scale: float | None = None
    wire_s: Real = None
    interval_s: Reals = None
    step_median_s: Reals = None
    step_p95_s: Reals = None
    data_wait_s: Reals = None
    forward_s: Reals = None
    backward_s: Reals = None
    sync_s: Reals = None
    optimizer_s: Reals = None
    sync_bytes: tuple[int | None, ...] | None = None
    peak_memory_bytes: tuple[int | None, ...] | None = None


PER_RANK: Final = tuple(
    name
    for name, about in TrainInterval.model_fields.items()
    if any(get_origin(part) is tuple for part in get_args(about.annotation))
)
"""The fields of `TrainInterval` with a value for each rank."""


class Validated(Payload, kind="validated"):
    """One validation. Losses are nats per target token without smoothing, dropout off.

    decoded_pairs: how many were scored: all, or only those of directions with training text.
    """

    dev_loss: Annotated[Real, Tag("eval_loss")] = None
    dev_perplexity: Real = None
    train_slice_loss: Annotated[Real, Tag("train_slice_loss")] = None
    bleu: Annotated[float | None, Tag("eval_bleu")] = None
    bleu_low: float | None = None
    bleu_high: float | None = None
    bleu_signature: str | None = None
    chrf: Annotated[float | None, Tag("eval_chrf")] = None
    chrf_low: float | None = None
    chrf_high: float | None = None
    chrf_signature: str | None = None
    dev_pairs: int | None = None
    decoded_pairs: int | None = None
    loss_s: float | None = None
    decode_s: float | None = None


class SampleTranslation(Payload, kind="sample_translation"):
    """One dev sentence, the model's translation and the reference."""

    source: str
    hypothesis: str
    reference: str


class TestScored(Payload, kind="test_scored"):
    """A test set was decoded and scored, at the end of a run or later.

    weights: SHA-256 of the list of the checkpoint's files.
    settings: values that replaced the recipe's, as SECTION.KEY=VALUE, separated by spaces.
    pairs: how many were scored: all, or only those of directions with training text.
    checkpoint: as it was named. source: the path of the sources; None for the run's own test set.
    target: the target language, if the model has several and the test set is in one of them.
    """

    name: str
    weights: str
    settings: str
    bleu: Annotated[float, Tag("{name}_bleu")]
    bleu_low: float | None
    bleu_high: float | None
    bleu_signature: str
    chrf: Annotated[float, Tag("{name}_chrf")]
    chrf_low: float | None
    chrf_high: float | None
    chrf_signature: str
    pairs: int
    decode_s: float
    checkpoint: str = "best"
    source: str | None = None
    target: str | None = None


class MetricScored(Payload, kind="metric_scored"):
    """The score that a further metric gives to the translations that were just scored.

    text: "valid", or the name of the test set.
    low: the lower end of its 95% interval, or None. high: the upper end, or None.
    """

    text: str
    metric: str
    value: Real
    low: float | None
    high: float | None
    signature: str


class DirectionScored(Payload, kind="direction_scored"):
    """One direction of the last score, if there are several; that score is their mean.

    text: "valid", or the name of the test set. zero_shot: whether it has no training text, and so
    is not in the mean. loss: as in Validated; None for a test set.
    """

    text: str
    source: str
    target: str
    zero_shot: bool
    pairs: int
    loss: Annotated[Real, Tag("{text}_{source}_{target}_loss")]
    bleu: Annotated[float | None, Tag("{text}_{source}_{target}_bleu")]
    bleu_low: float | None
    bleu_high: float | None
    bleu_signature: str | None
    chrf: Annotated[float | None, Tag("{text}_{source}_{target}_chrf")]
    chrf_low: float | None
    chrf_high: float | None
    chrf_signature: str | None


class ExamMarked(Payload, kind="exam_marked"):
    """`dragoman exam` counted how often a model of this run stands one kind of text.

    name: the test set whose sentences were changed. model: as it was named. texts, held: changed
    sentences, and those whose translation is still right. cure: the key of a recipe that teaches
    it; "" if there is none.
    """

    name: str
    model: str
    subject: str
    texts: int
    held: int
    cure: str


class Compared(Payload, kind="compared"):
    """`dragoman compare` compared a model of this run with another, by one metric.

    name: the name of the test set: "test" for that of the runs, else its files, and the language if
    a model translates into several.
    model: the model of this run, as it was named. other: the absolute path of the other model.
    value: the score of the model of this run. other_value: the score of the other model.
    metric: "bleu", "chrf" or "comet".
    p_bootstrap: the probability of such a difference by chance, by paired bootstrap.
    p_randomisation: the same probability, by approximate randomisation.
    better: "run", "other" or "neither", by all metrics and tests.
    ahead: sentences in which the model of this run has the higher chrF.
    behind: sentences in which the model of this run has the lower chrF.
    """

    name: str
    pairs: int
    model: str
    other: str
    metric: str
    value: float
    other_value: float
    p_bootstrap: float
    p_randomisation: float
    signature: str
    better: str
    ahead: int
    behind: int


class StudentMeasured(Payload, kind="student_measured"):
    """`dragoman distill` trained this run on a teacher's translations, and measured both exports.

    teacher: the absolute path of its run. pairs: the translations that the student learnt from.
    size_bytes, beam_size, sentences_per_s: of the student's export; others: of the teacher's.
    """

    teacher: str
    pairs: int
    size_bytes: int
    teacher_size_bytes: int
    beam_size: int
    teacher_beam_size: int
    sentences_per_s: float
    teacher_sentences_per_s: float


class CheckpointWritten(Payload, kind="checkpoint_written"):
    """A checkpoint is complete on disk."""

    path: str
    reason: str
    size_bytes: int
    seconds_s: float


class Alert(Payload, kind="alert"):
    """Something a person should know now; severity is info, warning or error.

    about: a state that it tells of; a later alert about the same one replaces it. "": it stands for
    itself.
    """

    severity: str
    cause: str
    remedy: str
    about: str = ""


class RankPaused(Payload, kind="rank_paused"):
    """A rank stood still for a while, up to now.

    during: its phase in a step ("sync": an all-reduce), or "validating", "saving" or "measuring"
        between steps. If another rank wrote this, `during` is the last known phase.
    own: whether the rank itself wrote this, by its own clock; otherwise a rank that waited for it
    did.
    """

    paused_rank: int
    seconds_s: float
    during: str
    own: bool


class StrategyChosen(Payload, kind="strategy_chosen"):
    """The strategy that `auto` chose from measurements made just before.

    label: the strategy with its numbers. compute_s: the time of a step without network, on the
    slowest rank. link_bytes_per_s: the rate of training's all-reduces through each host's
    interface, each way.
    """

    strategy: str
    label: str
    why: str
    compute_s: float
    link_bytes_per_s: float
    planned_step_s: float
    planned_run_s: float


class ClockRead(Payload, kind="clock_read"):
    """How far a run with a budget is, by the clock of rank 0; written with each interval.

    progress: the share of the time for training that had gone at the last update of the interval,
        whose learning rate follows from it.
    left_s: the time left for training, before the last scores and the export.
    """

    progress: float
    left_s: float


class EndForecast(Payload, kind="end_forecast"):
    """The dev loss at the end of a run with a budget, from that of the validations so far.

    low, high: an interval that should hold it.
    """

    expected: float
    low: float
    high: float


class MixturePlanned(Payload, kind="mixture_planned"):
    """The share of one entry of text in a stage of training.

    share: the share of the pairs in an epoch that come from this entry.
    draws_per_pair: how often an epoch draws each of its pairs.
    """

    first_step: int
    entry: str
    pairs: int
    share: float
    draws_per_pair: float


class HostSampled(Payload, kind="host_sampled"):
    """Processor, memory and disk of a host, and the batches that its loader holds ready.

    A further value is read in `telemetry.sampler`, averaged in `reporting.sampling` into a field of
    `reporting.facts.MachineUse`, and judged by a function of `reporting.speed`.

    cpu_share: the busy part of the processors that the ranks may use, or of a container's limit.
    others_cpu_share: the part that other programs and other guests of the machine kept busy.
    queued_batches: the mean number of these.
    memory_used_bytes: of the whole host, or of the container if it has a limit.
    memory_limit_bytes: of the whole host, or the limit of the container.
    The disk is the one that holds the run.
    processor_power_w: what the packages of all processors draw together, for all programs.
    """

    seconds_s: float
    cpu_share: Annotated[float, Tag("{host}_cpu_share")]
    others_cpu_share: float | None = None
    memory_used_bytes: Annotated[int, Tag("{host}_memory_used_bytes")]
    memory_limit_bytes: int
    disk_free_bytes: int
    queued_batches: Annotated[float | None, Tag("{host}_queued_batches")] = None
    processor_power_w: Annotated[float | None, Tag("{host}_processor_power_w")] = None


class GpuSampled(Payload, kind="gpu_sampled"):
    """One GPU, as its driver reports it.

    utilisation_share: the share of the time in which any kernel ran, even one that only waits.
    sm_activity_share: the busy share of its multiprocessors; only Hopper and later count it.
    throttle_reasons: comma-separated, all that were seen, "" if the clock was free.
    throttled_share: the share of the seconds in which something other than the power limit lowered
        the clock.
    ecc_errors: uncorrected memory errors since the driver was loaded.
    None: the GPU does not report it; some share their memory with the processor.
    """

    gpu: int
    name: str
    seconds_s: float
    utilisation_share: Annotated[float | None, Tag("{host}_gpu_{gpu}_utilisation_share")]
    sm_activity_share: float | None
    power_w: Annotated[float | None, Tag("{host}_gpu_{gpu}_power_w")]
    power_limit_w: float | None
    memory_bytes: Annotated[int | None, Tag("{host}_gpu_{gpu}_memory_bytes")]
    memory_limit_bytes: int | None
    clock_hz: float | None
    throttle_reasons: str
    ecc_errors: int | None
    throttled_share: float | None = None


class NetworkSampled(Payload, kind="network_sampled"):
    """The interface that the collectives use.

    most_sent_bytes_per_s: the rate of the busiest second.
    nominal_bits_per_s: the rate that the port claims.
    """

    interface: str
    seconds_s: float
    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int
    most_sent_bytes_per_s: float | None
    errors: int
    nominal_bits_per_s: float | None
    carrier_changes: int | None


SAMPLES: Final = (HostSampled.kind, GpuSampled.kind, NetworkSampled.kind)
"""Kinds of samples of hosts, which come once a second at first."""


class LinkMeasured(Payload, kind="link_measured"):
    """The rate of a link each way, measured by all-reduces when a worker starts."""

    interface: str
    peer: str
    bytes_per_s: float
    latency_s: float | None
    method: str


class LinkChanged(Payload, kind="link_changed"):
    """The rate of the network between hosts changed: measured after steps became slower or faster.

    interface: the one that the collectives use.
    where: the slow directions, in words; "" if the network became faster.
    since_step: the first step that was slower or faster.
    since: when that step began, UTC seconds since 1970.
    """

    interface: str
    where: str
    before_bytes_per_s: float
    now_bytes_per_s: float
    since_step: int
    since: float


class DeviceMeasured(Payload, kind="device_measured"):
    """The speed of one device alone: matrix products, and a step of this run without a network."""

    device: str
    matrix_flop_per_s: float
    alone_tokens_per_s: float | None
    method: str


@dataclass(frozen=True, slots=True)
class Event:
    """An event: the envelope and the payload.

    v: version of the schema.
    kind: the kind of event, such as "train_interval".
    time: UTC, seconds since 1970.
    mono_s: the clock of the writer's machine that nobody sets, and that goes on while it is asleep.
    host: the machine that wrote it. rank: the rank that wrote it.
    step: after how many updates; None outside the training.
    payload: the fields of its kind alone, without those above.
    """

    v: int
    kind: str
    time: float
    mono_s: float
    host: str
    rank: int
    step: int | None
    payload: dict[str, Any] = field(default_factory=dict)


class _EventLine(BaseModel):
    """The envelope of an event; the payload may be anything."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    v: int
    kind: str
    time: float
    mono_s: float
    host: str
    rank: int
    step: int | None = None


def event_file(directory: Path) -> Path:
    """The file of events in a directory."""
    return directory / LOG


class Recorder:
    """Makes events of payloads; a subclass keeps them.

    host: the name of this machine in the run.
    """

    def __init__(self, *, rank: int = 0) -> None:
        self.rank = rank
        self.host = socket.gethostname()

    def write(self, payload: Payload, *, step: int | None = None) -> Event:
        """Record one event and return it. Numbers that JSON cannot express become None."""
        event = Event(
            v=SCHEMA_VERSION,
            kind=payload.kind,
            time=round(time.time(), 3),
            mono_s=round(time.clock_gettime(_STEADY_CLOCK), 4),
            host=self.host,
            rank=self.rank,
            step=step,
            payload=as_values(payload),
        )
        self.add(event)
        return event

    def add(self, event: Event) -> None:
        """Keep an event."""
        raise NotImplementedError

    def take(self) -> list[str]:
        """The lines of the events that rank 0 has yet to write."""
        return []

    def urgent(self) -> tuple[str, ...]:
        """Those of `take` that a person should see now."""
        return ()

    def relay(self, rank: int, lines: Iterable[str]) -> None:
        """Write events of another rank."""

    def subscribe(self, listener: EventListener) -> None:
        """Call listener(event) after each event that is kept from now on."""

    def close(self) -> None:
        """Release what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Outbox(Recorder):
    """The events of a rank other than 0, until rank 0 takes them at a log point.

    Threads may write at the same time.
    """

    def __init__(self, *, rank: int) -> None:
        super().__init__(rank=rank)
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        """Keep an event until it is taken."""
        with self._lock:
            self._events.append(event)

    def take(self) -> list[str]:
        """The lines of all events; they are not kept any more."""
        with self._lock:
            events, self._events = self._events, []
        return [as_line(event).decode() for event in events]

    def urgent(self) -> tuple[str, ...]:
        """The lines of alerts and pauses; they stay until they are taken."""
        with self._lock:
            return tuple(as_line(event).decode() for event in self._events if event.kind in URGENT)


URGENT: Final = (Alert.kind, RankPaused.kind)
"""Kinds that go to rank 0 with the heartbeat, not only at a log point."""


class EventWriter(Recorder):
    """Appends events to `<directory>/log.jsonl`, a line at a time, and to listeners.

    A line is handed to the operating system whole, so a kill tears at most the last one. A torn
    line of an earlier process is closed first, so that only that line is lost. Threads may write at
    the same time; listeners are called one after the other. Raises MachineError if the file cannot
    be opened.

    clock_ahead_s: how far the clock of each rank is ahead of this one's.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.path = event_file(directory)
        self.clock_ahead_s: Sequence[float] = ()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        self._listeners: list[EventListener] = []
        self._relayed: set[str] = set()
        """Urgent lines that came with the heartbeat: they come once more at the log point."""
        self._lock = threading.RLock()
        if _is_torn(self.path):
            self._append(b"\n")

    def subscribe(self, listener: EventListener) -> None:
        """Call listener(event) after each event that is written from now on."""
        self._listeners.append(listener)

    def add(self, event: Event) -> None:
        """Append one event.

        Raises MachineError if the line does not fit on the disk, or if the file was moved or
        removed: otherwise the run would write into a directory that cannot be found any more.
        """
        with self._lock:
            self._append(as_line(event))
            for listener in self._listeners:
                listener(event)

    def relay(self, rank: int, lines: Iterable[str]) -> None:
        """Write events of another rank, each once, with its time on the clock of this one."""
        ahead_s = self.clock_ahead_s[rank] if rank < len(self.clock_ahead_s) else 0.0
        for line in lines:
            event = read_line(line.encode())
            with self._lock:
                if event is None or line in self._relayed:
                    continue
                if event.kind in URGENT:
                    self._relayed.add(line)
                self.add(replace(event, time=round(event.time - ahead_s, 3)))

    def _append(self, line: bytes) -> None:
        if not self.path.exists():
            raise MachineError(
                "this file was moved or removed while it was written",
                place=self.path,
                remedy="if its directory was moved, run the command again with the new place: "
                "it goes on from the last checkpoint",
            )
        try:
            written = self._file.write(line)
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        if written != len(line):
            raise self._unwritable("only a part of the line fitted on the disk")

    def _unwritable(self, problem: str) -> MachineError:
        return MachineError(
            f"cannot write an event: {problem}",
            place=self.path,
            remedy="free disk space, or choose a place that can be written to",
        )

    def close(self) -> None:
        """Close every listener, which may still write events, and then the file."""
        try:
            for listener in self._listeners:
                listener.close()
        finally:
            self._file.close()


class EventListener:
    """The interface of a sink: it is called with each event and closed once."""

    def __call__(self, event: Event) -> None:
        """See one event."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the resources of the sink."""


def as_line(event: Event) -> bytes:
    """The event as a line of the file, including the end of the line."""
    values = {name: getattr(event, name) for name in _EventLine.model_fields}
    return json.dumps(values | event.payload, ensure_ascii=False).encode() + b"\n"


def read_events(
    path: Path, *, on_damaged: Callable[[int], None] = lambda _line: None
) -> Iterator[Event]:
    """Events of one file in the order written.

    A line that is not an event (torn by a kill) is skipped: on_damaged is called with its number,
    counted from 1. Raises MachineError if the file cannot be read, CheckpointError if another
    version of dragoman wrote it.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                event = read_line(line, place=f"{path}:{number}")
                if event is not None:
                    yield event
                elif line.strip():
                    on_damaged(number)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise MachineError(why, place=path, remedy="check the permissions of the file") from error


def read_line(line: bytes, *, place: str = LOG) -> Event | None:
    """The event of one line, with every field of its kind; None if the line is not one.

    place: the file and line, for the error. Raises CheckpointError if another version wrote it.
    """
    try:
        line_read = _EventLine.model_validate_json(line)
        if line_read.v != SCHEMA_VERSION:
            raise CheckpointError(
                f"has events of version {line_read.v}, and this dragoman reads {SCHEMA_VERSION}",
                place=place,
                remedy="read it with the version of dragoman that wrote it",
            )
        payload, kind = line_read.model_extra or {}, KINDS.get(line_read.kind)
        if kind is not None:
            payload = dict(vars(kind.model_validate(payload)))
    except ValidationError:
        return None
    return Event(**vars(line_read), payload=payload)


def _is_torn(path: Path) -> bool:
    """Whether the file ends in the middle of a line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read(1) not in (b"", b"\n")


def as_values(payload: Payload) -> dict[str, Any]:
    """The payload as it is written: a number that JSON cannot express becomes None."""
    return {name: _finite(value) for name, value in payload.model_dump().items()}


def _finite(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_finite, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def scalars(event: Event) -> dict[str, float]:
    """Tag -> value of the measurements in one event; empty for kinds without any.

    A value of each rank is not a scalar. The time of an interval is that of rank 0.
    """
    kind, values = KINDS.get(event.kind), event.payload
    tags = {} if kind is None else _tags(kind)
    names = {name: re.sub(r"\W", "_", str(value)) for name, value in values.items()}
    names["host"] = re.sub(r"\W", "_", event.host)
    measured = {tag.format(**names): values[name] for name, tag in tags.items()}
    if event.kind == TrainInterval.kind:
        measured |= _rates(values)
    elif event.kind == NetworkSampled.kind and values["seconds_s"]:
        for way in ("sent", "received"):
            rate = values[f"{way}_bytes"] / values["seconds_s"]
            measured[f"{names['host']}_{way}_bytes_per_s"] = rate
    elif event.kind == MetricScored.kind:
        text = "eval" if values["text"] == "valid" else names["text"]
        measured[f"{text}_{names['metric']}"] = values["value"]
    return {tag: float(value) for tag, value in measured.items() if value is not None}


def _tags(kind: type[Payload]) -> dict[str, str]:
    """The tag of each field that has one."""
    return {
        name: tag.name
        for name, about in kind.model_fields.items()
        for tag in about.metadata
        if isinstance(tag, Tag)
    }


def _rates(values: Mapping[str, Any]) -> dict[str, float]:
    """Steps and tokens a second, and the share of each phase of rank 0."""
    if not (interval_s := first(values["interval_s"])):
        return {}
    rates = {"global_step_per_s": values["steps"] / interval_s}
    if values["source_tokens"] is not None and values["target_tokens"] is not None:
        rates["tokens_per_s"] = (values["source_tokens"] + values["target_tokens"]) / interval_s
    for name in PHASE_FIELDS:
        if (seconds_s := first(values[name])) is not None:
            rates[f"{name.removesuffix('_s')}_share"] = seconds_s / interval_s
    return rates


def first(values: Sequence[Real] | None) -> Real:
    """The value of rank 0; None if it was not measured."""
    return values[0] if values else None
