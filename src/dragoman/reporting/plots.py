"""The plots that belong to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dragoman.base import units
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts
from dragoman.reporting.learning_rate import rates_of
from dragoman.reporting.svg import Axis, BarPlot, LinePlot, Plot, Series
from dragoman.reporting.totals import wall_parts

STEPS: Final = Axis("step", "{:,.10g}".format)
BLEU: Final = Axis("BLEU", "{:.3g}".format)
LOSS_HEIGHT: Final = 240
_MOST_LINES: Final = 6
"""Lines in one plot: as many as there are colours."""
_RATE_POINTS: Final = 200
_HIDDEN_START: Final = 0.04


def without_start(
    points: Sequence[tuple[float, float]], end: float
) -> Sequence[tuple[float, float]]:
    """The points beyond the first 4% of `end`, where high losses would flatten the others."""
    return [(x, y) for x, y in points if x >= end * _HIDDEN_START]


def duration(facts: Facts) -> list[Plot]:
    """The parts of the wall clock."""
    parts = wall_parts(facts)
    measured = [(name, seconds_s) for name, seconds_s in parts.items() if seconds_s is not None]
    return [BarPlot("wall clock", measured, units.DURATION.text)]


def losses(facts: Facts) -> list[Plot]:
    """Dev loss, the same on training text, and the training loss; not the steep beginning."""
    curves = {
        "dev": measures.points(facts.validations, "dev_loss"),
        "training slice, no dropout": measures.points(facts.validations, "train_slice_loss"),
        "training, with dropout and smoothing": facts.intervals.points("train_loss"),
    }
    series = [
        Series(name, without_start(points, facts.last_step)) for name, points in curves.items()
    ]
    axis = Axis("loss, nats per target token", "{:.4g}".format)
    return [LinePlot(series, STEPS, axis, LOSS_HEIGHT)]


def trained(facts: Facts) -> list[Plot]:
    """A plot of the losses, then one of BLEU with its interval."""
    scored = [validation for validation in facts.validations if validation.bleu is not None]
    band = [
        (validation.bleu_low, validation.bleu_high)
        for validation in scored
        if validation.bleu_low is not None and validation.bleu_high is not None
    ]
    points = measures.points(scored, "bleu")
    bleu = Series("BLEU, 95% interval", points, band if len(band) == len(points) else ())
    return [*losses(facts), LinePlot([bleu], STEPS, BLEU)]


def step_parts(facts: Facts) -> list[Plot]:
    """The phases of a step of rank 0."""
    names = {
        "forward": "forward_s",
        "backward": "backward_s",
        "optimizer": "optimizer_s",
        "waiting in all-reduces": "sync_s",
        "waiting for data": "data_wait_s",
    }
    parts = {name: measures.per_step(facts.intervals, field) for name, field in names.items()}
    measured = [(name, seconds_s) for name, seconds_s in parts.items() if seconds_s is not None]
    return [BarPlot("a step", measured, units.DURATION.text)] if len(measured) == len(parts) else []


def exposed(facts: Facts) -> list[Plot]:
    """The waits of the first ranks in all-reduces over steps; nothing if there is one rank."""
    if facts.world_size == 1:
        return []
    series = []
    for rank in facts.ranks[:_MOST_LINES]:
        step_s = measures.timed_s(facts.intervals, rank.rank)
        waits = facts.intervals.of("sync_s", rank.rank) / step_s * 100
        series.append(Series(f"rank {rank.rank} on {rank.host}", facts.intervals.at_steps(waits)))
    label, count = "waiting in all-reduces, % of a step", len(facts.ranks)
    label += f", first {_MOST_LINES} of {count} ranks" if count > _MOST_LINES else ""
    return [LinePlot(series, STEPS, Axis(label, "{:.3g}".format, from_zero=True))]


def learning_rate(facts: Facts) -> list[Plot]:
    """The formula as a line, and the logged values as dots."""
    rates = rates_of(facts)
    if rates is None or not facts.last_step:
        return []
    every = max(facts.last_step // _RATE_POINTS, 1)
    formula = [(update + 1, rates.at(update)) for update in range(0, facts.last_step, every)]
    logged = facts.intervals.points("learning_rate")
    series = [Series("formula", formula), Series("logged", logged, dots=True)]
    return [LinePlot(series, STEPS, Axis("learning rate", units.LEARNING_RATE.text))]


def step_time(facts: Facts) -> list[Plot]:
    """Median and 95th percentile over time."""
    series = [
        Series("median", facts.intervals.points("step_median_s")),
        Series("95% are below", facts.intervals.points("step_p95_s")),
    ]
    return [LinePlot(series, STEPS, Axis("s/step", "{:.4g}".format, from_zero=True))]


def checkpoint(facts: Facts) -> list[Plot]:
    """The sizes of the files of a checkpoint."""
    parts = [(file.name, file.size_bytes) for file in facts.checkpoint_files]
    return [BarPlot("a checkpoint", parts, units.SIZE.text)]
