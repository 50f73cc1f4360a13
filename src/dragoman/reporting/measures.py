"""Numbers that several questions need, computed from facts. None: not measured.

Rates and shares of a step leave out the warm-up after each start; the mean step, medians and totals
count it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.distributed.wire import FP32_BYTES, ring_bytes
from dragoman.recipe.estimate import training_flop
from dragoman.reporting.facts import (
    Facts,
    Gpu,
    MachineUse,
    Rank,
    RecordedValidation,
)
from dragoman.reporting.record import Floats, Intervals, summed, total, total_over
from dragoman.reporting.trend import ratio_interval

_MOST_SAMPLED = 0.9
"""Samples count for the whole run if they cover this share of its time."""
_LEAST_NOISES = 5
"""Fewer intervals with a gradient noise than this tell nothing: each is mostly chance."""
COMPUTE_FIELDS = ("forward_s", "backward_s", "optimizer_s")
_SIDES = ("source_tokens", "target_tokens")


def without_warm_ups(intervals: Intervals) -> Intervals:
    """The intervals without warm-ups, of which there is one after each start, if two are left."""
    warm = intervals["warms_up"] == 0
    return intervals.where(warm) if warm.sum() > 1 else intervals


def timed_s(intervals: Intervals, rank: int = 0) -> Floats:
    """Seconds of each interval; NaN if it was not timed."""
    seconds_s = intervals.of("interval_s", rank)
    return np.where(seconds_s > 0, seconds_s, np.nan)


def points(records: Sequence[RecordedValidation], name: str) -> list[tuple[int, float]]:
    """Every validation that measured a field, as (step, value)."""
    values = ((record.step, getattr(record, name)) for record in records)
    return [(step, value) for step, value in values if value is not None]


def share(intervals: Intervals, *names: str, rank: int = 0) -> float | None:
    """The share of a rank's steps' time that some fields (in seconds) took; None if one is
    missing."""
    steps = without_warm_ups(intervals)
    whole_s = timed_s(steps, rank)
    return total(*(total_over(steps.of(name, rank), whole_s) for name in names))


def shares(facts: Facts, *names: str) -> list[tuple[float, Rank]]:
    """`share` of each rank for which it was measured."""
    each = ((share(facts.intervals, *names, rank=rank.rank), rank) for rank in facts.ranks)
    return [(part, rank) for part, rank in each if part is not None]


def most(facts: Facts, *names: str) -> float | None:
    """The largest of `shares`."""
    return max((part for part, _ in shares(facts, *names)), default=None)


def per_step(intervals: Intervals, name: str, rank: int = 0) -> float | None:
    """The mean of a field over steps, without the warm-up."""
    steps = without_warm_ups(intervals)
    return total_over(steps.of(name, rank), steps["steps"])


def gradient_noise_tokens(facts: Facts) -> float | None:
    """The gradient noise scale in the later half of the run, in target tokens.

    The ratio of two means (McCandlish et al. 2018, appendix A.1); it grows in the beginning. None
    if the run did not measure it, or too rarely to know it.
    """
    later = facts.intervals.where(facts.intervals["step"] > facts.last_step // 2)
    signals, noises = (
        np.array([value for _, value in later.points(name)])
        for name in ("gradient_signal", "gradient_noise")
    )
    if signals.size < _LEAST_NOISES or min(signals.sum(), noises.sum()) <= 0:
        return None
    return float(noises.sum() / signals.sum())


def step_s(facts: Facts) -> float | None:
    """Mean seconds of a step; validations, checkpoints and pauses are not counted."""
    return total_over(facts.intervals.of("interval_s"), facts.intervals["steps"])


def median(facts: Facts, name: str) -> float | None:
    """The median of a field over intervals."""
    values = [value for _, value in facts.intervals.points(name)]
    return float(np.median(values)) if values else None


def tokens(facts: Facts) -> float | None:
    """Source and target tokens of all updates that count, without padding."""
    return summed(summed(facts.intervals[side]) for side in _SIDES)


def tokens_per_s(facts: Facts) -> float | None:
    """Source and target tokens per second inside steps."""
    steps = without_warm_ups(facts.intervals)
    source, target = (steps[side] for side in _SIDES)
    both = np.nan_to_num(source) + np.where(target > 0, target, np.nan)
    return total_over(both, timed_s(steps))


def padding_share(facts: Facts) -> float | None:
    """The share of padding in the cells of all batches, weighted by steps."""
    shares, steps = facts.intervals["padding_share"], facts.intervals["steps"]
    return total_over(shares * steps, np.where(np.isfinite(shares), steps, np.nan))


def validate_s(facts: Facts) -> float | None:
    """Seconds of validations, with those of steps that were lost."""
    return summed(
        validation.seconds_s for validation in (*facts.validations, *facts.lost_validations)
    )


def save_s(facts: Facts) -> float | None:
    """Seconds of writing checkpoints."""
    return summed(checkpoint.seconds_s for checkpoint in facts.checkpoints)


def left_s(facts: Facts) -> float | None:
    """Seconds until the last step; None if the run does not go on, or if nothing was timed."""
    if not facts.is_running or facts.finish_time is None:
        return None
    return max(facts.finish_time - facts.read_at, 0.0)


def with_wire(facts: Facts) -> Intervals:
    """The intervals, without the warm-up, in which the wait for the network was measured."""
    steps = without_warm_ups(facts.intervals)
    return steps.where(np.isfinite(timed_s(steps)) & np.isfinite(steps["wire_s"]))


def wire_interval(facts: Facts) -> tuple[float, float, float] | None:
    """The share of the steps' time spent waiting for the network, with its 95% confidence
    interval."""
    timed = with_wire(facts)
    share_of_steps = ratio_interval(timed["wire_s"].tolist(), timed.of("interval_s").tolist())
    if share_of_steps is None:
        return None
    mean, low, high = share_of_steps
    return mean, max(low, 0.0), min(high, 1.0)


def wire_bytes_per_step(facts: Facts) -> float | None:
    """The most bytes that a rank sends for the gradients of one step: counted, not calculated."""
    counts = (per_step(facts.intervals, "sync_bytes", rank.rank) for rank in facts.ranks)
    return max((count for count in counts if count is not None), default=None)


def flat_ring_bytes(facts: Facts) -> float | None:
    """Bytes that a ring over all ranks sends each way for fp32 gradients: 2(N-1)/N x 4 x P."""
    if facts.num_parameters is None or not facts.world_size:
        return None
    return ring_bytes(FP32_BYTES * facts.num_parameters, num_ranks=facts.world_size)


def capacity_bytes_per_s(facts: Facts) -> float | None:
    """The rate of the slowest link that was measured."""
    return min((link.bytes_per_s for link in facts.links if link.bytes_per_s > 0), default=None)


def is_sampled_throughout(facts: Facts, sampled: Gpu | MachineUse) -> bool:
    """Whether samples cover nine tenths of the time in which their host took part in the run.

    Another rank may have sampled the same host in another life.
    """
    whole_s = sum(
        life.accounted - life.started for life in facts.lives if sampled.host in life.hosts
    )
    parts: tuple[Gpu | MachineUse, ...] = facts.machines
    if isinstance(sampled, Gpu):
        parts = tuple(gpu for gpu in facts.gpus if gpu.gpu == sampled.gpu)
    sampled_s = sum(part.seconds_s for part in parts if part.host == sampled.host)
    return sampled_s >= _MOST_SAMPLED * whole_s > 0


def useful_flop_share(facts: Facts, *, host: str | None = None) -> float | None:
    """Useful FLOPs over those of matrix products in the same time (MFU); padding is not useful.

    host: count only its devices. Every rank does an equal part of the useful FLOPs.
    """
    devices = [device for device in facts.devices if host in (None, device.host)]
    if facts.recipe is None or not devices or not facts.world_size:
        return None
    steps = without_warm_ups(facts.intervals)
    steps = steps.where(np.isfinite(timed_s(steps)) & (steps["pairs"] > 0))
    pairs, seconds_s = float(steps["pairs"].sum()), float(steps.of("interval_s").sum())
    if not pairs or not seconds_s:
        return None
    lengths = {side: float(np.nansum(steps[side])) / pairs for side in _SIDES}
    flop = training_flop(
        facts.recipe.model,
        target_vocab_size=facts.recipe.corpus.subword.vocab_size,
        source_length=round(lengths["source_tokens"]),
        target_length=round(lengths["target_tokens"]),
    )
    possible = sum(device.matrix_flop_per_s for device in devices) / len(devices)
    return flop * pairs / (seconds_s * possible * facts.world_size)


def scaling_efficiency(facts: Facts) -> float | None:
    """Tokens per second divided by those of the same number of devices that work alone.

    If no device was measured alone: the share of a step that a rank spends on data and compute,
    which is all that it would do alone. None for a single rank.
    """
    if facts.world_size is None or facts.world_size < 2:
        return None
    alone = [device.alone_tokens_per_s for device in facts.devices if device.alone_tokens_per_s]
    rate = tokens_per_s(facts)
    if alone and rate is not None:
        return rate / (sum(alone) / len(alone) * facts.world_size)
    busy = [part for part, _ in shares(facts, *COMPUTE_FIELDS, "data_wait_s")]
    return sum(busy) / len(busy) if busy else None
