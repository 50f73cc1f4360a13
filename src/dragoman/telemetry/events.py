"""Events, each written once: one flat JSON object per line, one file for each rank.

Envelope: v (schema version), kind, time (UTC seconds since 1970), mono_s (monotonic clock of the
writer), host, rank, step. The rest is the payload of the kind, flat, with units in its names.
A new kind of event is one class here; readers ignore kinds and keys they do not know.

Sampled values are means over the last `seconds_s`, and amounts are totals; shares are fractions of
1. None: not measured, or not known to this machine.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Final, Self, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dragoman.base.errors import MachineError
from dragoman.base.files import open_regular, open_to_append

SCHEMA_VERSION = 1
OUTSIDE_STEPS: Final = ("validating", "saving", "measuring")
"""Phases between steps in which a rank can pause."""
STRAGGLES: Final = 1.25
"""If a rank's own work takes more than this multiple of the median rank's, others wait for it."""
POWER_CAP: Final = "power_cap"
"""A reason for a lowered clock that is not a fault: the GPU draws all the power it may."""
_LARGEST: Final = 1e11
"""Larger than any clock's seconds and any run's steps."""
LONGEST_LINE_BYTES: Final = 4 << 20
"""dragoman writes no line that is longer."""
_LARGEST_READ: Final = 1e21
"""Larger than any count of bytes, tokens or FLOP/s; a larger value counts as not measured."""
KINDS: dict[str, type[Payload]] = {}
_FIELDS: dict[type[Any], list[tuple[str, str, bool]]] = {}
T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Payload:
    """The values of one kind of event, a frozen dataclass that is made with keywords.

    Values are str, int, float, bool or None (not measured).
    """

    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, *, kind: str = "") -> None:
        """Make the class a dataclass, and register its kind; "" for one that extends a kind."""
        dataclass(frozen=True, kw_only=True)(cls)
        if kind:
            cls.kind = kind
            KINDS[kind] = cls


class RunStarted(Payload, kind="run_started"):
    """A worker began to train. On resume, resumed_from_step is the checkpoint's step.

    best_dev_loss, best_bleu: the best so far, and their steps; None if there is none, and in older
        events.
    price_per_hour: the price of all machines that take part, in `currency`; None if unknown.
    """

    run_name: str
    recipe_digest: str
    world_size: int
    device: str
    precision: str
    num_parameters: int
    max_steps: int
    train_pairs: int
    resumed_from_step: int | None
    best_dev_loss: float | None = None
    best_dev_loss_step: int | None = None
    best_bleu: float | None = None
    best_bleu_step: int | None = None
    price_per_hour: float | None = None
    currency: str | None = None


class Environment(Payload, kind="environment"):
    """Versions, git state and hardware of one worker."""

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
    """A worker left the training loop. reason: max_steps, early_stop, signal or diverged."""

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


class CorpusDropped(Payload, kind="corpus_dropped"):
    """Pairs that one filter dropped from one split.

    This kind is for programs of users that follow a preparation: dragoman itself takes these counts
    from the manifest.
    """

    split: str
    reason: str
    pairs: int


class CorpusPrepared(Payload, kind="corpus_prepared"):
    """The corpus is ready; seconds_s is the time that this process took."""

    digest: str
    train_pairs: int
    seconds_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """How the time of some steps of one rank divides into phases; fields as in TrainInterval."""

    steps: int
    interval_s: float
    step_median_s: float
    step_p95_s: float
    compute_median_s: float
    data_wait_s: float
    forward_s: float
    backward_s: float
    sync_s: float
    optimizer_s: float


PHASE_FIELDS: Final = ("data_wait_s", "forward_s", "backward_s", "sync_s", "optimizer_s")
"""The fields of phases, which do not overlap."""


class TrainInterval(PhaseTimes, Payload, kind="train_interval"):
    """The updates since the last event of this kind, seen by one rank.

    Losses are nats per target token over the global batches. Pairs and tokens are those of the
    global batches; phase times and sync_bytes are those of this rank. All are totals.
    interval_s: the sum of the step times, without validations and checkpoints between them.
    train_loss: with label smoothing. train_nll: without label smoothing.
    compute_median_s: the median over the steps of forward, backward and optimizer together.
    gradient_signal: estimated square of the norm of the true gradient, a mean over the updates in
        which it was measured; None if an update has neither micro-batches nor ranks to compare.
    gradient_noise: estimated square of the norm of the noise of one target token, a mean as well;
        None if gradient_signal is.
    """

    epoch: int
    train_loss: float
    train_nll: float
    learning_rate: float
    gradient_norm: float
    pairs: int
    source_tokens: int
    target_tokens: int
    padding_share: float
    sync_bytes: int
    skipped_steps: int
    loss_scale: float | None
    peak_memory_bytes: int
    gradient_signal: float | None = None
    gradient_noise: float | None = None


class Validated(Payload, kind="validated"):
    """One validation. Losses are nats per target token without smoothing, dropout off.

    decoded_pairs: how many were scored: all, or only those of directions with training text.
    """

    dev_loss: float
    dev_perplexity: float
    train_slice_loss: float | None
    bleu: float | None
    bleu_low: float | None
    bleu_high: float | None
    bleu_signature: str | None
    chrf: float | None
    chrf_low: float | None
    chrf_high: float | None
    chrf_signature: str | None
    dev_pairs: int
    decoded_pairs: int
    loss_s: float
    decode_s: float


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
    bleu: float
    bleu_low: float | None
    bleu_high: float | None
    bleu_signature: str
    chrf: float
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
    value: float
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
    loss: float | None
    bleu: float | None
    bleu_low: float | None
    bleu_high: float | None
    bleu_signature: str | None
    chrf: float | None
    chrf_low: float | None
    chrf_high: float | None
    chrf_signature: str | None


class Compared(Payload, kind="compared"):
    """`dragoman compare` compared a model of this run with another, by one metric.

    name: the name of the test set: "test" for that of the runs, else its files, and the language if
    a model translates into several. Older events have the stem of a file's name.
    model: the model of this run, as it was named. other: the absolute path of the other model;
        older events have it as it was named.
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
    ahead: int | None = None
    behind: int | None = None


class ComparedGroup(Payload, kind="compared_group"):
    """Scores of both models of a comparison on a part of the test set.

    by: "length" (BLEU of sentences, by the words of the reference) or "frequency" (F1 of words, by
    their occurrences in the training text). group: such as "10 to 19". size: number of sentences or
    words.
    counted_pairs: pairs at equal distances in the training text, whose words were counted.
    """

    name: str
    other: str
    by: str
    group: str
    size: int
    value: float
    other_value: float
    counted_pairs: int | None = None


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


class ComparedSentence(Payload, kind="compared_sentence"):
    """A sentence in which one model of a comparison is furthest ahead; chrF is 0 to 100."""

    name: str
    other: str
    line: int
    source: str
    reference: str
    translation: str
    other_translation: str
    chrf: float
    other_chrf: float


class CheckpointWritten(Payload, kind="checkpoint_written"):
    """A checkpoint is complete on disk."""

    path: str
    reason: str
    size_bytes: int
    seconds_s: float


class Alert(Payload, kind="alert"):
    """Something a person should know now; severity is info, warning or error."""

    severity: str
    cause: str
    remedy: str


class RankPaused(Payload, kind="rank_paused"):
    """A rank stood still for a while.

    began: UTC seconds since 1970 by the clock of the writer.
    during: its phase in a step ("sync": an all-reduce), or "validating", "saving" or "measuring"
        between steps. If another rank wrote this, `during` is the last known phase.
    own: whether the rank itself wrote this, by its own clock; otherwise a rank that waited for it
    did.
    """

    paused_rank: int
    paused_host: str
    began: float
    seconds_s: float
    during: str
    own: bool


class StrategyChosen(Payload, kind="strategy_chosen"):
    """The strategy that `auto` chose from measurements made just before.

    label: the strategy with its numbers. compute_s: the time of a step without network, on the
    slowest rank. link_bytes_per_s: the rate of training's all-reduces through each host's
    interface, each way. link_latency_s: the time that one message of an all-reduce takes.
    planned_wire_bytes: bytes of a step through each host's interface, each way, by the plan.
    """

    strategy: str
    label: str
    why: str
    compute_s: float
    link_bytes_per_s: float
    link_latency_s: float
    planned_step_s: float
    planned_run_s: float
    planned_wire_bytes: int


class LengthFitted(Payload, kind="length_fitted"):
    """The length of a run with a budget changed: it was slower or faster than planned.

    step_s: the time of a step now. validation_s: the time of a validation now.
    left_s: the time left for training, before the last scores and the export.
    """

    max_steps: int
    before_max_steps: int
    step_s: float
    validation_s: float
    left_s: float


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

    cpu_share: the busy part of the processors that the ranks may use, or of a container's limit.
    others_cpu_share: the part that other programs and other guests of the machine kept busy.
    queued_batches: the mean number of these.
    memory_used_bytes: of the whole host, or of the container if it has a limit.
    memory_limit_bytes: of the whole host, or the limit of the container.
    process_memory_bytes: the memory of the rank that samples.
    The disk is the one that holds the run.
    sampling_s: processor time that all sampling took.
    """

    seconds_s: float
    cpu_share: float
    others_cpu_share: float | None
    memory_used_bytes: int
    memory_limit_bytes: int
    process_memory_bytes: int
    disk_free_bytes: int
    disk_read_bytes: int | None
    disk_written_bytes: int | None
    queued_batches: float | None
    sampling_s: float


class GpuSampled(Payload, kind="gpu_sampled"):
    """One GPU, as its driver reports it.

    utilisation_share: the share of the time in which any kernel ran, even one that only waits.
    sm_activity_share: the busy share of its multiprocessors; only Hopper and later count it.
    throttle_reasons: comma-separated, all that were seen, "" if the clock was free.
    throttled_share: the share of the seconds in which something other than the power limit lowered
        the clock.
    ecc_errors: uncorrected memory errors since the driver was loaded.
    """

    gpu: int
    name: str
    seconds_s: float
    utilisation_share: float | None
    sm_activity_share: float | None
    power_w: float | None
    power_limit_w: float | None
    memory_bytes: int
    memory_limit_bytes: int
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
    """An event as it was read: the envelope and the payload.

    v: version of the schema.
    kind: the kind of event, such as "train_interval".
    time: UTC, seconds since 1970.
    mono_s: the writer's monotonic clock.
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


_Moment = Annotated[float, Field(ge=0, lt=_LARGEST)]


class _EventLine(BaseModel):
    """The envelope of an event; the payload may be anything."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    v: int
    kind: str
    time: _Moment
    mono_s: _Moment
    host: str
    rank: int
    step: Annotated[int, Field(ge=0, lt=_LARGEST)] | None = None


def event_file(directory: Path, *, rank: int) -> Path:
    """The file of one rank."""
    return directory / f"rank-{rank:04d}.jsonl"


def event_files(directory: Path) -> list[Path]:
    """The files that exist, by rank."""
    return sorted(directory.glob("rank-*.jsonl"))


class EventWriter:
    """Appends events to `<directory>/rank-NNNN.jsonl`, a line at a time, and to listeners.

    A line is handed to the operating system whole, so a kill tears at most the last one. A torn
    line of an earlier process is closed first, so that only that line is lost. Threads may write at
    the same time; listeners are called one after the other. Raises MachineError if the file cannot
    be opened.
    """

    def __init__(self, directory: Path, *, rank: int = 0) -> None:
        self.path = event_file(directory, rank=rank)
        self._rank = rank
        self._host = socket.gethostname()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = open_to_append(self.path)
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        self._listeners: list[EventListener] = []
        self._lock = threading.RLock()
        if _is_torn(self.path):
            self._append(b"\n")

    def subscribe(self, listener: EventListener) -> None:
        """Call listener(event) after each event that is written from now on."""
        self._listeners.append(listener)

    def write(self, payload: Payload, *, step: int | None = None) -> Event:
        """Append one event and return it. Numbers that JSON cannot express are written as null.

        Raises MachineError if the line does not fit on the disk, or if the file was moved or
        removed: otherwise the run would write into a directory that cannot be found any more.
        """
        values = as_values(payload)
        event = Event(
            v=SCHEMA_VERSION,
            kind=payload.kind,
            time=round(time.time(), 3),
            mono_s=round(time.monotonic(), 4),
            host=self._host,
            rank=self._rank,
            step=step,
            payload=values,
        )
        with self._lock:
            self._append(as_line(event))
            for listener in self._listeners:
                listener(event)
        return event

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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

    A line that is not an event (torn by a kill, foreign) is skipped: on_damaged is called with its
    number, counted from 1. Unknown keys of the payload are kept, so that newer files can be read;
    keys that an older schema lacks are missing. Raises MachineError if the file cannot be read.
    """
    try:
        with open_regular(path) as lines:
            for number, line in enumerate(_bounded_lines(lines), start=1):
                event = None if line is None else read_line(line)
                if event is not None:
                    yield event
                elif line is None or line.strip():
                    on_damaged(number)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise MachineError(why, place=path, remedy="check the permissions of the file") from error


def _bounded_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Each line of a file; None for one of more than `LONGEST_LINE_BYTES`."""
    while line := file.readline(LONGEST_LINE_BYTES):
        whole: bytes | None = line
        while len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
            line, whole = file.readline(LONGEST_LINE_BYTES), None
        yield whole


def read_line(line: bytes) -> Event | None:
    """The event of one line; None if the line is not one."""
    try:
        seen = _EventLine.model_validate_json(line)
    except ValidationError:
        try:  # Python reads what strict JSON rejects: halves of surrogate pairs
            seen = _EventLine.model_validate(json.loads(line))
        except (ValueError, RecursionError):  # an endless row of brackets, for example
            return None
    return Event(**vars(seen), payload=seen.model_extra or {})


def is_complete(event: Event) -> bool:
    """Whether an event has all values of its kind, each of the type that its writer uses.

    Events of another machine may lack some. An unknown kind needs none.
    """
    kind, seen = KINDS.get(event.kind), event.payload
    return kind is None or all(
        name in seen
        and (
            # NaN is written as null
            annotation.startswith("float") or annotation.endswith("| None")
            if seen[name] is None
            else _typed(seen[name], annotation) is not None
        )
        for name, annotation, _ in _fields_of(kind)
    )


def from_payload(kind: type[T], payload: Mapping[str, Any]) -> T | None:
    """A dataclass from those of its fields that the payload has, each of the right type.

    A field of another type counts as missing. None if a missing field has no default and cannot be
    None. Annotations are int, float, str or bool, each perhaps `| None`.
    """
    # pydantic is faster, but rejects a whole payload for one field, which here counts as missing.
    values: dict[str, Any] = {}
    for name, annotation, has_default in _fields_of(kind):
        value = _typed(payload.get(name), annotation)
        if value is not None or (annotation.endswith("| None") and not has_default):
            values[name] = value
        elif not has_default:
            return None
    return kind(**values)


def _fields_of(kind: type[Any]) -> list[tuple[str, str, bool]]:
    """Fields of a dataclass, as (name, annotation, whether it has a default), looked up once."""
    if kind not in _FIELDS:
        _FIELDS[kind] = [(f.name, str(f.type), f.default is not MISSING) for f in fields(kind)]
    return _FIELDS[kind]


def _typed(value: object, annotation: str) -> object:
    kind = annotation.removesuffix(" | None")
    if kind == "str":
        return value if isinstance(value, str) else None
    if kind == "bool":
        return value if isinstance(value, bool) else None
    found = number(value)
    if kind == "float":
        return found
    return int(found) if kind == "int" and found is not None and found == int(found) else None


def number(value: object) -> float | None:
    """The value if it is a number that a run can have, otherwise None."""
    if not isinstance(value, float) and (isinstance(value, bool) or not isinstance(value, int)):
        return None
    return float(value) if abs(value) <= _LARGEST_READ else None


def _is_torn(path: Path) -> bool:
    """Whether the file ends in the middle of a line."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read(1) not in (b"", b"\n")


def as_values(payload: Payload) -> dict[str, Any]:
    """The payload as it is written: a number that JSON cannot express becomes None."""
    values = ((f.name, getattr(payload, f.name)) for f in fields(payload))
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values
    }
