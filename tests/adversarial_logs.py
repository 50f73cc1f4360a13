"""Whole logs of runs, plausible and made to fool: what happened is known beside what was written.

A log is drawn from ranks, machines, losses, phases, links, samples, restarts and damage, each of
which may contradict the others as far as a real log can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.telemetry.events import (
    SCHEMA_VERSION,
    CheckpointWritten,
    DeviceMeasured,
    LinkMeasured,
    Payload,
    as_values,
    event_file,
)
from example_events import (
    HOST_SAMPLED,
    PARAMETERS,
    RUN_FINISHED,
    RUN_STARTED,
    TRAIN_INTERVAL,
    VALIDATED,
)
from golden_gpu import gpu_sampled
from recorded_runs import write_ranks

START, BOOT_S = 1.7e9, 1.6e9
UNIFORM = math.log(4000)
SHAPES = (
    *("falls", "flat", "constant", "turns", "rises", "creeps", "noisy", "nothing"),
    *("frequencies", "words", "low"),
)


def _loss(shape: str, share: float, step: int) -> float:
    """share: of the run that is done."""
    wave = math.sin(step * 1.7)
    shapes: dict[str, float] = {
        "falls": 1.4 + 6 / float((1 + 20 * share) ** 0.7),
        "flat": 2.0 + 6 * math.exp(-12 * share) + 1e-4 * wave,
        "constant": 2.0,
        "turns": 2.0 + 2 * abs(share - 0.4),
        "rises": 2.0 + 2 * share,
        "creeps": 2.0 + 6 * math.exp(-20 * share) + 0.02 * share,
        "noisy": 2.0 + 0.2 * wave,
        "nothing": UNIFORM + 1e-3 * wave,
        "frequencies": 0.75 * UNIFORM + 1e-3 * wave,
        "words": 0.42 * UNIFORM + 6 * math.exp(-12 * share) + 1e-4 * wave,
        "low": 0.05 + 5 * math.exp(-12 * share),
    }
    return shapes[shape]


@cache
def _recipe_text() -> str:
    return dump_toml(load_recipe("demo", []))


@dataclass
class Log:
    """The facts of a training; `write` writes those that were recorded."""

    world_size: int
    machines: tuple[int, ...]
    """Number of the machine of each rank."""
    one_name: bool
    intervals: int
    validate_every: int
    dev: str
    text: str | None
    training: str
    bleu: float | None
    compute_s: float
    wait_s: float
    data_s: float
    late: str
    """Which ranks are late: nobody, the last, or all in turn by interval or within intervals."""
    link_bytes_per_s: float | None
    later_link: float | None
    cpu: tuple[float, float | None] | None
    power_w: float | None
    throttle: str
    device: str
    pause_s: float
    killed_at: int | None
    """Interval after which it was killed; it goes on from the validation before."""
    reason: str | None
    validate_at_start: bool
    has_recipe: bool
    torn: int | None
    dropped: tuple[str, ...]
    max_share: float
    """The share of the schedule that is done."""
    device_rate: tuple[float, float | None] | None = None
    """The rates of one device alone: FLOP/s of matrix products, tokens per second."""
    measured_alone: bool = True
    """Every rank measured its device; or else the first alone."""
    explodes: bool = False
    """The training loss, after the last validation."""
    bleu_falls: bool = False
    steps: int = 100

    @property
    def last_validated(self) -> int:
        return self.intervals // self.validate_every * self.validate_every

    def write(self, directory: Path) -> Path:
        events = directory / "events"
        events.mkdir(parents=True)
        if self.has_recipe:
            (directory / "recipe.toml").write_text(_recipe_text(), encoding="utf-8")
        write_ranks(directory, [_Writer(self, rank).run() for rank in range(self.world_size)])
        if self.torn is not None:
            log = event_file(events)
            text = log.read_text().splitlines()
            if len(text) > 2:
                where = 1 + self.torn % (len(text) - 1)
                text[where] = text[where][: len(text[where]) // 2]
                log.write_text("\n".join(text) + "\n")
        return directory

    def phases(self, rank: int, number: int) -> dict[str, float]:
        """Seconds of one step of a rank in one interval."""
        late_s, wait_s, last = self.compute_s, self.wait_s, self.world_size - 1
        own_s = self.compute_s
        if self.world_size > 1:
            if self.late == "last":
                own_s, wait_s = (
                    (own_s + late_s, wait_s) if rank == last else (own_s, wait_s + late_s)
                )
            elif self.late == "by interval":
                is_late = number % self.world_size == rank
                own_s, wait_s = (own_s + late_s, wait_s) if is_late else (own_s, wait_s + late_s)
            elif self.late == "within":
                own_s += late_s / self.world_size
                wait_s += late_s * last / self.world_size
        else:
            wait_s = 0.0
        return {
            "data_wait_s": self.data_s,
            "forward_s": own_s * 0.3,
            "backward_s": own_s * 0.65,
            "sync_s": wait_s,
            "optimizer_s": own_s * 0.05,
        }


class _Writer:
    def __init__(self, log: Log, rank: int) -> None:
        self._log, self._rank, self._now = log, rank, START
        self._lines: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        log = self._log
        self._start(None)
        if log.validate_at_start:
            self._validate(0)
        last = log.intervals
        if log.killed_at is not None and 0 < log.killed_at < last:
            self._train(1, log.killed_at)
            kept = log.killed_at // log.validate_every * log.validate_every
            self._now += 3600
            self._start(kept or None)
            self._train(kept + 1, last)
        else:
            self._train(1, last)
        if log.reason is not None:
            self._put(RUN_FINISHED, last * log.steps, reason=log.reason)
        return self._lines

    def _start(self, resumed: int | None) -> None:
        log = self._log
        self._put(
            RUN_STARTED,
            (resumed or 0) * log.steps,
            world_size=log.world_size,
            device=log.device,
            max_steps=max(round(log.intervals * log.steps / log.max_share), 1),
            resumed_from_step=None if resumed is None else resumed * log.steps,
        )
        if log.link_bytes_per_s is not None and resumed is None and self._leads:
            self._put(_link(log.link_bytes_per_s), 0)
        if log.device_rate is not None and (log.measured_alone or not self._rank):
            flop_per_s, tokens_per_s = log.device_rate
            measured = DeviceMeasured(
                device=log.device,
                matrix_flop_per_s=flop_per_s,
                alone_tokens_per_s=tokens_per_s,
                method="test",
            )
            self._put(measured, 0)

    @property
    def _leads(self) -> bool:
        machines = self._log.machines
        return len(set(machines)) > 1 and machines.index(machines[self._rank]) == self._rank

    def _train(self, first: int, last: int) -> None:
        log = self._log
        for number in range(first, last + 1):
            self._interval(number)
            if number == log.intervals // 2:
                self._now += log.pause_s
                if log.later_link is not None and self._leads:
                    self._put(_link(log.later_link), number * log.steps)
            if log.machines.index(log.machines[self._rank]) == self._rank:
                if log.cpu is not None:
                    busy, others = log.cpu
                    self._put(HOST_SAMPLED, None, cpu_share=busy, others_cpu_share=others)
                if log.device == "cuda":
                    self._put(gpu_sampled(log.power_w, throttle=log.throttle), None)
            if number % log.validate_every == 0:
                self._validate(number)

    def _interval(self, number: int) -> None:
        log = self._log
        phases = log.phases(self._rank, number)
        step_s = sum(phases.values())
        self._now += step_s * log.steps
        loss = _loss(log.training, number / max(log.intervals, 1), number * log.steps)
        values: dict[str, Any] = {
            "steps": log.steps,
            "train_loss": loss * (25 if log.explodes and number > log.last_validated else 1),
            "interval_s": step_s * log.steps,
            "step_median_s": step_s,
            "step_p95_s": step_s * 1.1,
            "sync_bytes": 4 * PARAMETERS * log.steps * (log.world_size > 1),
            "peak_memory_bytes": 1_500_000_000,
        }
        values |= {name: seconds_s * log.steps for name, seconds_s in phases.items()}
        values["wire_s"] = log.wait_s * log.steps * (log.world_size > 1)
        self._put(TRAIN_INTERVAL, number * log.steps, **values)

    def _validate(self, number: int) -> None:
        log, step = self._log, number * self._log.steps
        self._now += 10.0
        if self._rank:
            self._now += 0.5
            return
        share, bleu = number / max(log.intervals, 1), log.bleu
        if bleu is not None:
            bleu *= 0.01 if log.bleu_falls and share > 0.5 else 1 - math.exp(-9 * share)
        self._put(
            VALIDATED,
            step,
            dev_loss=_loss(log.dev, share, step),
            train_slice_loss=None if log.text is None else _loss(log.text, share, step),
            bleu=bleu,
            bleu_low=None if bleu is None else bleu * 0.95,
            bleu_high=None if bleu is None else bleu * 1.05,
            loss_s=2.0,
            decode_s=8.0,
        )
        written = CheckpointWritten(
            path=f"step-{step}", reason="steps", size_bytes=89_040_000, seconds_s=0.5
        )
        self._now += 0.5
        self._put(written, step)

    def _put(self, payload: Payload, step: int | None, **changes: Any) -> None:
        log = self._log
        machine = log.machines[self._rank]
        values = as_values(payload) | changes
        for dropped in log.dropped:
            values.pop(dropped, None)
        if "sync_s" in log.dropped:
            values.pop("wire_s", None)
        name = f"node-{machine}"
        if log.one_name:  # which the run then numbers
            name = "node" if machine == 0 else f"node ({machine + 1})"
        envelope: Mapping[str, Any] = {
            "v": SCHEMA_VERSION,
            "kind": payload.kind,
            "time": self._now,
            "mono_s": self._now - BOOT_S,
            "host": name,
            "rank": self._rank,
            "step": step,
        }
        self._lines.append({**envelope, **values})


def _link(bytes_per_s: float) -> LinkMeasured:
    return LinkMeasured(
        interface="eth0", peer="the others", bytes_per_s=bytes_per_s, latency_s=1e-4, method="test"
    )


_RATES = st.sampled_from([1e5, 1.2e7, 6e7, 1.2e8, 1e9, 1e10])
_DROPPABLE = (
    *("sync_s", "forward_s", "data_wait_s", "interval_s", "sync_bytes", "train_loss", "dev_loss"),
    *("train_slice_loss", "padding_share", "pairs", "max_steps", "others_cpu_share"),
    *("peak_memory_bytes", "loss_s"),
)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Any log; most are undamaged, so that questions are answered at all."""
    world_size = draw(st.sampled_from([1, 2, 2, 2, 3, 4]))
    layouts = {
        "one": (0,) * world_size,
        "each": tuple(range(world_size)),
        "pairs": tuple(rank // 2 for rank in range(world_size)),
    }
    rarely = st.integers(0, 9).map(lambda number: number == 0)
    sometimes = st.integers(0, 3).map(lambda number: number == 0)
    busy = draw(st.sampled_from([0.07, 0.5, 0.89, 0.93, 0.99]))
    others = draw(st.sampled_from([0.0, 0.02, 0.02, 0.3, None]))
    return Log(
        world_size=world_size,
        machines=layouts[draw(st.sampled_from(sorted(layouts)))],
        one_name=draw(rarely),
        intervals=draw(st.sampled_from([24, 24, 24, 24, 12, 12, 5, 3, 2, 1, 0])),
        validate_every=draw(st.sampled_from([2, 2, 1, 3, 5])),
        dev=draw(st.sampled_from(SHAPES)),
        text=draw(st.sampled_from([*SHAPES, None])),
        training=draw(st.sampled_from(SHAPES)),
        bleu=draw(st.sampled_from([None, 0.3, 1.41, 20.0, 20.0, 33.0])),
        compute_s=draw(st.sampled_from([0.01, 0.4, 2.0])),
        wait_s=draw(st.sampled_from([0.0, 0.003, 0.05, 0.11, 0.4, 3.0])),
        data_s=draw(st.sampled_from([0.0, 0.001, 0.05, 0.5])),
        late=draw(st.sampled_from(["nobody", "nobody", "last", "by interval", "within"])),
        link_bytes_per_s=draw(st.none() | _RATES),
        later_link=draw(st.none() | _RATES) if draw(sometimes) else None,
        cpu=None if draw(sometimes) else (busy, None if others is None else min(others, busy)),
        power_w=draw(st.sampled_from([None, 41.0, 128.0, 240.0])),
        throttle=draw(st.sampled_from(["", "", "thermal"])),
        device="cuda" if draw(sometimes) else "cpu",
        pause_s=draw(st.sampled_from([0.0, 0.0, 0.0, 30.0, 7200.0])),
        killed_at=draw(st.none() | st.integers(1, 23)) if draw(sometimes) else None,
        reason=draw(st.sampled_from(["max_steps", "max_steps", "signal", "early_stop", None])),
        validate_at_start=not draw(sometimes),
        has_recipe=draw(st.booleans()),
        torn=draw(st.integers(0, 60)) if draw(rarely) else None,
        dropped=tuple(draw(st.sets(st.sampled_from(_DROPPABLE), max_size=2)))
        if draw(sometimes)
        else (),
        max_share=draw(st.sampled_from([1.0, 1.0, 0.5, 0.1])),
        device_rate=draw(
            st.none()
            | st.tuples(
                st.sampled_from([1e9, 3e10, 3e11, 1e12, 1e14]),
                st.sampled_from([None, 100.0, 5e3, 1e6]),
            )
        ),
        measured_alone=not draw(sometimes),
        explodes=draw(rarely),
        bleu_falls=draw(rarely),
    )
