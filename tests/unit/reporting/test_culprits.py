"""A finding names who it is and since when: not another, and not for ever if it ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.reporting.checks import examine
from dragoman.reporting.periods import lasting
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import GpuSampled, NetworkSampled, TrainInterval
from example_events import HOST_SAMPLED, NETWORK_SAMPLED, changed
from golden.test_logs_that_fool import edit
from golden_gpu import gpu_sampled
from recorded_runs import Recorded
from well_said import assert_well_said

Change = Callable[[dict[str, Any]], None]


def ailment(run: Path, key: str) -> Verdict:
    found = next(one for one in examine(read_facts(run)) if one.key == key)
    assert_well_said(found)
    return found


def slow(*, after: int = 0, until: int = 8000, times: float = 2.0) -> Change:
    """Compute takes longer in some steps."""

    def change(event: dict[str, Any]) -> None:
        if after < event["step"] <= until:
            event["compute_median_s"] *= times

    return change


STRETCHES: dict[str, tuple[int, int, str]] = {
    "always": (0, 8000, "from the start ("),
    "in the first half, but for one interval": (0, 4000, "from the start until step 4,000, 14 Nov"),
    "from the middle on": (4000, 8000, "since step 4,000, 14 Nov 22:41:36 UTC ("),
    "in the middle": (3000, 6000, "since step 3,000, 14 Nov"),
}


@pytest.mark.parametrize("name", STRETCHES)
def test_a_straggler_is_named_with_its_time(name: str, tmp_path: Path) -> None:
    after, until, said = STRETCHES[name]
    run = Recorded().write(tmp_path / "run")
    edit(run, 1, TrainInterval.kind, slow(after=after, until=until))
    found = ailment(run, "straggler")
    assert found.answer == "yes"
    assert f"2 x: rank 1 on host-b, {said}" in found.says
    assert "(800 ms/step, 400 ms/step the median rank)" in found.says
    assert (" until step " in found.says) == (until < 8000)
    if name == "in the middle":
        assert "until step 6,000, 14 Nov 22:55:" in found.says


@pytest.mark.parametrize(("log_every", "answer"), [(5, "yes"), (10, "yes"), (20, "cannot tell")])
def test_a_straggler_that_recovers_early_counts_by_the_time_it_took(
    log_every: int, answer: str, tmp_path: Path
) -> None:
    """20 of 120 steps took three times as long: 37% of the time, in one interval or more."""
    run = Recorded(steps=120, max_steps=120, log_every=log_every).write(tmp_path / "run")
    edit(run, 1, TrainInterval.kind, slow(until=20, times=3.0))
    for rank in (0, 1):
        edit(run, rank, TrainInterval.kind, longer_steps(until=20, by_s=0.8))
    found = ailment(run, "straggler")
    assert found.answer == answer, found.says
    if answer == "yes":
        assert "3.00 x: rank 1 on host-b, from the start until step 20" in found.says


def longer_steps(*, until: int, by_s: float) -> Change:
    """All ranks wait for the slow one."""

    def change(event: dict[str, Any]) -> None:
        if event["step"] <= until:
            event["step_median_s"] += by_s
            event["interval_s"] += by_s * event["steps"]

    return change


def test_two_stretches_and_two_stragglers_are_all_named(tmp_path: Path) -> None:
    run = Recorded(world_size=4, compute_s=(0.4,) * 4, sync_s=(0.01,) * 4).write(tmp_path / "run")
    edit(run, 1, TrainInterval.kind, slow(until=3000))
    edit(run, 1, TrainInterval.kind, slow(after=5000))
    edit(run, 2, TrainInterval.kind, slow(after=6000, times=3.0))
    says = ailment(run, "straggler").says
    ends = r"from the start until step 3,000, [^(]* and since step 5,000, [^(]*"
    assert ": 3.00 x: rank 2 on host-2, since step 6,000" in says
    assert re.search(rf"; rank 1 on host-b, {ends}\(", says)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_ranks_that_are_slow_in_turn_are_no_straggler(every: int, tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")

    def in_turn(rank: int) -> Change:
        def change(event: dict[str, Any]) -> None:
            if event["step"] // 100 // every % 2 == rank:
                event["compute_median_s"] *= 2

        return change

    for rank in (0, 1):
        edit(run, rank, TrainInterval.kind, in_turn(rank))
    found = ailment(run, "straggler")
    assert (found.answer, found.remedy) == ("no", "")


def test_a_few_slow_intervals_are_no_straggler(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")
    edit(run, 1, TrainInterval.kind, slow(after=4000, until=4500, times=20))
    assert ailment(run, "straggler").answer == "no"


def test_a_rank_whose_compute_takes_no_time_makes_no_other_a_straggler(tmp_path: Path) -> None:
    run = Recorded(interval_changes={"compute_median_s": 0.0}).write(tmp_path / "run")
    assert ailment(run, "straggler").answer == "no"


def test_the_size_of_the_last_checkpoint_counts(tmp_path: Path) -> None:
    full = changed(HOST_SAMPLED, disk_free_bytes=250_000_000)
    run = Recorded(extra=[(0, full)]).write(tmp_path / "run")

    def grow(event: dict[str, Any]) -> None:
        event["size_bytes"] = 100_000_000 if event["step"] == 8000 else 10_000_000

    edit(run, 0, "checkpoint_written", grow)
    assert "free disk space: 40.0%: the disk" in ailment(run, "disk").says


def test_stretches_that_last_are_found_with_their_ends() -> None:
    assert lasting([]) == []
    assert lasting([True] * 2) == []
    assert lasting([True] * 3) == [(0, 2)]
    assert lasting([False] * 40) == []
    assert lasting([True, False] * 20) == []
    late = [False] * 30 + [True] * 5 + [False] + [True] * 4
    assert lasting(late) == [(30, 39)]
    assert lasting([True, False, False], [9.0, 1.0, 1.0]) == []  # one interval blames nobody
    assert lasting([True] * 2 + [False] * 10, [3.0] * 2 + [1.0] * 10) == [(0, 1)]
    assert lasting([True] * 2 + [False] * 10, [1.0] * 12) == []
    assert lasting([True, False] * 20, [0.0] * 40) == []  # nobody recorded what they took
    assert lasting([True] * 10 + [False] * 10 + [True] * 20) == [(0, 9), (20, 39)]


def test_the_rank_that_waits_for_data_is_named_with_its_time(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")

    def wait(event: dict[str, Any]) -> None:
        if 4000 < event["step"] <= 7000:
            event["data_wait_s"] += 40.0
            event["interval_s"] += 40.0

    edit(run, 1, TrainInterval.kind, wait)
    found = ailment(run, "starved")
    assert found.answer == "yes"
    assert ": rank 1 on host-b, since step 4,000, 14 Nov" in found.says
    assert " until step 7,000, 14 Nov" in found.says
    assert "rank 0" not in found.says

    alone = Recorded(world_size=1, compute_s=(0.4,), sync_s=(0.0,), data_wait_s=0.4)
    assert ailment(alone.write(tmp_path / "alone"), "starved").says.endswith(": from the start.")


def test_long_waits_now_and_then_are_reported_as_such(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")

    def wait(event: dict[str, Any]) -> None:
        if event["step"] in (2000, 4000, 6000):
            event["data_wait_s"] += 400.0
            event["interval_s"] += 400.0

    edit(run, 1, TrainInterval.kind, wait)
    says = ailment(run, "starved").says
    assert "rank 1 on host-b, at times since step 1,900, 14 Nov" in says
    assert "until step 6,000" in says


def test_the_rank_whose_memory_creeps_is_named_with_its_figures(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")

    def grow(event: dict[str, Any]) -> None:
        event["peak_memory_bytes"] += max(event["step"] - 1000, 0) * 200_000

    edit(run, 1, TrainInterval.kind, grow)
    found = ailment(run, "memory_creep")
    assert found.answer == "yes"
    assert "rank 1 on host-b, from 1 GB at step 1,000 to 2.400 GB at step 8,000." in found.says


def test_every_throttled_gpu_is_named_with_its_time(tmp_path: Path) -> None:
    run = Recorded(
        device="cuda", extra=[(rank, gpu_sampled(240, throttle="thermal")) for rank in (0, 1)]
    ).write(tmp_path / "run")

    def cool(after: int, until: int) -> Change:
        def change(event: dict[str, Any]) -> None:
            if not after < event["step"] <= until:
                event |= {"throttle_reasons": "", "throttled_share": 0.0}

        return change

    edit(run, 0, GpuSampled.kind, cool(0, 1000))
    edit(run, 1, GpuSampled.kind, cool(4000, 6000))
    found = ailment(run, "throttled")
    assert found.answer == "yes"
    assert "25.0%: GPU 0 of host-b, by thermal, since 14 Nov 22:4" in found.says
    assert " until 14 Nov 22:5" in found.says
    assert "; GPU 0 of host-a, by thermal, from the start until 14 Nov 22:20:21 UTC." in found.says


def test_only_faulty_interfaces_are_named_with_their_time(tmp_path: Path) -> None:
    run = Recorded(extra=[(0, NETWORK_SAMPLED), (1, NETWORK_SAMPLED)]).write(tmp_path / "run")
    assert ailment(run, "network_faults").answer == "no"

    def fail(event: dict[str, Any]) -> None:
        event["errors"] = 3 if event["step"] in (5000, 5100) else 0

    edit(run, 1, NetworkSampled.kind, fail)
    found = ailment(run, "network_faults")
    assert found.answer == "yes"
    assert "6: eth0 of host-b (6 errors, link lost or found 0 times" in found.says
    assert "since 14 Nov 22:4" in found.says
    assert " until 14 Nov 22:4" in found.says
    assert "host-a" not in found.says


def test_the_fullest_disk_is_named_with_the_moment(tmp_path: Path) -> None:
    full = changed(HOST_SAMPLED, disk_free_bytes=100_000_000)
    run = Recorded(extra=[(0, HOST_SAMPLED), (1, full)]).write(tmp_path / "run")
    says = ailment(run, "disk").says
    assert "the disk of the run on host-b, 100 MB free at 14 Nov 23:0" in says


@pytest.mark.parametrize(("strategy", "answer"), [("sync", "no"), ("diloco", "yes")])
def test_a_disk_without_checkpoints_is_not_full_soon(
    strategy: str, answer: str, tmp_path: Path
) -> None:
    """Only the first host writes checkpoints, unless each rank has a state of its own."""
    full = changed(HOST_SAMPLED, disk_free_bytes=100_000_000)
    settings = ("corpus.subword.vocab_size=32768", f"distributed.strategy={strategy}")
    run = Recorded(extra=[(0, HOST_SAMPLED), (1, full)], recipe=settings).write(tmp_path / "run")
    assert ailment(run, "disk").answer == answer


@pytest.mark.parametrize("key", ["throttled", "network_faults"])
def test_a_host_that_was_not_looked_at_may_have_it(key: str, tmp_path: Path) -> None:
    run = Recorded(device="cuda", extra=[(0, gpu_sampled(240))]).write(tmp_path / "run")
    assert ailment(run, key).answer == "cannot tell"


def test_a_straggler_after_an_interval_without_phases_is_found(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")
    edit(run, 1, TrainInterval.kind, slow(after=4000))

    def lose(event: dict[str, Any]) -> None:
        if event["step"] == 300:
            event.update(compute_median_s=None, forward_s=None)

    edit(run, 0, TrainInterval.kind, lose)
    found = ailment(run, "straggler")
    assert found.answer == "yes", found.says
    assert "rank 1 on host-b, since step 4,000" in found.says
