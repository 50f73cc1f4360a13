"""What happened, written once: one flat JSON object a line, one file a rank.

Envelope: v (schema version), kind, time (UTC seconds since 1970), mono_s (monotonic clock of the
writer), host, rank, step. The rest is the payload of the kind, flat, with units in its names.
A new kind of event is one dataclass here; readers pass over kinds and keys they do not know.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType, UnionType
from typing import Any, BinaryIO, ClassVar, Final, Self

from dragoman.base.errors import MachineError
from dragoman.base.files import open_regular, open_to_append

SCHEMA_VERSION = 1


_KINDS: dict[str, type[Payload]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What one kind of event says. Values are str, int, float, bool or None (not measured)."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Every kind is known by its name."""
        _KINDS[cls.kind] = cls


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Payload):
    """A worker began to train. On resume, resumed_from_step is the checkpoint's step."""

    kind: ClassVar[str] = "run_started"
    run_name: str
    recipe_digest: str
    world_size: int
    device: str
    precision: str
    num_parameters: int
    max_steps: int
    train_pairs: int
    resumed_from_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(Payload):
    """Versions, git state and hardware of one worker."""

    kind: ClassVar[str] = "environment"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusStage(Payload):
    """A stage of `prepare` ended."""

    kind: ClassVar[str] = "corpus_stage"
    split: str
    stage: str
    pairs_in: int
    pairs_out: int
    seconds_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusDropped(Payload):
    """Pairs that one filter dropped from one split."""

    kind: ClassVar[str] = "corpus_dropped"
    split: str
    reason: str
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPrepared(Payload):
    """The corpus is whole; seconds_s is what this process took for it."""

    kind: ClassVar[str] = "corpus_prepared"
    digest: str
    train_pairs: int
    seconds_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainInterval(Payload):
    """The updates since the last event of this kind, seen by one rank.

    train_loss is label-smoothed, train_nll is not; both are nats per target token over the global
    batches. Tokens and bytes are sums over the interval: tokens of the global batches, sync_bytes
    as counted by this rank. Times are sums over the interval, of this rank; compute_median_s is
    the median over its steps of forward, backward and optimizer together.
    """

    kind: ClassVar[str] = "train_interval"
    steps: int
    epoch: int
    train_loss: float
    train_nll: float
    learning_rate: float
    gradient_norm: float
    pairs: int
    source_tokens: int
    target_tokens: int
    padding_share: float
    interval_s: float
    step_median_s: float
    step_p95_s: float
    compute_median_s: float
    data_wait_s: float
    forward_s: float
    backward_s: float
    sync_s: float
    optimizer_s: float
    sync_bytes: int
    skipped_steps: int
    loss_scale: float | None
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Payload):
    """One validation. Losses are nats per target token without smoothing, dropout off."""

    kind: ClassVar[str] = "validated"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTranslation(Payload):
    """One dev sentence, what the model makes of it and what it should be."""

    kind: ClassVar[str] = "sample_translation"
    source: str
    hypothesis: str
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten(Payload):
    """A checkpoint is complete on disk."""

    kind: ClassVar[str] = "checkpoint_written"
    path: str
    reason: str
    size_bytes: int
    seconds_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert(Payload):
    """Something a person should know now; severity is info, warning or error."""

    kind: ClassVar[str] = "alert"
    severity: str
    cause: str
    remedy: str


OUTSIDE_STEPS: Final = ("validating", "saving", "measuring")
"""What a rank does between steps, where it pauses there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPaused(Payload):
    """A rank did not go on for a while.

    began: UTC seconds since 1970 by the clock of the writer. during: the phase of a step that it
    was in, "sync" in a sum, or one of OUTSIDE_STEPS; of another rank what it was last known to do.
    own: whether the rank tells of itself, by its own clock; else another rank that waited for it
    does.
    """

    kind: ClassVar[str] = "rank_paused"
    paused_rank: int
    paused_host: str
    began: float
    seconds_s: float
    during: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Payload):
    """A worker left the loop. reason: max_steps, early_stop, signal or diverged."""

    kind: ClassVar[str] = "run_finished"
    reason: str
    best_dev_loss: float | None
    best_dev_loss_step: int | None
    best_bleu: float | None
    best_bleu_step: int | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """An event as read back: the envelope, and the payload as it was written."""

    v: int
    kind: str
    time: float
    mono_s: float
    host: str
    rank: int
    step: int | None
    payload: dict[str, Any] = field(default_factory=dict)


_ENVELOPE: dict[str, type | UnionType] = {
    "v": int,
    "kind": str,
    "time": int | float,
    "mono_s": int | float,
    "host": str,
    "rank": int,
    "step": int | None,
}
_LARGEST = 1e11
"""No clock says more seconds, and no run has more steps."""
_LARGEST_VALUE = 1e24
"""Beyond all FLOP of a run."""
LONGEST_LINE_BYTES: Final = 4 << 20
"""A longer one is no line of ours."""


class EventWriter:
    """Appends events to `<directory>/rank-NNNN.jsonl`, a line at a time, and to listeners.

    A line is handed to the operating system whole, so a kill tears at most the last one. A torn
    line left by an earlier process is closed first, so that it costs only itself. Threads may
    write at the same time; listeners are called one after the other.
    """

    def __init__(self, directory: Path, *, rank: int = 0) -> None:
        self.path = directory / f"rank-{rank:04d}.jsonl"
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

    def write(self, payload: Payload, *, step: int | None = None) -> None:
        """Append one event. Numbers that JSON has no word for are written as null.

        Raises MachineError if the line does not fit on the disk, or if the file was moved or
        removed: what writes events would otherwise work for a directory that nobody finds.
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
        """Close the file and every listener."""
        self._file.close()
        for listener in self._listeners:
            listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class EventListener:
    """What a sink implements: it is called with each event and closed once."""

    def __call__(self, event: Event) -> None:
        """See one event."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the sink holds."""


def as_line(event: Event) -> bytes:
    """The event as its line of the file, end of line included."""
    envelope = {name: getattr(event, name) for name in _ENVELOPE}
    return json.dumps(envelope | event.payload, ensure_ascii=False).encode() + b"\n"


def read_events(
    path: Path, *, on_damaged: Callable[[int], None] = lambda _line: None
) -> Iterator[Event]:
    """Events of one file in the order written.

    A line that is no event (torn by a kill, foreign) is passed over: on_damaged is called with
    its number, counted from 1. Keys of the payload that are not known here are kept, so that
    newer files can be read; keys that an older schema lacks are simply not there. Raises
    MachineError where the file cannot be read.
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
        raise MachineError(why, place=path, remedy="look at who may read it") from error


def _bounded_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Each line of a file; None for one of more than `LONGEST_LINE_BYTES`."""
    while line := file.readline(LONGEST_LINE_BYTES):
        whole: bytes | None = line
        while len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
            line, whole = file.readline(LONGEST_LINE_BYTES), None
        yield whole


def read_line(line: bytes) -> Event | None:
    """The event of one line; None where the line is none."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):  # also an endless row of brackets
        return None
    if not isinstance(values, dict):
        return None
    envelope = {name: values.pop(name, None) for name in _ENVELOPE}
    for name, kind in _ENVELOPE.items():
        if isinstance(envelope[name], bool) or not isinstance(envelope[name], kind):
            return None
    if not all(0 <= (envelope[name] or 0) < _LARGEST for name in ("time", "mono_s", "step")):
        return None
    return Event(**envelope, payload=values)


def is_complete(event: Event) -> bool:
    """Whether an event has all that its kind says, each of the right type, as its writer makes it.

    What another machine sends need not be so. A kind that is not known here asks for nothing.
    """
    kind = _KINDS.get(event.kind)
    wanted = fields(kind) if kind is not None else ()
    return all(
        one.name in event.payload and _fits(event.payload[one.name], str(one.type))
        for one in wanted
    )


def _fits(value: object, annotation: str) -> bool:
    """Annotations are str, int, float or bool, each perhaps `| None`. NaN is written as null."""
    kind = annotation.removesuffix(" | None")
    if value is None:
        return kind == "float" or kind != annotation
    if isinstance(value, bool) or kind == "bool":
        return isinstance(value, bool) and kind == "bool"
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST_VALUE and (kind == "float" or kind == type(value).__name__)
    return isinstance(value, str) and kind == "str"


def _is_torn(path: Path) -> bool:
    """Whether the file ends in the middle of a line."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read(1) not in (b"", b"\n")


def as_values(payload: Payload) -> dict[str, Any]:
    """The payload as it is written: a number that JSON has no word for is None."""
    values = ((f.name, getattr(payload, f.name)) for f in fields(payload))
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values
    }
