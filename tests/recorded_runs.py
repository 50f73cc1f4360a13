"""Run directories built event by event, as the trainer would have written them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.telemetry.events import (
    PER_RANK,
    SCHEMA_VERSION,
    CheckpointWritten,
    Event,
    GpuSampled,
    HostSampled,
    Payload,
    as_line,
    as_values,
    event_file,
)
from example_events import (
    ENVIRONMENT,
    PARAMETERS,
    RUN_FINISHED,
    RUN_STARTED,
    TRAIN_INTERVAL,
    VALIDATED,
)

START = 1.7e9
_BOOT_S = 1.6e9
_SAVE_S = 0.5


@dataclass
class Recorded:
    """A run of `steps` steps; what is not given is that of a healthy run on two hosts.

    Losses are functions of the step; seconds are those of one step of one rank, or of each.
    """

    steps: int = 8000
    max_steps: int = 8000
    log_every: int = 100
    validate_every: int = 1000
    validate_at_start: bool = True
    world_size: int = 2
    dev_loss: Callable[[int], float | None] = lambda step: 1.5 + 6 * math.exp(-step / 500)
    train_slice_loss: Callable[[int], float | None] = lambda step: 1.4 + 6 * math.exp(-step / 500)
    train_loss: Callable[[int], float | None] = lambda step: 1.6 + 6 * math.exp(-step / 500)
    bleu: Callable[[int], float | None] = lambda step: 30 * (1 - math.exp(-step / 500))
    epoch: Callable[[int], int] = lambda step: step // 500
    compute_s: tuple[float, ...] = (0.4, 0.4)
    sync_s: tuple[float, ...] = (0.01, 0.01)
    late_in_turn_s: float = 0.0
    """The part of every rank's wait that is for ranks that are late in turn."""
    data_wait_s: float = 0.001
    validation_s: float = 10.0
    padding_share: float = 0.05
    peak_memory_bytes: Callable[[int], int] = lambda _step: 10**9
    reason: str | None = "max_steps"
    device: str = "cpu"
    one_host: bool = False
    """All ranks give the same name of their host."""
    started_changes: dict[str, Any] = field(default_factory=dict)
    interval_changes: dict[str, Any] = field(default_factory=dict)
    extra: list[tuple[int, Payload]] = field(default_factory=list)
    """(rank, payload) of what is sampled, once after each interval of that rank.

    Samples of GPUs and hosts are of all the time since those before, or since the start.
    """
    recipe: tuple[str, ...] | None = None
    """Settings over those of the demo, whose recipe lies beside the events; None: no recipe."""
    resume_at: tuple[int, int] | None = None
    """(step of the kill, step of the checkpoint it goes on from)."""

    def write(self, directory: Path) -> Path:
        """Write `events/log.jsonl`; returns the run directory."""
        (directory / "events").mkdir(parents=True)
        if self.recipe is not None:
            text = dump_toml(load_recipe("demo", self.recipe))
            (directory / "recipe.toml").write_text(text, encoding="utf-8")
        writer = _LogWriter(self)
        writer.run()
        event_file(directory / "events").write_bytes(b"".join(writer.lines))
        return directory

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        numbers = [0 if self.one_host else rank for rank in range(self.world_size)]
        return tuple(f"host-{'ab'[number] if number < 2 else number}" for number in numbers)


class _LogWriter:
    def __init__(self, run: Recorded) -> None:
        self._run = run
        self._now = START
        self._sampled_until = START
        self.lines: list[bytes] = []

    def run(self) -> None:
        run = self._run
        self._start(None)
        if run.resume_at is None:
            self._train(0, run.steps)
        else:
            killed, checkpoint = run.resume_at
            self._train(0, killed)
            self._now += 3600
            self._start(checkpoint)
            self._train(checkpoint, run.steps)
        if run.reason is not None:
            self._write(RUN_FINISHED, run.steps, reason=run.reason)

    def _start(self, resumed: int | None) -> None:
        run = self._run
        values: dict[str, Any] = {
            "world_size": run.world_size,
            "hosts": run.hosts,
            "max_steps": run.max_steps,
            "device": run.device,
            "resumed_from_step": resumed,
        }
        self._write(ENVIRONMENT, None)
        self._write(RUN_STARTED, resumed or 0, **values | run.started_changes)
        self._sampled_until = self._now

    def _train(self, first: int, last: int) -> None:
        run = self._run
        if first == 0 and run.validate_at_start:
            self._validate(0)
        for step in range(first + run.log_every, last + 1, run.log_every):
            self._interval(step)
            since_s, self._sampled_until = self._now - self._sampled_until, self._now
            for rank, payload in run.extra:
                self._write(payload, step, rank=rank, **self._sampled(rank, payload, since_s))
            if step % run.validate_every == 0:
                self._validate(step)

    def _sampled(self, rank: int, payload: Payload, since_s: float) -> dict[str, float]:
        """The time of a sample of a GPU or host: all since the last, shared among those of it."""
        if not isinstance(payload, GpuSampled | HostSampled):
            return {}
        number = getattr(payload, "gpu", None)
        sampled_s = sum(
            one.seconds_s
            for other, one in self._run.extra
            if other == rank
            and isinstance(one, GpuSampled | HostSampled)
            and (one.kind, getattr(one, "gpu", None)) == (payload.kind, number)
        )
        return {"seconds_s": since_s * payload.seconds_s / sampled_s}

    def _interval(self, step: int) -> None:
        run, steps = self._run, self._run.log_every
        computes_s, syncs_s = run.compute_s[: run.world_size], run.sync_s[: run.world_size]
        steps_s = [
            compute_s + sync_s + run.data_wait_s
            for compute_s, sync_s in zip(computes_s, syncs_s, strict=True)
        ]
        self._now += steps_s[0] * steps
        sent = 4 * PARAMETERS * steps * (run.world_size > 1)
        values: dict[str, Any] = {
            "steps": steps,
            "epoch": run.epoch(step),
            "train_loss": run.train_loss(step),
            "padding_share": run.padding_share,
            "interval_s": [step_s * steps for step_s in steps_s],
            "step_median_s": steps_s,
            "step_p95_s": [step_s * 1.1 for step_s in steps_s],
            "data_wait_s": [run.data_wait_s * steps for _ in steps_s],
            "forward_s": [compute_s * steps * 0.3 for compute_s in computes_s],
            "backward_s": [compute_s * steps * 0.65 for compute_s in computes_s],
            "optimizer_s": [compute_s * steps * 0.05 for compute_s in computes_s],
            "sync_s": [sync_s * steps for sync_s in syncs_s],
            "wire_s": None
            if "sync_s" in run.interval_changes
            else (min(syncs_s) - run.late_in_turn_s) * steps,
            "sync_bytes": [sent for _ in steps_s],
            "peak_memory_bytes": [run.peak_memory_bytes(step) for _ in steps_s],
        }
        changes = {
            name: [value for _ in steps_s] if name in PER_RANK and value is not None else value
            for name, value in run.interval_changes.items()
        }
        self._write(TRAIN_INTERVAL, step, **values | changes)

    def _validate(self, step: int) -> None:
        run = self._run
        self._now += run.validation_s + _SAVE_S
        bleu = run.bleu(step)
        self._write(
            VALIDATED,
            step,
            dev_loss=run.dev_loss(step),
            train_slice_loss=run.train_slice_loss(step),
            bleu=bleu,
            bleu_low=None if bleu is None else max(bleu - 1, 0.0),
            bleu_high=None if bleu is None else bleu + 1,
            loss_s=run.validation_s * 0.2,
            decode_s=run.validation_s * 0.8,
        )
        written = CheckpointWritten(
            path=f"step-{step}", reason="steps", size_bytes=89_040_000, seconds_s=_SAVE_S
        )
        self._write(written, step)

    def _write(self, payload: Payload, step: int | None, *, rank: int = 0, **changes: Any) -> None:
        values = as_values(payload) | changes
        host, mono_s = self._run.hosts[rank], self._now - _BOOT_S
        event = Event(SCHEMA_VERSION, payload.kind, self._now, mono_s, host, rank, step, values)
        self.lines.append(as_line(event))


_SHARED = ("environment", "run_started", "run_finished", "validated", "checkpoint_written")
"""Kinds of events that are of all ranks; only rank 0 writes them."""
Line = dict[str, Any]


def read_ranks(run: Path) -> list[list[Line]]:
    """The events of a log as each rank sees them: an interval with the values of the rank alone,
    and a start with its own host."""
    lines = [json.loads(line) for line in event_file(run / "events").read_text().splitlines()]
    size = max(len(line["interval_s"]) for line in lines if line["kind"] == "train_interval")
    ranks: list[list[Line]] = [[] for _ in range(size)]
    hosts: list[str] = []
    for line in lines:
        if line["kind"] == "run_started":
            hosts = line["hosts"]
        for rank, own in enumerate(ranks[: len(hosts)] if hosts else ranks):
            if line["kind"] == "train_interval":
                values = {name: line[name] and line[name][rank] for name in PER_RANK}
                own.append(line | values | {"rank": rank, "host": hosts[rank]})
            elif line["kind"] == "run_started":
                own.append(line | {"rank": rank, "host": hosts[rank]})
            elif line["rank"] == rank:
                own.append(line)
    return ranks


def write_ranks(run: Path, ranks: Sequence[Sequence[Line]]) -> None:
    """Write the log of events that are given by rank, as `read_ranks` gives them."""
    starts = [one["time"] for one in ranks[0] if one["kind"] == "run_started"]
    intervals: dict[tuple[int, int], list[Line]] = {}
    hosts: dict[int, list[str]] = {}
    lines: list[Line] = []
    for rank, events in enumerate(ranks):
        life = 0
        for event in events:
            line = dict(event)
            if line["kind"] == "run_started":
                at = line["time"]
                life = min(range(len(starts)), key=lambda number: abs(starts[number] - at))
                hosts.setdefault(life, []).append(line["host"])
                line["hosts"] = hosts[life]
            elif line["kind"] == "train_interval":
                intervals.setdefault((life, line["step"]), []).append(line)
                line["of"] = (life, line["step"])
            if rank == 0 or line["kind"] not in (*_SHARED, "train_interval"):
                lines.append(line)
    for line in lines:
        if (of := line.pop("of", None)) is not None:
            together = intervals[of]
            line |= {name: [one.get(name) for one in together] for name in PER_RANK}
    lines.sort(key=lambda line: line["time"])
    text = "".join(json.dumps(line) + "\n" for line in lines)
    event_file(run / "events").write_text(text)
