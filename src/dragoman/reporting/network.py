"""Was the network the bottleneck, and does it explain the time of a step? Questions 5 and 11."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.base import units
from dragoman.cluster.workload import weight_shapes
from dragoman.distributed import step_time
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts, Traffic, total
from dragoman.reporting.lives import evidence_by_life, judged_by_life
from dragoman.reporting.periods import clock, periods, when
from dragoman.reporting.verdict import Evidence, Judgement, Verdict, evidence, in_words, named
from dragoman.telemetry.events import LinkChanged

NETWORK_BOUND = 0.2
"""From this share of a step in exposed communication on, the network decides the speed.

An infinitely fast network would then make steps faster by a quarter or more (Amdahl 1967).
"""
_MOST_CAPACITY = 1.25
"""A run cannot send more than this multiple of its link's capacity: then another link was measured.

The measurement is within a few percent, and a limited port lets bursts through.
"""
_LARGE_RESIDUAL = 0.1
"""If the wait differs from the computed one by more than this share of a step, it has a different
cause."""
_LITTLE = 0.02
"""A smaller share of a step needs no explanation."""
_BURSTS = "The link carried more than its measured rate: it lets bursts through, or was busy."


def network(facts: Facts) -> Verdict:
    """Was the network the bottleneck?"""
    answer, says, remedy = judged_by_life(facts, _is_network_bound_at_times)
    return Verdict(
        key="network",
        question="Was the network the bottleneck?",
        answer=answer,
        says=says,
        evidence=tuple(evidence_by_life(facts, _network_evidence)),
        thresholds=(
            f"yes: with 95% confidence, at least {units.SHARE.text(NETWORK_BOUND)} of a step is "
            "exposed communication, and bytes over the measured capacity explain as much, or late "
            "ranks do not explain it; no: with 95% confidence, less is exposed; cannot tell: "
            "otherwise",
        ),
        method="Exposed communication is timed where a rank waits for gradients after its own "
        "backward pass; in each interval the rank that waits least counts, as the others also "
        "wait for ranks. Ranks that are late in turn make all of them wait, so bytes must "
        "explain the wait. Capacity is measured, never nominal.",
        remedy=remedy,
    )


def _is_network_bound_at_times(facts: Facts) -> Judgement:
    """Judge one life on the same hosts, in parts between the changes of its link.

    The newest part in which the network decided is the answer, or the newest that tells. Of the
    others one line says how much they waited.
    """
    parts = measures.by_link_changes(facts)
    judged = [_is_network_bound(part, is_whole=len(parts) == 1) for _, part in parts]
    tells = [place for place, (_, part) in enumerate(parts) if len(measures.exposed(part)) > 1]
    bound = [place for place in tells if judged[place][0] == "yes"]
    newest = (bound or tells or [len(parts) - 1])[-1]
    answer, says, remedy = judged[newest]
    change = parts[newest][0]
    said = [f"{_change(change)}. {says}" if change else says]
    for place in tells:
        change, part = parts[place]
        if place != newest and (waited := measures.exposed_interval(part)):
            since = f"{_change(change)};" if change else "Before it changed,"
            said.append(f"{since} waiting in all-reduces took {_of_step(*waited)}.")
    says = " ".join(said)
    if any(one.now_bytes_per_s < one.before_bytes_per_s for one in facts.link_changes):
        remedy = f"Look at the cable, the port of the switch and ethtool there. {remedy}".strip()
    return answer, says, remedy


def _is_network_bound(facts: Facts, *, is_whole: bool) -> Judgement:
    """Judge one part of a life. is_whole: it is not cut at changes of its link."""
    if facts.world_size == 1:
        return "no", "One process trained alone: nothing was sent.", ""
    found = measures.exposed_interval(facts)
    part = "" if found is None else _of_step(*found)
    if facts.is_one_host:
        say = "All ranks share one host: no network was used."
        return "no", f"{say} All-reduces between them took {part}." if part else say, ""
    if found is None:
        say = f"Exposed communication was not measured. {_needed_rate(facts)}".rstrip()
        return "cannot tell", say, ""
    mean, low, high = found
    if len(measures.exposed(facts)) == 1:
        say = f"Waiting took {units.SHARE.text(mean)} of a step in the only interval there is."
        return "cannot tell", say, "Train longer, or lower train.log_every_steps."
    sure = network_share(facts)
    say = f"Waiting in all-reduces took {part}"
    say += ": for the network, or for ranks that are late in turn." if high >= _LITTLE else "."
    if is_network(facts):
        say = f"Waiting for the network took {part}."
    if high < NETWORK_BOUND:
        return "no", say, ""
    if low < NETWORK_BOUND:
        return (
            "cannot tell",
            f"{say} That is too near the limit.",
            "More steps narrow the interval.",
        )
    if sure >= NETWORK_BOUND:
        if sure < mean - _LARGE_RESIDUAL:
            say = f"Waiting in all-reduces took {part}, {units.SHARE.text(sure)} surely for the "
            say += "network."
        say = say.removesuffix(".") + f"{_where(facts, is_whole=is_whole)}."
        return "yes", say, "Send less: bf16 gradients, accumulation, or a faster link."
    explained = _explained_share(facts)
    if _is_faster_than_measured(facts):
        say += " The link carried more than its measured rate."
        return "cannot tell", say, "Measure the link again: dragoman doctor --hosts."
    if explained is None:
        say += " The capacity of the link, the bytes of a step, or their hidden part is not known."
        return "cannot tell", say, "Measure the link before the run: dragoman doctor --hosts."
    say += f" Bytes over the measured capacity explain {units.SHARE.text(explained)} of a step."
    return "cannot tell", say, "Measure the link again; look for ranks that are slow at times."


def _where(facts: Facts, *, is_whole: bool) -> str:
    """The interfaces that waits went through, and since when they were long.

    is_whole: see `_is_network_bound`; the start of a part of a life is not named again.
    """
    known = [(one.interface, one.host) for one in facts.links]
    known += [(one.interface, one.host) for one in facts.traffic]
    names = [f"{interface} of {host}" for interface, host in dict.fromkeys(known) if interface]
    through = f", through {named(names, between=', ')}" if names else ""
    timed = measures.exposed(facts)
    waits = [(one.sync_s or 0.0) >= NETWORK_BOUND * (one.interval_s or 0.0) for one in timed]
    found = [one for one in periods(timed, waits) if is_whole or not one.from_start]
    return through + "".join(f", {when(period)}" for period in found)


def _of_step(mean: float, low: float, high: float) -> str:
    return f"{units.SHARE.text(mean)} of a step{units.SHARE.interval(low, high)}"


def network_share(facts: Facts) -> float:
    """The share of a step that certainly waited for the network; 0 if it is not known.

    Two shares are computed. The larger one counts, but at most the whole wait:

    - the time that the sent bytes need at the measured rate, without the time in which ranks were
      late;
    - the wait that no late rank can have caused. An all-reduce also packs, adds and unpacks. So
      this wait counts as 0 if the first share is less than half of it, and no link has changed.
    """
    waited = measures.exposed_share(facts)
    if waited is None or facts.is_one_host:
        return 0.0
    if len(measures.exposed(facts)) == 1:  # one interval says nothing about the others
        return 0.0
    explained, least = _explained_share(facts), measures.least_network_share(facts)
    if explained is not None and explained < least / 2 and not facts.link_changes:
        least = 0.0
    return min(max(_surely_explained(facts, waited), least), waited)


def _surely_explained(facts: Facts, waited: float) -> float:
    """The wait that bytes over the measured capacity explain if late ranks caused all they can.

    A rank that is late computes for longer, and transfers hide behind its longer compute. So late
    ranks explain more than the rest of the wait: if they hide a part h of their lateness L,
    `waited` is L + explained - h L. All are shares of a step.
    """
    explained, network_s = _explained_share(facts), _network_s(facts)
    step_s, compute_s = measures.step_s(facts), _compute_s(facts)
    if explained is None or not (network_s and step_s and compute_s):
        return 0.0
    if network_s / step_s > _MOST_CAPACITY:
        return 0.0
    late_s = compute_s / 100
    now_s, then_s = (
        computed_exposed_s(facts, network_s, late_s=one_s) or 0.0 for one_s in (0.0, late_s)
    )
    hides = (now_s - then_s) / late_s  # largest for the first seconds of lateness
    if explained > waited + _LARGE_RESIDUAL:  # the link is faster than measured, or more is hidden
        backward_s = measures.per_step(facts.intervals, "backward_s") or 0.0
        hides = max(hides, step_time.OVERLAP_SHARE * backward_s / compute_s)
        explained = (network_s - hides * compute_s) / step_s
    elif explained >= waited:
        return explained
    return max((explained - hides * waited) / (1 - hides), 0.0) if hides < 1 else 0.0


def _is_faster_than_measured(facts: Facts) -> bool:
    """Whether the link carried more than its measured rate, so that the rate explains little.

    The run sent more in a second, or waited much less than those bytes must take.
    """
    explained, waited = _explained_share(facts), measures.exposed_share(facts)
    if explained is not None and waited is not None and explained - waited > _LARGE_RESIDUAL:
        return True
    network_s, seconds_s = _network_s(facts), measures.step_s(facts)
    return bool(network_s and seconds_s and network_s / seconds_s > _MOST_CAPACITY)


def is_network(facts: Facts) -> bool:
    """Whether the wait of the rank that waits least is the network's.

    It is if the network surely caused half of it, or so much that it is the bottleneck. If not,
    ranks may have been late in turn. Questions 4, 5 and 11 all ask this.
    """
    sure, waited = network_share(facts), measures.exposed_share(facts)
    return sure > 0 and waited is not None and (sure >= waited / 2 or sure >= NETWORK_BOUND)


def _network_s(facts: Facts) -> float | None:
    """Seconds that the bytes of a step take at the measured capacity; None if unknown."""
    wire, capacity = _wire_bytes(facts), measures.capacity_bytes_per_s(facts)
    return None if wire is None or capacity is None else wire / capacity


def _explained_share(facts: Facts) -> float | None:
    """The part of a step that should wait for bytes over the measured capacity; None if unknown."""
    network_s, seconds_s = _network_s(facts), measures.step_s(facts)
    if network_s is None or not seconds_s:
        return None
    computed_s = computed_exposed_s(facts, network_s)
    return None if computed_s is None else computed_s / seconds_s


def _change(change: LinkChanged) -> str:
    """When a link changed, and its rate before and after."""
    now, before = (
        units.BYTE_RATE.text(rate) for rate in (change.now_bytes_per_s, change.before_bytes_per_s)
    )
    where = ", ".join(text for text in (change.interface, change.where) if text) or "the link"
    since = f"Since step {units.COUNT.text(change.since_step)}, {clock(change.since)}"
    return f"{since}, {where} carried {now} each way, {before} before"


def _needed_rate(facts: Facts) -> str:
    """The rate that the gradients of another tool's run need from a link that is never idle."""
    wire, seconds_s = measures.flat_ring_bytes(facts), measures.step_s(facts)
    if not wire or not seconds_s:
        return ""
    return (
        f"A ring sends {units.SIZE.text(wire)} of fp32 gradients per step and direction: at "
        f"{units.STEP_TIME.text(seconds_s)} that needs {units.BYTE_RATE.text(wire / seconds_s)}."
    )


def _network_evidence(facts: Facts) -> Iterator[Evidence]:
    if facts.world_size == 1:
        yield in_words("processes that train", "1")
        return
    wire, seconds_s = _wire_bytes(facts), measures.step_s(facts)
    name, share = "share of a step in exposed communication", measures.exposed_share(facts)
    yield evidence(name, units.SHARE, share)
    if facts.chosen is not None:
        yield in_words("strategy, chosen by auto", f"{facts.chosen.label}: {facts.chosen.why}")
    elif facts.recipe is not None:
        yield in_words("strategy", facts.recipe.distributed.strategy)
    for rank in facts.ranks:
        share = measures.share(rank.intervals, "sync_s")
        if share is not None and len(facts.ranks) > 1:
            yield evidence(f"rank {rank.rank} on {rank.host}", units.SHARE, share)
    yield evidence("sent per step and direction", units.SIZE, wire)
    if wire and seconds_s:
        yield evidence("rate needed without pause", units.BYTE_RATE, wire / seconds_s)
    yield evidence("capacity of the link", units.BYTE_RATE, measures.capacity_bytes_per_s(facts))
    for change in facts.link_changes:
        yield Evidence("the link changed", change.now_bytes_per_s, _change(change))
    for one in facts.traffic:
        name = f"{one.interface} of {one.host}"
        yield Evidence(name, one.sent_bytes_per_s, _traffic_text(one))
    if facts.imported is not None and facts.imported.interface:
        yield in_words("interface of the collectives", facts.imported.interface)


def _traffic_text(one: Traffic) -> str:
    """The counters of the kernel, which include all traffic of the host through the interface."""
    sent, received = (
        units.BYTE_RATE.text(count / one.seconds_s)
        for count in (one.sent_bytes, one.received_bytes)
    )
    parts = [f"{sent} out, {received} in on average"]
    if one.most_sent_bytes_per_s is not None:
        most = units.BYTE_RATE.text(one.most_sent_bytes_per_s)
        parts.append(f"{most} out in the busiest second")
    if one.nominal_bits_per_s is not None:
        parts.append(f"nominally {units.BIT_RATE.text(one.nominal_bits_per_s)}")
    packets = one.sent_packets + one.received_packets
    parts.append(f"{one.errors} errors in {units.COUNT.text(packets)} packets")
    if one.carrier_changes:
        parts.append(f"link lost or found {one.carrier_changes} times")
    return ", ".join(parts)


def network_fit(facts: Facts) -> Verdict:
    """How does the time of a step relate to network use?"""
    answer, says, remedy = judged_by_life(facts, _fit_at_times)
    return Verdict(
        key="network_fit",
        question="How does the time of a step relate to network use?",
        answer=answer,
        says=says,
        evidence=tuple(evidence_by_life(facts, _fit_evidence)),
        method="Bytes over bandwidth, less what can be hidden behind 90% of the backward pass (the "
        "last gradients leave when it ends), against the exposed communication that was timed. "
        "Each rank records its host at its start.",
        remedy=remedy,
    )


def _fit_at_times(facts: Facts) -> Judgement:
    """Relate the times of one life on the same hosts, for each part between changes of its link."""
    if facts.world_size == 1:
        return "measured", "Not at all: one process trained alone.", ""
    if facts.is_one_host:
        return "measured", "Not at all: all ranks share one host.", ""
    fits = []
    for change, period in measures.by_link_changes(facts):
        answer, text, remedy = _fit(period)
        fits.append(f"{_change(change)}. {text}" if change else text)
    return answer, " ".join(fits), remedy


def _fit(facts: Facts) -> Judgement:
    wire, capacity = _wire_bytes(facts), measures.capacity_bytes_per_s(facts)
    exposed_s, seconds_s = measures.exposed_s(facts), measures.step_s(facts)
    if wire is None or capacity is None or exposed_s is None or not seconds_s:
        says = _needed_rate(facts) or "The bytes of a step were not counted."
        if capacity is None:
            says += " The capacity of the link was not measured."
        return "cannot tell", says, "Measure the link before the run."
    network_s = wire / capacity
    computed_s = computed_exposed_s(facts, network_s)
    step = units.DURATION.text(seconds_s)
    says = (
        f"{units.SIZE.text(wire)} over {units.BYTE_RATE.text(capacity)} is "
        f"{units.DURATION.text(network_s)}"
    )
    if network_s > _MOST_CAPACITY * seconds_s:
        says += f", more than a whole step, {step}: the link carried more than its measured rate."
        return "cannot tell", says, f"{_BURSTS} Measure the link again: dragoman doctor --hosts."
    says += f", a step {step}: "
    was = units.DURATION.text(exposed_s)
    if computed_s is None:
        says += f"{was} of it was spent waiting in all-reduces."
        return "measured", says, ""
    says += f"{units.DURATION.text(computed_s)} of it should wait for the network, "
    says += f"{was} was spent waiting in all-reduces."
    if abs(exposed_s - computed_s) < _LARGE_RESIDUAL * seconds_s:
        return "measured", says, ""
    if exposed_s < computed_s:
        return "measured", says, _BURSTS
    what = "Bytes do not explain all of it" if is_network(facts) else "Bytes do not explain it"
    return "measured", says, f"{what}: look for other traffic, latency, and ranks that are late."


def _fit_evidence(facts: Facts) -> Iterator[Evidence]:
    if facts.world_size == 1 or facts.is_one_host:
        yield in_words("hosts of the ranks", ", ".join(facts.hosts))
        share = measures.exposed_share(facts)
        yield evidence("share of a step in all-reduces between ranks", units.SHARE, share)
        return
    network_s, exposed_s = _network_s(facts), measures.exposed_s(facts)
    yield evidence("sent per step and direction", units.SIZE, _wire_bytes(facts))
    yield evidence("capacity of the link", units.BYTE_RATE, measures.capacity_bytes_per_s(facts))
    for change in facts.link_changes:
        yield Evidence("the link changed", change.now_bytes_per_s, _change(change))
    yield evidence("exposed communication, measured", units.STEP_TIME, exposed_s)
    if network_s is not None and exposed_s is not None:
        computed_s = computed_exposed_s(facts, network_s)
        yield evidence("exposed communication, computed", units.STEP_TIME, computed_s)
        residual_s = None if computed_s is None else exposed_s - computed_s
        yield evidence("residual", units.STEP_TIME, residual_s)


def _compute_s(facts: Facts) -> float | None:
    parts_s = (measures.per_step(facts.intervals, name) for name in measures.COMPUTE_FIELDS)
    return total(*parts_s)


def computed_exposed_s(facts: Facts, network_s: float, *, late_s: float = 0.0) -> float | None:
    """Seconds that a step should wait for transfers of `network_s`, by the planner's formulas.

    The compute is the measured one, plus `late_s` on the last rank. None if the strategy is not
    known well enough.
    """
    compute_s = _compute_s(facts) or 0.0
    longer = 1 + late_s / compute_s if compute_s else 1.0
    backward_s = longer * (measures.per_step(facts.intervals, "backward_s") or 0.0)
    if facts.recipe is None:
        return max(network_s - step_time.OVERLAP_SHARE * backward_s, 0.0)
    config = facts.recipe.distributed
    strategy = facts.chosen.strategy if facts.chosen else config.strategy
    if facts.chosen and strategy != "sync":
        return None  # the numbers that `auto` chose are recorded only as text
    if strategy == "diloco":
        every, parts = config.diloco.every, config.diloco.fragments
        return step_time.streaming_exposed_s(
            longer * compute_s,
            network_s * every / parts,
            sync_every=every,
            num_fragments=parts,
            delay=config.diloco.delay,
        )
    if strategy != "sync":
        return None
    size = facts.recipe.corpus.subword.vocab_size
    shapes = weight_shapes(facts.recipe.model, source_vocab_size=size, target_vocab_size=size)
    buckets = step_time.bucket_bytes(shapes)
    last_micro_batch_s = backward_s / facts.recipe.data.accumulate
    return step_time.sync_exposed_s(
        last_micro_batch_s / step_time.BACKWARD_SHARE,
        network_s,
        last_share=buckets[-1] / sum(buckets),
    )


def _wire_bytes(facts: Facts) -> float | None:
    counted = measures.wire_bytes_per_step(facts)
    return measures.flat_ring_bytes(facts) if counted is None and facts.imported else counted
