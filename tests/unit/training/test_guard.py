"""The guard: what it lets pass, when it speaks and what it says."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from dragoman.data.loader import Update
from dragoman.distributed.gradient_sync import NoSync
from dragoman.telemetry import host
from dragoman.telemetry.events import Alert, read_events
from dragoman.telemetry.host import PRICE_VARIABLE, cpu_cores, hourly_price
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.training.guard import (
    WINDOW_STEPS,
    Slowness,
    StepGuard,
    Window,
    explained,
    why,
)
from toy_fit import ToyRun


def watched(
    guard: StepGuard, seconds_s: float, *, windows: int = 1, data: float = 0.0, waits: float = 0.0
) -> list[Alert]:
    """The alerts of so many windows of steps that each take this long, one odd step among them.

    data, waits: the shares of each step in which it waits for data, and for other ranks.
    """
    alerts = []
    for number in range(windows * WINDOW_STEPS):
        odd = 50 * seconds_s if number % WINDOW_STEPS == 7 else seconds_s
        guard.sync.waits.add(waits * odd)
        alert = guard.see(step=100, seconds_s=odd, data_wait_s=data * odd)
        alerts += [] if alert is None else [alert]
    return alerts


def warm(guard: StepGuard) -> None:
    for _ in range(5):
        guard.see(step=0, seconds_s=100.0, data_wait_s=0.0)


def test_the_guard_speaks_once_when_steps_are_slower_than_planned() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=3700, expected_s=0.5)
    warm(guard)
    assert watched(guard, 0.7, windows=3) == []
    (alert,) = watched(guard, 2.0, windows=3, waits=0.9)
    assert alert.severity == "warning"
    assert "was planned" in alert.cause
    assert "waits for other ranks and the network" in alert.cause
    assert "since step 100, " in alert.cause
    assert "2 h" in alert.cause, "3,600 steps of 2 s are left"
    assert "doctor" in alert.remedy
    (worse,) = watched(guard, 4.0)
    assert worse.severity == "warning"
    (again,) = watched(guard, 0.5, windows=2)
    assert again.severity == "info"


def test_slow_steps_do_not_delay_the_end_of_a_budget() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=3700, expected_s=0.5, has_budget=True)
    warm(guard)
    (alert,) = watched(guard, 2.0)
    assert "rest will take" not in alert.cause
    assert "The budget holds" in alert.cause


def test_training_on_a_machine_that_tells_its_energy_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root on bare metal can read the counters."""
    monkeypatch.setattr(host, "POWER_ZONES", tmp_path)
    (tmp_path / "intel-rapl:0").mkdir()
    texts = {"name": "package-0", "energy_uj": "5000000", "max_energy_range_uj": "262143328850"}
    for name, text in texts.items():
        (tmp_path / "intel-rapl:0" / name).write_text(f"{text}\n")
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, on_processor=True)
    warm(guard)
    assert watched(guard, 1.0, windows=2) == []
    assert 0.0 <= guard.last.own_cpu_share <= guard.last.cpu_share <= 1.0


def test_steps_are_fast_again_only_after_they_were_slow() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000)
    alerts = []
    for step in range(1, 90):
        seconds_s = 2.0 if 38 <= step <= 44 else 1.0
        alerts.append(guard.see(step=step, seconds_s=seconds_s, data_wait_s=0.0))
    slow, again = (alert for alert in alerts if alert is not None)
    assert "since step 38, " in slow.cause
    assert f"it is the compute itself, of rank 0 on {socket.gethostname()}" in slow.cause
    assert again.cause.startswith("steps take 1 s/step again, since step 45, ")


def test_steps_that_hover_near_the_limit_are_reported_once() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=1.0)
    warm(guard)
    alerts = [alert for seconds_s in (1.6, 1.4) * 7 for alert in watched(guard, seconds_s)]
    assert [alert.severity for alert in alerts] == ["warning"]
    (again,) = watched(guard, 1.1, windows=4)
    assert (again.severity, again.about) == ("info", alerts[0].about)


def test_fast_steps_that_are_slow_for_a_moment_are_no_news() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=0.03)
    for step in range(1, 2000):
        seconds_s = 0.09 if step % 200 < 30 else 0.03
        assert guard.see(step=step, seconds_s=seconds_s, data_wait_s=0.0) is None


def test_slowness_that_comes_and_goes_is_told_once() -> None:
    """As on a machine whose processors others use in turn: ten seconds slow, ten seconds not."""
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=0.1)
    alerts, now_s = [], 0.0
    for step in range(1, 3000):
        seconds_s = 0.2 if now_s % 20 < 10 else 0.1
        now_s += seconds_s
        alerts.append(guard.see(step=step, seconds_s=seconds_s, data_wait_s=0.0))
    assert [alert.severity for alert in alerts if alert] == ["warning"]


def test_a_machine_alone_is_not_called_every_machine() -> None:
    for on_hosts in (False, True):
        found = Slowness(True, "slow", "2 h, not 1 h", 1, 1.7e9, on_hosts=on_hosts)
        alert = explained(found, "cause", "remedy")
        assert "2 h, not 1 h" in alert.cause
        assert ("every machine" in alert.cause) is on_hosts


def test_without_a_plan_the_first_steps_set_the_usual_time() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000)
    warm(guard)
    assert watched(guard, 1.0, windows=2) == []
    (starved,) = watched(guard, 3.0, data=0.8)
    assert "usual" in starved.cause
    assert "waits for data" in starved.cause
    (slow,) = watched(guard, 9.0)
    assert "compute" in slow.cause


def test_a_network_that_is_slow_from_the_start_is_reported_without_a_plan() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=3700)
    warm(guard)
    (alert,) = watched(guard, 3.0, windows=3, waits=0.9)
    assert "took 3 s/step, 300.0 ms/step without waiting: 90.0% of it waits" in alert.cause
    assert "The rest will take 3 h 00 min, not 18 min 00 s" in alert.cause
    assert "plan" in alert.remedy


def test_little_waiting_or_little_left_is_not_reported_without_a_plan() -> None:
    for share, steps in ((0.3, 3700), (0.9, 150)):
        guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=steps)
        warm(guard)
        assert watched(guard, 3.0, waits=share) == []


def test_the_extra_cost_is_named_if_the_price_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRICE_VARIABLE, "6.12 USD")
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=3700, expected_s=1.0, price=hourly_price())
    warm(guard)
    (alert,) = watched(guard, 3.0)
    assert "not 1 h 00 min, for 12.24 USD more" in alert.cause, (
        "3,600 steps are left, each 2 s longer"
    )
    monkeypatch.setenv(PRICE_VARIABLE, "")
    assert hourly_price() is None


class Card:
    """The files in which the kernel tells of a network card."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "statistics").mkdir(parents=True)
        for direction in "tx", "rx":
            for what in "bytes", "packets", "errors":
                (folder / "statistics" / f"{direction}_{what}").write_text("0")
        self.tell(megabits=1000, carrier_changes=1)

    def tell(self, *, megabits: int, carrier_changes: int) -> None:
        (self._folder / "speed").write_text(f"{megabits}\n")
        (self._folder / "carrier_changes").write_text(f"{carrier_changes}\n")


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setattr(host, "NETWORK_INTERFACES", tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    return Card(tmp_path / "eth0")


def test_a_card_that_changes_is_reported_even_if_steps_are_as_fast(card: Card) -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, judges_steps=False)
    warm(guard)
    assert watched(guard, 1.0) == []
    card.tell(megabits=100, carrier_changes=3)
    (slower,) = watched(guard, 1.0, windows=2)
    host = socket.gethostname()
    assert slower.cause == f"eth0 now runs at 100 Mbit/s, 1 Gbit/s before on {host}"
    card.tell(megabits=100, carrier_changes=5)
    (out,) = watched(guard, 1.0, windows=2)
    assert out.cause == f"the cable of eth0 was out on {host}"
    assert watched(guard, 9.0) == [], "another rank judges the steps"


def test_a_slow_step_is_reported_with_the_change_of_the_network_card(card: Card) -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=1.0, watches_card=False)
    warm(guard)
    card.tell(megabits=100, carrier_changes=1)
    (alert,) = watched(guard, 2.0)
    assert "; eth0 now runs at 100 Mbit/s, 1 Gbit/s before" in alert.cause


def test_the_usual_time_is_that_of_the_steps_before_and_the_turn_is_named() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000)
    warm(guard)
    alerts = []
    for step in range(1, 60):
        seconds_s = 0.5 if step <= 24 else 2.5
        alert = guard.see(step=step, seconds_s=seconds_s, data_wait_s=0.0)
        alerts += [] if alert is None else [(step, alert)]
    ((step, alert),) = alerts
    assert 24 < step <= 24 + 20
    assert "500 ms/step was usual" in alert.cause
    assert "since step 25, " in alert.cause


@pytest.mark.parametrize("planned_s", [None, 0.3])
def test_a_stage_with_longer_sentences_is_not_slow(planned_s: float | None) -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=planned_s)
    warm(guard)
    assert watched(guard, 0.3, windows=2) == []
    guard.learn_anew()
    warm(guard)
    assert watched(guard, 0.6, windows=2) == []
    (alert,) = watched(guard, 1.2, windows=2)
    assert "600 ms/step was usual" in alert.cause


def test_a_network_that_was_always_slow_is_reported_once_in_all_stages() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=3700)
    warm(guard)
    assert len(watched(guard, 3.0, waits=0.9)) == 1
    guard.learn_anew()
    warm(guard)
    assert watched(guard, 3.0, windows=2, waits=0.9) == []


@pytest.mark.system
@pytest.mark.parametrize("starts", [(0,), (0, 40)])
def test_a_run_knows_when_a_stage_begins(tmp_path: Path, starts: tuple[int, ...]) -> None:
    def longer(update: Update) -> Update:
        time.sleep(0.3 if update.update_index >= 40 else 0.03)
        return update

    run = ToyRun(
        tmp_path,
        TrainConfig(max_steps=70, validate_every_steps=100),
        CheckpointConfig(every_steps=100),
        change_update=longer,
        stage_starts=starts,
    )
    run.fit()
    alerts = [e for e in read_events(tmp_path / "events/log.jsonl") if e.kind == "alert"]
    slow = [event for event in alerts if "was usual" in event.payload["cause"]]
    assert bool(slow) is (len(starts) == 1)


def test_several_ranks_are_asked_before_a_cause_is_named() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=1.0, alone=False)
    warm(guard)
    assert watched(guard, 3.0) == []
    assert guard.slowness is not None
    assert guard.slowness.slow
    windows = [Window(0, "alpha", 1.0, 2.0, 0.0), Window(1, "beta", 2.9, 0.1, 0.0)]
    cause, remedy = why(windows)
    assert cause == "rank 1 on beta takes 2.900 s/step by itself, the median rank 1 s/step"
    assert "beta" in remedy
    starved = [Window(0, "alpha", 1.0, 2.0, 0.0), Window(1, "beta", 3.0, 0.0, 2.5)]
    assert why(starved)[0] == "rank 1 on beta: 83.3% of it waits for data"


def test_all_culprits_are_named() -> None:
    fast, slow = Window(0, "alpha", 1.0, 2.0, 0.0), Window(1, "beta", 3.0, 0.0, 0.0)
    both = [fast, slow, replace(fast, rank=2), replace(slow, rank=3, host="delta")]
    cause, remedy = why(both)
    assert cause == (
        "rank 1 on beta takes 3 s/step by itself, rank 3 on delta takes 3 s/step by itself, "
        "the median rank 1 s/step"
    )
    assert "beta and delta" in remedy
    most = [fast, *(replace(slow, rank=rank) for rank in range(1, 6))]
    cause, remedy = why(most)
    assert "rank 3 on beta takes 3 s/step by itself and 2 more, the fastest rank 1 s/step" in cause
    assert "on beta," in remedy
    starved = [
        fast,
        replace(slow, data_wait_s=2.0),
        replace(slow, rank=2, host="gamma", data_wait_s=2.5),
    ]
    cause = "rank 2 on gamma: 83.3%, rank 1 on beta: 66.7% of it waits for data"
    assert why(starved)[0] == cause


def test_other_programs_on_the_processors_are_the_cause_of_slow_compute() -> None:
    """The ranks of a host are no other programs to each other."""
    alike = Window(0, "alpha", 3.0, 0.0, 0.0, cpu_share=0.9, own_cpu_share=0.15)
    ranks = [alike, replace(alike, rank=1), replace(alike, rank=2, host="beta", cpu_share=0.2)]
    cause, remedy = why(ranks)
    assert cause == "other programs used 60.0% of the processors of alpha"
    assert "alpha" in remedy
    own = [replace(one, own_cpu_share=one.cpu_share / 2) for one in ranks]
    assert "other programs" not in why(own[:2])[0]
    slow = replace(alike, rank=2, own_s=9.0, host="beta")
    assert "75.0% of the processors of beta" in why([*ranks[:2], slow])[0]


def test_a_guard_measures_what_other_programs_use_of_the_processors() -> None:
    guard = StepGuard(
        NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=1.0, alone=True, on_processor=True
    )
    warm(guard)
    loop = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(loop) for _ in range(cpu_cores())]
    try:
        time.sleep(1.0)
        watched(guard, 1.0)
        time.sleep(2.0)
        (alert, *_) = watched(guard, 3.0)
    finally:
        for process in others:
            process.kill()
            process.wait()
    assert "other programs used" in alert.cause
    assert guard.last.cpu_share - guard.last.own_cpu_share > 0.3


@pytest.mark.parametrize("paused", [0, 1])
@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("paused_at", range(26, 35))
def test_a_pause_among_slow_steps_is_not_blamed_for_them(
    paused_at: int, slow: int, paused: int
) -> None:
    """One rank stands still once, for 20 s, in the window in which a rank has become slow."""
    guards = [
        StepGuard(NoSync(nn.Linear(1, 1)), 1000, judges_steps=rank == 0, rank=rank, alone=False)
        for rank in range(2)
    ]
    for step in range(1, 36):
        own_s = [1.0, 1.0]
        own_s[slow] = 4.0 if step >= 28 else 1.0
        own_s[paused] += 20.0 if step == paused_at else 0.0
        for guard, took_s in zip(guards, own_s, strict=True):
            guard.sync.waits.add(max(own_s) - took_s)
            guard.see(step=step, seconds_s=max(own_s), data_wait_s=0.0)
    assert guards[0].slowness is not None
    cause, _ = why([guard.last for guard in guards])
    host = socket.gethostname()
    said = re.escape(f"rank {slow} on {host} takes 4 s/step by itself, ")
    assert re.fullmatch(said + "the median rank 1 s/step", cause), cause


def test_a_few_odd_steps_are_noise() -> None:
    guard = StepGuard(NoSync(nn.Linear(1, 1)), max_steps=1000, expected_s=1.0)
    warm(guard)
    for step in range(100):
        seconds_s = 6.0 if step % 4 == 0 else 1.0
        assert guard.see(step=step, seconds_s=seconds_s, data_wait_s=0.0) is None
    assert guard.last.own_s == 1.0


class SeldomSync(NoSync):
    """A strategy that waits for all ranks at each `gap`-th step alone, as DiLoCo does."""

    def __init__(self, *, gap: int, fragments: int = 1) -> None:
        super().__init__(nn.Linear(1, 1))
        self.gap = gap
        self.period = gap * fragments
        self.is_settled = True

    @property
    def settled(self) -> bool:
        return self.is_settled


def seldom_waiting(
    gap: int,
    own_s: Callable[[int], float],
    wait_s: Callable[[int], float],
    *,
    steps: int = 1000,
    fragments: int = 4,
    max_steps: int = 100_000,
) -> list[tuple[int, Alert]]:
    """The alerts of a run, by step: its own work of a step, and the wait at an exchange."""
    sync = SeldomSync(gap=gap, fragments=fragments)
    guard = StepGuard(sync, max_steps=max_steps)
    alerts = []
    for step in range(1, steps + 1):
        sync.is_settled = step % gap == 0
        waited_s = wait_s(step) if sync.is_settled else 0.0
        sync.waits.add(waited_s)
        alert = guard.see(step=step, seconds_s=own_s(step) + waited_s, data_wait_s=0.0)
        if alert is not None:
            alerts.append((step, alert))
    return alerts


SLOW_FROM = 643
"""In the middle of a window."""


@pytest.mark.parametrize("gap", [1, 2, 5, 25, 100])
def test_slow_work_is_noticed_however_seldom_ranks_meet(gap: int) -> None:
    ((step, alert),) = seldom_waiting(
        gap, lambda step: 0.3 if step >= SLOW_FROM else 0.1, lambda _step: 0.02 * gap, fragments=4
    )
    assert SLOW_FROM < step <= SLOW_FROM + 20
    assert re.search(r"took 3[02]0(\.0)? ms/step, 120(\.0)? ms/step was usual", alert.cause)
    assert "it is the compute itself" in alert.cause


@pytest.mark.parametrize("gap", [1, 2, 5, 10])
def test_a_slow_network_is_noticed_within_twenty_steps_of_a_strategy_that_seldom_waits(
    gap: int,
) -> None:
    ((step, alert),) = seldom_waiting(
        gap, lambda _step: 0.1, lambda step: (1.0 if step >= SLOW_FROM else 0.02) * gap
    )
    assert SLOW_FROM < step <= SLOW_FROM + 20
    assert re.search(r"1\.100 s/step, 120(\.0)? ms/step was usual", alert.cause), alert.cause
    assert "waits for other ranks and the network" in alert.cause
    since = int(alert.cause.split("since step ")[1].split(",")[0])
    assert SLOW_FROM - gap < since <= SLOW_FROM + gap


def test_a_slow_network_is_noticed_at_the_second_slow_exchange() -> None:
    ((step, alert),) = seldom_waiting(
        100, lambda _step: 0.1, lambda step: 100.0 if step >= SLOW_FROM else 2.0, fragments=1
    )
    assert step == 800
    assert "since step 601, " in alert.cause


@pytest.mark.parametrize("gap", [1, 5, 25, 100])
def test_a_long_wait_and_odd_steps_are_noise_even_if_waits_are_rare(gap: int) -> None:
    odd = -(-SLOW_FROM // gap) * gap
    assert not seldom_waiting(
        gap,
        lambda step: 2.0 if step % 7 == 0 else 0.1,
        lambda step: 60.0 if step == odd else 0.05 * gap,
    )


def test_a_network_slow_from_the_start_is_reported_if_waits_are_rare() -> None:
    ((step, alert),) = seldom_waiting(25, lambda _step: 0.1, lambda _step: 25.0)
    assert step <= 100
    assert re.search(r"took 1\.100 s/step, 100(\.0)? ms/step without waiting", alert.cause)
