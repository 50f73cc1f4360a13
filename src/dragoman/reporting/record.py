"""Measurements as arrays: one place for each interval or sample. NaN is "not measured"."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dragoman.telemetry.events import PER_RANK, TrainInterval

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_SHARED: Final = tuple(name for name in TrainInterval.model_fields if name not in PER_RANK)
_PLACE: Final = ("step", "time", "life", "ranks")


class Columns:
    """Numbers by name, a row after the other; and an array of each."""

    def __init__(self, names: Sequence[str], *, rows: int = 0) -> None:
        """names: two or more. rows: how many there are already, without a number."""
        self._names = names
        self._values_of = itemgetter(*names)
        self._values = array("d", [math.nan]) * (rows * len(names))

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a number for each name; None is "not measured"."""
        values = self._values_of(row)
        if None in values:
            values = [math.nan if value is None else value for value in values]
        self._values.extend(values)

    def arrays(self) -> dict[str, Floats]:
        """The array of each name."""
        table = np.array(self._values).reshape(-1, len(self._names))
        return {name: table[:, column] for column, name in enumerate(self._names)}


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """The intervals of a run, in order; sums over their updates, as in the train_interval event.

    values: by the field of the event. Those of `PER_RANK` are [interval, rank], NaN also for a
    rank that did not train then; others are [interval]. Beside these:
    step: the last update. time: when it ended, seconds since 1970 by the clock of rank 0.
    life: the number of the life, from 0. ranks: how many ranks trained.
    warms_up: not 0 for the first after a start of the process, when everything warms up.
    """

    values: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.values["step"])

    def __getitem__(self, name: str) -> Floats:
        """The array of a field."""
        return self.values[name]

    def of(self, name: str, rank: int = 0) -> Floats:
        """The values of a field [interval]; those of one rank if it has a value for each."""
        value = self.values[name]
        return value[:, rank] if value.ndim > 1 else value

    def points(self, name: str, rank: int = 0) -> list[tuple[int, float]]:
        """Every measured value of a field, as (step, value)."""
        return self.at_steps(self.of(name, rank))

    def at_steps(self, values: Floats) -> list[tuple[int, float]]:
        """Values [interval] as (step, value), without those that are NaN."""
        measured = np.isfinite(values)
        steps = self.values["step"][measured].astype(int)
        return list(zip(steps.tolist(), values[measured].tolist(), strict=True))

    def last(self, name: str) -> float | None:
        """The value of the last interval; None if it was not measured."""
        return summed(self.of(name)[-1:])

    def compute_s(self, rank: int = 0) -> Floats:
        """Seconds of forward, backward and optimizer of a rank."""
        forward, backward, optimizer = (
            self.of(f"{phase}_s", rank) for phase in ("forward", "backward", "optimizer")
        )
        return forward + backward + optimizer

    def where(self, places: Bools | slice) -> Intervals:
        """Some of the intervals."""
        return Intervals({name: value[places] for name, value in self.values.items()})

    def of_ranks(self, count: int) -> Intervals:
        """The values of the first ranks alone."""
        first = {name: self.values[name][:, :count] for name in PER_RANK}
        return self.changed(first | {"ranks": np.minimum(self.values["ranks"], count)})

    def changed(self, values: Mapping[str, Floats]) -> Intervals:
        """The intervals with other values of some fields."""
        return Intervals({**self.values, **values})


@dataclass(slots=True)
class IntervalRows:
    """Collects the intervals of a log, one by one."""

    _shared: Columns = field(default_factory=lambda: Columns((*_PLACE, *_SHARED)))
    _ranks: list[Columns] = field(default_factory=list)
    _count: int = 0

    def add(self, values: Mapping[str, Any], *, step: int, time: float, life: int) -> None:
        """Add one. values: the fields of a train_interval event, those of each rank as a tuple."""
        ranks = max(len(values[name] or ()) for name in PER_RANK) or 1
        place = {"step": step, "time": time, "life": life, "ranks": ranks}
        self._shared.add({**values, **place})
        while len(self._ranks) < ranks:
            self._ranks.append(Columns(PER_RANK, rows=self._count))
        for rank, columns in enumerate(self._ranks):
            of_rank = {name: (values[name] or ())[rank : rank + 1] for name in PER_RANK}
            columns.add({name: value[0] if value else None for name, value in of_rank.items()})
        self._count += 1

    def intervals(self) -> Intervals:
        """All intervals so far."""
        ranks = [columns.arrays() for columns in self._ranks or [Columns(PER_RANK)]]
        each = {name: np.stack([rank[name] for rank in ranks], axis=1) for name in PER_RANK}
        shared = self._shared.arrays()
        warms_up = np.diff(shared["life"], prepend=-1.0).astype(float)
        return Intervals({**shared, **each, "warms_up": warms_up})


def no_intervals() -> Intervals:
    """Those of a run that has not trained."""
    return IntervalRows().intervals()


def total_over(parts: Floats, wholes: Floats) -> float | None:
    """The sum of parts over the sum of wholes, at the places where both are known; None if nothing
    is."""
    measured = np.isfinite(parts) & np.isfinite(wholes)
    whole = float(wholes[measured].sum())
    return float(parts[measured].sum()) / whole if whole > 0 else None


def total(*values: float | None) -> float | None:
    """The sum, or None if one is not measured."""
    measured = [value for value in values if value is not None]
    return sum(measured) if len(measured) == len(values) else None


def summed(values: Iterable[float | None] | Floats) -> float | None:
    """The sum of those that are measured, or None if none is."""
    measured = [value for value in values if value is not None and not math.isnan(value)]
    return float(sum(measured)) if measured else None
