"""Every answer that has a culprit names all of them, and since when: one row for each answer.

Two culprits are equal in each run, so that naming the worst alone is not enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.reporting.checks import CHECKS
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.telemetry.events import (
    GpuSampled,
    HostSampled,
    LinkChanged,
    LinkMeasured,
    NetworkSampled,
    Payload,
    RankPaused,
    TrainInterval,
)
from example_events import HOST_SAMPLED, NETWORK_SAMPLED, changed
from golden.test_logs_that_fool import edit
from golden_gpu import gpu_sampled
from recorded_runs import START, Recorded
from well_said import assert_well_said

CULPRITS = (1, 2)
"""Ranks, on host-b and host-2."""
BOTH = r"rank 1 on host-b\b.*rank 2 on host-2\b"
HOSTS = r"host-b\b.*host-2\b"
CLOCK = r"14 Nov \d\d:\d\d:\d\d UTC"
SINCE = rf"since step 4,000, {CLOCK}"
TURN = 4000
HIDDEN_S = 0.9 * 0.65 * 0.4

Change = Callable[[dict[str, Any]], None]


def four(**changes: Any) -> Recorded:
    """A healthy run of four ranks on as many hosts."""
    each: dict[str, Any] = {
        "compute_s": (0.4,) * 4,
        "sync_s": (0.01,) * 4,
    }
    return Recorded(world_size=4, **each | changes)


def of_all(payload: Payload) -> list[tuple[int, Payload]]:
    return [(rank, payload) for rank in range(4)]


def changed_run(
    run: Recorded, folder: Path, kind: str, change: Change, *, since: int = TURN
) -> Path:
    """The run with events of the culprits changed after a step."""

    def late(event: dict[str, Any]) -> None:
        if event["step"] > since:
            change(event)

    directory = run.write(folder)
    for rank in CULPRITS:
        edit(directory, rank, kind, late)
    return directory


def set_values(**values: Any) -> Change:
    return lambda event: event.update(values)


def stragglers(folder: Path) -> Path:
    def slow(event: dict[str, Any]) -> None:
        event["forward_s"] += 40.0
        event["interval_s"] += 40.0
        event["step_median_s"] += 0.4

    run = changed_run(four(), folder, TrainInterval.kind, slow)

    def wait(event: dict[str, Any]) -> None:
        if event["step"] > TURN:
            event["sync_s"] += 40.0
            event["interval_s"] += 40.0
            event["step_median_s"] += 0.4

    for rank in (0, 3):
        edit(run, rank, TrainInterval.kind, wait)
    return run


def starved(folder: Path) -> Path:
    def wait(event: dict[str, Any]) -> None:
        event["data_wait_s"] += 40.0
        event["interval_s"] += 40.0

    return changed_run(four(), folder, TrainInterval.kind, wait)


def throttled(folder: Path) -> Path:
    run = four(device="cuda", extra=of_all(gpu_sampled(240)))
    return changed_run(
        run, folder, GpuSampled.kind, set_values(throttle_reasons="thermal", throttled_share=1.0)
    )


def weak(folder: Path) -> Path:
    run = four(device="cuda", extra=of_all(gpu_sampled(120)), sync_s=(0.1,) * 4)
    return changed_run(run, folder, GpuSampled.kind, set_values(power_w=40.0), since=0)


def hosts_with(folder: Path, **values: Any) -> Path:
    busy = changed(HOST_SAMPLED, cpu_share=0.99, others_cpu_share=0.01)
    run = four(extra=of_all(busy))
    return changed_run(run, folder, HostSampled.kind, set_values(**values))


def bound(folder: Path) -> Path:
    wait_s = 0.4
    link = LinkMeasured(
        interface="eth0",
        peer="the other hosts",
        bytes_per_s=4 * 7_420_000 / (wait_s + HIDDEN_S),
        latency_s=1e-4,
        method="test",
    )
    both: list[tuple[int, Payload]] = [(0, link), (1, link)]
    return Recorded(sync_s=(wait_s,) * 2, extra=both).write(folder)


def bound_later(folder: Path) -> Path:
    """Waits are short until the turn."""

    def short(event: dict[str, Any]) -> None:
        if event["step"] <= TURN:
            event["sync_s"] -= 39.0
            event["wire_s"] -= 39.0
            event["interval_s"] -= 39.0
            event["step_median_s"] -= 0.39

    directory = bound(folder)
    for rank in range(2):
        edit(directory, rank, TrainInterval.kind, short)
    return directory


def link_fell(folder: Path) -> Path:
    now = LinkChanged(
        interface="eth0",
        where="host-b to host-a",
        before_bytes_per_s=1e9,
        now_bytes_per_s=4 * 7_420_000 / (0.4 + HIDDEN_S),
        since_step=TURN + 1,
        since=START + 1700,
    )
    run = Recorded(extra=[(0, now)]).write(folder)

    def only_once(event: dict[str, Any]) -> None:
        if event["step"] != TURN + 100:
            event["kind"] = "of_another_version"

    def wait(event: dict[str, Any]) -> None:
        if event["step"] > TURN:
            event["sync_s"] += 39.0
            event["wire_s"] += 39.0
            event["interval_s"] += 39.0

    edit(run, 0, LinkChanged.kind, only_once)
    for rank in (0, 1):
        edit(run, rank, TrainInterval.kind, wait)
    return run


def of_another_rate(folder: Path) -> Path:
    run = Recorded(recipe=("schedule.kind=constant", "schedule.warmup_steps=1")).write(folder)
    facts = read_facts(run)
    assert facts.recipe is not None

    def follow(event: dict[str, Any]) -> None:
        rate = facts.recipe.learning_rate(event["step"] - 1, max_steps=8000)  # type: ignore[union-attr]
        event["learning_rate"] = rate * (2 if event["step"] > TURN else 1)

    edit(run, 0, TrainInterval.kind, follow)
    return run


def full_disks(folder: Path, *, free_bytes: int = 100_000_000) -> Path:
    run = four(extra=of_all(HOST_SAMPLED))
    return changed_run(run, folder, HostSampled.kind, set_values(disk_free_bytes=free_bytes))


def leaking(folder: Path) -> Path:
    def grow(event: dict[str, Any]) -> None:
        event["peak_memory_bytes"] += event["step"] * 200_000

    return changed_run(four(), folder, TrainInterval.kind, grow, since=0)


def faulty(folder: Path) -> Path:
    return changed_run(
        four(extra=of_all(NETWORK_SAMPLED)), folder, NetworkSampled.kind, set_values(errors=3)
    )


def paused(folder: Path) -> Path:
    pauses: list[tuple[int, Payload]] = [
        (
            rank,
            RankPaused(
                paused_rank=rank,
                seconds_s=30.0,
                during="forward",
                own=True,
            ),
        )
        for rank in CULPRITS
    ]
    return four(extra=pauses).write(folder)


def spiky(folder: Path) -> Path:
    return Recorded(
        train_loss=lambda step: 9.0 if step in (5000, 5500, 6000, 6500) else 2.0,
        dev_loss=lambda step: 2.0 + (step > 4000) * 0.3 + 1e-4 * math.sin(step),
    ).write(folder)


def bleu_falls(folder: Path) -> Path:
    return Recorded(bleu=lambda step: 30.0 if step <= TURN else 10.0).write(folder)


def turned(folder: Path) -> Path:
    return Recorded(
        dev_loss=lambda step: 2.0 + 0.3 * abs(math.log(max(step, 1) / TURN)),
        train_slice_loss=lambda step: 2.5 - step * 1e-4,
    ).write(folder)


def plateau(folder: Path) -> Path:
    return Recorded(max_steps=100_000, reason=None).write(folder)


def diverged(folder: Path) -> Path:
    return Recorded(reason="diverged").write(folder)


END = rf"at step 8,000, {CLOCK}"
ROWS: list[tuple[str, Callable[[Path], Path], str, str]] = [
    ("trained", diverged, "no", END),
    ("trained", turned, "yes", "lowest at step 4,000"),
    ("overfitting", turned, "yes", "Since step 4,000"),
    ("processors", stragglers, "no", rf"on rank 0 on host-a, {SINCE}"),
    ("processors", stragglers, "no", rf"rank 2 on host-2, {SINCE} .*rank 1 on host-b, {SINCE}"),
    ("processors", starved, "no", BOTH),
    ("processors", weak, "no", r"GPU 0 of host-b drew .*from the start.*GPU 0 of host-2 drew"),
    ("processors", throttled, "no", rf"{HOSTS}.*since {CLOCK}"),
    (
        "processors",
        lambda folder: hosts_with(folder, others_cpu_share=0.5, cpu_share=0.9),
        "no",
        rf"used [\d.]+% of the processors of host-b, since {CLOCK}; .* host-2, since {CLOCK}",
    ),
    (
        "processors",
        lambda folder: hosts_with(folder, cpu_share=0.2),
        "no",
        rf"only [\d.]+% of the processors of host-b, since {CLOCK}; .* host-2, since {CLOCK}",
    ),
    ("network", bound, "yes", "through eth0 of host-a, eth0 of host-b, from the start"),
    ("network", bound_later, "yes", rf"through eth0 .*since step 4,000, {CLOCK}"),
    ("network", link_fell, "yes", rf"Since step 4,001, {CLOCK}, eth0, host-b to host-a"),
    ("network_fit", link_fell, "measured", rf"Since step 4,001, {CLOCK}, eth0, host-b to host-a"),
    ("learning_rate", of_another_rate, "measured", "From step 4,100 on the logged rate differs"),
    ("diverged", diverged, "yes", END),
    ("plateau", plateau, "yes", rf"flat since step 5,000, {CLOCK}, or earlier"),
    ("rate_too_high", spiky, "yes", rf"at step 5,000, {CLOCK}; step 5,500, .* and 1 more"),
    ("translations_worse", bleu_falls, "yes", "since step 4,000 from 30.0"),
    ("starved", starved, "yes", rf"rank 1 on host-b, {SINCE}; rank 2 on host-2, {SINCE}"),
    ("straggler", stragglers, "yes", rf"rank 2 on host-2, {SINCE} .*; rank 1 on host-b, {SINCE}"),
    ("pauses", paused, "yes", rf"rank 1 on host-b stood still for .* from {CLOCK} on, in step"),
    ("throttled", throttled, "yes", rf"{HOSTS}.*since {CLOCK}"),
    ("network_faults", faulty, "yes", rf"eth0 of host-b .*since {CLOCK}.*eth0 of host-2 .*since"),
    ("disk", full_disks, "yes", rf"on host-b, .* free at {CLOCK}; .* on host-2, .* free at"),
    (
        "disk",
        lambda folder: full_disks(folder, free_bytes=0),
        "yes",
        rf"on host-b, 0 B free at {CLOCK}; .* on host-2, 0 B free at",
    ),
    ("memory_creep", leaking, "yes", r"rank 1 on host-b, from .* at step .*; rank 2 on host-2"),
]
NOBODY = {
    "duration": "an amount",
    "corpus": "an amount",
    "checkpoint_files": "a list of files",
    "checkpoint_size": "an amount",
    "step_time": "an amount",
    "cost": "an amount; a host without a price is named in test_cost.py",
    "rate_too_low": "a setting of the whole run",
    "padding": "a setting of the whole run, the same on all ranks",
    "evaluation": "a setting of the whole run",
}
"""Answers that have no culprit, and why."""


@pytest.mark.parametrize(
    ("key", "plant", "answer", "said"),
    ROWS,
    ids=[f"{key}-{number}" for number, (key, *_) in enumerate(ROWS)],
)
def test_all_culprits_are_named_with_their_time(
    key: str, plant: Callable[[Path], Path], answer: str, said: str, tmp_path: Path
) -> None:
    report = Report.of(read_facts(plant(tmp_path / "run")))
    (found,) = (one for one in (*report.answers, *report.ailments) if one.key == key)
    assert_well_said(found)
    assert found.answer == answer, found.says
    assert re.search(said, f"{found.says} {found.remedy}"), f"{found.says} {found.remedy}"


def test_every_answer_is_in_the_table_or_has_no_culprit(tmp_path: Path) -> None:
    report = Report.of(read_facts(Recorded().write(tmp_path / "run")))
    keys = {one.key for one in (*report.answers, *report.ailments)}
    assert len(keys) == len(CHECKS)
    assert keys == {key for key, *_ in ROWS} | NOBODY.keys()
    assert not {key for key, *_ in ROWS} & NOBODY.keys()
