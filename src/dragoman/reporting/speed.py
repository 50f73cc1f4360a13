"""The time of a step and its parts: questions 4 and 10."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from dragoman.base import units
from dragoman.reporting import measures
from dragoman.reporting.configurations import evidence_by_configuration, judged_by_configuration
from dragoman.reporting.facts import Facts, Gpu, MachineUse
from dragoman.reporting.periods import Period, in_intervals, when
from dragoman.reporting.sampling import FULL_HOST, LOW_POWER
from dragoman.reporting.stragglers import stragglers
from dragoman.reporting.verdict import Evidence, Judgement, evidence, named
from dragoman.telemetry.host import DISTURBING_SHARE

BUSY_COMPUTE = 0.9
"""If compute takes less than this share of a step, the device waits for something else."""
FULL_POWER = 0.9
"""A GPU that draws this share of its power limit or more is full. Between `LOW_POWER` and this,
power decides nothing."""
THROTTLED = 0.05
"""A GPU whose clock is lowered for this share of the time counts as throttled."""
BUSY_FLOPS = 0.3
"""From this ratio on, of useful FLOPs to those of matrix products, a device is fully used.

Large trainings that were tuned reach 21% to 46% of the peak (Chowdhery et al. 2022, table 3).
"""


_MOST_SCALING = 1.1
"""A higher scaling efficiency is impossible, even with an error of measurement."""
_IMPOSSIBLE = ", more than possible: the device was measured while something else used it"


def are_processors_busy(facts: Facts) -> Judgement:
    """Were GPUs or processors fully used?"""
    return judged_by_configuration(facts, _are_busy)


def processors_evidence(facts: Facts) -> Iterator[Evidence]:
    """Shares of a step, the rate of useful work, and the counters of GPUs and hosts."""
    return evidence_by_configuration(facts, _busy_evidence)


def _are_busy(facts: Facts) -> Judgement:
    compute = compute_share(facts)
    powered = sorted(_powered(facts), key=lambda gpu: gpu.power_share or 0.0)
    power = powered[0].power_share if powered else None
    weak = [gpu for gpu in powered if (gpu.power_share or 0.0) < LOW_POWER]
    if weak and (compute is None or compute < BUSY_COMPUTE):
        return "no", f"{named(map(_weak_text, weak))}.", _what_waits(facts)
    if compute is None:
        says = "The phases of a step were not measured; utilisation alone tells nothing."
        return "cannot tell", says, ""
    says = f"{units.SHARE.text(compute)} of a step was compute"
    if compute < BUSY_COMPUTE:
        remedy = _what_waits(facts)
        if not stragglers(facts) and (crowded := _crowded(facts)):  # those name the cause
            remedy = f"{remedy} Other programs used {crowded}.".lstrip()
        return "no", f"{says}{_waits_since(facts)}.", remedy
    if not is_on_gpu(facts):
        return _are_its_own(facts, says)
    if slowed := [gpu for gpu in facts.gpus if (gpu.throttled_share or 0.0) >= THROTTLED]:
        slowed.sort(key=lambda gpu: -(gpu.throttled_share or 0.0))
        says += f", but {named(map(_slowed_text, slowed))}."
        return "no", says, "Look at cooling and power supply."
    flops = measures.useful_flop_share(facts)
    if not {device.host for device in facts.devices} >= set(facts.hosts):
        flops = None  # a device that was not measured may do much more than those that were
    if flops is not None and flops > 1:
        says += f", at {units.SHARE.text(flops)} of the matrix rate, which is more than possible."
        return "cannot tell", says, "The rate was measured while something else used the device."
    if flops is not None:
        says += f", at {units.SHARE.text(flops)} of the matrix rate"
        if flops < BUSY_FLOPS:
            return "no", f"{says}.", "Larger batches, train.compile, bf16; see padding."
    outside = _outside_steps(facts)
    if weak:
        says += f", yet {named(map(_weak_text, weak))}; {units.SHARE.text(outside)} of the run was "
        says += "outside steps."
        if flops is None and outside <= 1 - BUSY_COMPUTE:  # nothing else measures its steps
            return "no", says, _what_waits(facts)
        return "cannot tell", says, "Look at its power in steps alone."
    if flops is not None and outside > 1 - BUSY_COMPUTE:
        says += f"; but {units.SHARE.text(outside)} of the run was outside steps (evaluation, "
        return "cannot tell", f"{says}saving, idle), which that does not cover.", ""
    if flops is not None:
        return "yes", f"{says}.", ""
    if power is None or not _all_powered(facts):
        says += "; neither useful FLOPs nor the power of every GPU was measured to tell how well."
        return "cannot tell", says, "Measure the device, or sample its power."
    says += f", at {units.SHARE.text(power)} of the power or more."
    if power < FULL_POWER:
        return "cannot tell", f"{says} That is neither idle nor full.", "Measure the device."
    return "yes", says, ""


def _are_its_own(facts: Facts, says: str) -> Judgement:
    """Judge by the processors' counters: a rank in its compute phase may not be running."""
    if facts.machines and not all(
        measures.is_sampled_throughout(facts, machine) for machine in facts.machines
    ):
        says += "; the processors that the run kept busy were sampled in only a part of it."
        return "cannot tell", says, ""
    if crowded := _crowded(facts):
        says += f", but other programs, or other guests of the machine, used {crowded}."
        return (
            "no",
            says,
            "Look with top for other programs there; steal, in top, is the time of other guests.",
        )
    idle = [machine for machine in facts.machines if machine.cpu_share is not None]
    idle = [machine for machine in idle if (machine.cpu_share or 0.0) < FULL_HOST]
    if idle:
        shares = (
            f"{_of_processors(machine, machine.cpu_share)}{_since(machine.idle)}"
            for machine in idle
        )
        says += f", but only {named(shares)} were busy."
        return "no", says, "More threads or ranks there; see data wait and evaluation."
    described = {
        machine.host
        for machine in facts.machines
        if machine.cpu_share is not None and machine.others_cpu_share is not None
    }
    if not described or set(facts.hosts) - described:
        says += "; how many processors the run itself kept busy was not measured on every host."
        return (
            "cannot tell",
            says,
            "Look in the alerts for why a host was not sampled; only Linux tells it.",
        )
    busy = min(machine.cpu_share or 0.0 for machine in facts.machines)
    return "yes", f"{says}, with {units.SHARE.text(busy)} of the processors busy or more.", ""


def _crowded(facts: Facts) -> str:
    """The processors of which other programs used much, in words; "" if they did not."""
    return named(
        f"{_of_processors(machine, machine.others_cpu_share)}{_since(machine.crowded)}"
        for machine in facts.machines
        if (machine.others_cpu_share or 0.0) > DISTURBING_SHARE
    )


def _of_processors(machine: MachineUse, share: float | None) -> str:
    return f"{units.SHARE.optional_text(share)} of the processors of {machine.host}"


def _since(periods: Sequence[Period]) -> str:
    return f", {when(periods)}" if periods else ""


def _weak_text(gpu: Gpu) -> str:
    drew = units.SHARE.optional_text(gpu.power_share)
    says = f"{gpu.label} drew {drew} of its power{_since(gpu.weak)}"
    counter = gpu.utilisation_share or 0.0
    if counter > BUSY_COMPUTE:
        says += f", while its utilisation counter read {units.SHARE.text(counter)}: it waited"
    return says


def _slowed_text(gpu: Gpu) -> str:
    return (
        f"the clock of {gpu.label} was lowered ({', '.join(gpu.throttle_reasons)}) for "
        f"{units.SHARE.optional_text(gpu.throttled_share)} of the time{_since(gpu.throttled)}"
    )


def _waits_since(facts: Facts) -> str:
    """The rank that computes for the smallest share of its steps, and since when."""
    shares = measures.shares(facts, *measures.COMPUTE_FIELDS)
    rank = min(shares, key=lambda share: share[0])[1]
    steps = measures.without_warm_ups(facts.intervals)
    timed = steps.where(np.isfinite(measures.timed_s(steps, rank.rank)))
    computed_s = np.nan_to_num(timed.compute_s(rank.rank))
    waits = computed_s < BUSY_COMPUTE * timed.of("interval_s", rank.rank)
    where = f" on {rank.name}" if len(facts.ranks) > 1 else ""
    return where + _since(in_intervals(timed, waits, rank=rank.rank))


def _what_waits(facts: Facts) -> str:
    """The largest cause of waiting, in words.

    A rank waits for data, for the network, or for later ranks, as far as waiting for data does not
    make those late.
    """
    data, waited = (measures.most(facts, name) or 0.0 for name in ("data_wait_s", "sync_s"))
    wire = measures.share(facts.intervals, "wire_s")
    network, late = (waited, 0.0) if wire is None else (wire, waited - wire - data)
    exchange = "waiting for the network, or for ranks that are late"
    if facts.is_one_host:
        exchange = "all-reduces between ranks"
    elif wire is not None:
        exchange = "the network (see question 5)"
    data_waits = sorted(measures.shares(facts, "data_wait_s"), key=lambda wait: -wait[0])
    starved = [rank.name for share, rank in data_waits if share >= data / 2]
    where = f" ({named(starved, between=', ')})" if len(facts.ranks) > 1 else ""
    longest = named(text for _, text in stragglers(facts))
    slow = f"compute for longer: {longest}" if longest else "compute for longer in turn"
    waits = {
        f"data{where}: raise data.prefetch_batches, look at the disk": data,
        exchange: network,
        f"waiting for ranks that {slow}": late,
    }
    worst, share = max(waits.items(), key=lambda item: item[1])
    says = f"Most of the rest went to {worst}." if share > 0.02 else ""
    if longest and longest not in says:  # it may have begun late in the run
        says = f"{says} Other ranks waited for {longest}.".lstrip()
    return says


def _busy_evidence(facts: Facts) -> Iterator[Evidence]:
    yield evidence("share of a step in compute", units.SHARE, compute_share(facts))
    yield evidence("exposed communication", units.SHARE, measures.share(facts.intervals, "wire_s"))
    yield evidence("waiting for data", units.SHARE, measures.most(facts, "data_wait_s"))
    yield evidence("share of padding in all cells", units.SHARE, measures.padding_share(facts))
    yield evidence("source + target", units.TOKEN_RATE, measures.tokens_per_s(facts))
    flops = measures.useful_flop_share(facts)
    doubt = _IMPOSSIBLE if flops is not None and flops > 1 else ""
    name = "useful FLOPs over the rate of matrix products (MFU)"
    yield evidence(name, units.SHARE, flops, doubt)
    yield _scaling(facts)
    for gpu in facts.gpus:
        yield Evidence(gpu.label, gpu.power_w, _gpu_text(gpu))
    for machine in facts.machines:
        yield Evidence(machine.host, machine.cpu_share, _machine_text(machine))


def _scaling(facts: Facts) -> Evidence:
    """The scaling efficiency, and the number of ranks without waiting that are as fast."""
    efficiency, ranks, worth = measures.scaling_efficiency(facts), facts.world_size, ""
    if efficiency is not None and ranks:
        worth = f": {ranks} ranks were as fast as {efficiency * ranks:.3g} without any waiting"
        worth = _IMPOSSIBLE if efficiency > _MOST_SCALING else worth
    return evidence("scaling efficiency", units.SHARE, efficiency, worth)


def _machine_text(machine: MachineUse) -> str:
    busy, used = (
        units.SHARE.optional_text(value) for value in (machine.cpu_share, machine.memory_share)
    )
    others = machine.others_cpu_share
    part = "" if others is None else f" ({units.SHARE.text(others)} by others)"
    parts = [f"processors {busy} busy{part}, memory {used} used"]
    if machine.queued_batches is not None:
        parts.append(f"{units.SCORE.text(machine.queued_batches)} batches ready for the next steps")
    return ", ".join(parts)


def _gpu_text(gpu: Gpu) -> str:
    """The GPU's own counters, those that it has."""
    parts = []
    if gpu.utilisation_share is not None:
        parts.append(f"utilisation counter {units.SHARE.text(gpu.utilisation_share)}")
    if gpu.sm_activity_share is not None:
        parts.append(f"{units.SHARE.text(gpu.sm_activity_share)} of its multiprocessors busy")
    if gpu.power_w is not None:
        limit = "" if gpu.power_limit_w is None else f" of {units.POWER.text(gpu.power_limit_w)}"
        parts.append(f"{units.POWER.text(gpu.power_w)}{limit}")
    if gpu.memory_bytes is not None:
        parts.append(f"memory {units.SIZE.text(gpu.memory_bytes)}")
    if gpu.throttle_reasons:
        parts.append(f"clock lowered by {', '.join(gpu.throttle_reasons)}")
    if gpu.ecc_errors:
        parts.append(f"{gpu.ecc_errors} memory errors")
    return ", ".join(parts) or "tells nothing"


def step_time(facts: Facts) -> Judgement:
    """What is a step, and how long did one take?"""
    return judged_by_configuration(facts, _step_time)


def step_evidence(facts: Facts) -> Iterator[Evidence]:
    """Times of a step, and what is in one."""
    return evidence_by_configuration(facts, _step_evidence)


def _step_time(facts: Facts) -> Judgement:
    seconds_s = measures.step_s(facts)
    if not seconds_s:
        return "cannot tell", "No step was timed.", ""
    both = f"{units.STEP_TIME.text(seconds_s)} = {units.STEP_RATE.text(1 / seconds_s)}"
    says = f"One update over the global batch: {both} on average, evaluation not counted."
    return "measured", says, ""


def _step_evidence(facts: Facts) -> Iterator[Evidence]:
    yield evidence("mean", units.STEP_TIME, measures.step_s(facts))
    yield evidence("median", units.STEP_TIME, measures.median(facts, "step_median_s"))
    yield evidence("95% are below", units.STEP_TIME, measures.median(facts, "step_p95_s"))
    if facts.wall_s and facts.made_steps:
        whole_s = facts.wall_s / facts.made_steps
        yield evidence("with evaluation and all else", units.STEP_TIME, whole_s)
    if facts.imported is not None:
        yield from _batch_arithmetic(facts)
        return
    for name in ("pairs", "source_tokens", "target_tokens"):
        count = measures.per_step(facts.intervals, name)
        label = f"{name.replace('_', ' ')} a step"
        yield evidence(label, units.COUNT, None if count is None else round(count))
    yield evidence("share of padding in all cells", units.SHARE, measures.padding_share(facts))


def _batch_arithmetic(facts: Facts) -> Iterator[Evidence]:
    """Batches of another tool: its configuration, and lengths of the pairs that it printed."""
    imported = facts.imported
    if imported is None or imported.pairs_per_rank is None or not facts.world_size:
        return
    ranks, pairs = facts.world_size, imported.pairs_per_rank * facts.world_size
    of = f" = {ranks} ranks x {imported.pairs_per_rank}"
    yield evidence("pairs a step", units.COUNT, pairs, of)
    source, target = imported.printed_source_tokens, imported.printed_target_tokens
    at_most, at_max = imported.max_length, imported.printed_at_max_share
    if source is None or target is None or not at_most or at_max is None:
        return
    printed = f", estimated from {imported.printed_pairs} printed pairs"
    tokens = round(pairs * (source + target))
    yield evidence("source + target tokens a step", units.COUNT, tokens, printed)
    full = units.SHARE.text(1 - (1 - at_max) ** imported.pairs_per_rank)
    printed += f": {imported.pairs_per_rank} random pairs hold one of {at_most} pieces with a "
    printed += f"chance of {full}, and all are padded to it"
    padding = 1 - (source + target) / (2 * at_most)
    yield evidence("share of padding in all cells", units.SHARE, padding, printed)


def compute_share(facts: Facts) -> float | None:
    """The smallest share of a step that a rank spent in forward, backward and optimizer."""
    shares = measures.shares(facts, *measures.COMPUTE_FIELDS)
    return min((share for share, _ in shares), default=None)


def _powered(facts: Facts) -> list[Gpu]:
    """GPUs whose power and power limit were sampled throughout the run."""
    return [
        gpu
        for gpu in facts.gpus
        if gpu.power_share is not None and measures.is_sampled_throughout(facts, gpu)
    ]


def _all_powered(facts: Facts) -> bool:
    """Whether every host has a GPU with sampled power for each of its ranks."""
    gpus = Counter(gpu.host for gpu in _powered(facts))
    return all(gpus[host] >= ranks for host, ranks in Counter(r.host for r in facts.ranks).items())


def _outside_steps(facts: Facts) -> float:
    """The part of the wall clock that was not training."""
    wall_s, train_s = facts.wall_s, facts.train_s
    return max(1 - train_s / wall_s, 0.0) if wall_s and train_s is not None else 0.0


def is_on_gpu(facts: Facts) -> bool:
    """Whether it trained on GPUs."""
    named = facts.imported is not None and facts.imported.gpu_name is not None
    return named or bool(facts.gpus) or str(facts.device).startswith("cuda")
