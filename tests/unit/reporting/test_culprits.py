"""A finding names who it is and since when: not another, and not for ever if it ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.reporting.checks import BY_KEY, examine
from dragoman.reporting.periods import lasting, stretches
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


def slow_down(
    run: Path,
    rank: int,
    *,
    after: int = 0,
    until: int = 8000,
    times: float = 2.0,
    others: tuple[int, ...] = (0,),
) -> None:
    """A rank works for longer in some steps, and the others wait for it."""

    def add(phase: str) -> Change:
        def change(event: dict[str, Any]) -> None:
            if after < event["step"] <= until:
                more_s = 0.4 * (times - 1)
                event["step_median_s"] += more_s
                event["interval_s"] += more_s * event["steps"]
                event[phase] += more_s * event["steps"]

        return change

    edit(run, rank, TrainInterval.kind, add("forward_s"))
    for other in others:
        edit(run, other, TrainInterval.kind, add("sync_s"))


STRETCHES: dict[str, tuple[int, int, str]] = {
    "always": (0, 8000, "from the start ("),
    "in the first half, but for one interval": (0, 4000, "from the start until step 4,000, 14 Nov"),
    "from the middle on": (4000, 8000, "since step 4,000, 14 Nov 22:40:56 UTC ("),
    "in the middle": (3000, 6000, "since step 3,000, 14 Nov"),
}


@pytest.mark.parametrize("name", STRETCHES)
def test_a_straggler_is_named_with_its_time(name: str, tmp_path: Path) -> None:
    after, until, said = STRETCHES[name]
    run = Recorded().write(tmp_path / "run")
    slow_down(run, 1, after=after, until=until)
    found = ailment(run, "straggler")
    assert found.answer == "yes"
    assert f"2.00 x: rank 1 on host-b, {said}" in found.says
    assert re.search(r"\(800(.0)? ms/step, 400(.0)? ms/step the median rank\)", found.says)
    assert (" until step " in found.says) == (until < 8000)
    if name == "in the middle":
        assert "until step 6,000, 14 Nov 22:55:" in found.says


@pytest.mark.parametrize(("log_every", "answer"), [(5, "yes"), (10, "yes"), (20, "cannot tell")])
def test_a_straggler_that_recovers_early_counts_by_the_time_it_took(
    log_every: int, answer: str, tmp_path: Path
) -> None:
    """20 of 120 steps after the warm-up take three times as long: 37% of the time, in one interval
    or more."""
    steps, until = 120 + log_every, 20 + log_every
    run = Recorded(steps=steps, max_steps=steps, log_every=log_every).write(tmp_path / "run")
    slow_down(run, 1, until=until, times=3.0)
    found = ailment(run, "straggler")
    assert found.answer == answer, found.says
    if answer == "yes":
        assert f"3.00 x: rank 1 on host-b, from the start until step {until}" in found.says


def test_two_stretches_and_two_stragglers_are_all_named(tmp_path: Path) -> None:
    run = Recorded(world_size=4, compute_s=(0.4,) * 4, sync_s=(0.01,) * 4).write(tmp_path / "run")
    slow_down(run, 1, until=2400, others=(0, 2, 3))
    slow_down(run, 1, after=5000, others=(0, 3))
    slow_down(run, 2, after=6000, times=3.0, others=(0, 3))
    says = ailment(run, "straggler").says
    ends = r"from the start until step 2,400, [^(]* and since step 5,000, [^(]*"
    assert ": 3 x: rank 2 on host-2, since step 6,000" in says
    assert re.search(rf"; rank 1 on host-b, {ends}\(", says)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_ranks_that_are_slow_in_turn_are_no_straggler(every: int, tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")
    for turn, after in enumerate(range(0, 8000, 100 * every)):
        slow_down(run, turn % 2, after=after, until=after + 100 * every, others=(1 - turn % 2,))
    found = ailment(run, "straggler")
    assert (found.answer, found.remedy) == ("no", "")


@pytest.mark.parametrize(("log_every", "answer"), [(5, "cannot tell"), (50, "yes")])
def test_a_rank_is_slow_for_five_seconds_or_only_for_a_moment(
    log_every: int, answer: str, tmp_path: Path
) -> None:
    """From the middle on, a rank takes twice as long; the run trains for 3 s in all, or for 30."""
    steps = 24 * log_every
    fast = Recorded(
        steps=steps,
        max_steps=steps,
        log_every=log_every,
        compute_s=(0.02, 0.02),
        sync_s=(0.001, 0.001),
    )
    run = fast.write(tmp_path / "run")
    slow_down(run, 1, after=steps // 2, until=steps, times=1.05)
    assert ailment(run, "straggler").answer == answer


def test_a_few_slow_intervals_are_no_straggler(tmp_path: Path) -> None:
    run = Recorded().write(tmp_path / "run")
    slow_down(run, 1, after=4000, until=4500, times=5)
    assert ailment(run, "straggler").answer == "no"


def test_a_rank_whose_work_takes_no_time_makes_no_other_a_straggler(tmp_path: Path) -> None:
    run = Recorded(compute_s=(0.0, 0.0)).write(tmp_path / "run")
    assert ailment(run, "straggler").answer == "no"


def test_a_wait_for_the_network_that_may_be_too_long_is_named_with_its_time(tmp_path: Path) -> None:
    """Waits for 2,000 of 8,000 steps: over the whole run, between 12% and 23% of a step."""
    run = Recorded().write(tmp_path / "run")

    def wait(event: dict[str, Any]) -> None:
        if 3000 < event["step"] <= 5000:
            for name in ("interval_s", "sync_s", "wire_s"):
                event[name] += 30.0

    for rank in (0, 1):
        edit(run, rank, TrainInterval.kind, wait)
    found = BY_KEY["network"].of(read_facts(run))
    assert_well_said(found)
    assert found.answer == "cannot tell"
    assert "since step 3,000, 14 Nov" in found.says
    assert "until step 5,000, 14 Nov" in found.says


def test_the_size_of_the_last_checkpoint_counts(tmp_path: Path) -> None:
    full = changed(HOST_SAMPLED, disk_free_bytes=250_000_000)
    run = Recorded(extra=[(0, full)]).write(tmp_path / "run")

    def grow(event: dict[str, Any]) -> None:
        event["size_bytes"] = 100_000_000 if event["step"] == 8000 else 10_000_000

    edit(run, 0, "checkpoint_written", grow)
    assert "free disk space: 40.0%: the disk" in ailment(run, "disk").says


def test_stretches_that_last_are_found_with_their_ends() -> None:
    assert found_in([]) == []
    assert found_in([True] * 2) == []
    assert found_in([True] * 3) == [(0, 2)]
    assert found_in([False] * 40) == []
    assert found_in([True, False] * 20) == []
    late = [False] * 30 + [True] * 5 + [False] + [True] * 4
    assert found_in(late) == [(30, 39)]
    assert found_in([True, False] + [False] * 18 + [True] * 10) == [(20, 29)]
    assert found_in([True, False, False], [9.0, 1.0, 1.0]) == []  # one interval blames nobody
    assert found_in([True] * 2 + [False] * 10, [3.0] * 2 + [1.0] * 10) == [(0, 1)]
    assert found_in([True] * 2 + [False] * 10, [1.0] * 12) == []
    assert found_in([True, False] * 20, [0.0] * 40) == []  # nobody recorded what they took
    assert found_in([True] * 10 + [False] * 10 + [True] * 20) == [(0, 9), (20, 39)]


def found_in(is_so: list[bool], took_s: list[float] | None = None) -> list[tuple[int, int]]:
    seconds_s = [1.0] * len(is_so) if took_s is None else took_s
    return lasting(np.array(is_so, dtype=bool), np.array(seconds_s))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=12))
def test_no_other_place_makes_a_stretch_better(places: list[tuple[bool, int]]) -> None:
    """The best of all stretches is found, by looking at each; no two overlap."""
    is_so, took_s = np.array([so for so, _ in places]), np.array([float(s) for _, s in places])
    votes = np.where(is_so, took_s, -2 * took_s)
    found = stretches(is_so, took_s)
    ends = [place for stretch in found for place in stretch]
    assert ends == sorted(ends)
    best = max(votes[i : j + 1].sum() for i in range(len(votes)) for j in range(i, len(votes)))
    assert max((votes[i : j + 1].sum() for i, j in found), default=best) == best
    assert bool(found) == bool(is_so.any())
    for first, last in found:
        so_s = took_s[first : last + 1][is_so[first : last + 1]].sum()
        assert so_s > 2 / 3 * took_s[first : last + 1].sum() - 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_is_slow_in_most_noisy_intervals_is_found_from_its_start(seed: int) -> None:
    """At 1.5 x, with steps that vary by 20%, 1.25 x is reached in five of six intervals."""
    noise = np.random.default_rng(seed).random(400)
    is_slow = np.where(np.arange(400) < 200, noise < 0.05, noise < 5 / 6)
    (found,) = lasting(is_slow, np.ones(400))
    assert found == pytest.approx((200, 399), abs=20)


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
    slow_down(run, 1, after=4000)

    def lose(event: dict[str, Any]) -> None:
        if event["step"] == 300:
            event.update(sync_s=None, forward_s=None)

    edit(run, 0, TrainInterval.kind, lose)
    found = ailment(run, "straggler")
    assert found.answer == "yes", found.says
    assert "rank 1 on host-b, since step 4,000" in found.says
