"""Common faults of runs: each ailment is a measured value, a limit and a remedy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from itertools import pairwise

from dragoman.base import units
from dragoman.base.units import Quantity
from dragoman.reporting import measures
from dragoman.reporting.convergence import (
    LEAST_FALL,
    MOST_BLEU_LOST,
    NOT_LEARNT,
    SMOOTHED,
    best_loss,
    bleu_fell,
    bleu_lost,
    by_chance,
    decay_left,
    ends_above_best,
    far_above,
    has_diverged,
    has_learnt,
    has_turned,
    is_beyond_uniform,
    is_warming_up,
    left_of_uniform,
    loss_trend,
    losses,
    stage_ahead,
    stage_since,
    trained,
    training_loss_since,
    uniform_loss,
)
from dragoman.reporting.facts import Facts, Interval, Machine, Rank, total
from dragoman.reporting.pauses import pauses
from dragoman.reporting.speed import THROTTLED
from dragoman.reporting.spells import (
    FEWEST,
    clock,
    interval_took_s,
    lasted_unseen,
    lasting,
    spells,
    when,
)
from dragoman.reporting.verdict import Answer, Verdict, evidence

_RATIO = Quantity("ratio", (("x", 1.0),), digits=3)
_QUARTERS = 4
STARVES = 0.1
"""Share of a step in which a rank waits for data."""
STRAGGLES = 1.25
"""Multiple of the median rank's compute."""
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
    culprit: Callable[[Facts], str] = lambda _facts: ""
    """Which rank, host, interface or GPU it is, and since when; used if the answer is yes."""
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
            says += f"{self.quantity.text(value)} in what was measured, which is not every rank "
            says += "and host, or not all of the time."
        else:
            answer = "yes" if value >= self.limit else "no"
            named = self.culprit(facts) if answer == "yes" else ""
            says += self.quantity.text(value) + (f": {named}." if named else ".")
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
    """1 if the run recorded it; None if the loss rose far or is not finite, and no end says so."""
    if has_diverged(facts):
        return 1.0
    if not facts.intervals or facts.intervals[-1].train_loss is None:
        return None
    seen = losses(facts)
    if seen and training_loss_since(facts, best_loss(seen)[0].step):
        return None
    return 0.0


def _flat_share_left(facts: Facts) -> float | None:
    """The share of the schedule that is left, if the dev loss is surely flat and no decay is ahead.

    0 if the loss surely moves, or if nothing was learnt: that is no plateau. None if unclear.
    """
    found = loss_trend(facts)
    if found is None or not facts.max_steps:
        return None
    if -found.high > LEAST_FALL or has_turned(facts) or has_learnt(facts) is False:
        return 0.0
    if max(-found.low, found.high) >= LEAST_FALL or has_learnt(facts) is None:
        return None
    if decay_left(facts) > 1 or is_warming_up(facts) or stage_ahead(facts) is not None:
        return 0.0
    if trained(facts).answer != "yes":  # BLEU may rise yet, or the weights not change at all
        return None
    return max(facts.max_steps - facts.last_step, 0) / facts.max_steps


def _spikes(facts: Facts) -> float | None:
    """The number of training losses `far_above` the lowest median of nine before, after the warmup.

    None if there are many, but the text may be the cause: a harder batch or corpus. The model is
    the cause if the run diverged, if the losses are worse than a uniform prediction, or if the dev
    loss is no longer at its best.
    """
    warmup = facts.recipe.schedule.warmup_steps if facts.recipe else 0
    logged = measures.points(facts.intervals, "train_loss")
    train_losses = [loss for step, loss in logged if step > warmup]
    if len(train_losses) <= SMOOTHED:
        return None
    chance, lowest, high = by_chance(train_losses), float("inf"), []
    for number in range(SMOOTHED, len(train_losses)):
        lowest = min(lowest, statistics.median(train_losses[number - SMOOTHED : number]))
        if train_losses[number] > far_above(lowest, chance):
            high.append(train_losses[number])
    seen = losses(facts)
    best = best_loss(seen)[0].step if seen else 0
    is_of_model = (
        has_diverged(facts)
        or sum(is_beyond_uniform(facts, loss) for loss in high) >= MOST_SPIKES
        or (ends_above_best(facts) and stage_since(facts, best) is None)
    )
    return float(len(high)) if len(high) < MOST_SPIKES or is_of_model else None


def _not_learnt(facts: Facts) -> float | None:
    """`left_of_uniform`, after a fifth of the schedule or more; None without a recipe.

    The loss on training text counts if it is lower: a rate at which the model memorises it is not
    too low.
    """
    if not facts.max_steps or facts.last_step * _EARLY < facts.max_steps:
        return None
    left, uniform = left_of_uniform(facts), uniform_loss(facts)
    sliced = [loss for _, loss in measures.points(facts.validations, "train_slice_loss")]
    if left is None or not uniform or not sliced:
        return left
    return min(left, min(sliced) / uniform)


def _starved_rank(facts: Facts) -> str:
    rank = measures.most_data_wait(facts)[1]
    if rank is None:
        return ""
    intervals = [one for one in measures.steady(rank.intervals) if one.interval_s]
    bad = [(one.data_wait_s or 0.0) >= STARVES * (one.interval_s or 0.0) for one in intervals]
    found = " and ".join(map(when, spells(intervals, bad)))
    return found if facts.world_size == 1 else f"{rank.name}, {found}"


def _computes(facts: Facts) -> tuple[list[list[Interval]], list[list[float]]]:
    """Intervals of all ranks side by side, and the compute of their median steps.

    One life of the run may have more ranks than another. One interval in which no rank was slow
    replaces the intervals that some rank lacks.
    """
    intervals: list[list[Interval]] = []
    computes_s: list[list[float]] = []
    side_by_side = facts.side_by_side
    if any(one.compute_median_s is None for one in (side_by_side[0] if side_by_side else [])):
        side_by_side = list(measures.steady(side_by_side))  # a mean includes the warm-up
    for together in side_by_side:
        seconds_s = [measures.interval_compute_s(one) for one in together]
        known = [one for one in seconds_s if one is not None]
        if not together or not len(known) == len(together) == facts.ranks_at(together[0].step):
            continue
        if intervals and together[0].step - together[0].steps > intervals[-1][0].step:
            intervals.append(together)
            computes_s.append([min(known)] * len(known))
        intervals.append(together)
        computes_s.append(known)
    return intervals, computes_s


def _stragglers(facts: Facts) -> list[tuple[float, str]]:
    """Ranks that were slow for long: compute over the median rank's at that time, and in words.

    The slowest comes first.
    """
    together, computes_s = _computes(facts)
    middles_s = [statistics.median_low(all_s) for all_s in computes_s]
    took_s = _took_s(together)
    found = []
    for place, rank in enumerate(facts.ranks[: _most_ranks(facts)]):
        bad = _is_slow(computes_s, place)
        stretches = lasting(bad, took_s)
        slow = [at for first, last in stretches for at in range(first, last + 1) if bad[at]]
        if slow:
            own_s = [computes_s[at][place] for at in slow]
            usual_s = [statistics.median(own_s), statistics.median(middles_s[at] for at in slow)]
            both = [units.STEP_TIME.text(seconds_s) for seconds_s in usual_s]
            own = [one[min(place, len(one) - 1)] for one in together]  # all end it together
            times = " and ".join(map(when, spells(own, bad)))
            text = f"{rank.name}, {times} ({both[0]}, {both[1]} the median rank)"
            ratios = (own / middles_s[at] for own, at in zip(own_s, slow, strict=True))
            found.append((statistics.median(ratios), text))
    return sorted(found, reverse=True)


def _is_slow(computes_s: list[list[float]], place: int) -> list[bool]:
    """In which intervals a rank took far longer than the median rank; False if it was not there."""
    return [
        place < len(all_s) and all_s[place] >= STRAGGLES * statistics.median_low(all_s) > 0
        for all_s in computes_s
    ]


def _most_ranks(facts: Facts) -> int:
    """How many ranks trained together in the life with most of them."""
    return max([facts.world_size or 0, *(life.world_size or 0 for life in facts.segments)])


def _took_s(together: list[list[Interval]]) -> list[float]:
    """Seconds of each interval: all ranks end it together."""
    return [max(map(interval_took_s, some)) for some in together]


def _slowest_rank(facts: Facts) -> float | None:
    """Compute of the slowest rank over that of the median rank in the same steps, if it lasted.

    Ranks that are slow by turns do not count. If no rank was slow for long, the largest lower
    quartile of a rank's ratios. None if a rank was slow for a quarter of the time, but in only one
    or two intervals.
    """
    ranks = _most_ranks(facts)
    if ranks == 1:
        return 1.0
    together, computes_s = _computes(facts)
    if facts.lacks_ranks or len(computes_s) < FEWEST:
        return None
    if found := _stragglers(facts):
        return found[0][0]
    took_s = _took_s(together)
    slow = (_is_slow(computes_s, place) for place in range(ranks))
    if any(lasted_unseen(bad, took_s) for bad in slow):
        return None
    middles_s = [statistics.median_low(all_s) for all_s in computes_s]
    usual = 1.0
    for place in range(ranks):
        ratios = sorted(
            all_s[place] / (mid or 1.0) if place < len(all_s) else 1.0
            for all_s, mid in zip(computes_s, middles_s, strict=True)
        )
        usual = max(usual, ratios[len(ratios) // 4])
    return min(usual, STRAGGLES - 0.01)


def _network_faults(facts: Facts) -> float | None:
    counts = [one.errors + one.carrier_changes for one in facts.traffic]
    return float(sum(counts)) if counts else None


def _faulty_interfaces(facts: Facts) -> str:
    return ", ".join(
        f"{one.interface} of {one.host} ({one.errors} errors, link lost or found "
        f"{one.carrier_changes} times{f', {when(one.faulty)}' if one.faulty else ''})"
        for one in facts.traffic
        if one.errors or one.carrier_changes
    )


def _fullest_disk(facts: Facts) -> Machine | None:
    known = [one for one in facts.machines if one.disk_free_bytes is not None]
    return min(known, key=lambda one: one.disk_free_bytes or 0.0, default=None)


def _checkpoint_of_free_disk(facts: Facts) -> float | None:
    """The size of the last checkpoint over the free space on the fullest disk."""
    fullest = _fullest_disk(facts)
    sizes = [one.size_bytes for one in facts.checkpoints if one.size_bytes]
    if fullest is None or not fullest.disk_free_bytes or not sizes:
        return None
    return sizes[-1] / fullest.disk_free_bytes


def _full_disk(facts: Facts) -> str:
    fullest = _fullest_disk(facts)
    if fullest is None or fullest.disk_free_bytes is None:
        return ""
    free, seen = units.SIZE.text(fullest.disk_free_bytes), clock(fullest.last_seen)
    return f"the disk of the run on {fullest.host}, {free} free at {seen}"


def _throttled_gpu(facts: Facts) -> str:
    worst = max(facts.gpus, key=lambda gpu: gpu.throttled_share)
    by = f"GPU {worst.gpu} of {worst.host}, by {', '.join(worst.throttle_reasons)}"
    return by if worst.throttled is None else f"{by}, {when(worst.throttled)}"


def _growths(facts: Facts) -> list[tuple[float, Rank]]:
    """Growth of each rank's peak memory after the first quarter of the run, if every later quarter
    has it.

    A leak grows in each quarter; a first long batch or validation in only one of them.
    """
    growths = []
    for rank in facts.ranks:
        peaks = [one.peak_memory_bytes for one in rank.intervals if one.peak_memory_bytes]
        if len(peaks) >= 2 * _QUARTERS:
            ends = [peaks[(len(peaks) - 1) * n // _QUARTERS] for n in range(1, _QUARTERS + 1)]
            least = min(two - one for one, two in pairwise(ends))
            growths.append(((_QUARTERS - 1) * least / ends[0], rank))
    return growths


def _growing_rank(facts: Facts) -> str:
    rank = max(_growths(facts), key=lambda found: found[0])[1]
    known = [(one.peak_memory_bytes, one.step) for one in rank.intervals if one.peak_memory_bytes]
    least, since = min(known, key=lambda one: (one[0], -one[1]))
    most, until = max(known, key=lambda one: (one[0], -one[1]))
    return (
        f"{rank.name}, from {units.SIZE.text(least)} at step {units.COUNT.text(since)} "
        f"to {units.SIZE.text(most)} at step {units.COUNT.text(until)}"
    )


def _is_sampled(facts: Facts, hosts: Set[str]) -> bool:
    return not facts.lacks_ranks and hosts >= set(facts.hosts)


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
        quantity=units.COUNT,
        limit=1,
        remedy="Lower the peak learning rate, warm up longer, or set optimizer.clip_norm.",
    ),
    Ailment(
        key="plateau",
        question="Is it on a plateau long before its end?",
        what="schedule left while the dev loss is flat",
        measure=_flat_share_left,
        quantity=units.SHARE,
        limit=0.1,
        remedy="Stop here, or set train.patience; a larger model or more data would help.",
    ),
    Ailment(
        key="rate_too_high",
        question="Is the learning rate too high?",
        what="training losses over 1.2 x the lowest median before them, beyond chance",
        measure=_spikes,
        quantity=units.COUNT,
        limit=MOST_SPIKES,
        remedy="Lower the peak learning rate, warm up longer, or set optimizer.clip_norm.",
    ),
    Ailment(
        key="rate_too_low",
        question="Is the learning rate too low?",
        what="lowest dev loss or loss on training text, of that of a uniform prediction",
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
        culprit=bleu_fell,
        quantity=units.SHARE,
        limit=MOST_BLEU_LOST,
        remedy="Read the samples, and use the checkpoint of the best BLEU.",
    ),
    Ailment(
        key="starved",
        question="Does training wait for data?",
        what="waiting for data, of a step",
        measure=lambda facts: measures.most_data_wait(facts)[0],
        culprit=_starved_rank,
        is_whole=lambda facts: not facts.lacks_ranks,
        quantity=units.SHARE,
        limit=STARVES,
        remedy="Put the shards on a local disk, free a core, raise data.prefetch_batches.",
    ),
    Ailment(
        key="straggler",
        question="Is one rank slower than the others?",
        what="compute of the slowest rank over the median rank's, in three of four intervals of a "
        "quarter of the run or more",
        measure=_slowest_rank,
        culprit=lambda facts: "; ".join(text for _, text in _stragglers(facts)),
        quantity=_RATIO,
        limit=STRAGGLES,
        remedy="Look at that host: its clock, its temperature, what else runs on it.",
    ),
    Ailment(
        key="throttled",
        question="Is a GPU throttled?",
        what="samples with a lowered clock",
        measure=lambda facts: max((gpu.throttled_share for gpu in facts.gpus), default=None),
        culprit=_throttled_gpu,
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
        what="errors and lost links on the interfaces of the collectives",
        measure=_network_faults,
        culprit=_faulty_interfaces,
        is_whole=lambda facts: _is_sampled(facts, {one.host for one in facts.traffic}),
        quantity=units.COUNT,
        limit=1,
        remedy="Look at cable, port and driver of the host: dragoman report lists each interface.",
    ),
    Ailment(
        key="disk",
        question="Will the disk be full soon?",
        what="a checkpoint as a share of the free disk space",
        measure=_checkpoint_of_free_disk,
        culprit=_full_disk,
        quantity=units.SHARE,
        limit=0.3,
        remedy="Free disk space, or lower checkpoint.keep_last.",
    ),
    Ailment(
        key="memory_creep",
        question="Does memory creep up?",
        what="steady growth of the peak memory after a quarter of the run",
        measure=lambda facts: max((growth for growth, _ in _growths(facts)), default=None),
        culprit=_growing_rank,
        is_whole=lambda facts: not facts.lacks_ranks and len(_growths(facts)) == len(facts.ranks),
        quantity=units.SHARE,
        limit=0.2,
        remedy="Something is kept from step to step; report it with this file.",
    ),
    Ailment(
        key="padding",
        question="Is much of a batch padding?",
        what="padding, of all cells",
        measure=measures.padding_share,
        quantity=units.SHARE,
        limit=0.2,
        remedy="Set data.bucket = true, or a larger data.pool_pairs.",
    ),
    Ailment(
        key="evaluation",
        question="Is it evaluated too often?",
        what="share of validation in training and validation",
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
