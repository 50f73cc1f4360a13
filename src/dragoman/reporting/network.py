"""Was the network the bottleneck, and does it explain the time of a step? Questions 5 and 11."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.base import units
from dragoman.reporting import measures
from dragoman.reporting.configurations import (
    evidence_by_configuration,
    judged_by_configuration,
    link_changed,
)
from dragoman.reporting.facts import Facts, Traffic
from dragoman.reporting.periods import in_intervals, when
from dragoman.reporting.verdict import Evidence, Judgement, evidence, in_words, named

NETWORK_BOUND = 0.2
"""From this share of a step in exposed communication on, the network decides the speed.

An infinitely fast network would then make steps faster by a quarter or more (Amdahl 1967).
"""
_LEAST_EXPLAINED = 0.5
"""A link whose bytes take a smaller share of the wait does not explain it."""
_MOST_CAPACITY = 1.25
"""A run cannot send more than this multiple of its link's capacity: then another link was measured.

The measurement is within a few percent, and a limited port lets bursts through.
"""
_LARGE_RESIDUAL = 0.1
"""If the wait is longer than the transfers by this share of a step, it has a different cause."""
_BURSTS = "The link carried more than its measured rate: it lets bursts through, or was busy."


def is_bottleneck(facts: Facts) -> Judgement:
    """Was the network the bottleneck?"""
    answer, says, remedy = judged_by_configuration(facts, _is_network_bound)
    last = len(facts.lives) - 1
    changes = [change for change in facts.link_changes if change.life == last]
    if any(change.now_bytes_per_s < change.before_bytes_per_s for change in changes):
        remedy = f"Look at the cable, the port of the switch and ethtool there. {remedy}".strip()
    return answer, says, remedy


def bottleneck_evidence(facts: Facts) -> Iterator[Evidence]:
    """Waits, bytes, rates, and the counters of the interfaces."""
    yield from evidence_by_configuration(facts, _network_evidence)
    for change in facts.link_changes:
        yield Evidence("the link changed", change.now_bytes_per_s, link_changed(change))


def _is_network_bound(facts: Facts) -> Judgement:
    if facts.world_size == 1:
        return "no", "One process trained alone: nothing was sent.", ""
    waited = measures.wire_interval(facts)
    if facts.is_one_host:
        says = "All ranks share one host: no network was used."
        part = "" if waited is None else f" All-reduces between them took {_of_step(*waited)}."
        return "no", f"{says}{part}", ""
    if waited is None:
        says = f"The wait for the network alone was not measured. {_needed_rate(facts)}".rstrip()
        return "cannot tell", says, ""
    _, low, high = waited
    says = f"Waiting for the network took {_of_step(*waited)}"
    if high < NETWORK_BOUND:
        return "no", f"{says}.", ""
    if low < NETWORK_BOUND:
        says += f"{_where(facts)}: it may be less or more than {units.SHARE.text(NETWORK_BOUND)}."
        return "cannot tell", says, "Train longer, or lower train.log_every_steps."
    transfer_s, wait_s = _transfer_s(facts), measures.per_step(facts.intervals, "wire_s")
    if transfer_s is not None and wait_s and transfer_s < _LEAST_EXPLAINED * wait_s:
        took = units.DURATION.text(transfer_s)
        says += f", and its bytes over the measured capacity take {took} "
        says += f"of {units.DURATION.text(wait_s)}: the sums themselves may be slow."
        return "cannot tell", says, "Look at latency, other traffic, and what else the hosts do."
    says += f"{_where(facts)}."
    return "yes", says, "Send less: bf16 gradients, accumulation, or a faster link."


def _where(facts: Facts) -> str:
    """The interfaces that waits went through, and since when they were long."""
    interfaces = [(link.interface, link.host) for link in facts.links]
    interfaces += [(traffic.interface, traffic.host) for traffic in facts.traffic]
    names = [f"{interface} of {host}" for interface, host in dict.fromkeys(interfaces) if interface]
    through = f", through {named(names, between=', ')}" if names else ""
    timed = measures.with_wire(facts)
    waits = timed["wire_s"] >= NETWORK_BOUND * timed.of("interval_s")
    periods = in_intervals(timed, waits)
    return f"{through}, {when(periods)}" if periods else through


def _of_step(mean: float, low: float, high: float) -> str:
    return f"{units.SHARE.text(mean)} of a step{units.SHARE.interval(low, high)}"


def _transfer_s(facts: Facts) -> float | None:
    """Seconds that the bytes of a step take at the measured capacity; None if unknown."""
    wire, capacity = _wire_bytes(facts), measures.capacity_bytes_per_s(facts)
    return None if wire is None or capacity is None else wire / capacity


def _needed_rate(facts: Facts) -> str:
    """The rate that the gradients of another tool's run need from a link that is never idle; ""
    for a run of ours."""
    wire, seconds_s = measures.flat_ring_bytes(facts), measures.step_s(facts)
    if facts.imported is None or not wire or not seconds_s:
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
    wait = measures.share(facts.intervals, "wire_s")
    yield evidence("share of a step in exposed communication", units.SHARE, wait)
    if facts.chosen is not None:
        yield in_words("strategy, chosen by auto", f"{facts.chosen.label}: {facts.chosen.why}")
    elif facts.recipe is not None:
        yield in_words("strategy", facts.recipe.distributed.strategy)
    for waited, rank in measures.shares(facts, "sync_s"):
        if wait is not None:
            name = f"rank {rank.rank} on {rank.host}, waiting for later ranks"
            yield evidence(name, units.SHARE, waited - wait)
    yield evidence("sent per step and direction", units.SIZE, wire)
    if wire and seconds_s:
        yield evidence("rate needed without pause", units.BYTE_RATE, wire / seconds_s)
    yield evidence("capacity of the link", units.BYTE_RATE, measures.capacity_bytes_per_s(facts))
    for traffic in facts.traffic:
        name = f"{traffic.interface} of {traffic.host}"
        yield Evidence(name, traffic.sent_bytes_per_s, _traffic_text(traffic))
    if facts.imported is not None and facts.imported.interface:
        yield in_words("interface of the collectives", facts.imported.interface)


def _traffic_text(traffic: Traffic) -> str:
    """The counters of the kernel, which include all traffic of the host through the interface."""
    sent, received = (
        units.BYTE_RATE.text(count / traffic.seconds_s)
        for count in (traffic.sent_bytes, traffic.received_bytes)
    )
    parts = [f"{sent} out, {received} in on average"]
    if traffic.most_sent_bytes_per_s is not None:
        most = units.BYTE_RATE.text(traffic.most_sent_bytes_per_s)
        parts.append(f"{most} out in the busiest second")
    if traffic.nominal_bits_per_s is not None:
        parts.append(f"nominally {units.BIT_RATE.text(traffic.nominal_bits_per_s)}")
    packets = traffic.sent_packets + traffic.received_packets
    parts.append(f"{traffic.errors} errors in {units.COUNT.text(packets)} packets")
    if traffic.carrier_changes:
        parts.append(f"link lost or found {traffic.carrier_changes} times")
    return ", ".join(parts)


def fit(facts: Facts) -> Judgement:
    """How does the time of a step relate to network use?"""
    return judged_by_configuration(facts, _fit)


def fit_evidence(facts: Facts) -> Iterator[Evidence]:
    """Bytes, bandwidth and waits of a step."""
    return evidence_by_configuration(facts, _fit_evidence)


def _fit(facts: Facts) -> Judgement:
    if facts.world_size == 1:
        return "measured", "Not at all: one process trained alone.", ""
    if facts.is_one_host:
        return "measured", "Not at all: all ranks share one host.", ""
    wire, capacity = _wire_bytes(facts), measures.capacity_bytes_per_s(facts)
    waited_s = measures.per_step(facts.intervals, "wire_s")
    seconds_s = measures.step_s(facts)
    if wire is None or capacity is None or not seconds_s:
        says = _needed_rate(facts) or "The bytes of a step were not counted."
        if capacity is None:
            says += " The capacity of the link was not measured."
        return "cannot tell", says, "Measure the link before the run."
    transfer_s = wire / capacity
    step = units.DURATION.text(seconds_s)
    says = (
        f"{units.SIZE.text(wire)} over {units.BYTE_RATE.text(capacity)} is "
        f"{units.DURATION.text(transfer_s)}"
    )
    if transfer_s > _MOST_CAPACITY * seconds_s:
        says += f", more than a whole step, {step}: the link carried more than its measured rate."
        return "cannot tell", says, f"{_BURSTS} Measure the link again, with dragoman doctor."
    says += f", a step {step}"
    if waited_s is None:
        return "measured", f"{says}.", ""
    says += f": {units.DURATION.text(waited_s)} of it waited for the network"
    if (hidden_s := min(transfer_s, seconds_s) - waited_s) > 0:
        says += f", {units.DURATION.text(hidden_s)} of transfers hid behind compute"
    if waited_s - transfer_s < _LARGE_RESIDUAL * seconds_s:
        return "measured", f"{says}.", ""
    return (
        "measured",
        f"{says}.",
        "Bytes do not explain all of it: look for latency, other traffic, and busy processors.",
    )


def _fit_evidence(facts: Facts) -> Iterator[Evidence]:
    if facts.world_size == 1 or facts.is_one_host:
        yield in_words("hosts of the ranks", ", ".join(facts.hosts))
        share = measures.share(facts.intervals, "wire_s")
        yield evidence("share of a step in all-reduces between ranks", units.SHARE, share)
        return
    yield evidence("sent per step and direction", units.SIZE, _wire_bytes(facts))
    yield evidence("capacity of the link", units.BYTE_RATE, measures.capacity_bytes_per_s(facts))
    yield evidence("transfers at that capacity", units.STEP_TIME, _transfer_s(facts))
    waited_s = measures.per_step(facts.intervals, "wire_s")
    yield evidence("exposed communication", units.STEP_TIME, waited_s)


def _wire_bytes(facts: Facts) -> float | None:
    counted = measures.wire_bytes_per_step(facts)
    return measures.flat_ring_bytes(facts) if counted is None and facts.imported else counted
