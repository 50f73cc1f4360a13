"""Numbers that several questions need, computed from facts. None: not measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dragoman.distributed.wire import FP32_BYTES, ring_bytes
from dragoman.recipe.estimate import training_flop
from dragoman.reporting.facts import (
    Facts,
    Gpu,
    Interval,
    MachineUse,
    Rank,
    RecordedLink,
    RecordedValidation,
    summed,
    total,
)
from dragoman.reporting.trend import ratio_interval
from dragoman.telemetry.events import LinkChanged

_RECENT = 20
"""The time left is estimated from this many intervals."""
_MOST_SAMPLED = 0.9
"""Samples count for the whole run if they cover this share of its time."""
_LEAST_NOISES = 5
"""Fewer intervals with a gradient noise than this tell nothing: each is mostly chance."""
COMPUTE_FIELDS = ("forward_s", "backward_s", "optimizer_s")
_SIDES = ("source_tokens", "target_tokens")


def steady(intervals: Sequence[Interval]) -> Sequence[Interval]:
    """The intervals without warm-ups, of which there is one after each start, if two are left."""
    warm = [one for one in intervals if not one.warms_up]
    return warm if len(warm) > 1 else intervals


def points(
    records: Sequence[Interval] | Sequence[RecordedValidation], name: str
) -> list[tuple[int, float]]:
    """Every record that measured a field, as (step, value)."""
    found = ((one.step, getattr(one, name)) for one in records)
    return [(step, value) for step, value in found if value is not None]


def share(intervals: Sequence[Interval], *names: str) -> float | None:
    """The share of the steps' time that some fields (in seconds) took; None if one is missing."""
    shares: list[float | None] = []
    for name in names:
        timed = [
            one for one in steady(intervals) if one.interval_s and getattr(one, name) is not None
        ]
        seconds_s = sum(one.interval_s or 0.0 for one in timed)
        shares.append(sum(getattr(one, name) for one in timed) / seconds_s if seconds_s else None)
    return total(*shares)


def data_waits(facts: Facts) -> list[tuple[float, Rank]]:
    """The part of a step in which each rank waited for data, the largest first."""
    waits = [(share(rank.intervals, "data_wait_s"), rank) for rank in facts.ranks]
    known = [(waited, rank) for waited, rank in waits if waited is not None]
    return sorted(known, key=lambda found: -found[0])


def most_data_wait(facts: Facts) -> float | None:
    """The largest part of a step in which a rank waited for data."""
    waits = data_waits(facts)
    return waits[0][0] if waits else None


def per_step(intervals: Sequence[Interval], name: str) -> float | None:
    """The mean of a field over steps, without the warm-up."""
    return _per_step(steady(intervals), name)


def _per_step(intervals: Sequence[Interval], name: str) -> float | None:
    known = [one for one in intervals if getattr(one, name) is not None]
    steps = sum(one.steps for one in known)
    return sum(getattr(one, name) for one in known) / steps if steps else None


def gradient_noise_tokens(facts: Facts) -> float | None:
    """The gradient noise scale in the later half of the run, in target tokens.

    The ratio of two means (McCandlish et al. 2018, appendix A.1); it grows in the beginning. None
    if the run did not measure it, or too rarely to know it.
    """
    later = [one for one in facts.intervals if one.step > facts.last_step // 2]
    signals, noises = (
        [value for _, value in points(later, name)]
        for name in ("gradient_signal", "gradient_noise")
    )
    if len(signals) < _LEAST_NOISES or min(sum(signals), sum(noises)) <= 0:
        return None
    return sum(noises) / sum(signals)


def step_s(facts: Facts) -> float | None:
    """Mean seconds of a step; validations, checkpoints and pauses are not counted."""
    return _per_step(facts.intervals, "interval_s")


def median(facts: Facts, name: str) -> float | None:
    """The median of a field over intervals."""
    values = [value for _, value in points(facts.intervals, name)]
    return statistics.median(values) if values else None


def tokens(facts: Facts) -> float | None:
    """Source and target tokens of all updates that count, without padding."""
    sides = (summed(getattr(one, side) for one in facts.intervals) for side in _SIDES)
    return summed(sides)


def tokens_per_s(facts: Facts) -> float | None:
    """Source and target tokens per second inside steps."""
    timed = [one for one in steady(facts.intervals) if one.interval_s and one.target_tokens]
    seconds_s = sum(one.interval_s or 0.0 for one in timed)
    count = sum((one.source_tokens or 0) + (one.target_tokens or 0) for one in timed)
    return count / seconds_s if seconds_s else None


def padding_share(facts: Facts) -> float | None:
    """The share of padding in the cells of all batches, weighted by steps."""
    known = [one for one in facts.intervals if one.padding_share is not None]
    steps = sum(one.steps for one in known)
    return sum((one.padding_share or 0.0) * one.steps for one in known) / steps if steps else None


def validate_s(facts: Facts) -> float | None:
    """Seconds of validations, with those of steps that were lost."""
    return summed(one.seconds_s for one in (*facts.validations, *facts.lost_validations))


def save_s(facts: Facts) -> float | None:
    """Seconds of writing checkpoints."""
    return summed(one.seconds_s for one in facts.checkpoints)


def left_s(facts: Facts) -> float | None:
    """Seconds until the last step; None if the run does not go on, or if nothing was timed.

    It assumes the speed of the last intervals, and for each step its share of all other time so
    far.
    """
    if not facts.is_running or facts.imported or not facts.max_steps:
        return None
    timed = [one for one in facts.intervals[-_RECENT:] if one.interval_s is not None]
    recent, made = (sum(one.steps for one in some) for some in (timed, facts.intervals))
    if not recent or facts.wall_s is None or facts.train_s is None:
        return None
    recent_s = sum(one.interval_s or 0.0 for one in timed) / recent
    other_s = max(facts.wall_s - facts.unrecorded_s - facts.train_s, 0.0)
    made += facts.repeated_steps
    return max(facts.max_steps - facts.last_step, 0) * (recent_s + other_s / made)


def with_wire(facts: Facts) -> list[Interval]:
    """The intervals, without the warm-up, in which the wait for the network was measured."""
    return [one for one in steady(facts.intervals) if one.interval_s and one.wire_s is not None]


def wire_interval(facts: Facts) -> tuple[float, float, float] | None:
    """The share of the steps' time spent waiting for the network, with its 95% confidence
    interval."""
    timed = with_wire(facts)
    found = ratio_interval(
        [one.wire_s or 0.0 for one in timed], [one.interval_s or 0.0 for one in timed]
    )
    return None if found is None else (found[0], max(found[1], 0.0), min(found[2], 1.0))


def wire_bytes_per_step(facts: Facts) -> float | None:
    """The most bytes that a rank sends for the gradients of one step: counted, not calculated."""
    counts = [per_step(rank.intervals, "sync_bytes") for rank in facts.ranks]
    known = [count for count in counts if count is not None]
    return max(known) if known else None


def flat_ring_bytes(facts: Facts) -> float | None:
    """Bytes that a ring over all ranks sends each way for fp32 gradients: 2(N-1)/N x 4 x P."""
    if facts.num_parameters is None or not facts.world_size:
        return None
    return ring_bytes(FP32_BYTES * facts.num_parameters, num_ranks=facts.world_size)


def capacity_bytes_per_s(facts: Facts) -> float | None:
    """The rate of the slowest link that was measured."""
    return min((link.bytes_per_s for link in facts.links if link.bytes_per_s > 0), default=None)


def link_after(change: LinkChanged, host: str) -> RecordedLink:
    """The link as measured after the change."""
    return RecordedLink(host=host, bytes_per_s=change.now_bytes_per_s)


def is_sampled_throughout(facts: Facts, sampled: Gpu | MachineUse) -> bool:
    """Whether samples cover nine tenths of the time in which their host took part in the run.

    Another rank may have sampled the same host in another life.
    """
    whole_s = sum(
        life.accounted - life.started for life in facts.segments if sampled.host in life.hosts
    )
    known: tuple[Gpu | MachineUse, ...] = facts.machines
    if isinstance(sampled, Gpu):
        known = tuple(one for one in facts.gpus if one.gpu == sampled.gpu)
    sampled_s = sum(one.seconds_s for one in known if one.host == sampled.host)
    return sampled_s >= _MOST_SAMPLED * whole_s > 0


def useful_flop_share(facts: Facts, *, host: str | None = None) -> float | None:
    """Useful FLOPs over those of matrix products in the same time (MFU); padding is not useful.

    host: count only its devices. Every rank does an equal part of the useful FLOPs.
    """
    devices = [one for one in facts.devices if host in (None, one.host)]
    if facts.recipe is None or not devices or not facts.world_size:
        return None
    timed = [one for one in steady(facts.intervals) if one.interval_s and one.pairs]
    pairs = sum(one.pairs or 0 for one in timed)
    seconds_s = sum(one.interval_s or 0.0 for one in timed)
    if not pairs or not seconds_s:
        return None
    lengths = {side: sum(getattr(one, side) or 0 for one in timed) / pairs for side in _SIDES}
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
    alone = [one.alone_tokens_per_s for one in facts.devices if one.alone_tokens_per_s]
    rate = tokens_per_s(facts)
    if alone and rate is not None:
        return rate / (sum(alone) / len(alone) * facts.world_size)
    own = [share(rank.intervals, *COMPUTE_FIELDS, "data_wait_s") for rank in facts.ranks]
    known = [one for one in own if one is not None]
    return sum(known) / len(known) if known else None
