"""The schedule of a run that has to end in time: the clock says how far it is.

    progress = (now - first update) / (last moment for an update - first update)

The learning rate, validations and log lines follow from the progress, so nothing is planned in
steps. What still has to come after the last update is measured as it happens: a validation, a
save, the translation of the test set, the export. Rank 0 reads its clock for all ranks. A kill
does not stop the clock: the run goes on from its checkpoint with the progress of the moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError
from dragoman.base.files import read_regular, write_whole
from dragoman.base.settings import Section

BUDGET_FILE: Final = "budget.json"
"""In the directory of a run that has a budget."""
_LONGEST_RECORD: Final = 1 << 20
AIM: Final = 0.975
"""Share of the budget after which everything should be done: the last parts cannot be shortened."""
FORECAST_FROM: Final = 1 / 3
"""The progress from which on the end is forecast."""


class Budget(Section):
    """The time of one run: its `budget.json`.

    asked: digest of the recipe as it was written, and of the budget.
    started: UTC seconds since 1970, of the first command; all that passes since then counts.
    validations: how many, spread evenly over the training.
    validation_s: the expected time of a validation, search_s that of its translations alone,
    save_s that of a save, until one was measured.
    after_s: seconds of the work after the training, without translations.
    after_searches: the translations of that work, of the test set and for the export's check, as a
    multiple of `search_s`.
    starts: processes that begin one after the other before the test set is scored: a launcher and
    its workers, or none.
    """

    asked: str
    started: float
    seconds_s: float = Field(gt=0.0)
    validations: int = Field(default=5, ge=1)
    validation_s: float = Field(ge=0.0)
    search_s: float = Field(ge=0.0)
    save_s: float = Field(default=0.0, ge=0.0)
    after_s: float = Field(ge=0.0)
    after_searches: float = Field(ge=0.0)
    starts: int = Field(default=0, ge=0)
    most_steps: int | None = Field(default=None, ge=1)
    """`train.max_steps`, if the recipe sets it."""
    price_per_hour: float | None = None
    """The price of all machines together; None if it is not known."""
    currency: str = ""
    paid: float = Field(default=0.0, ge=0.0)
    """The cost until `priced_from`, at earlier prices."""
    priced_from: float | None = None
    """When the price began to count, UTC seconds since 1970; None: with the first command."""
    finished: float | None = None
    """When the export was done, UTC seconds since 1970."""

    @property
    def used_s(self) -> float | None:
        """Seconds from the first command to the export; None before it is done."""
        return None if self.finished is None else self.finished - self.started

    @property
    def aim(self) -> float:
        """When all is to be done, UTC seconds since 1970."""
        return self.started + AIM * self.seconds_s

    def cost(self, *, until: float) -> float | None:
        """The cost of the time until a moment, UTC seconds since 1970; None without a price."""
        if self.price_per_hour is None:
            return None
        since = self.started if self.priced_from is None else self.priced_from
        return self.paid + self.price_per_hour * (until - since) / units.HOUR_S

    def at_price(self, per_hour: float, currency: str, *, now: float) -> Budget:
        """This budget for a run that goes on at a price; the cost so far stays."""
        changes: dict[str, Any] = {"price_per_hour": per_hour, "currency": currency}
        if self.price_per_hour is not None:
            changes |= {"paid": self.cost(until=now), "priced_from": now}
        return self.model_copy(update=changes)

    def with_starts(self, start_s: float) -> Budget:
        """This budget if a process takes this long to start, mostly to import PyTorch."""
        return self.model_copy(update={"after_s": self.after_s + self.starts * start_s})

    def by_clock(self, ahead_s: float) -> Budget:
        """This budget for a machine whose clock is this many seconds ahead of this one's."""
        return self.model_copy(update={"started": self.started + ahead_s})

    def save(self, run: Path) -> None:
        """Write it into the directory of a run; MachineError if that cannot be done."""
        with disk_errors_named(run):
            write_whole(run / BUDGET_FILE, self.model_dump_json(indent=1))


def read_budget(run: Path) -> Budget | None:
    """The budget of a run; None if it has none. Raises CheckpointError if it cannot be read."""
    file = run / BUDGET_FILE
    try:
        return Budget.model_validate_json(read_regular(file, limit=_LONGEST_RECORD))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CheckpointError(
            "does not say how much time the run has",
            place=file,
            remedy="restore it from a backup, or start a new run (fresh)",
        ) from error


@dataclass
class TrainingClock:
    """How far the training of a budget is; rank 0 has one, and its clock counts for all.

    began_s: seconds of the budget that had gone when the first update of the run began; None if
    that is now. validation_s, search_s, save_s: the last measured times; None before the first.
    """

    budget: Budget
    began_s: float | None = None
    validation_s: float | None = None
    search_s: float | None = None
    save_s: float | None = None
    now: Callable[[], float] = time.time
    _reached: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.began_s is None:
            self.began_s = self.gone_s

    @property
    def gone_s(self) -> float:
        """Seconds of the budget that have gone."""
        return self.now() - self.budget.started

    @property
    def left_s(self) -> float:
        """Seconds until the last update has to end."""
        return max(self._ends_s - self.gone_s, 0.0)

    def progress(self, step: int) -> float:
        """From 0 to 1, and never less than before. A limit of steps counts as the clock does."""
        began_s, ends_s = self.began_s or 0.0, self._ends_s
        by_time = (self.gone_s - began_s) / (ends_s - began_s) if ends_s > began_s else 1.0
        by_steps = step / self.budget.most_steps if self.budget.most_steps else 0.0
        self._reached = min(max(self._reached, by_time, by_steps), 1.0)
        return self._reached

    @property
    def _ends_s(self) -> float:
        """Seconds of the budget after which no update begins: the rest of the work takes as long as
        it last did."""
        budget = self.budget
        search_s = budget.search_s if self.search_s is None else self.search_s
        after_s = budget.after_s + budget.after_searches * search_s
        after_s += budget.validation_s if self.validation_s is None else self.validation_s
        after_s += budget.save_s if self.save_s is None else self.save_s
        return AIM * budget.seconds_s - after_s


class Reading(NamedTuple):
    """The progress that all ranks know, and the step at which rank 0 read its clock.

    A strategy whose ranks meet rarely goes on between two readings at the mean speed so far.
    """

    step: int
    progress: float
    expected_steps: int

    def at(self, step: int) -> float:
        """The progress at a step, from 0 to 1."""
        per_step = self.progress / self.step if self.step else 1 / self.expected_steps
        return min(self.progress + (step - self.step) * per_step, 1.0)

    def read(self, step: int, progress: float) -> Reading:
        """The reading after the next one; progress never falls."""
        return self._replace(step=step, progress=max(self.progress, progress))

    def is_over(self, before: int) -> bool:
        """Whether more updates would end too late. before: the step of the reading before."""
        return self.at(self.step + (self.step - before) // 2) >= 1.0


def passed(count: int, before: float, now: float) -> bool:
    """Whether one of `count` even shares of the time ended after `before` and until `now`, two
    values of progress."""
    return math.floor(now * count) > math.floor(before * count)


class EndRange(NamedTuple):
    """A dev loss at the end of a training, with the interval that should hold it."""

    expected: float
    low: float
    high: float


_DROPS: Final = {True: (0.3, 0.55, 0.85), False: (0.55, 0.9, 1.6)}
"""Least, usual and largest ratio of the drop that is left to that of the last doubling of the time
times the doublings to come, for models that have lost half of the untrained loss, and for others:
0.30 to 0.76 and 0.37 to 1.53 in the 18 curves of `benchmarks/curves.jsonl`, whose learning rates
fall in a straight line to zero."""
_NOISE: Final = 0.01
"""Share of the loss by which two trainings differ that differ in their seed alone."""


def forecast_end(seen: Sequence[tuple[float, float]], *, untrained_loss: float) -> EndRange | None:
    """The dev loss at the end, from (progress, dev loss) of each validation so far.

    None before a third of the time, before two validations, or if the loss no longer falls.
    """
    if len(seen) < 2 or seen[-1][0] < FORECAST_FROM:
        return None
    progress, loss = seen[-1]
    known, losses = zip(*seen, strict=True)
    fell = float(np.interp(np.log(progress / 2), np.log(known), losses)) - loss
    # Without a validation at half the time, the first one stands for less than a doubling.
    doubled = min(math.log2(progress / known[0]), 1.0)
    if fell <= 0 or doubled <= 0:
        return None
    left = fell / doubled * math.log2(1 / progress)
    least, usual, most = _DROPS[loss < untrained_loss / 2]
    noise = _NOISE * loss
    return EndRange(loss - usual * left, loss - most * left - noise, loss - least * left + noise)
