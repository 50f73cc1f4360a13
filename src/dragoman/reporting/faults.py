"""Measures the faults that checks look for: how large each is, on which host, since when."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dragoman.base import units
from dragoman.base.printable import first_of
from dragoman.distributed.config import DistributedConfig
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts, MachineUse, Rank
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
    lowest_share,
    uniform_loss,
)
from dragoman.reporting.speed import THROTTLED
from dragoman.reporting.trend import SMOOTHED, far_above, later_half

_QUARTERS = 4
FULL_DISK = 0.3
CREEPS = 0.2
STARVES = 0.1
"""A rank that waits for data for this share of a step is starved."""
MOST_SPIKES = 3
_EARLY = 5
"""A fifth of the schedule is enough to learn something."""


def divergences(facts: Facts) -> float | None:
    """1 if the run recorded that it diverged; None if the loss rose far or is not finite."""
    if has_diverged(facts):
        return 1.0
    if not np.isfinite(facts.intervals["train_loss"][-1:]).any():
        return None
    signals = learning(facts)
    jumped = signals.validations and training_loss_jump(facts, signals.best.step)
    return None if jumped else 0.0


def flat_share_left(facts: Facts) -> float | None:
    """The share of the schedule that is left, if the model is trained and its dev loss is flat.

    0 if the dev loss moves, if nothing was learnt, or if the schedule has something ahead: that is
    not a plateau. None if unclear: BLEU may rise yet, or the weights not change at all.
    """
    signals, share = learning(facts), lowest_share(facts)
    if not facts.max_steps or signals.slope is None:
        return None
    if signals.state in (State.FALLING, State.TURNED) or (share or 0.0) >= NOT_LEARNT:
        return 0.0
    if signals.state is State.FLAT and rate_ahead(facts, signals.last.step) is not None:
        return 0.0
    if signals.state is State.UNKNOWN or is_trained(facts)[0] != "yes":
        return None
    return max(facts.max_steps - facts.last_step, 0) / facts.max_steps


def spikes(facts: Facts) -> float | None:
    """The number of losses after the warm-up `far_above` the lowest median of nine before them.

    None if there are too few to compare, or if many are that high, but the text may be the cause: a
    harder batch or corpus. The model is the cause if the run diverged, if the losses are worse than
    a uniform prediction, or if the dev loss is no longer at its best.
    """
    high = _high(facts)
    if high is None:
        return None
    signals, uniform = learning(facts), uniform_loss(facts)
    is_of_model = (
        has_diverged(facts)
        or sum(uniform is not None and loss > uniform for loss in high.values()) >= MOST_SPIKES
        or (
            signals.state is State.TURNED
            and stage_between(facts, signals.best.step, signals.last.step) is None
        )
    )
    return float(len(high)) if len(high) < MOST_SPIKES or is_of_model else None


def _high(facts: Facts) -> dict[int, float] | None:
    """The losses that `spikes` counts, by step; None if there are too few to compare."""
    warmup = facts.recipe.schedule.warmup_steps if facts.recipe else 0
    logged = [point for point in facts.intervals.points("train_loss") if point[0] > warmup]
    if len(logged) <= SMOOTHED:
        return None
    losses = np.array([loss for _, loss in logged])
    medians = np.median(sliding_window_view(losses[:-1], SMOOTHED), axis=1)
    is_high = losses[SMOOTHED:] > far_above(np.minimum.accumulate(medians), losses)
    return dict(itertools.compress(logged[SMOOTHED:], is_high))


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


def starved_ranks(facts: Facts) -> Iterator[str]:
    """The ranks that wait for data, and since when."""
    for waited, rank in measures.data_waits(facts):
        if waited < STARVES:
            return
        steps = measures.steady(facts.intervals)
        timed = steps.where(np.isfinite(measures.timed_s(steps, rank.rank)))
        waits_s, took_s = (timed.of(name, rank.rank) for name in ("data_wait_s", "interval_s"))
        bad = waits_s >= STARVES * took_s
        periods = when(in_intervals(timed, bad, rank=rank.rank))
        yield periods if facts.world_size == 1 else f"{rank.name}, {periods}"


def network_faults(facts: Facts) -> float | None:
    """Errors, lost links and silences; None if no interface was sampled."""
    counts = [traffic.errors + traffic.carrier_changes for traffic in facts.traffic]
    silences = sum(not link for _, link in out_of_reach(facts))
    return float(sum(counts) + silences) if counts else None


def faulty_interfaces(facts: Facts) -> Iterator[str]:
    """The interfaces with faults, and the ranks that were out of reach."""
    cut_off = out_of_reach(facts)
    for traffic in facts.traffic:
        if traffic.errors or traffic.carrier_changes:
            changes = f"link lost or found {traffic.carrier_changes} times"
            since = f", {when(traffic.faulty)}" if traffic.faulty else ""
            name = f"{traffic.interface} of {traffic.host}"
            unreached = [
                f"; {pause.name} was out of reach for {how_long(pause)}"
                for pause, link in cut_off
                if link == name
            ]
            yield f"{name} ({traffic.errors} errors, {changes}{since}{''.join(unreached)})"
    for pause, link in cut_off:
        if not link:
            yield (
                f"{pause.name} was out of reach for {how_long(pause)}, though it worked and no "
                "host lost its link: a switch or a cable between switches"
            )


def disks(facts: Facts) -> list[tuple[float, MachineUse]]:
    """The last checkpoint as a share of the free space of each disk, the fullest disk first.

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
    free = [
        (machine.disk_free_bytes, machine) for machine in facts.machines if machine.host in writers
    ]
    # A disk without a free byte is full: it counts as if it had one.
    shares = [
        (sizes[-1] / max(space, 1.0), machine)
        for space, machine in free
        if space is not None and sizes
    ]
    return sorted(shares, key=lambda disk: -disk[0])


def full_disks(facts: Facts) -> Iterator[str]:
    """The disks with little space, and when that was seen."""
    for share, machine in disks(facts):
        if share >= FULL_DISK:
            free, last_seen = (
                units.SIZE.optional_text(machine.disk_free_bytes),
                clock(machine.last_seen),
            )
            yield f"the disk of the run on {machine.host}, {free} free at {last_seen}"


def throttled_gpus(facts: Facts) -> Iterator[str]:
    """The GPUs whose clock was lowered, why and since when."""
    for gpu in sorted(facts.gpus, key=lambda gpu: -gpu.throttled_share):
        if gpu.throttled_share >= THROTTLED:
            since = f", {when(gpu.throttled)}" if gpu.throttled else ""
            yield f"{gpu.label}, by {', '.join(gpu.throttle_reasons)}{since}"


def diverged_at(facts: Facts) -> Iterator[str]:
    """When it stopped itself."""
    yield f"at {moment(facts.last_step, facts.segments[-1].ended)}"


def flat_since(facts: Facts) -> Iterator[str]:
    """Since when the dev loss is flat."""
    validations = learning(facts).validations
    first = validations[later_half(len(validations))][0]
    yield f"flat since {moment(first.step, first.time)}, or earlier"


def spikes_since(facts: Facts) -> Iterator[str]:
    """When the losses were high."""
    times = dict(facts.intervals.points("time"))
    yield "at " + first_of((moment(step, times[step]) for step in _high(facts) or {}), between="; ")


def growths(facts: Facts) -> list[tuple[float, Rank]]:
    """Growth of each rank's peak memory after the first quarter of the run, as a share of it: three
    times the least growth of a later quarter.

    A leak grows in each quarter; a first long batch or validation in only one of them.
    """
    growths = []
    for rank in facts.ranks:
        peaks = [peak for _, peak in _peaks(facts, rank)]
        if len(peaks) >= 2 * _QUARTERS:
            ends = [peaks[(len(peaks) - 1) * n // _QUARTERS] for n in range(1, _QUARTERS + 1)]
            least = min(later - earlier for earlier, later in pairwise(ends))
            growths.append(((_QUARTERS - 1) * least / ends[0], rank))
    return growths


def _peaks(facts: Facts, rank: Rank) -> list[tuple[int, float]]:
    """The peak memory of a rank, by step."""
    points = facts.intervals.points("peak_memory_bytes", rank.rank)
    return [(step, peak) for step, peak in points if peak]


def growing_ranks(facts: Facts) -> Iterator[str]:
    """The ranks whose memory grows, from which size to which."""
    for growth, rank in sorted(growths(facts), key=lambda growth: -growth[0]):
        if growth < CREEPS:
            return
        peaks = _peaks(facts, rank)
        since, least = min(peaks, key=lambda point: (point[1], -point[0]))
        until, most = max(peaks, key=lambda point: (point[1], -point[0]))
        yield (
            f"{rank.name}, from {units.SIZE.text(least)} at step {units.COUNT.text(since)} "
            f"to {units.SIZE.text(most)} at step {units.COUNT.text(until)}"
        )


def are_gpus_sampled(facts: Facts) -> bool:
    """Whether the GPUs of every host were sampled all the time."""
    return {gpu.host for gpu in facts.gpus} >= set(facts.hosts) and all(
        measures.is_sampled_throughout(facts, gpu) for gpu in facts.gpus
    )


def evaluation_share(facts: Facts) -> float | None:
    """The share of validations in the time of training and validation."""
    seconds_s = measures.validate_s(facts)
    whole_s = total(seconds_s, facts.train_s)
    return seconds_s / whole_s if seconds_s is not None and whole_s else None
