"""Runs that resume on other hosts, links, devices or ranks, different ones for each life."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.reporting import plots
from dragoman.reporting.checks import examine, judge
from dragoman.reporting.facts import Facts
from dragoman.reporting.measures import tokens_per_s
from dragoman.reporting.reading import read_facts
from dragoman.reporting.svg import BarPlot
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.events import (
    DeviceMeasured,
    LinkChanged,
    LinkMeasured,
    Payload,
    as_values,
)
from dragoman.telemetry.host import HourlyPrice
from example_events import HOST_SAMPLED, changed
from golden_gpu import gpu_sampled
from recorded_runs import Recorded, read_ranks, write_ranks
from well_said import assert_well_said

VOCABULARY = ("corpus.subword.vocab_size=32768",)
Event = dict[str, Any]


def _answers(facts: Facts) -> dict[str, Verdict]:
    found = {one.key: one for one in [*judge(facts), *examine(facts)]}
    for verdict in found.values():
        assert_well_said(verdict)
    return found


def _link(bytes_per_s: float) -> LinkMeasured:
    return LinkMeasured(
        interface="eth0", peer="others", bytes_per_s=bytes_per_s, latency_s=3e-4, method="test"
    )


def _device(flop_per_s: float) -> DeviceMeasured:
    return DeviceMeasured(
        device="cuda", matrix_flop_per_s=flop_per_s, alone_tokens_per_s=None, method="test"
    )


def _change_lives(run: Path, rank: int, *changes: Callable[[list[Event]], Iterable[Event]]) -> None:
    """Apply to the events of each life its own change."""
    ranks = read_ranks(run)
    events = ranks[rank]
    second = [place for place, one in enumerate(events) if one["kind"] == "run_started"][1]
    lives = (events[:second], events[second:])
    ranks[rank] = [one for life, change in zip(lives, changes, strict=True) for one in change(life)]
    write_ranks(run, ranks)


def _life(
    *, host: str | None = None, measured: Payload | None = None, **sampled: float
) -> Callable[[list[Event]], list[Event]]:
    """On this host, with the measurements at its start and the samples of the host."""

    def change(life: list[Event]) -> list[Event]:
        if measured is not None:
            place = next(n for n, one in enumerate(life) if one["kind"] == "run_started")
            event = life[place] | {"kind": measured.kind}
            life.insert(place + 1, {k: event[k] for k in _ENVELOPE} | as_values(measured))
        for one in life:
            one["host"] = host or one["host"]
            if one["kind"] == HOST_SAMPLED.kind:
                one |= sampled
        return life

    return change


_ENVELOPE = ("v", "kind", "time", "mono_s", "host", "rank", "step")


def _nothing(_life: list[Event]) -> list[Event]:
    return []


def test_no_warm_up_counts_as_training(tmp_path: Path) -> None:
    """The first interval of each life takes twice as long, as kernels are chosen and built."""
    rates = []
    for warm_up in (1, 2):
        run = Recorded(resume_at=(800, 800), steps=1600).write(tmp_path / f"run{warm_up}")
        for rank in (0, 1):

            def slow(life: list[Event]) -> list[Event]:
                first = next(one for one in life if one["kind"] == "train_interval")
                first["interval_s"] *= warm_up  # noqa: B023 (called in this turn)
                return life

            _change_lives(run, rank, slow, slow)
        rates.append(tokens_per_s(read_facts(run)))
    assert rates[0] == rates[1] is not None


def test_one_host_at_the_end_does_not_mean_one_host_always(tmp_path: Path) -> None:
    run = Recorded(resume_at=(4000, 4000), sync_s=(2.24, 2.24), recipe=VOCABULARY).write(
        tmp_path / "run"
    )
    _change_lives(run, 0, _life(measured=_link(12e6)), _life())
    _change_lives(run, 1, _life(), _life(host="host-a"))
    facts = read_facts(run, price=HourlyPrice(amount=1.0, currency="USD"))
    found = _answers(facts)
    assert found["network"].answer == "no"
    assert found["network"].says.startswith("Since step 4,001, ")
    assert " on host-a: All ranks share one host" in found["network"].says
    assert "Steps 1 to 4,000 on host-a, host-b: Waiting for the network" in found["network"].says
    assert "all-reduces between ranks" in found["processors"].remedy
    assert "host-b: 29.68 MB over 12 MB/s" in found["network_fit"].says
    hours = sum(
        (life.ended - life.started) / 3600 * machines
        for life, machines in zip(facts.lives, (2, 1), strict=True)
    )
    assert f"{hours:.2f} USD" in found["cost"].says


@pytest.mark.parametrize(("moved_at", "answer"), [(7900, "yes"), (7800, "yes"), (7600, "no")])
def test_a_newest_life_that_is_too_short_to_judge_hides_no_answer(
    moved_at: int, answer: str, tmp_path: Path
) -> None:
    """One, two and four intervals on other hosts, which wait for 2% of a step; before, 85%."""
    run = Recorded(resume_at=(moved_at, moved_at), sync_s=(2.24, 2.24), recipe=VOCABULARY).write(
        tmp_path / "run"
    )

    def calm(life: list[Event]) -> list[Event]:
        for one in life:
            if one["kind"] == "train_interval":
                for name in ("interval_s", "sync_s", "wire_s"):
                    one[name] -= 223.0
        return life

    for rank, letter in enumerate("ab"):
        new = _life(host=f"new-{letter}", measured=None if rank else _link(10e9))
        old = _life(host=f"old-{letter}", measured=None if rank else _link(12e6))
        _change_lives(run, rank, old, lambda life, new=new: calm(new(life)))  # type: ignore[misc]
    found = _answers(read_facts(run))["network"]
    newest = f"Since step {moved_at + 1:,}, "
    earlier = f"Steps 1 to {moved_at:,} on old-a, old-b: Waiting for the network took 84.8%"
    assert found.answer == answer
    assert bool(found.remedy) is (answer == "yes")
    first, second = (earlier, newest) if answer == "yes" else (newest, earlier)
    assert found.says.startswith(first)
    assert f"\n{second}" in found.says
    assert found.says.endswith("on new-a, new-b: There are too few intervals to judge.") is (
        answer == "yes"
    )
    assert {row.name.split(":")[0] for row in found.evidence} >= {earlier.split(":")[0]}


def test_only_the_last_of_many_lives_are_named(tmp_path: Path) -> None:
    facts = read_facts(Recorded(sync_s=(2.24, 2.24), recipe=VOCABULARY).write(tmp_path / "run"))
    found = _answers(replace(facts, configurations=(facts,) * 5))["network"]
    assert found.says.count("Waiting for the network took") == 3
    assert found.says.endswith("Earlier changes of hosts or links that are not shown: 2.")


def test_a_short_life_elsewhere_does_not_decide(tmp_path: Path) -> None:
    """40 MB/s for 400 steps, then 10 GB/s for 7,600, which cannot be why the sums take as long."""
    run = Recorded(resume_at=(400, 400), sync_s=(0.4, 0.4), recipe=VOCABULARY).write(
        tmp_path / "run"
    )
    _change_lives(run, 0, _life(measured=_link(40e6)), _life(measured=_link(10e9)))
    found = _answers(read_facts(run))
    assert found["network"].answer == "cannot tell"
    assert "sums themselves may be slow" in found["network"].says.split("Steps 1 to 400")[0]
    assert "over 10 GB/s" in found["network_fit"].says
    assert found["network_fit"].remedy.startswith("Bytes do not explain all of it")


def test_a_link_of_other_hosts_does_not_count(tmp_path: Path) -> None:
    """It was measured in the first life only, then the run went on on other hosts."""
    run = Recorded(resume_at=(400, 400), sync_s=(0.4, 0.4), recipe=VOCABULARY).write(
        tmp_path / "run"
    )
    _change_lives(run, 0, _life(host="old-a", measured=_link(40e6)), _life(host="new-a"))
    _change_lives(run, 1, _life(host="old-b"), _life(host="new-b"))
    found = _answers(read_facts(run))
    assert (found["network"].answer, found["network_fit"].answer) == ("yes", "cannot tell")
    since, earlier = found["network_fit"].says.split("\nSteps 1 to 400 on old-a, old-b: ")
    assert since.endswith("The capacity of the link was not measured.")
    assert "over 40 MB/s" in earlier


def test_a_measured_link_counts_for_the_next_life_on_the_same_hosts(tmp_path: Path) -> None:
    run = Recorded(resume_at=(4000, 4000), sync_s=(2.24, 2.24), recipe=VOCABULARY).write(
        tmp_path / "run"
    )
    _change_lives(run, 0, _life(measured=_link(12e6)), _life())
    facts = read_facts(run)
    assert facts.configurations == ()
    assert _answers(facts)["network"].answer == "yes"


def _link_fell(life: list[Event]) -> list[Event]:
    """It fell to 3 MB/s at step 850, which was found at step 900."""
    return _link_at(life, 850, before_bytes_per_s=1e9, now_bytes_per_s=3e6)


def _link_at(
    life: list[Event], step: int, *, before_bytes_per_s: float, now_bytes_per_s: float
) -> list[Event]:
    """The link changed at this step, which was found 50 steps later."""
    now = LinkChanged(
        interface="eth0",
        where="host-a to host-b",
        before_bytes_per_s=before_bytes_per_s,
        now_bytes_per_s=now_bytes_per_s,
        since_step=step,
        since=life[0]["time"] + 360.0,
    )
    place = next(n for n, one in enumerate(life) if _is_interval(one, step + 50)) + 1
    event = {key: life[place - 1][key] for key in _ENVELOPE} | {"kind": now.kind} | as_values(now)
    return [*life[:place], event, *life[place:]]


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize("lost", [True, False])
def test_a_link_change_counts_for_the_life_in_which_it_was(
    lost: bool, elsewhere: bool, tmp_path: Path
) -> None:
    """The run went on from before or after the change, on other hosts or with a mended cable."""
    killed = (900, 800) if lost else (1000, 1000)
    run = Recorded(resume_at=killed, recipe=VOCABULARY).write(tmp_path / "run")
    measured = _life(measured=_link(1e9))
    _change_lives(run, 0, lambda life: _link_fell(measured(life)), list)
    if elsewhere:
        _change_lives(run, 0, list, _life(host="host-c", measured=_link(1e9)))
        _change_lives(run, 1, list, _life(host="host-d"))
    facts = read_facts(run)
    found = _answers(facts)
    assert found["network"].answer == "no"
    assert "cable" not in found["network"].remedy
    for key in ("network", "network_fit"):
        assert "3 MB/s" not in found[key].says
    rows = [row for row in found["network"].evidence if row.name == "the link changed"]
    assert bool(rows) is not lost
    assert all("Since step 850" in row.text for row in rows)


def test_a_part_of_a_life_has_the_samples_of_no_other_life(tmp_path: Path) -> None:
    """The link fell in the first life, which then went on on other hosts."""
    sampled: list[tuple[int, Payload]] = [(rank, HOST_SAMPLED) for rank in (0, 1)]
    run = Recorded(
        resume_at=(2000, 2000), steps=4000, max_steps=4000, extra=sampled, recipe=VOCABULARY
    ).write(tmp_path / "run")
    measured = _life(measured=_link(1e9))
    _change_lives(run, 0, lambda life: _link_fell(measured(life)), _life(host="host-c"))
    _change_lives(run, 1, list, _life(host="host-d"))
    before, fallen, elsewhere = read_facts(run).configurations
    for part, hosts in ((before, "ab"), (fallen, "ab"), (elsewhere, "cd")):
        assert {machine.host for machine in part.machines} <= {f"host-{name}" for name in hosts}


def test_a_link_that_fell_and_recovered_is_judged_as_it_is_now(tmp_path: Path) -> None:
    run = Recorded(recipe=VOCABULARY).write(tmp_path / "run")
    ranks = read_ranks(run)
    for one in ranks[0] + ranks[1]:
        if one["kind"] == "train_interval" and 2000 < one["step"] <= 5000:
            for name in ("interval_s", "sync_s", "wire_s"):
                one[name] += 200.0
    fell = _link_at(ranks[0], 2050, before_bytes_per_s=1e9, now_bytes_per_s=3e6)
    ranks[0] = _link_at(fell, 5050, before_bytes_per_s=3e6, now_bytes_per_s=1e9)
    write_ranks(run, ranks)
    found = _answers(read_facts(run))["network"]
    assert found.answer == "no"
    now, slow, before = re.split(r"\nSteps [0-9,]+ to [0-9,]+ on host-a, host-b: ", found.says)
    assert now.startswith("Since step 5,050, ")
    assert "Waiting for the network took 2.4%" in now
    assert "Waiting for the network took 8" in slow
    assert before.startswith("Waiting for the network took 2.4%")
    assert found.remedy.startswith("Look at the cable")


def test_a_link_that_fell_just_now_is_named_before_it_can_be_judged(tmp_path: Path) -> None:
    """One interval since then: the answer is that of before, the remedy that of the fall."""
    run = Recorded(steps=1000, max_steps=1000, recipe=VOCABULARY).write(tmp_path / "run")
    ranks = read_ranks(run)
    ranks[0] = _link_fell(_life(measured=_link(1e9))(ranks[0]))
    write_ranks(run, ranks)
    found = _answers(read_facts(run))["network"]
    assert found.answer == "no"
    assert found.says.startswith("Steps 1 to 800 on host-a, host-b: Waiting for the network took")
    assert "\nSince step 850, " in found.says
    assert found.says.endswith(
        "carried 3 MB/s each way, 1 GB/s before. There are too few intervals to judge."
    )
    assert found.remedy.startswith("Look at the cable")


@pytest.mark.parametrize(
    ("hosts", "rates", "answer"),
    [
        # 26% of the rate for 95% of the run, on hosts of the same name.
        (("host", "host"), (1e11, 5e11), "no"),
        (("host", "host"), (9e11, 2.5e11), "yes"),
        # Measured in the first life alone: of the second's devices nothing is known.
        (("old", "new"), (1.2e12, None), "cannot tell"),
    ],
)
def test_useful_flops_count_only_the_devices_of_a_life(
    hosts: tuple[str, str], rates: tuple[float, float | None], answer: str, tmp_path: Path
) -> None:
    run = Recorded(resume_at=(400, 400), device="cuda", recipe=VOCABULARY).write(tmp_path / "run")
    for rank in (0, 1):
        lives = [
            _life(host=f"{host}-{rank}", measured=None if rate is None else _device(rate))
            for host, rate in zip(hosts, rates, strict=True)
        ]
        _change_lives(run, rank, *lives)
    assert _answers(read_facts(run))["processors"].answer == answer


def test_processors_of_a_life_are_those_of_its_host(tmp_path: Path) -> None:
    busy: list[tuple[int, Payload]] = [
        (rank, changed(HOST_SAMPLED, cpu_share=0.97)) for rank in (0, 1)
    ]
    run = Recorded(resume_at=(3000, 3000), extra=busy, recipe=VOCABULARY).write(tmp_path / "run")
    _change_lives(run, 1, _life(host="slow-b", cpu_share=0.3), _life(host="fast-b"))
    found = _answers(read_facts(run))["processors"]
    assert found.answer == "yes"
    now, before = found.says.split("\nSteps 1 to 3,000 on host-a, slow-b: ")
    assert "on host-a, fast-b: " in now
    assert "only 30.0% of the processors of slow-b" in before
    assert {row.name.split(":")[0].split(" on ")[-1] for row in found.evidence} == {
        "host-a, slow-b",
        "host-a, fast-b",
    }


def test_a_slow_rank_is_named_with_all_its_hosts(tmp_path: Path) -> None:
    run = Recorded(
        resume_at=(4000, 4000), compute_s=(0.4, 0.8), sync_s=(0.41, 0.01), recipe=VOCABULARY
    ).write(tmp_path / "run")
    _change_lives(run, 1, _life(host="first-b"), _life(host="second-b"))
    assert "rank 1 on first-b, later second-b" in _answers(read_facts(run))["straggler"].says


@pytest.mark.parametrize("alone_first", [True, False])
def test_ranks_that_come_or_go_between_lives(alone_first: bool, tmp_path: Path) -> None:
    run = Recorded(resume_at=(4000, 4000), sync_s=(2.24, 2.24), recipe=VOCABULARY).write(
        tmp_path / "run"
    )

    def alone(life: list[Event]) -> list[Event]:
        """The same times without any record of sums."""
        for one in life:
            if one["kind"] == "train_interval":
                one |= {"sync_s": 0.0, "sync_bytes": 0, "forward_s": 264.0}
            if one["kind"] == "run_started":
                one["world_size"] = 1
        return life

    together = _life(measured=_link(12e6))
    lives = (alone, together) if alone_first else (together, alone)
    _change_lives(run, 0, *lives)
    _change_lives(run, 1, *((_nothing, list) if alone_first else (list, _nothing)))
    facts = read_facts(run, price=HourlyPrice(amount=1.0, currency="USD"))
    found = _answers(facts)
    texts = [
        "on host-a: One process trained alone",
        "on host-a, host-b: Waiting for the network took 84.8%",
    ]
    now, before = reversed(texts) if alone_first else texts
    assert found["network"].answer == ("yes" if alone_first else "no")
    assert now in found["network"].says.split("Steps 1 to 4,000")[0]
    assert before in found["network"].says.split("Steps 1 to 4,000")[1]
    machines = (1, 2) if alone_first else (2, 1)
    hours = sum(
        (life.ended - life.started) / 3600 * count
        for life, count in zip(facts.lives, machines, strict=True)
    )
    assert f"{hours:.2f} USD" in found["cost"].says


def test_a_rank_that_does_not_come_back_has_no_false_clock_and_costs_nothing(
    tmp_path: Path,
) -> None:
    """Host b is lost before the first checkpoint; rank 0 makes the same steps again alone."""
    run = Recorded(resume_at=(3900, 0), recipe=VOCABULARY).write(tmp_path / "run")

    def alone(life: list[Event]) -> list[Event]:
        next(one for one in life if one["kind"] == "run_started")["world_size"] = 1
        return life

    _change_lives(run, 0, list, alone)
    _change_lives(run, 1, list, _nothing)
    facts = read_facts(run)
    assert facts.problems == ()
    assert [life.machines for life in facts.lives] == [2, 1]
    assert not facts.intervals.points("interval_s", rank=1)
    assert len(facts.repeated.points("interval_s", rank=1)) == 39


def test_a_lost_life_on_other_hosts_changes_no_answer(tmp_path: Path) -> None:
    """It died before its first checkpoint; the run started again on two hosts of other names."""
    run = Recorded(resume_at=(700, 0), sync_s=(2.24, 2.24), recipe=VOCABULARY).write(
        tmp_path / "run"
    )
    for rank in (0, 1):
        _change_lives(run, rank, _life(host="lost"), _life(measured=_link(12e6)))
    facts = read_facts(run)
    assert len(facts.configurations) == 1
    found = _answers(facts)
    assert found["network"].answer == "yes"
    assert found["network"].says.startswith("Waiting for the network took 84.8%")


@pytest.mark.parametrize("paused", [4300, 4700, 3300])
def test_a_pause_belongs_to_the_life_in_which_it_was(paused: int, tmp_path: Path) -> None:
    """300 s before step `paused`, killed at 4,800, resumed from 4,000: not a part of life two."""
    run = Recorded(resume_at=(4800, 4000), recipe=VOCABULARY).write(tmp_path / "run")
    whole = read_facts(run)
    for rank in (0, 1):
        _change_lives(run, rank, partial(_paused, rank=rank, step=paused), list)
    facts = read_facts(run)
    assert facts.intervals["interval_s"] == pytest.approx(whole.intervals["interval_s"])
    assert facts.repeated_s == pytest.approx(whole.repeated_s)
    rows = {row.name: row.value for row in _answers(facts)["duration"].evidence}
    assert rows["stand still"] == pytest.approx(300.0)
    names = ("train", "evaluate", "save checkpoints", "stand still", "idle")
    parts = [rows[name] for name in names]
    assert sum(float(one or 0.0) for one in parts) == pytest.approx(rows["wall clock"])
    (bar,) = plots.duration(facts)
    assert isinstance(bar, BarPlot)
    assert sum(seconds_s for _, seconds_s in bar.parts) == pytest.approx(rows["wall clock"])


@pytest.mark.parametrize("paused_s", [0.0, 60.0])
def test_validations_of_lost_steps_are_not_idle_time(paused_s: float, tmp_path: Path) -> None:
    """Two validations of 90 s after the checkpoint, in the last of which rank 0 stood still."""
    run = Recorded(
        resume_at=(4000, 2500), validation_s=90.0, steps=5000, max_steps=5000, recipe=VOCABULARY
    ).write(tmp_path / "run")

    def pause(life: list[Event]) -> list[Event]:
        place = next(
            n for n, one in enumerate(life) if one["kind"] == "validated" and one["step"] == 4000
        )
        event = {key: life[place][key] for key in _ENVELOPE} | {
            **{"kind": "rank_paused", "paused_rank": 0, "own": True},
            **{"seconds_s": paused_s, "during": "validating"},
        }
        event["time"], event["mono_s"] = event["time"] - 5, event["mono_s"] - 5
        return [*life[:place], event, *life[place:]]

    if paused_s:
        _change_lives(run, 0, pause, list)
    rows = {row.name: row.value for row in _answers(read_facts(run))["duration"].evidence}
    assert rows["evaluate"] == pytest.approx(8 * 90 - paused_s)
    assert rows["idle"] == pytest.approx(0, abs=1e-3)


def test_a_pause_in_unrecorded_steps_belongs_to_no_other_life(tmp_path: Path) -> None:
    run = Recorded(resume_at=(4300, 4000), recipe=VOCABULARY).write(tmp_path / "run")
    whole = read_facts(run)
    _change_lives(run, 0, lambda life: _paused(life, rank=0, step=4300)[:-1], list)
    facts = read_facts(run)
    assert facts.pauses
    assert np.array_equal(facts.intervals["interval_s"], whole.intervals["interval_s"])


def _paused(life: list[Event], *, rank: int, step: int) -> list[Event]:
    """The life with 300 s in which rank 0 stood still on its way to a step."""
    place = next(n for n, one in enumerate(life) if _is_interval(one, step))
    for one in life[place:]:
        one["time"] += 300.0
        one["mono_s"] += 300.0
    interval = life[place]
    interval["interval_s"] += 300.0
    interval["forward_s" if rank == 0 else "sync_s"] += 300.0
    if rank == 0:
        pause = {key: interval[key] for key in _ENVELOPE} | {
            **{"kind": "rank_paused", "step": step - 50, "paused_rank": 0},
            **{"seconds_s": 300.0, "during": "forward", "own": True},
            **{"time": interval["time"] - 10, "mono_s": interval["mono_s"] - 10},
        }
        life.insert(place, pause)
    return life


def _is_interval(event: Event, step: int) -> bool:
    return bool(event["kind"] == "train_interval" and event["step"] == step)


@pytest.mark.parametrize(("ranks", "then"), [(2, 1), (4, 2), (2, 4)])
def test_a_straggler_of_a_life_with_other_ranks_is_found(
    ranks: int, then: int, tmp_path: Path
) -> None:
    """The last rank of the first life is slow for 7,000 of 8,000 steps."""
    slow, most = ranks - 1, max(ranks, then)
    run = Recorded(
        recipe=VOCABULARY,
        world_size=most,
        compute_s=tuple(1.2 if rank == slow else 0.4 for rank in range(most)),
        sync_s=tuple(0.01 if rank == slow else 0.81 for rank in range(most)),
        resume_at=(7000, 7000),
    ).write(tmp_path / "run")

    def of(size: int, rank: int, life: list[Event]) -> list[Event]:
        for one in life:
            if one["kind"] == "run_started":
                one["world_size"] = size
            if size == then and rank == slow and one["kind"] == "train_interval":
                one["sync_s"] += 80.0
                for name in ("forward_s", "backward_s", "optimizer_s"):
                    one[name] /= 3
        return life if rank < size else []

    for rank in reversed(range(most)):
        _change_lives(run, rank, partial(of, ranks, rank), partial(of, then, rank))
    facts = read_facts(run)
    assert facts.problems == ()
    found = _answers(facts)
    assert found["straggler"].answer == "yes"
    said = f"3.00 x: rank {slow} on {facts.ranks[slow].host}, from the start until step 7,000"
    assert said in found["straggler"].says
    assert "ranks that compute for longer" in found["processors"].remedy


def test_a_life_on_another_device_is_judged_alone(tmp_path: Path) -> None:
    """On GPUs, then on the processors of the same hosts, of which nothing was sampled."""
    full: list[tuple[int, Payload]] = [(rank, gpu_sampled(230.0)) for rank in (0, 1)]
    run = Recorded(device="cuda", recipe=VOCABULARY, resume_at=(4000, 4000), extra=full).write(
        tmp_path / "run"
    )

    def on_processors(life: list[Event]) -> list[Event]:
        next(one for one in life if one["kind"] == "run_started")["device"] = "cpu"
        return [one for one in life if one["kind"] != "gpu_sampled"]

    for rank in (0, 1):
        _change_lives(run, rank, list, on_processors)
    facts = read_facts(run)
    assert [life.device for life in facts.configurations] == ["cuda", "cpu"]
    assert _answers(facts)["processors"].answer == "cannot tell"
