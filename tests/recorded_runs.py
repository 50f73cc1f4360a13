"""Run directories built event by event, as the trainer would have written them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.telemetry.events import (
    SCHEMA_VERSION,
    CheckpointWritten,
    Event,
    GpuSampled,
    HostSampled,
    Payload,
    as_line,
    as_values,
)
from example_events import ENVIRONMENT, RUN_FINISHED, RUN_STARTED, TRAIN_INTERVAL, VALIDATED

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
    data_wait_s: float = 0.001
    validation_s: float = 10.0
    padding_share: float = 0.05
    peak_memory_bytes: Callable[[int], int] = lambda _step: 10**9
    reason: str | None = "max_steps"
    device: str = "cpu"
    one_host: bool = False
    """All ranks give the same name of their host."""
    boots: int = 1
    """Machines that were started at different times: rank r runs on number r % boots."""
    started_changes: dict[str, Any] = field(default_factory=dict)
    interval_changes: dict[str, Any] = field(default_factory=dict)
    extra: list[tuple[int, Payload]] = field(default_factory=list)
    """(rank, payload) of what is sampled, once after each interval of that rank.

    Samples of GPUs and hosts are of all the time since those before, or since the start.
    """
    clock_ahead_s: tuple[float, ...] = (0.0, 0.0)
    recipe: tuple[str, ...] | None = None
    """Settings over those of the demo, whose recipe lies beside the events; None: no recipe."""
    resume_at: tuple[int, int] | None = None
    """(step of the kill, step of the checkpoint it goes on from)."""

    def write(self, directory: Path) -> Path:
        """Write `events/rank-NNNN.jsonl` of every rank; returns the run directory."""
        (directory / "events").mkdir(parents=True)
        if self.recipe is not None:
            text = dump_toml(load_recipe("demo", self.recipe))
            (directory / "recipe.toml").write_text(text, encoding="utf-8")
        for rank in range(self.world_size):
            writer = _RankWriter(self, rank)
            writer.run()
            path = directory / "events" / f"rank-{rank:04d}.jsonl"
            path.write_bytes(b"".join(writer.lines))
        return directory


class _RankWriter:
    def __init__(self, run: Recorded, rank: int) -> None:
        self._run = run
        self._rank = rank
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
                if rank == self._rank:
                    self._write(payload, step, **self._sampled(payload, since_s))
            if step % run.validate_every == 0:
                self._validate(step)

    def _sampled(self, payload: Payload, since_s: float) -> dict[str, float]:
        """The time of a sample of a GPU or host: all since the last, shared among those of it."""
        if not isinstance(payload, GpuSampled | HostSampled):
            return {}
        number = getattr(payload, "gpu", None)
        sampled_s = sum(
            one.seconds_s
            for rank, one in self._run.extra
            if rank == self._rank
            and isinstance(one, GpuSampled | HostSampled)
            and (one.kind, getattr(one, "gpu", None)) == (payload.kind, number)
        )
        return {"seconds_s": since_s * payload.seconds_s / sampled_s}

    def _interval(self, step: int) -> None:
        run, steps = self._run, self._run.log_every
        compute_s, sync_s = run.compute_s[self._rank], run.sync_s[self._rank]
        step_s = compute_s + sync_s + run.data_wait_s
        self._now += step_s * steps
        values: dict[str, Any] = {
            "steps": steps,
            "epoch": run.epoch(step),
            "train_loss": run.train_loss(step),
            "interval_s": step_s * steps,
            "step_median_s": step_s,
            "step_p95_s": step_s * 1.1,
            "compute_median_s": compute_s,
            "data_wait_s": run.data_wait_s * steps,
            "forward_s": compute_s * steps * 0.3,
            "backward_s": compute_s * steps * 0.65,
            "optimizer_s": compute_s * steps * 0.05,
            "sync_s": sync_s * steps,
            "padding_share": run.padding_share,
            "sync_bytes": 4 * RUN_STARTED.num_parameters * steps * (run.world_size > 1),
            "peak_memory_bytes": run.peak_memory_bytes(step),
        }
        self._write(TRAIN_INTERVAL, step, **values | run.interval_changes)

    def _validate(self, step: int) -> None:
        run = self._run
        self._now += run.validation_s + _SAVE_S
        if self._rank == 0:
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

    def _write(self, payload: Payload, step: int | None, **changes: Any) -> None:
        values = as_values(payload) | changes
        number = 0 if self._run.one_host else self._rank
        host = f"host-{'ab'[number] if number < 2 else number}"
        mono_s = self._now - _BOOT_S - 1000 * (self._rank % self._run.boots)
        moment = self._now + self._run.clock_ahead_s[self._rank]
        event = Event(SCHEMA_VERSION, payload.kind, moment, mono_s, host, self._rank, step, values)
        self.lines.append(as_line(event))
