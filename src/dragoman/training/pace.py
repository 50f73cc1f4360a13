"""The length of a run that has to end in time: measured, and fitted again while it trains.

The times of a step, of a validation and of a save are measured. Those of a validation and of its
translations are kept in steps: if a neighbour takes a core, all become slower alike.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError
from dragoman.base.files import read_regular, write_whole
from dragoman.base.settings import Section
from dragoman.telemetry.events import LengthFitted

BUDGET_FILE: Final = "budget.json"
"""In the directory of a run that has a budget."""
_LONGEST_RECORD: Final = 1 << 20
_WARM_UPDATES: Final = 3
"""Updates that are not timed: the first of a process are slower than those that follow."""
_LEAST_UPDATES: Final = 5
_LOOK_EVERY_S: Final = 0.5
_WINDOW_SHARE: Final = 0.04
_WINDOW_S: Final = (1.0, 60.0)
"""Steps are timed over this share of the budget, within the least and the most seconds."""
_SURE_OF_THE_BUDGET: Final = 0.005
_SURE_OF_THE_REST: Final = 0.08
"""The length stays if it would change by less than this share of the budget, or of the time left:
steps are never alike, the learning rate follows the length, and there is time to mend it."""
_MOST_STEPS: Final = 2**31 - 1


class Budget(Section):
    """The time of one run: its `budget.json`.

    asked: digest of the recipe as it was written, and of the budget.
    started: UTC seconds since 1970, of the first command; all that passes since then counts.
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
    aim_s: float = Field(gt=0.0)
    """Seconds after the start at which all is to be done: somewhat less than the budget."""
    validation_s: float = Field(ge=0.0)
    search_s: float = Field(ge=0.0)
    save_s: float = Field(default=0.0, ge=0.0)
    after_s: float = Field(ge=0.0)
    after_searches: float = Field(ge=0.0)
    starts: int = Field(default=0, ge=0)
    most_steps: int | None = Field(default=None, ge=1)
    """`train.max_steps`, if the recipe sets it."""
    expected_bleu: float
    """On the dev text, as it was expected before the training, with its interval."""
    expected_bleu_low: float
    expected_bleu_high: float
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
        return self.started + self.aim_s

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
            remedy="restore it from a backup, or start a new run with --fresh",
        ) from error


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one step, one validation and one save."""

    step_s: float
    validation_s: float
    save_s: float

    def of(self, step: int, length: int, *, validate_every: int, save_every: int) -> float:
        """Seconds from `step` to the end of a run of that length, its last validation included."""
        return (
            (length - step) * self.step_s
            + _events_between(step, length, validate_every) * self.validation_s
            + _events_between(step, length, save_every) * self.save_s
        )


def longest(
    costs: Costs,
    *,
    step: int,
    left_s: float,
    validate_every: int,
    save_every: int,
    multiple: int = 1,
) -> int:
    """The longest run that ends within `left_s` seconds from `step` on: at least one update more.

    Its length is a multiple of `multiple`, the steps of an update.
    """
    first = (step // multiple + 1) * multiple
    most = max(0, min(int(left_s / costs.step_s), _MOST_STEPS - step)) + step
    lengths = range(first, most + 1, multiple)

    def seconds_s(length: int) -> float:
        return costs.of(step, length, validate_every=validate_every, save_every=save_every)

    fitting = bisect.bisect_right(lengths, left_s, key=seconds_s)
    return lengths[fitting - 1] if fitting else first


def _events_between(step: int, length: int, every: int) -> int:
    """How many multiples of `every` lie after `step` and before `length`, plus one for the end."""
    return (length - 1) // every - step // every + 1


@dataclass
class Pace:
    """Fits the length of a run to its budget; rank 0 has one, and its clock counts for all.

    length: as it is now. multiple: steps of an update. validation_steps, search_steps: the time of
    the last validation and of its translations, in steps; None before the first.
    """

    budget: Budget
    length: int
    validate_every: int
    save_every: int
    multiple: int = 1
    validation_steps: float | None = None
    search_steps: float | None = None
    now: Callable[[], float] = time.time
    _save_s: float = field(init=False)
    _outside_s: float = field(default=0.0, init=False)
    _updates: int = field(default=0, init=False)
    _window: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    """For each update its end, by a clock that stands still outside steps, and its step."""
    _looked: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._save_s = self.budget.save_s

    def updated(self, step: int) -> None:
        """Called when an update has ended at this step."""
        self._updates += 1
        if self._updates <= _WARM_UPDATES:
            return
        moment = self.now() - self._outside_s
        self._window.append((moment, step))
        while len(self._window) > _LEAST_UPDATES and moment - self._window[0][0] > self._window_s:
            self._window.popleft()

    def validated(self, seconds_s: float, *, search_s: float) -> None:
        """Called after a validation with its time, and with that of its translations alone."""
        self._outside_s += seconds_s
        self._looked = 0.0
        step_s = self.step_s
        if step_s is not None:
            self.validation_steps, self.search_steps = seconds_s / step_s, search_s / step_s

    def saved(self, seconds_s: float) -> None:
        """Called after a save with its time."""
        self._outside_s += seconds_s
        self._save_s = seconds_s

    @property
    def step_s(self) -> float | None:
        """Mean seconds of the latest steps; None until there are enough of them.

        The slowest update is left out: a pause says nothing about speed, and a run that was made
        shorter because of one would end before it can be made longer again.
        """
        moments = [moment for moment, _ in self._window]
        spanned_s = moments[-1] - moments[0] if moments else 0.0
        enough_s = min(self._window_s / 2, (self.budget.aim - self.now()) / 4)
        if len(moments) < _LEAST_UPDATES or spanned_s < enough_s:
            return None
        updates = sorted(
            (later - earlier, after - before)
            for (earlier, before), (later, after) in pairwise(self._window)
        )[:-1]
        seconds_s = sum(seconds for seconds, _ in updates)
        return seconds_s / sum(steps for _, steps in updates) if seconds_s > 0 else None

    @property
    def _window_s(self) -> float:
        least, most = _WINDOW_S
        return min(max(_WINDOW_SHARE * self.budget.seconds_s, least), most)

    @property
    def validation_s(self) -> float:
        """Seconds of a validation at the present speed."""
        return self._now_s(self.validation_steps, self.budget.validation_s)

    def _now_s(self, steps: float | None, expected_s: float) -> float:
        return expected_s if steps is None or self.step_s is None else steps * self.step_s

    @property
    def left_s(self) -> float:
        """Seconds that are left for training, its validations and its saves."""
        search_s = self._now_s(self.search_steps, self.budget.search_s)
        after_s = self.budget.after_s + self.budget.after_searches * search_s
        return self.budget.aim - self.now() - after_s

    def wanted(self, step: int) -> int:
        """A better length for the run, now at `step`; 0 if its length will do, or for now."""
        moment, step_s = self.now(), self.step_s
        if step_s is None or moment - self._looked < _LOOK_EVERY_S:
            return 0
        self._looked = moment
        length = longest(
            Costs(step_s, self.validation_s, self._save_s),
            step=step,
            left_s=self.left_s,
            validate_every=self.validate_every,
            save_every=self.save_every,
            multiple=self.multiple,
        )
        if self.budget.most_steps is not None:
            length = min(length, max(self.budget.most_steps // self.multiple * self.multiple, 1))
        unsure_s = max(_SURE_OF_THE_BUDGET * self.budget.seconds_s, _SURE_OF_THE_REST * self.left_s)
        return length if abs(length - self.length) * step_s > unsure_s else 0

    def fitted(self, length: int) -> LengthFitted:
        """Adopt a length that all ranks have agreed on; returns the event that records it."""
        before, self.length = self.length, length
        return LengthFitted(
            max_steps=length,
            before_max_steps=before,
            step_s=self.step_s or 0.0,
            validation_s=self.validation_s,
            left_s=self.left_s,
        )
