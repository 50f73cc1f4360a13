"""The plot that belongs to an answer, at a given width; "" if there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.base import units
from dragoman.reporting import measures
from dragoman.reporting.account import idle_s
from dragoman.reporting.facts import Facts
from dragoman.reporting.rates import rates_of
from dragoman.reporting.svg import Axis, Part, Series, bar_plot, line_plot

_STEPS = Axis("step", "{:,.10g}".format)
_RATE_POINTS = 200
MOST_LINES = 6
"""Lines in one plot: as many as there are colours."""
_HIDDEN_START = 0.04
"""The first steps, as a share, that are hidden: their high loss would flatten the rest."""


def first_of(count: int, what: str) -> str:
    """A note that a plot shows only some lines; "" if it shows all."""
    return f", first {MOST_LINES} of {count} {what}" if count > MOST_LINES else ""


def duration(facts: Facts, width: int) -> str:
    """The parts of the wall clock."""
    parts = {
        "train": facts.train_s,
        "evaluate": measures.validate_s(facts),
        "save": measures.save_s(facts),
        "idle": idle_s(facts),
        "not recorded yet": facts.unrecorded_s or None,
    }
    return _seconds_bar(parts, "wall clock", width)


def losses(facts: Facts, width: int) -> str:
    """Dev loss, the same on training text, and the training loss; not the steep beginning."""
    names = {
        "dev": [(one.step, one.dev_loss) for one in facts.validations],
        "training slice, no dropout": [
            (one.step, one.train_slice_loss) for one in facts.validations
        ],
        "training, with dropout and smoothing": [
            (one.step, one.train_loss) for one in facts.intervals
        ],
    }
    begin = facts.last_step * _HIDDEN_START
    series = [
        Series(name, [(step, loss) for step, loss in points if loss is not None and step >= begin])
        for name, points in names.items()
    ]
    label = Axis("loss, nats a target token", "{:.4g}".format)
    return line_plot(series, _STEPS, label, width=width)


def trained(facts: Facts, width: int) -> str:
    """Losses, then BLEU with its interval."""
    return losses(facts, width) + _bleu(facts, width)


def _bleu(facts: Facts, width: int) -> str:
    scored = [one for one in facts.validations if one.bleu is not None]
    points = [(one.step, one.bleu or 0.0) for one in scored]
    band = [
        (one.bleu_low, one.bleu_high)
        for one in scored
        if one.bleu_low is not None and one.bleu_high is not None
    ]
    series = Series("BLEU, 95% interval", points, band if len(band) == len(points) else ())
    return line_plot([series], _STEPS, Axis("BLEU", "{:.3g}".format), width=width, height=180)


def step_parts(facts: Facts, width: int) -> str:
    """The phases of a step of rank 0."""
    names = {
        "forward": "forward_s",
        "backward": "backward_s",
        "optimizer": "optimizer_s",
        "communication, exposed": "sync_s",
        "waiting for data": "data_wait_s",
    }
    parts = {name: measures.per_step(facts.intervals, field) for name, field in names.items()}
    if any(seconds_s is None for seconds_s in parts.values()):
        return ""
    return _seconds_bar(parts, "a step", width)


def exposed(facts: Facts, width: int) -> str:
    """The exposed communication of each rank over time; nothing if there is one rank."""
    if facts.world_size == 1:
        return ""
    series = [
        Series(
            f"rank {rank.rank} on {rank.host}",
            [
                (one.step, one.sync_s / one.interval_s * 100)
                for one in rank.intervals
                if one.sync_s is not None and one.interval_s
            ],
        )
        for rank in facts.ranks[:MOST_LINES]
    ]
    label = f"exposed communication, % of a step{first_of(len(facts.ranks), 'ranks')}"
    axis = Axis(label, "{:.3g}".format, from_zero=True)
    return line_plot(series, _STEPS, axis, width=width, height=180)


def learning_rate(facts: Facts, width: int) -> str:
    """The formula, and what was logged as dots."""
    found = rates_of(facts)
    if found is None or not facts.last_step:
        return ""
    every = max(facts.last_step // _RATE_POINTS, 1)
    formula = [(update + 1, found.at(update)) for update in range(0, facts.last_step, every)]
    logged = [(one.step, one.learning_rate) for one in facts.intervals if one.learning_rate]
    series = [Series("formula", formula), Series("logged", logged, dots=True)]
    axis = Axis("learning rate", units.LEARNING_RATE.text)
    return line_plot(series, _STEPS, axis, width=width, height=180)


def step_time(facts: Facts, width: int) -> str:
    """Median and 95th percentile over time."""
    names = {"median": "step_median_s", "95% are below": "step_p95_s"}
    series = [
        Series(
            name,
            [
                (one.step, getattr(one, field))
                for one in facts.intervals
                if getattr(one, field) is not None
            ],
        )
        for name, field in names.items()
    ]
    axis = Axis("s/step", "{:.4g}".format, from_zero=True)
    return line_plot(series, _STEPS, axis, width=width, height=180)


def checkpoint(facts: Facts, width: int) -> str:
    """The files of a checkpoint by size."""
    parts = [
        Part(file.name, file.size_bytes, units.SIZE.text(file.size_bytes))
        for file in facts.checkpoint_files
    ]
    return bar_plot(parts, title="a checkpoint", width=width)


def _seconds_bar(parts: dict[str, float | None], title: str, width: int) -> str:
    known = [
        Part(name, seconds_s, units.DURATION.text(seconds_s))
        for name, seconds_s in parts.items()
        if seconds_s is not None
    ]
    return bar_plot(known, title=title, width=width)


PLOTS: dict[str, Callable[[Facts, int], str]] = {
    "duration": duration,
    "trained": trained,
    "overfitting": losses,
    "processors": step_parts,
    "network": exposed,
    "learning_rate": learning_rate,
    "checkpoint_size": checkpoint,
    "step_time": step_time,
}
"""By the key of the question; a question without an entry has no plot."""
