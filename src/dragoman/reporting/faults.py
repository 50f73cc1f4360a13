"""Measures the faults that checks look for.

Each function returns values, with what is to blame for each and since when: of the whole run, or of
each rank, host or GPU. It returns nothing if that was not measured, or if it is too early to tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dragoman.base import units
from dragoman.base.printable import first_of
from dragoman.distributed.config import DistributedConfig
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts
from dragoman.reporting.learning import (
    State,
    has_diverged,
    is_trained,
    learning,
    training_loss_jump,
)
from dragoman.reporting.learning_rate import rate_ahead, stage_between
from dragoman.reporting.pauses import how_long, out_of_reach
from dragoman.reporting.periods import clock, in_intervals, moment, when
from dragoman.reporting.record import total
from dragoman.reporting.scores import (
    NOT_LEARNT,
    bleu_fell,
    bleu_lost,
    lowest_share,
    uniform_loss,
)
from dragoman.reporting.trend import SMOOTHED, far_above, later_half
from dragoman.reporting.verdict import at_step, named

_QUARTERS = 4
STARVES = 0.1
"""A rank that waits for data for this share of a step is starved."""
MOST_SPIKES = 3
_EARLY = 5
"""A fifth of the schedule is enough to learn something."""
Found = list[tuple[float, str]]
"""Values, and what is to blame for each, in words; "" if that is nothing in particular."""


def of_run(measure: Callable[[Facts], float | None]) -> Callable[[Facts], Found]:
    """A value of the whole run, for which nothing in particular is to blame."""

    def find(facts: Facts) -> Found:
        value = measure(facts)
        return [] if value is None else [(value, "")]

    return find


def divergences(facts: Facts) -> Found:
    """1 if the run recorded that it diverged; nothing if the loss rose far or is not finite."""
    if has_diverged(facts):
        return [(1.0, f"at {moment(facts.last_step, facts.lives[-1].ended)}")]
    if not np.isfinite(facts.intervals["train_loss"][-1:]).any():
        return []
    signals = learning(facts)
    jumped = signals.validations and training_loss_jump(facts, signals.best.step)
    return [] if jumped else [(0.0, "")]


def flat_share_left(facts: Facts) -> Found:
    """The share of the schedule that is left, if the model is trained and its dev loss is flat.

    0 if the dev loss moves, if nothing was learnt, or if the schedule has something ahead: that is
    not a plateau. Nothing if unclear: BLEU may rise yet, or the weights not change at all.
    """
    signals, share = learning(facts), lowest_share(facts)
    if not facts.max_steps or signals.slope is None:
        return []
    if signals.state in (State.FALLING, State.TURNED) or (share or 0.0) >= NOT_LEARNT:
        return [(0.0, "")]
    if signals.state is State.FLAT and rate_ahead(facts, signals.last.step) is not None:
        return [(0.0, "")]
    if signals.state is State.UNKNOWN or is_trained(facts)[0] != "yes":
        return []
    first = signals.validations[later_half(len(signals.validations))][0]
    left = max(facts.max_steps - facts.last_step, 0) / facts.max_steps
    return [(left, f"flat since {moment(first.step, first.time)}, or earlier")]


def spikes(facts: Facts) -> Found:
    """The number of losses after the warm-up `far_above` the lowest median of nine before them.

    Nothing if there are too few to compare, or if many are that high, but the text may be the
    cause: a harder batch or corpus. The model is the cause if the run diverged, if the losses are
    worse than a uniform prediction, or if the dev loss is no longer at its best.
    """
    warmup = facts.recipe.schedule.warmup_steps if facts.recipe else 0
    logged = [point for point in facts.intervals.points("train_loss") if point[0] > warmup]
    if len(logged) <= SMOOTHED:
        return []
    losses = np.array([loss for _, loss in logged])
    medians = np.median(sliding_window_view(losses[:-1], SMOOTHED), axis=1)
    is_high = losses[SMOOTHED:] > far_above(np.minimum.accumulate(medians), losses)
    high = dict(itertools.compress(logged[SMOOTHED:], is_high))
    signals, uniform = learning(facts), uniform_loss(facts)
    is_of_model = (
        has_diverged(facts)
        or sum(uniform is not None and loss > uniform for loss in high.values()) >= MOST_SPIKES
        or (
            signals.state is State.TURNED
            and stage_between(facts, signals.best.step, signals.last.step) is None
        )
    )
    if len(high) >= MOST_SPIKES and not is_of_model:
        return []
    times = dict(facts.intervals.points("time"))
    when_high = first_of((moment(step, times[step]) for step in high), between="; ")
    return [(float(len(high)), f"at {when_high}")]


def not_learnt(facts: Facts) -> float | None:
    """The lowest loss, on dev text after the start or on training text, as a share of a uniform
    prediction's, after a fifth of the schedule or more; None without a recipe.

    A rate at which the model memorises training text is not too low.
    """
    if not facts.max_steps or facts.last_step * _EARLY < facts.max_steps:
        return None
    dev, uniform = learning(facts).losses.tolist(), uniform_loss(facts)
    sliced = [loss for _, loss in measures.points(facts.validations, "train_slice_loss")]
    return min(dev + sliced) / uniform if uniform and dev else None


def lost_bleu(facts: Facts) -> Found:
    """The share of the best BLEU that is surely lost again; nothing if BLEU may be chance."""
    lost = bleu_lost(facts)
    return [] if lost is None else [(lost, bleu_fell(facts))]


def data_waits(facts: Facts) -> Found:
    """The share of a step in which each rank waits for data."""
    found, steps = [], measures.without_warm_ups(facts.intervals)
    for waited, rank in measures.shares(facts, "data_wait_s"):
        timed = steps.where(np.isfinite(measures.timed_s(steps, rank.rank)))
        waits_s, took_s = (timed.of(name, rank.rank) for name in ("data_wait_s", "interval_s"))
        periods = when(in_intervals(timed, waits_s >= STARVES * took_s, rank=rank.rank))
        text = periods if facts.world_size == 1 else f"{rank.name}, {periods}"
        found.append((waited, text))
    return found


def network_faults(facts: Facts) -> Found:
    """Errors, lost links and silences, with their interfaces; nothing if none was sampled."""
    cut_off = out_of_reach(facts)
    count, texts = 0, []
    for traffic in facts.traffic:
        if errors := traffic.errors + traffic.carrier_changes:
            changes = f"link lost or found {traffic.carrier_changes} times"
            since = f", {when(traffic.faulty)}" if traffic.faulty else ""
            name = f"{traffic.interface} of {traffic.host}"
            unreached = [
                f"; {pause.name} was out of reach for {how_long(pause)}"
                for pause, link in cut_off
                if link == name
            ]
            count += errors
            texts.append(f"{name} ({traffic.errors} errors, {changes}{since}{''.join(unreached)})")
    for pause, link in cut_off:
        if not link:
            count += 1
            texts.append(
                f"{pause.name} was out of reach for {how_long(pause)}, though it worked and no "
                "host lost its link: a switch or a cable between switches"
            )
    return [(float(count), named(texts))] if facts.traffic else []


def disks(facts: Facts) -> Found:
    """The last checkpoint as a share of the free space of each disk.

    Only disks to which checkpoints are written: that of the first rank, and all if each rank saves
    a state of its own, or if the strategy is not known.
    """
    sizes = [written.size_bytes for written in facts.checkpoints if written.size_bytes]
    config = facts.recipe.distributed if facts.recipe else DistributedConfig()
    options = config.options
    if facts.chosen:
        options = config.options_of(facts.chosen.strategy)
    writers = {rank.host for rank in facts.ranks if rank.rank == 0}
    is_known = facts.chosen or facts.recipe
    if not is_known or options.own_numbers or options.has_own_optimizers:
        writers.update(facts.hosts)
    found = []
    for machine in facts.machines:
        free = machine.disk_free_bytes
        if free is not None and sizes and machine.host in writers:
            text = f"the disk of the run on {machine.host}, {units.SIZE.text(free)} free"
            # A disk without a free byte is full: it counts as if it had one.
            found.append((sizes[-1] / max(free, 1.0), f"{text} at {clock(machine.last_seen)}"))
    return found


def throttled_gpus(facts: Facts) -> Found:
    """The share of the time in which the clock of each GPU was lowered, and why."""
    found = []
    for gpu in facts.gpus:
        if gpu.throttled_share is None:
            continue
        since = f", {when(gpu.throttled)}" if gpu.throttled else ""
        text = f"{gpu.label}, by {', '.join(gpu.throttle_reasons)}{since}"
        found.append((gpu.throttled_share, text))
    return found


def growths(facts: Facts) -> Found:
    """Growth of each rank's peak memory after the first quarter of the run, as a share of it: three
    times the least growth of a later quarter.

    A leak grows in each quarter; a first long batch or validation in only one of them.
    """
    found = []
    for rank in facts.ranks:
        points = facts.intervals.points("peak_memory_bytes", rank.rank)
        peaks = [(step, peak) for step, peak in points if peak]
        if len(peaks) >= 2 * _QUARTERS:
            ends = [peaks[(len(peaks) - 1) * n // _QUARTERS][1] for n in range(1, _QUARTERS + 1)]
            least = min(later - earlier for earlier, later in pairwise(ends))
            since, low = min(peaks, key=lambda point: (point[1], -point[0]))
            until, high = max(peaks, key=lambda point: (point[1], -point[0]))
            text = f"{rank.name}, from {units.SIZE.text(low)}{at_step(since)} "
            text += f"to {units.SIZE.text(high)}{at_step(until)}"
            found.append(((_QUARTERS - 1) * least / ends[0], text))
    return found


def are_gpus_sampled(facts: Facts) -> bool:
    """Whether the clocks of the GPUs of every host were sampled all the time."""
    return {gpu.host for gpu in facts.gpus} >= set(facts.hosts) and all(
        gpu.throttled_share is not None and measures.is_sampled_throughout(facts, gpu)
        for gpu in facts.gpus
    )


def evaluation_share(facts: Facts) -> float | None:
    """The share of validations in the time of training and validation."""
    seconds_s = measures.validate_s(facts)
    whole_s = total(seconds_s, facts.train_s)
    return seconds_s / whole_s if seconds_s is not None and whole_s else None
