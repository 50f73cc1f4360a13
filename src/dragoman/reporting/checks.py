"""All that a report looks for, in one table. A new check is a row.

A row names the question, the function that answers it and the rows of evidence; its limits and its
method in words. If one measured value decides, `_limited` makes the row of value, unit, limit and
remedy. A fact has no limit. Missing evidence gives "cannot tell".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from dragoman.base import units
from dragoman.base.units import Quantity
from dragoman.reporting import (
    cost,
    faults,
    learning,
    learning_rate,
    measures,
    network,
    pauses,
    plots,
    scores,
    speed,
    stragglers,
    totals,
    trend,
    worth,
)
from dragoman.reporting.facts import Facts
from dragoman.reporting.sampling import FULL_HOST, LOW_POWER
from dragoman.reporting.svg import Plot
from dragoman.reporting.verdict import Evidence, Judgement, Verdict, evidence, named
from dragoman.telemetry.events import STRAGGLER_RATIO
from dragoman.telemetry.host import DISTURBING_SHARE

_share = units.SHARE.text
_RATIO: Final = Quantity("ratio", (("x", 1.0),), digits=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row.

    key: a short name that stays the same between versions.
    kind: a question for a judgement, a question for a fact, or a fault that a run may have.
    question: for a reader. question_on_gpu: the same for a run on GPUs, if it differs.
    judge: the answer, the same in a sentence, and what to do.
    evidence: the measured values.
    limits: what decides, in words and numbers. method: how it was measured and computed.
    plots: the pictures beside it.
    """

    key: str
    kind: Literal["judgement", "fact", "fault"]
    question: str
    question_on_gpu: str = ""
    judge: Callable[[Facts], Judgement]
    evidence: Callable[[Facts], Iterable[Evidence]]
    limits: Sequence[str] = ()
    method: str = ""
    plots: Callable[[Facts], list[Plot]] | None = None

    def of(self, facts: Facts) -> Verdict:
        """The answer for one run."""
        answer, says, remedy = self.judge(facts)
        on_gpu = self.question_on_gpu and speed.is_on_gpu(facts)
        return Verdict(
            key=self.key,
            question=self.question_on_gpu if on_gpu else self.question,
            answer=answer,
            says=says,
            evidence=tuple(self.evidence(facts)),
            thresholds=tuple(self.limits),
            method=self.method,
            remedy=remedy,
        )


def _limited(
    key: str,
    question: str,
    *,
    what: str,
    find: Callable[[Facts], faults.Found],
    unit: Quantity,
    limit: float,
    remedy: str,
    is_whole: Callable[[Facts], bool] = lambda _facts: True,
) -> Check:
    """The row of a fault that one value decides.

    yes: the value reaches the limit; no: it does not; cannot tell: it was not measured.

    what: the value, in words.
    find: the values, of which the largest decides; all that reach the limit are named.
    is_whole: whether every rank or host that may have it was measured; if not, the answer is never
        "no".
    """

    def measure(facts: Facts) -> float | None:
        return max((value for value, _ in find(facts)), default=None)

    def judge(facts: Facts) -> Judgement:
        found = sorted(find(facts), reverse=True, key=lambda found: found[0])
        says = f"{what[0].upper()}{what[1:]}: "
        if not found:
            return "cannot tell", f"{says}not measured, or too early to tell.", ""
        says += unit.text(found[0][0])
        if found[0][0] >= limit:
            who = named(text for value, text in found if text and value >= limit)
            return "yes", f"{says}: {who}." if who else f"{says}.", remedy
        if not is_whole(facts):
            says += " in the measurements, which do not cover every rank and host all of the time."
            return "cannot tell", says, ""
        return "no", f"{says}.", ""

    return Check(
        key=key,
        kind="fault",
        question=question,
        judge=judge,
        evidence=lambda facts: [evidence(what, unit, measure(facts))],
        limits=(f"yes from {unit.text(limit)} on",),
    )


CHECKS: Final[tuple[Check, ...]] = (
    # The twelve questions, in their order.
    Check(
        key="duration",
        kind="judgement",
        question="How long does it take?",
        judge=totals.duration,
        evidence=totals.duration_evidence,
        method="The clock of rank 0 from each start of the run to its end, or its last event. "
        "Idle is the time that no other row explains: start-up, compilation, the end. The time "
        "left is that of the remaining steps at the speed of the last 20 intervals, with their "
        "share of the rest.",
        plots=plots.duration,
    ),
    Check(
        key="trained",
        kind="judgement",
        question="Is it fully trained? How can you tell?",
        judge=learning.is_trained,
        evidence=worth.trained_evidence,
        limits=(
            f"flat: 10% more steps change the dev loss by less than {_share(learning.LEAST_FALL)} "
            "of it, with 95% confidence; falling: they lower it by more",
            f"turned: the last two dev losses are over {_share(learning.LEAST_RISE)} above the "
            "best, by more than chance",
            "yes: flat, and the schedule has nothing ahead that lowers it; or turned, and the loss "
            "on training text does not rise as well",
            "no: falling; turned as the loss on training text; diverged; or worse than the trained "
            f"model it began with, by {_share(learning.LEAST_RISE)} of the dev loss or the "
            "interval of BLEU",
            f"no: {_share(scores.NOT_LEARNT)} of a uniform prediction's loss or more, or "
            f"{_share(scores.BEYOND_FREQUENCIES)} with a BLEU whose interval begins below "
            f"{units.SCORE.text(scores.TRANSLATES)}",
            f"cannot tell: under {trend.FEWEST} validations after the start, none in the last "
            "steps, BLEU moves, or nothing shows that it translates: neither such a BLEU nor, "
            f"without BLEU, under {_share(scores.NEEDS_SOURCE)} of a uniform prediction's loss",
        ),
        method="A straight line through the dev loss over the logarithm of the step, at the later "
        "half of the validations. The training loss is not used: a flat one proves nothing.",
        plots=plots.trained,
    ),
    Check(
        key="overfitting",
        kind="judgement",
        question="Is it overfitting?",
        judge=learning.is_overfitting,
        evidence=learning.overfitting_evidence,
        limits=(
            "yes: the dev loss has turned (see question 2), and the loss on training text falls",
            f"yes: the loss on the training slice is below {_share(learning.BY_HEART)} of the dev "
            "loss, and the training text was seen more than once",
            f"no: the dev loss has not turned, and the loss on the training slice is at least "
            f"{_share(learning.CLOSE)} of it; or both rise",
            f"cannot tell: the dev loss ends over {_share(learning.LEAST_RISE)} above its best, "
            "with an unclear trend",
        ),
        method="The same loss, without dropout and label smoothing, on a fixed slice of the "
        "training set and on the dev set.",
        plots=plots.losses,
    ),
    Check(
        key="processors",
        kind="judgement",
        question="Were the processors fully used?",
        question_on_gpu="Were the GPUs fully used?",
        judge=speed.are_processors_busy,
        evidence=speed.processors_evidence,
        limits=(
            f"yes: at least {_share(speed.BUSY_COMPUTE)} of a step of every rank in compute "
            f"and, on a GPU, useful FLOPs of {_share(speed.BUSY_FLOPS)} or more of its rate "
            f"of matrix products, or {_share(speed.FULL_POWER)} of the power of every GPU; "
            f"without one, at least {_share(FULL_HOST)} of the processors of every host "
            f"busy, at most {_share(DISTURBING_SHARE)} of them with other work",
            f"no: less compute, processors or useful FLOPs; a GPU below "
            f"{_share(LOW_POWER)} of its power, unless its useful FLOPs suffice; or a "
            f"clock lowered for {_share(speed.THROTTLED)} of the time",
            "cannot tell: any of these was not measured for every rank, GPU and host and for nine "
            "tenths of the run",
        ),
        method="Phases of a step on the device's own clock. The utilisation counter alone decides "
        "nothing: a kernel that only waits for the network keeps it at 100%.",
        plots=plots.step_parts,
    ),
    Check(
        key="network",
        kind="judgement",
        question="Was the network the bottleneck?",
        judge=network.is_bottleneck,
        evidence=network.bottleneck_evidence,
        limits=(
            f"yes: with 95% confidence, at least {_share(network.NETWORK_BOUND)} of a step waits "
            "for the network, and its bytes take at least half of that wait at the measured "
            "capacity, if that is known; no: with 95% confidence, less waits; cannot tell: "
            "otherwise",
        ),
        method="Each rank times, in each step, how long it waits for gradients after its own "
        "backward pass. The rank that comes last in a step waits least, and for the network alone; "
        "what others wait longer, they wait for that rank. Capacity is measured, never nominal.",
        plots=plots.exposed,
    ),
    Check(
        key="learning_rate",
        kind="fact",
        question="What does the learning rate do?",
        judge=learning_rate.learning_rate,
        evidence=learning_rate.learning_rate_evidence,
        method="The formula of the recipe, if it is known, compared with the logged rates. It "
        "depends only on the step: neither Adam nor the loss changes it. A batch far below the "
        "gradient noise scale (McCandlish et al. 2018) may grow, with a higher rate.",
        plots=plots.learning_rate,
    ),
    Check(
        key="corpus",
        kind="fact",
        question="How big was the training set?",
        judge=totals.corpus,
        evidence=totals.corpus_evidence,
        method="Counted while the corpus was prepared, in the manifest that a run carries with it. "
        "MB are 10^6 bytes, MiB are 2^20.",
    ),
    Check(
        key="checkpoint_files",
        kind="fact",
        question="Which files make up a checkpoint?",
        judge=totals.checkpoint_files,
        evidence=totals.checkpoint_files_evidence,
        method="The newest checkpoint on disk.",
    ),
    Check(
        key="checkpoint_size",
        kind="fact",
        question="How big is a checkpoint?",
        judge=totals.checkpoint_size,
        evidence=totals.checkpoint_size_evidence,
        method="Sizes of the files of the newest checkpoint. MB are 10^6 bytes, MiB are 2^20.",
        plots=plots.checkpoint,
    ),
    Check(
        key="step_time",
        kind="fact",
        question="What is a step, and how long did one take?",
        judge=speed.step_time,
        evidence=speed.step_evidence,
        method="The time of a step runs from the request for its batch to the end of its update.",
        plots=plots.step_time,
    ),
    Check(
        key="network_fit",
        kind="fact",
        question="How does the time of a step relate to network use?",
        judge=network.fit,
        evidence=network.fit_evidence,
        method="Bytes over bandwidth, beside the timed wait for the network: transfers that "
        "took longer hid behind compute. Each rank records its host at its start.",
    ),
    Check(
        key="cost",
        kind="judgement",
        question="What did it cost?",
        judge=cost.cost,
        evidence=cost.cost_evidence,
        method="Wall clock x the price of each machine, summed; time between two starts is not "
        "counted. Energy is the measured power of GPUs, and of processors if the machine lets the "
        "run read it, times the time of each sample.",
    ),
    # Faults that a run may have.
    _limited(
        "diverged",
        "Did it diverge?",
        what="times it stopped itself because of the loss",
        find=faults.divergences,
        unit=units.COUNT,
        limit=1,
        remedy="Lower the peak learning rate, warm up longer, or set optimizer.clip_norm.",
    ),
    _limited(
        "plateau",
        "Is it on a plateau long before its end?",
        what="schedule left while the dev loss is flat",
        find=faults.flat_share_left,
        unit=units.SHARE,
        limit=0.1,
        remedy="Stop here, or set train.patience; a larger model or more data would help.",
    ),
    _limited(
        "rate_too_high",
        "Is the learning rate too high?",
        what="training losses over 1.2 x the lowest median before them, beyond chance",
        find=faults.spikes,
        unit=units.COUNT,
        limit=faults.MOST_SPIKES,
        remedy="Lower the peak learning rate, warm up longer, or set optimizer.clip_norm.",
    ),
    _limited(
        "rate_too_low",
        "Is the learning rate too low?",
        what="lowest loss, on dev or training text, as a share of a uniform prediction's",
        find=faults.of_run(faults.not_learnt),
        unit=units.SHARE,
        limit=scores.NOT_LEARNT,
        remedy="Raise the peak learning rate, or shorten the warmup.",
    ),
    _limited(
        "translations_worse",
        "Do translations get worse?",
        what="share of the best BLEU that is surely lost again",
        find=faults.lost_bleu,
        unit=units.SHARE,
        limit=scores.MOST_BLEU_LOST,
        remedy="Read the samples, and use the checkpoint of the best BLEU.",
    ),
    _limited(
        "starved",
        "Does training wait for data?",
        what="share of a step spent waiting for data",
        find=faults.data_waits,
        unit=units.SHARE,
        limit=faults.STARVES,
        remedy="Put the shards on a local disk, free a core, raise data.prefetch_batches.",
    ),
    _limited(
        "straggler",
        "Is one rank slower than the others?",
        what="own work of the slowest rank over the median rank's, for a quarter of the run or "
        "more, or up to its end",
        find=stragglers.slowest_ranks,
        unit=_RATIO,
        limit=STRAGGLER_RATIO,
        remedy="Look at that host: its clock, its temperature, what else runs on it.",
    ),
    Check(
        key="pauses",
        kind="fault",
        question="Did a rank stand still?",
        judge=pauses.stood_still,
        evidence=pauses.pauses_evidence,
        limits=(f"yes from {_share(pauses.WORTH_A_LOOK)} of the run on",),
        method="A thread of each rank looks at the clock twice a second; ranks that wait see "
        "which one is missing. A rank that was missing while its own clock went on was out of "
        "reach: see the interfaces. Times of steps, and all shares of them, are without pauses.",
    ),
    _limited(
        "throttled",
        "Is a GPU throttled?",
        what="time with a lowered clock",
        find=faults.throttled_gpus,
        is_whole=faults.are_gpus_sampled,
        unit=units.SHARE,
        limit=speed.THROTTLED,
        remedy="Look at cooling and power supply.",
    ),
    _limited(
        "network_faults",
        "Is an interface faulty?",
        what="errors, lost links and silences on the interfaces of the collectives",
        find=faults.network_faults,
        is_whole=lambda facts: {traffic.host for traffic in facts.traffic} >= set(facts.hosts),
        unit=units.COUNT,
        limit=1,
        remedy="Look at cable, port and driver of the host: dragoman report lists each interface.",
    ),
    _limited(
        "disk",
        "Will the disk be full soon?",
        what="a checkpoint as a share of the free disk space",
        find=faults.disks,
        unit=units.SHARE,
        limit=0.3,
        remedy="Free disk space, or lower checkpoint.keep_last.",
    ),
    _limited(
        "memory_creep",
        "Does memory creep up?",
        what="steady growth of the peak memory after a quarter of the run",
        find=faults.growths,
        is_whole=lambda facts: len(faults.growths(facts)) == len(facts.ranks),
        unit=units.SHARE,
        limit=0.2,
        remedy="Something is kept from step to step; report it with this file.",
    ),
    _limited(
        "padding",
        "Is much of a batch padding?",
        what="share of padding in all cells",
        find=faults.of_run(measures.padding_share),
        unit=units.SHARE,
        limit=0.2,
        remedy="Set data.bucket = true, or a larger data.pool_pairs.",
    ),
    _limited(
        "evaluation",
        "Is it evaluated too often?",
        what="validation's share of the time of training and validation",
        find=faults.of_run(faults.evaluation_share),
        unit=units.SHARE,
        limit=0.2,
        remedy="Raise train.validate_every_steps, or lower evaluate.bleu_pairs.",
    ),
)
BY_KEY: Final = {check.key: check for check in CHECKS}


def judge(facts: Facts) -> list[Verdict]:
    """The answers to the twelve questions, in their order."""
    verdicts = [check.of(facts) for check in CHECKS if check.kind != "fault"]
    if facts.imported is None:
        return verdicts
    return [replace(verdict, remedy="") for verdict in verdicts]  # remedies name our settings


def examine(facts: Facts) -> list[Verdict]:
    """Whether the run has each of the faults."""
    return [check.of(facts) for check in CHECKS if check.kind == "fault"]
