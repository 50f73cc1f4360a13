"""Common faults of runs: each ailment is a measured value, a limit and a remedy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dragoman.base import units
from dragoman.base.printable import first_of
from dragoman.base.units import Quantity
from dragoman.distributed.config import DistributedConfig
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts, MachineUse, Rank
from dragoman.reporting.learning import (
    State,
    has_diverged,
    learning,
    trained,
    training_loss_jump,
)
from dragoman.reporting.pauses import how_long, out_of_reach, pauses
from dragoman.reporting.periods import clock, moment, periods, when
from dragoman.reporting.rates import rate_ahead, stage_between
from dragoman.reporting.record import total
from dragoman.reporting.scores import (
    MOST_BLEU_LOST,
    NOT_LEARNT,
    bleu_fell,
    bleu_lost,
    lowest_share,
    uniform_loss,
)
from dragoman.reporting.speed import THROTTLED
from dragoman.reporting.stragglers import slowest_rank, stragglers
from dragoman.reporting.trend import SMOOTHED, far_above, later_half
from dragoman.reporting.verdict import Answer, Verdict, evidence, named
from dragoman.telemetry.events import STRAGGLES

_RATIO = Quantity("ratio", (("x", 1.0),), digits=3)
_QUARTERS = 4
_FULL_DISK = 0.3
_CREEPS = 0.2
STARVES = 0.1
"""A rank that waits for data for this share of a step is starved."""
MOST_SPIKES = 3
_EARLY = 5
"""A fifth of the schedule is enough to learn something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ailment:
    """yes: the value reaches the limit; no: it does not; cannot tell: it was not measured."""

    key: str
    question: str
    what: str
    measure: Callable[[Facts], float | None]
    quantity: Quantity
    limit: float
    remedy: str
    culprits: Callable[[Facts], Iterable[str]] = lambda _facts: ()
    """Which ranks, hosts, interfaces or GPUs it is, and since when, the worst first; used if the
    answer is yes."""
    is_whole: Callable[[Facts], bool] = lambda _facts: True
    """Whether every rank or host that may have it was measured; if not, the answer is never
    "no"."""

    def judge(self, facts: Facts) -> Verdict:
        """The answer for one run."""
        value = self.measure(facts)
        answer: Answer = "cannot tell"
        says = f"{self.what[0].upper()}{self.what[1:]}: "
        if value is None:
            says += "not measured, or too early to tell."
        elif value < self.limit and not self.is_whole(facts):
            says += f"{self.quantity.text(value)} in the measurements, which do not cover "
            says += "every rank and host all of the time."
        else:
            answer = "yes" if value >= self.limit else "no"
            culprits = named(self.culprits(facts)) if answer == "yes" else ""
            says += self.quantity.text(value) + (f": {culprits}." if culprits else ".")
        return Verdict(
            key=self.key,
            question=self.question,
            answer=answer,
            says=says,
            evidence=(evidence(self.what, self.quantity, value),),
            thresholds=(f"yes from {self.quantity.text(self.limit)} on",),
            remedy=self.remedy if answer == "yes" else "",
        )


def _divergences(facts: Facts) -> float | None:
    """1 if the run recorded that it diverged; None if the loss rose far or is not finite."""
    if has_diverged(facts):
        return 1.0
    if not np.isfinite(facts.intervals["train_loss"][-1:]).any():
        return None
    signals = learning(facts)
    jumped = signals.validations and training_loss_jump(facts, signals.best.step)
    return None if jumped else 0.0


def _flat_share_left(facts: Facts) -> float | None:
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
    if signals.state is State.UNKNOWN or trained(facts).answer != "yes":
        return None
    return max(facts.max_steps - facts.last_step, 0) / facts.max_steps


def _spikes(facts: Facts) -> float | None:
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
    """The losses that `_spikes` counts, by step; None if there are too few to compare."""
    warmup = facts.recipe.schedule.warmup_steps if facts.recipe else 0
    logged = [point for point in facts.intervals.points("train_loss") if point[0] > warmup]
    if len(logged) <= SMOOTHED:
        return None
    losses = np.array([loss for _, loss in logged])
    medians = np.median(sliding_window_view(losses[:-1], SMOOTHED), axis=1)
    is_high = losses[SMOOTHED:] > far_above(np.minimum.accumulate(medians), losses)
    return dict(itertools.compress(logged[SMOOTHED:], is_high))


def _not_learnt(facts: Facts) -> float | None:
    """The lowest loss, on dev text after the start or on training text, as a share of a uniform
    prediction's, after a fifth of the schedule or more; None without a recipe.

    A rate at which the model memorises training text is not too low.
    """
    if not facts.max_steps or facts.last_step * _EARLY < facts.max_steps:
        return None
    dev, uniform = learning(facts).losses.tolist(), uniform_loss(facts)
    sliced = [loss for _, loss in measures.points(facts.validations, "train_slice_loss")]
    return min(dev + sliced) / uniform if uniform and dev else None


def _starved_ranks(facts: Facts) -> Iterator[str]:
    for waited, rank in measures.data_waits(facts):
        if waited < STARVES:
            return
        steps = measures.steady(facts.intervals)
        timed = steps.where(np.isfinite(measures.timed_s(steps, rank.rank)))
        waits_s, took_s = (timed.of(name, rank.rank) for name in ("data_wait_s", "interval_s"))
        bad = waits_s >= STARVES * took_s
        found = " and ".join(map(when, periods(timed, bad, rank=rank.rank)))
        yield found if facts.world_size == 1 else f"{rank.name}, {found}"


def _network_faults(facts: Facts) -> float | None:
    counts = [one.errors + one.carrier_changes for one in facts.traffic]
    silences = sum(not link for _, link in out_of_reach(facts))
    return float(sum(counts) + silences) if counts else None


def _faulty_interfaces(facts: Facts) -> Iterator[str]:
    cut_off = out_of_reach(facts)
    for one in facts.traffic:
        if one.errors or one.carrier_changes:
            changes = f"link lost or found {one.carrier_changes} times"
            since = f", {when(one.faulty)}" if one.faulty else ""
            name = f"{one.interface} of {one.host}"
            unreached = [
                f"; {pause.name} was out of reach for {how_long(pause)}"
                for pause, link in cut_off
                if link == name
            ]
            yield f"{name} ({one.errors} errors, {changes}{since}{''.join(unreached)})"
    for pause, link in cut_off:
        if not link:
            yield (
                f"{pause.name} was out of reach for {how_long(pause)}, though it worked and no "
                "host lost its link: a switch or a cable between switches"
            )


def _disks(facts: Facts) -> list[tuple[float, MachineUse]]:
    """The last checkpoint as a share of the free space of each disk, the fullest disk first.

    Only disks to which checkpoints are written: that of the first rank, and all if each rank saves
    a state of its own, or if the strategy is not known.
    """
    sizes = [one.size_bytes for one in facts.checkpoints if one.size_bytes]
    config = facts.recipe.distributed if facts.recipe else DistributedConfig()
    options = config.options
    if facts.chosen:
        options = config.options_of(facts.chosen.strategy)
    writers = {rank.host for rank in facts.ranks if rank.rank == 0}
    is_known = facts.chosen or facts.recipe
    if not is_known or options.own_numbers or options.has_own_optimizers:
        writers.update(facts.hosts)
    free = [(one.disk_free_bytes, one) for one in facts.machines if one.host in writers]
    # A disk without a free byte is full: it counts as if it had one.
    shares = [
        (sizes[-1] / max(space, 1.0), one) for space, one in free if space is not None and sizes
    ]
    return sorted(shares, key=lambda found: -found[0])


def _full_disks(facts: Facts) -> Iterator[str]:
    for share, one in _disks(facts):
        if share >= _FULL_DISK:
            free, seen = units.SIZE.optional_text(one.disk_free_bytes), clock(one.last_seen)
            yield f"the disk of the run on {one.host}, {free} free at {seen}"


def _throttled_gpus(facts: Facts) -> Iterator[str]:
    for gpu in sorted(facts.gpus, key=lambda gpu: -gpu.throttled_share):
        if gpu.throttled_share >= THROTTLED:
            since = f", {when(gpu.throttled)}" if gpu.throttled else ""
            yield f"{gpu.label}, by {', '.join(gpu.throttle_reasons)}{since}"


def _diverged_at(facts: Facts) -> Iterator[str]:
    yield f"at {moment(facts.last_step, facts.segments[-1].ended)}"


def _flat_since(facts: Facts) -> Iterator[str]:
    validations = learning(facts).validations
    first = validations[later_half(len(validations))][0]
    yield f"flat since {moment(first.step, first.time)}, or earlier"


def _spikes_since(facts: Facts) -> Iterator[str]:
    times = dict(facts.intervals.points("time"))
    yield "at " + first_of((moment(step, times[step]) for step in _high(facts) or {}), between="; ")


def _growths(facts: Facts) -> list[tuple[float, Rank]]:
    """Growth of each rank's peak memory after the first quarter of the run, as a share of it: three
    times the least growth of a later quarter.

    A leak grows in each quarter; a first long batch or validation in only one of them.
    """
    growths = []
    for rank in facts.ranks:
        peaks = [peak for _, peak in _peaks(facts, rank)]
        if len(peaks) >= 2 * _QUARTERS:
            ends = [peaks[(len(peaks) - 1) * n // _QUARTERS] for n in range(1, _QUARTERS + 1)]
            least = min(two - one for one, two in pairwise(ends))
            growths.append(((_QUARTERS - 1) * least / ends[0], rank))
    return growths


def _peaks(facts: Facts, rank: Rank) -> list[tuple[int, float]]:
    """The peak memory of a rank, by step."""
    points = facts.intervals.points("peak_memory_bytes", rank.rank)
    return [(step, peak) for step, peak in points if peak]


def _growing_ranks(facts: Facts) -> Iterator[str]:
    for growth, rank in sorted(_growths(facts), key=lambda found: -found[0]):
        if growth < _CREEPS:
            return
        known = _peaks(facts, rank)
        since, least = min(known, key=lambda one: (one[1], -one[0]))
        until, most = max(known, key=lambda one: (one[1], -one[0]))
        yield (
            f"{rank.name}, from {units.SIZE.text(least)} at step {units.COUNT.text(since)} "
            f"to {units.SIZE.text(most)} at step {units.COUNT.text(until)}"
        )


def _is_sampled(facts: Facts, hosts: Set[str]) -> bool:
    return hosts >= set(facts.hosts)


def _evaluation_share(facts: Facts) -> float | None:
    seconds_s = measures.validate_s(facts)
    whole_s = total(seconds_s, facts.train_s)
    return seconds_s / whole_s if seconds_s is not None and whole_s else None


AILMENTS: tuple[Ailment, ...] = (
    Ailment(
        key="diverged",
        question="Did it diverge?",
        what="times it stopped itself because of the loss",
        measure=_divergences,
        culprits=_diverged_at,
        quantity=units.COUNT,
        limit=1,
        remedy="Lower the peak learning rate, warm up longer, or set optimizer.clip_norm.",
    ),
    Ailment(
        key="plateau",
        question="Is it on a plateau long before its end?",
        what="schedule left while the dev loss is flat",
        measure=_flat_share_left,
        culprits=_flat_since,
        quantity=units.SHARE,
        limit=0.1,
        remedy="Stop here, or set train.patience; a larger model or more data would help.",
    ),
    Ailment(
        key="rate_too_high",
        question="Is the learning rate too high?",
        what="training losses over 1.2 x the lowest median before them, beyond chance",
        measure=_spikes,
        culprits=_spikes_since,
        quantity=units.COUNT,
        limit=MOST_SPIKES,
        remedy="Lower the peak learning rate, warm up longer, or set optimizer.clip_norm.",
    ),
    Ailment(
        key="rate_too_low",
        question="Is the learning rate too low?",
        what="lowest loss, on dev or training text, as a share of a uniform prediction's",
        measure=_not_learnt,
        quantity=units.SHARE,
        limit=NOT_LEARNT,
        remedy="Raise the peak learning rate, or shorten the warmup.",
    ),
    Ailment(
        key="translations_worse",
        question="Do translations get worse?",
        what="share of the best BLEU that is surely lost again",
        measure=bleu_lost,
        culprits=lambda facts: filter(None, [bleu_fell(facts)]),
        quantity=units.SHARE,
        limit=MOST_BLEU_LOST,
        remedy="Read the samples, and use the checkpoint of the best BLEU.",
    ),
    Ailment(
        key="starved",
        question="Does training wait for data?",
        what="share of a step spent waiting for data",
        measure=measures.most_data_wait,
        culprits=_starved_ranks,
        quantity=units.SHARE,
        limit=STARVES,
        remedy="Put the shards on a local disk, free a core, raise data.prefetch_batches.",
    ),
    Ailment(
        key="straggler",
        question="Is one rank slower than the others?",
        what="compute of the slowest rank over the median rank's, for a quarter of the run or "
        "more, or up to its end",
        measure=slowest_rank,
        culprits=lambda facts: [text for _, text in stragglers(facts)],
        quantity=_RATIO,
        limit=STRAGGLES,
        remedy="Look at that host: its clock, its temperature, what else runs on it.",
    ),
    Ailment(
        key="throttled",
        question="Is a GPU throttled?",
        what="time with a lowered clock",
        measure=lambda facts: max((gpu.throttled_share for gpu in facts.gpus), default=None),
        culprits=_throttled_gpus,
        is_whole=lambda facts: (
            _is_sampled(facts, {gpu.host for gpu in facts.gpus})
            and all(measures.is_sampled_throughout(facts, gpu) for gpu in facts.gpus)
        ),
        quantity=units.SHARE,
        limit=THROTTLED,
        remedy="Look at cooling and power supply.",
    ),
    Ailment(
        key="network_faults",
        question="Is an interface faulty?",
        what="errors, lost links and silences on the interfaces of the collectives",
        measure=_network_faults,
        culprits=_faulty_interfaces,
        is_whole=lambda facts: _is_sampled(facts, {one.host for one in facts.traffic}),
        quantity=units.COUNT,
        limit=1,
        remedy="Look at cable, port and driver of the host: dragoman report lists each interface.",
    ),
    Ailment(
        key="disk",
        question="Will the disk be full soon?",
        what="a checkpoint as a share of the free disk space",
        measure=lambda facts: max((share for share, _ in _disks(facts)), default=None),
        culprits=_full_disks,
        quantity=units.SHARE,
        limit=_FULL_DISK,
        remedy="Free disk space, or lower checkpoint.keep_last.",
    ),
    Ailment(
        key="memory_creep",
        question="Does memory creep up?",
        what="steady growth of the peak memory after a quarter of the run",
        measure=lambda facts: max((growth for growth, _ in _growths(facts)), default=None),
        culprits=_growing_ranks,
        is_whole=lambda facts: len(_growths(facts)) == len(facts.ranks),
        quantity=units.SHARE,
        limit=_CREEPS,
        remedy="Something is kept from step to step; report it with this file.",
    ),
    Ailment(
        key="padding",
        question="Is much of a batch padding?",
        what="share of padding in all cells",
        measure=measures.padding_share,
        quantity=units.SHARE,
        limit=0.2,
        remedy="Set data.bucket = true, or a larger data.pool_pairs.",
    ),
    Ailment(
        key="evaluation",
        question="Is it evaluated too often?",
        what="validation's share of the time of training and validation",
        measure=_evaluation_share,
        quantity=units.SHARE,
        limit=0.2,
        remedy="Raise train.validate_every_steps, or lower evaluate.bleu_pairs.",
    ),
)


def examine(facts: Facts) -> Iterator[Verdict]:
    """The answer for each ailment."""
    for ailment in AILMENTS:
        yield ailment.judge(facts)
        if ailment.key == "straggler":
            yield pauses(facts)
