"""The length of a run with a budget, on a clock that the test turns."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.base.errors import CheckpointError
from dragoman.training.config import CheckpointConfig
from dragoman.training.pace import Budget, Costs, Pace, longest, read_budget


def budget_of(seconds_s: float, *, most_steps: int | None = None) -> Budget:
    """A budget that began at 0 and aims at 97%; the work after the training takes 4 s and 2
    validations, of which half is translating."""
    return Budget(
        asked="",
        started=0.0,
        seconds_s=seconds_s,
        aim_s=0.97 * seconds_s,
        validation_s=0.001 * seconds_s,
        after_s=4.0,
        search_s=0.0005 * seconds_s,
        after_searches=4.0,
        most_steps=most_steps,
        expected_bleu=20.0,
        expected_bleu_low=10.0,
        expected_bleu_high=30.0,
    )


@dataclass
class Simulation:
    """A run on a machine whose speed is known: what the trainer does, without the training.

    step_s: a step, by chance a fifth less or 30% more. validation_s: a validation. Both are doubled
    from `neighbour_from` on. save_s: a save: after each validation, and by a clock that asks every
    5 s or less often if saves take long. first_length: what the run was thought to have.
    """

    budget: Budget
    first_length: int
    step_s: float
    validation_s: float
    save_s: float = 0.0
    validations: int = 10
    neighbour_from: float = float("inf")
    killed_at: float = float("inf")
    pause: tuple[float, float] = (float("inf"), 0.0)
    """When a step stands still, and for how long."""
    seed: int = 1
    now: float = 0.0
    fits: int = 0
    saves: int = 0

    def run(self) -> float:
        """Seconds until the score and the export are done."""
        chance = random.Random(self.seed)
        self.now = 0.05 * self.budget.seconds_s
        every = max(1, self.first_length // self.validations)
        length, step = self.first_length, 0
        saved_at = self.now
        pace = self._pace(length, every, (None, None))
        saved: tuple[int, int, tuple[float | None, float | None]] = (0, length, (None, None))
        while step < length:
            step += 1
            self.now += self.step_s * self.slowness * chance.uniform(0.8, 1.3)
            if self.now > self.pause[0]:
                self.now += self.pause[1]
                self.pause = (float("inf"), 0.0)
            pace.updated(step)
            wanted = pace.wanted(step)
            by_clock = self.now - saved_at > self.checkpoint.clock_s(self.save_s)
            if step % every == 0 or step == length:
                seconds_s = self.validation_s * self.slowness
                self.now += seconds_s
                pace.validated(seconds_s, search_s=seconds_s / 2)
                saved = (step, length, (pace.validation_steps, pace.search_steps))
            if self.save_s and (by_clock or step % every == 0 or step == length):
                self.now += self.save_s
                self.saves += 1
                saved_at = self.now
                pace.saved(self.save_s)
            if wanted and step < length:
                length = max(wanted, step + 1)
                pace.fitted(length)
                self.fits += 1
            if self.now > self.killed_at:
                self.killed_at = float("inf")
                self.now += 0.03 * self.budget.seconds_s
                step, length, known = saved
                pace = self._pace(length, every, known)
        self.now += 4.0 + 2.0 * self.validation_s * self.slowness
        return self.now

    @property
    def checkpoint(self) -> CheckpointConfig:
        return CheckpointConfig(every_minutes=5 / 60 if self.save_s else 0.0)

    @property
    def slowness(self) -> float:
        return 2.0 if self.now > self.neighbour_from else 1.0

    def _pace(self, length: int, every: int, known: tuple[float | None, float | None]) -> Pace:
        return Pace(
            self.budget,
            length=length,
            validate_every=every,
            save_every=every,
            validation_steps=known[0],
            search_steps=known[1],
            now=lambda: self.now,
        )


@pytest.mark.parametrize("seconds_s", [300.0, 2700.0])
@pytest.mark.parametrize("thought", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("neighbour_from", [2.0, 0.5])
@pytest.mark.parametrize("killed_at", [2.0, 0.6])
def test_a_run_ends_in_time(
    seconds_s: float, thought: float, neighbour_from: float, killed_at: float
) -> None:
    step_s = 0.002 * seconds_s
    simulation = Simulation(
        budget_of(seconds_s),
        first_length=int(thought * 0.85 * seconds_s / step_s),
        step_s=step_s,
        validation_s=0.01 * seconds_s,
        neighbour_from=neighbour_from * seconds_s,
        killed_at=killed_at * seconds_s,
    )
    assert 0.9 <= simulation.run() / seconds_s <= 1.02


def test_a_host_whose_clock_is_wrong_has_the_same_time() -> None:
    budget = budget_of(300.0)
    moment = budget.started + 100.0

    def left_s(budget: Budget, now: float) -> float:
        pace = Pace(budget, length=100, validate_every=10, save_every=10, now=lambda: now)
        return pace.left_s

    for ahead_s in (-300.0, 0.25, 300.0):
        expected_s = left_s(budget, moment)
        assert left_s(budget.by_clock(ahead_s), moment + ahead_s) == pytest.approx(expected_s)


@pytest.mark.parametrize("at", [0.1, 0.5, 0.8, 0.9])
def test_a_pause_is_no_speed(at: float) -> None:
    simulation = Simulation(
        budget_of(300.0),
        first_length=1600,
        step_s=0.15,
        validation_s=2.0,
        pause=(at * 300.0, 9.0),
    )
    assert 0.93 <= simulation.run() / 300.0 <= 1.02


@pytest.mark.parametrize(("validations", "save_s"), [(3, 6.0), (1, 3.0)])
def test_a_run_with_slow_saves_ends_in_time(validations: int, save_s: float) -> None:
    simulation = Simulation(
        budget_of(600.0),
        first_length=9000,
        step_s=0.06,
        validation_s=1.0,
        save_s=save_s,
        validations=validations,
    )
    assert 0.94 <= simulation.run() / 600.0 <= 1.0
    by_clock = simulation.saves - validations
    assert 3 <= by_clock <= 600.0 / (20 * save_s)


def test_the_length_stays_if_all_is_as_planned() -> None:
    simulation = Simulation(budget_of(1000.0), first_length=8200, step_s=0.1, validation_s=1.0)
    assert 950 <= simulation.run() <= 1000
    assert simulation.fits < 12


def test_steps_that_the_recipe_sets_are_never_exceeded() -> None:
    budget = budget_of(1000.0, most_steps=500)
    simulation = Simulation(budget, first_length=500, step_s=0.1, validation_s=1.0)
    assert simulation.run() < 130


@given(
    step=st.integers(0, 10_000),
    left_s=st.floats(-10.0, 5000.0),
    step_s=st.floats(0.01, 10.0),
    validation_s=st.floats(0.0, 100.0),
    every=st.integers(1, 500),
    multiple=st.integers(1, 16),
)
def test_the_longest_run_fits_and_a_longer_one_does_not(
    step: int, left_s: float, step_s: float, validation_s: float, every: int, multiple: int
) -> None:
    costs = Costs(step_s, validation_s, save_s=0.3)
    step = step // multiple * multiple
    length = longest(
        costs, step=step, left_s=left_s, validate_every=every, save_every=7, multiple=multiple
    )
    assert length > step
    assert length % multiple == 0

    def seconds_s(length: int) -> float:
        """Counted one by one."""
        validations = sum(n % every == 0 or n == length for n in range(step + 1, length + 1))
        saves = sum(n % 7 == 0 or n == length for n in range(step + 1, length + 1))
        return (length - step) * step_s + validations * validation_s + saves * 0.3

    if length > step + multiple:
        assert seconds_s(length) <= left_s * (1 + 1e-9)
    assert seconds_s(length + multiple) > left_s * (1 - 1e-9)


def test_processes_take_as_long_to_begin_again() -> None:
    budget = budget_of(300.0)
    assert budget.with_starts(6.0).after_s == 4.0
    assert budget.model_copy(update={"starts": 2}).with_starts(6.0).after_s == 16.0


def test_each_price_counts_for_its_own_time() -> None:
    budget = budget_of(7200.0).model_copy(update={"started": 1000.0})
    assert budget.cost(until=4600.0) is None
    priced = budget.at_price(3.0, "USD", now=2800.0)
    assert priced.cost(until=4600.0) == pytest.approx(3.0), "the price of all of the time"
    dearer = priced.at_price(5.0, "USD", now=2800.0)
    assert dearer.cost(until=4600.0) == pytest.approx(3.0 / 2 + 5.0 / 2)
    cheaper = dearer.at_price(1.0, "USD", now=4600.0)
    assert cheaper.cost(until=8200.0) == pytest.approx(4.0 + 1.0)


def test_a_budget_is_kept_with_the_run(tmp_path: Path) -> None:
    assert read_budget(tmp_path) is None
    budget = budget_of(60.0)
    budget.save(tmp_path)
    assert read_budget(tmp_path) == budget
    (tmp_path / "budget.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"budget.json: does not say how much time"):
        read_budget(tmp_path)
