"""One event has one cause in a report: who, since when and why, and nobody else is blamed.

Runs in recorded/ are real ones with a planted fault; see its README.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import (
    GpuSampled,
    HostSampled,
    NetworkSampled,
    Payload,
    RankPaused,
    TrainInterval,
)
from example_events import HOST_SAMPLED, NETWORK_SAMPLED, changed
from golden.test_logs_that_fool import edit
from golden_gpu import gpu_sampled
from recorded_runs import Recorded, read_ranks, write_ranks

RECORDED = Path(__file__).with_name("recorded")
LONG_AFTER = 1.9e9
FAULTS = ("straggler", "pauses", "network_faults", "starved")


def found(run: Path) -> dict[str, Verdict]:
    report = Report.of(read_facts(run, now=LONG_AFTER))
    return {one.key: one for one in (*report.answers, *report.ailments)}


@dataclass(frozen=True)
class Planted:
    """What was planted in a real run: the one finding, whom it names, and whom it must not name."""

    finding: str
    culprit: str
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


PLANTED = {
    "two_hosts_loop_at_the_end": Planted(
        "straggler", "rank 0 on alpha", ("since step 300", "other programs used 52"), ("rank 1",)
    ),
    "two_hosts_loop_on_the_second": Planted(
        "straggler", "rank 1 on beta", ("since step 240", "other programs used 5"), ("rank 0",)
    ),
    "two_hosts_cable_out": Planted(
        "network_faults", "eth0 of beta", ("rank 1 on beta", "12 s"), ("eth0 of alpha",)
    ),
    # The first host keeps the record of all ranks: it misses the other one, which did nothing.
    "two_hosts_cable_of_the_first": Planted(
        "network_faults", "eth0 of alpha", ("13 s",), ("eth0 of beta",)
    ),
    "two_hosts_stopped_process": Planted("pauses", "rank 1 on beta", ("12.2 s",), ("rank 0",)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_the_only_finding(name: str) -> None:
    planted, answers = PLANTED[name], found(RECORDED / name)
    assert [key for key in FAULTS if answers[key].answer == "yes"] == [planted.finding]
    says = answers[planted.finding].says
    for part in (planted.culprit, *planted.says):
        assert part in says
    for part in planted.never:
        assert part not in says
    if planted.finding == "straggler":  # question 4 names the rank that waits, and for whom
        assert planted.culprit in answers["processors"].remedy


@pytest.mark.parametrize("name", ["two_hosts_calm", "two_hosts_free", "two_ranks_of_one_host"])
def test_a_calm_run_has_no_finding(name: str) -> None:
    answers = found(RECORDED / name)
    assert [key for key in FAULTS if answers[key].answer == "yes"] == []


@pytest.mark.parametrize("name", ["two_hosts_cable_out", "two_hosts_cable_of_the_first"])
def test_the_time_without_a_link_is_not_that_of_a_rank_that_stood_still(name: str) -> None:
    rows = {row.name: row.value for row in found(RECORDED / name)["duration"].evidence}
    assert "stand still" not in rows
    assert rows["ranks out of reach"] == pytest.approx(12.5, abs=0.6)


# A rank that becomes slow and stays so: every culprit, every share of the run that is left.


COMPUTE_S = 0.4
"""Seconds of compute in a step, before one rank becomes slow."""


def slow_since(turn: int, *, times: float = 2.0) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        if event["step"] > turn:
            more_s = event["steps"] * COMPUTE_S * (times - 1)
            event["step_median_s"] += more_s / event["steps"]
            event["forward_s"] += more_s
            event["interval_s"] += more_s

    return change


def waiting_since(turn: int, *, times: float = 2.0) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        if event["step"] > turn:
            more_s = event["steps"] * COMPUTE_S * (times - 1)
            event["step_median_s"] += more_s / event["steps"]
            event["sync_s"] += more_s
            event["interval_s"] += more_s

    return change


def with_slow_rank(folder: Path, culprit: int, turn: int, times: float = 2.0, **run: Any) -> Path:
    """A run of three ranks in which one computes for longer, and the others wait."""
    three: dict[str, Any] = {
        "world_size": 3,
        "compute_s": (COMPUTE_S,) * 3,
        "sync_s": (0.01,) * 3,
    }
    directory = Recorded(**three | run).write(folder)
    for rank in range(3):
        change = slow_since if rank == culprit else waiting_since
        edit(directory, rank, TrainInterval.kind, change(turn, times=times))
    return directory


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("turn", [0, 4000, 6500, 7600, 7900])
@pytest.mark.parametrize("one_host", [False, True], ids=["hosts", "one host"])
def test_a_rank_that_becomes_slow_is_named_up_to_the_last_interval(
    culprit: int, turn: int, one_host: bool, tmp_path: Path
) -> None:
    run = with_slow_rank(tmp_path / "run", culprit, turn, one_host=one_host)
    answer = found(run)["straggler"]
    assert answer.answer == "yes"
    assert f"rank {culprit} on" in answer.says
    assert all(f"rank {rank} on" not in answer.says for rank in range(3) if rank != culprit)
    assert ("from the start" if turn == 0 else f"since step {turn:,}") in answer.says


@pytest.mark.parametrize(
    ("turn", "times", "answer"),
    [(4000, 1.3, "yes"), (7000, 1.3, "no"), (7800, 1.6, "yes"), (7900, 1.6, "no")],
)
def test_the_shorter_it_is_slow_the_clearer_it_must_be(
    turn: int, times: float, answer: str, tmp_path: Path
) -> None:
    assert found(with_slow_rank(tmp_path / "run", 1, turn, times))["straggler"].answer == answer


def test_a_few_slow_steps_at_the_end_are_chance(tmp_path: Path) -> None:
    run = with_slow_rank(
        tmp_path / "run", 1, 200, 3.0, steps=205, max_steps=205, log_every=5, validate_every=205
    )
    assert found(run)["straggler"].answer == "no"


def crowded(folder: Path, *, before: float, then: float, elsewhere: float, turn: int) -> Path:
    samples: list[tuple[int, Payload]] = [
        (rank, changed(HOST_SAMPLED, cpu_share=0.99, others_cpu_share=elsewhere))
        for rank in range(3)
    ]
    run = with_slow_rank(folder, 1, turn, extra=samples)

    def share(event: dict[str, Any]) -> None:
        event["others_cpu_share"] = then if event["step"] > turn else before

    edit(run, 1, HostSampled.kind, share)
    return run


@pytest.mark.parametrize(
    ("before", "then", "elsewhere", "turn", "blamed"),
    [
        (0.02, 0.5, 0.02, 7600, True),
        (0.02, 0.5, 0.02, 0, True),
        (0.3, 0.6, 0.02, 4000, True),
        (0.02, 0.05, 0.02, 4000, False),
        (0.5, 0.5, 0.02, 4000, False),  # as busy before, when the rank was not slow
        (0.5, 0.5, 0.5, 0, False),  # as busy as the hosts whose ranks are not slow
    ],
)
def test_other_programs_explain_a_slow_rank_only_if_they_came_with_it(
    before: float, then: float, elsewhere: float, turn: int, blamed: bool, tmp_path: Path
) -> None:
    run = crowded(tmp_path / "run", before=before, then=then, elsewhere=elsewhere, turn=turn)
    says = found(run)["straggler"].says
    used = re.search(r"other programs used ([\d.]+)% of the processors of host-b", says)
    assert bool(used) == blamed
    if used:
        assert float(used[1]) / 100 == pytest.approx(then, abs=0.1)


@pytest.mark.parametrize("throttled", [0, 1])
def test_a_lowered_clock_explains_the_slow_rank_of_that_gpu(throttled: int, tmp_path: Path) -> None:
    gpus: list[tuple[int, Payload]] = [(rank, gpu_sampled(240)) for rank in range(3)]
    run = with_slow_rank(tmp_path / "run", 1, 4000, 1.4, device="cuda", extra=gpus)

    def lower(event: dict[str, Any]) -> None:
        if event["step"] > 4000:
            event["throttle_reasons"] = "thermal"

    edit(run, throttled, GpuSampled.kind, lower)
    says = found(run)["straggler"].says
    assert "rank 1 on host-b, since step 4,000" in says
    assert ("clock of GPU 0 of host-b was lowered (thermal)" in says) == (throttled == 1)


# A rank that others missed: who stood still, and who was only out of reach?

PAUSED = RankPaused(paused_rank=1, seconds_s=12.0, during="sync", own=False)


def paused(folder: Path, *, own: bool, link: int | None, until_end: bool = False) -> Path:
    """Rank 1 is missing after step 4,000; link: the rank whose host loses its link then."""
    writer = 1 if own else 0
    extra: list[tuple[int, Payload]] = [(writer, changed(PAUSED, own=own))]
    extra += [(rank, changed(NETWORK_SAMPLED, seconds_s=1.0)) for rank in (0, 1)]
    run = Recorded(extra=extra, reason=None if until_end else "max_steps").write(folder)

    def only_then(event: dict[str, Any]) -> None:
        if event["step"] != 4000:
            event["kind"] = "of_another_version"

    def lose(event: dict[str, Any]) -> None:
        event["carrier_changes"] = int(event["step"] == 4000)

    edit(run, writer, RankPaused.kind, only_then)
    if link is not None:
        edit(run, link, NetworkSampled.kind, lose)
    if until_end:
        ranks = read_ranks(run)
        last = [one for one in ranks[0] if (one["step"] or 0) <= 3900]
        write_ranks(run, [last + [one for one in ranks[0] if one["kind"] == PAUSED.kind], ranks[1]])
    return run


@pytest.mark.parametrize(
    ("own", "link", "until_end", "stood_still", "link_of"),
    [
        (True, None, False, True, None),  # the process was stopped
        (True, 1, False, True, "host-b"),  # its host was suspended, with its network
        (False, 1, False, False, "host-b"),
        (False, 0, False, False, "host-a"),  # those that missed it were cut off themselves
        (False, None, False, False, None),  # a switch: no host lost its link
        (False, None, True, True, None),  # it never went on
    ],
    ids=["stopped", "suspended", "cable", "cable of the others", "switch", "gone"],
)
def test_a_missing_rank_stood_still_or_was_out_of_reach(
    own: bool,
    link: int | None,
    until_end: bool,
    stood_still: bool,
    link_of: str | None,
    tmp_path: Path,
) -> None:
    answers = found(paused(tmp_path / "run", own=own, link=link, until_end=until_end))
    names = "rank 1 on host-b" in answers["pauses"].says
    assert names == stood_still
    assert (answers["network_faults"].answer == "yes") == (link is not None or not stood_still)
    if not stood_still:
        assert "rank 1 on host-b was out of reach for 12 s" in answers["network_faults"].says
    if link_of is not None:
        assert f"eth0 of {link_of}" in answers["network_faults"].says


def test_ranks_of_one_host_are_not_out_of_reach(tmp_path: Path) -> None:
    extra: list[tuple[int, Payload]] = [(0, changed(PAUSED, seconds_s=200.0))]
    run = Recorded(extra=extra, one_host=True, steps=500, max_steps=500).write(tmp_path / "run")
    assert found(run)["pauses"].answer == "yes"
