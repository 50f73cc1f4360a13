"""From doctor's facts to findings: passes, warnings, failures and their remedies.

Every check is a function of the facts alone. A new one is a function here, its entry in CHECKS and
its test.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from dragoman.base import units
from dragoman.cluster.facts import PACKAGES, ClusterFacts, HostFacts, LinkDirection, PairFacts
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.rates import LATENCY_S, ONE_WAY, Directions, Link
from dragoman.cluster.ssh import (
    FAILED,
    LOST,
    LOST_REMEDY,
    NO_PYTHON,
    SET_UP,
    SILENT,
    SILENT_REMEDY,
    how_to_log_in,
)

CheckStatus = Literal["ok", "unknown", "warning", "failure"]

LEAST_SHARED_MEMORY_BYTES: Final = 1_000_000_000
MOST_CLOCK_OFFSET_S: Final = 1.0
STRAGGLER: Final = 1.25
"""A host whose steps take more than this multiple of the hosts' median delays all others."""
HALF_DUPLEX: Final = 0.65
"""Half duplex: with both directions busy, each carries less than this share of its rate alone."""
MOST_HALF_DUPLEX_BYTES_PER_S: Final = 1e9 / 8
"""Ethernet above 1 Gbit/s is full duplex only (IEEE 802.3ae); there the processor is the limit."""
LEAST_OF_CLAIM: Final = 0.5
"""Least share of the slower card's claim. Virtual cards claim anything, so less is a warning."""
SLOW_PAIR: Final = 0.7
"""Below this share of the median pair's rate, something is wrong with a pair."""
MOST_LATENCY_S: Final = 5e-3
LEAST_DISK_BYTES_PER_S: Final = 50e6
OTHERS: Final = "the others"
"""Stands for a host's name, which never has a space: all hosts that could be checked."""
_MAY_DIFFER: Final = ("driver",)
_OF_GPUS: Final = ("nccl", "driver")
_NO_INTERFACES: Final = ("lo", "docker", "br-", "virbr", "podman", "cni", "veth")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, on one host or between two ("" for all of them).

    host: OTHERS if some hosts could not be checked and the rest is in order.
    status: unknown if it was not measured.
    remedy: what to do about it; "" if it is in order.
    """

    check: str
    status: CheckStatus
    host: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class RunNeeds:
    """The needs of a run on its hosts.

    needed_bytes: on each host's disk, for the files of the run.
    digests: the SHA-256 of this machine's code, recipe, data and vocabulary, by these names. Hosts
        must have the same; if a digest is missing here, that of the first host counts.
    """

    hosts: Hosts
    needed_bytes: int
    digests: Mapping[str, str] = field(default_factory=dict)

    def host(self, name: str) -> Host:
        """The host of this name."""
        return next(host for host in self.hosts.host if host.name == name)


Check = Callable[[ClusterFacts, RunNeeds], Iterator[Finding]]


def examine(facts: ClusterFacts, needs: RunNeeds) -> list[Finding]:
    """The findings of all checks; a check that finds nothing wrong returns one finding that says
    so."""
    findings: list[Finding] = []
    for name, (check, well) in CHECKS.items():
        findings += list(check(facts, needs)) or [_nothing_wrong(name, well, facts)]
    return findings


def examine_here(facts: HostFacts, needs: RunNeeds) -> list[Finding]:
    """The findings about this machine, which trains alone: it has neither peers nor copies."""
    both = ClusterFacts(hosts=(facts,))
    findings: list[Finding] = []
    for name, well in _HERE.items():
        found = list(CHECKS[name][0](both, needs))
        findings += found or [Finding(name, "ok", facts.host, well)]
    for number, finding in enumerate(findings):
        if finding.check == "versions" and finding.remedy:
            findings[number] = replace(finding, remedy="pip install dragoman, in this environment")
    if facts.step_s is None:
        return [*findings, _unknown("speed", facts.host)]
    speed = f"{units.STEP_TIME.text(facts.step_s)} for a small model"
    return [*findings, Finding("speed", "ok", facts.host, speed)]


def is_fit(findings: list[Finding]) -> bool:
    """Whether training may start: warnings do not stop it."""
    return all(finding.status != "failure" for finding in findings)


def measured_link(facts: ClusterFacts) -> Link | None:
    """The link that `plan` can count on; None if nothing was measured.

    Its rate is that of the all-reduce, or of the slowest pair if none was measured, but at most
    that of any host's slower direction: an all-reduce sends as much as it receives on every host.
    """
    latency_s = max((pair.latency_s for pair in facts.pairs), default=LATENCY_S)
    slowest = min((pair.both_bytes_per_s for pair in facts.pairs), default=None)
    bytes_per_s = facts.all_reduce_bytes_per_s or slowest
    if bytes_per_s is None:
        return None
    for one in directions(facts).values():
        bytes_per_s = min(bytes_per_s, one.sends_bytes_per_s, one.receives_bytes_per_s)
    return Link(bytes_per_s, "measured by doctor", latency_s)


def directions(facts: ClusterFacts) -> dict[str, Directions]:
    """For each host, the highest rates at which it sends and receives, over all its peers."""
    sent, received = _best_of_each(facts)
    return {name: Directions(sent[name], received[name]) for name in sent}


def logins(facts: ClusterFacts, needs: RunNeeds) -> Iterator[Finding]:
    """Every host answers, and dragoman can run there."""
    for host, said in facts.unreachable.items():
        if os.strerror(errno.ENOSPC) in said:
            yield _fail("storage", host, "its disk is full", "free space there: df -h shows where")
            continue
        if said.startswith(NO_PYTHON):
            yield _fail("versions", host, said, SET_UP)
            continue
        remedy, what = how_to_log_in(needs.host(host)), "does not answer"
        if said.startswith(FAILED):
            remedy, what = f"{SET_UP}; see its disk and memory", "cannot be examined"
        elif said.startswith(LOST):
            remedy = LOST_REMEDY
        elif said.startswith(SILENT):
            remedy, what = SILENT_REMEDY, "cannot be examined"
        yield _fail("login", host, f"{what}: {said}", remedy)


def devices(facts: ClusterFacts, needs: RunNeeds) -> Iterator[Finding]:
    """GPUs stated, seen and usable are the same number; either all hosts compute on GPUs or
    none."""
    first = needs.hosts.host[0]
    for host in facts.hosts:
        stated = needs.host(host.host)
        if bool(stated.slots) != bool(first.slots):
            found = f"one of {first.name} and this computes on GPUs, one on its processor"
            remedy = "leave one of the two out, or give all hosts slots: "
            remedy += "GPUs and processors cannot train together"
            yield _fail("devices", host.host, found, remedy)
        if stated.slots:
            if host.cpu_cores < stated.slots:
                found = f"{stated.slots} ranks on {host.cpu_cores} cores"
                yield _warn("devices", host.host, found, "lower slots in hosts.toml")
            continue
        if host.gpus_visible != stated.gpus:
            yield _fail(
                "devices",
                host.host,
                f"{stated.gpus} GPUs stated, {host.gpus_visible} visible",
                "see nvidia-smi there and CUDA_VISIBLE_DEVICES; or correct gpus in hosts.toml",
            )
        elif host.gpus_usable < host.gpus_visible:
            yield _fail(
                "devices",
                host.host,
                f"{host.gpus_visible} GPUs visible, {host.gpus_usable} compute right",
                "a driver that does not fit torch, or a broken card: run nvidia-smi -q there",
            )


def versions(facts: ClusterFacts, needs: RunNeeds) -> Iterator[Finding]:
    """Every host has the versions of most hosts, and all packages that training needs."""
    for name in _names(host.versions for host in facts.hosts):
        asked = [one for one in facts.hosts if name not in _OF_GPUS or needs.host(one.host).gpus]
        usual = _usual([own for host in asked if (own := host.versions.get(name))])
        for host in asked:
            own = host.versions.get(name)
            if own == usual and (own or name not in PACKAGES):
                continue
            found = f"{name} {own or 'is missing'}{f', elsewhere {usual}' if usual else ''}"
            if name in _MAY_DIFFER:
                yield _warn(
                    "versions",
                    host.host,
                    found,
                    "make them equal if training stops without a clear reason",
                )
            else:
                remedy = f"install {name} {usual} there" if usual else SET_UP
                yield _fail("versions", host.host, found, remedy)


def digests(facts: ClusterFacts, needs: RunNeeds) -> Iterator[Finding]:
    """Code, recipe, data and vocabulary equal those here, and no host uses this run's directory."""
    for host in facts.hosts:
        if not host.shares_run_directory:
            continue
        # Its events would be copied onto themselves.
        found = f"its folder, {needs.host(host.host).folder}, is where the run is kept here"
        remedy = "give hosts another folder in hosts.toml, or keep runs elsewhere"
        yield _fail("same files", host.host, found, remedy)
    for name in _names(host.digests for host in facts.hosts):
        having = [host for host in facts.hosts if name in host.digests]
        right, where = having[0].digests[name], f"on {having[0].host}"
        if name in needs.digests:
            right, where = needs.digests[name], "here"
        for host in having:
            own = host.digests[name]
            if own is None:
                found = f"the {name} is not there"
            elif own != right:
                found = (
                    f"the {name} differs: {own[:8]}, {where} {right[:8] if right else 'missing'}"
                )
            else:
                continue
            folder = needs.host(host.host).folder
            place = {"code": "code", "recipe": "runs/RUN"}.get(name, "data")
            remedy = f"delete {folder}/{place} there: the next training copies it again"
            yield _fail("same files", host.host, found, remedy)


def clocks(facts: ClusterFacts, _needs: RunNeeds) -> Iterator[Finding]:
    """Clocks agree, so that events of several hosts can be put in order."""
    for host in facts.hosts:
        offset_s = host.clock_offset_s
        if offset_s is None:
            yield _unknown("clock", host.host)
        elif abs(offset_s) > MOST_CLOCK_OFFSET_S:
            where = "ahead of" if offset_s > 0 else "behind"
            found = f"{units.DURATION.text(abs(offset_s))} {where} the others"
            yield _fail("clock", host.host, found, "start chrony or systemd-timesyncd there")


def interfaces(facts: ClusterFacts, needs: RunNeeds) -> Iterator[Finding]:
    """The collectives use the interface to the peers, and host names resolve to its address."""
    owners: dict[str, str] = {}
    alone = len(needs.hosts.host) == 1
    for host in facts.hosts:
        stated = needs.host(host.host)
        card = host.interface
        if card is None:
            found = "none of its interfaces leads to the other hosts"
            remedy = "see whether it knows their addresses: `ip route get` one of them there"
            if alone:
                found, remedy = f"{stated.interface} has no address", "see `ip address` there"
            yield _fail("interface", host.host, found, remedy)
            continue
        if stated.interface and stated.interface != card.name:
            found = f"{stated.interface} is stated, {card.name} routes to the other hosts"
            remedy = f'write interface = "{card.name}" into hosts.toml'
            yield _fail("interface", host.host, found, remedy)
        elif card.name.startswith(_NO_INTERFACES) and not (alone or stated.interface):
            found = f"{card.name} mostly stays on the machine"
            remedy = f'name addresses of the private network; or state interface = "{card.name}"'
            yield _fail("interface", host.host, found, remedy)
        elif (owner := owners.setdefault(card.address, host.host)) != host.host:
            found = f"has the same address as {owner}, {card.address}"
            remedy = "give each machine one entry, with all of its GPUs"
            yield _fail("interface", host.host, found, remedy)
        names = host.name_resolves_to
        if names and card.address not in names and not alone:
            yield _warn(
                "interface",
                host.host,
                f"its own name means {', '.join(names)}, not {card.address}",
                f"put `{card.address} {host.host}` into its /etc/hosts",
            )


def cards(facts: ClusterFacts, _needs: RunNeeds) -> Iterator[Finding]:
    """Full duplex, one packet size, no losses."""
    present = [(host.host, host.interface) for host in facts.hosts if host.interface]
    usual = _usual([str(card.mtu_bytes) for _host, card in present])
    for host, card in present:
        if card.full_duplex is False:
            found = f"{card.name} is at half duplex"
            yield _warn("card", host, found, "let both ends negotiate: ethtool -s ... autoneg on")
        if str(card.mtu_bytes) != usual:
            found = f"packets of {card.mtu_bytes} bytes, elsewhere {usual}"
            remedy = f"ip link set {card.name} mtu {usual}: large messages hang otherwise"
            yield _fail("card", host, found, remedy)
        if card.errors:
            found = f"{units.COUNT.text(card.errors)} packets lost on {card.name}"
            yield _warn("card", host, found, "watch whether it grows; try another cable or port")


def bandwidth(facts: ClusterFacts, _needs: RunNeeds) -> Iterator[Finding]:
    """No pair of hosts is slower than the other pairs, or than its cards claim.

    All-reduces that break off are a failure. A slow link is a warning, however slow it is: a
    strategy for slow links trains over it.
    """
    for name, said in facts.unmeasured.items():
        remedy = "training would break off, too: see whether TCP passes between the hosts"
        yield _fail("bandwidth", name, f"all-reduces over the network broke off: {said}", remedy)
    if not facts.pairs:
        if len(facts.hosts) + len(facts.unreachable) > 1 and not facts.unmeasured:
            yield _unknown("bandwidth")
        return
    usual = statistics.median(pair.both_bytes_per_s for pair in facts.pairs)
    slow = _slow_directions(facts)
    yield from _limits(facts, slow)
    one_sided = {frozenset(direction[:2]) for direction in slow}
    for pair in facts.pairs:
        names = " - ".join(pair.hosts)
        slower_way = min(pair.forth_bytes_per_s, pair.back_bytes_per_s)
        rate = units.BYTE_RATE.text(pair.both_bytes_per_s)
        at_once = f"{rate} each way at once, {units.BYTE_RATE.text(slower_way)} one way alone"
        hindered = pair.both_bytes_per_s < HALF_DUPLEX * slower_way
        if hindered and slower_way <= MOST_HALF_DUPLEX_BYTES_PER_S:
            remedy = "check the negotiated duplex of both cards and the switch ports"
            yield _warn("bandwidth", names, f"{at_once}: half duplex", remedy)
        elif frozenset(pair.hosts) in one_sided:
            pass  # `_limits` reports it with its direction
        elif pair.both_bytes_per_s < SLOW_PAIR * usual:
            found = f"{rate}, the other pairs {units.BYTE_RATE.text(usual)}"
            remedy = "a port that negotiated a lower speed: see ethtool on both hosts"
            yield _warn("bandwidth", names, found, remedy)
        elif hindered:
            remedy = "no such link is half duplex: the processors may be slow, or other traffic"
            yield _warn("bandwidth", names, at_once, remedy)
        elif pair.both_bytes_per_s < LEAST_OF_CLAIM * _claimed(facts, pair):
            claim = units.BYTE_RATE.text(_claimed(facts, pair))
            remedy = "look for a slower port, a limit of the provider, or other traffic"
            yield _warn("bandwidth", names, f"{rate}, the cards say {claim}", remedy)
        if pair.latency_s > MOST_LATENCY_S:
            found = f"{units.DURATION.text(pair.latency_s)} for one message"
            remedy = "put the hosts into one zone, or use diloco"
            yield _warn("bandwidth", names, found, remedy)


def _slow_directions(facts: ClusterFacts) -> list[LinkDirection]:
    """Directions that carry much less than the way back."""
    rates = {direction[:2]: direction.bytes_per_s for direction in facts.directions}
    return [
        direction
        for direction in facts.directions
        if direction.bytes_per_s < ONE_WAY * rates[direction.receiver, direction.sender]
    ]


def _best_of_each(facts: ClusterFacts) -> tuple[dict[str, float], dict[str, float]]:
    """The highest rate at which each host sends, and receives, over all its peers."""
    sent: dict[str, float] = {}
    received: dict[str, float] = {}
    for direction in facts.directions:
        sent[direction.sender] = max(direction.bytes_per_s, sent.get(direction.sender, 0.0))
        received[direction.receiver] = max(
            direction.bytes_per_s, received.get(direction.receiver, 0.0)
        )
    return sent, received


def _limits(facts: ClusterFacts, slow: list[LinkDirection]) -> Iterator[Finding]:
    """One finding for each host that sends, or receives, slowly to all peers; then one for each
    slow direction between only two hosts.

    Such a limit is mostly intended, by a provider or by an access line.
    """
    cards = {host.host: host.interface.name if host.interface else "?" for host in facts.hosts}
    sent, received = _best_of_each(facts)
    slow_senders = {name for name in sent if sent[name] < ONE_WAY * received[name]}
    slow_receivers = {name for name in sent if received[name] < ONE_WAY * sent[name]}
    by_host: dict[str, list[LinkDirection]] = {}
    for direction in slow:
        if direction.sender in slow_senders:
            by_host.setdefault(direction.sender, []).append(direction)
        elif direction.receiver in slow_receivers:
            by_host.setdefault(direction.receiver, []).append(direction)
        else:
            by_host.setdefault(f"{direction.sender} - {direction.receiver}", []).append(direction)
    for host, limited in by_host.items():
        sender, receiver, rate = max(limited, key=lambda one: one.bytes_per_s)
        there, back = (
            units.BYTE_RATE.text(rate),
            units.BYTE_RATE.text(
                next(one.bytes_per_s for one in facts.directions if one[:2] == (receiver, sender))
            ),
        )
        out = (
            f"the traffic that {sender} sends over {cards[sender]} "
            f"(`tc qdisc show dev {cards[sender]}` there, "
            "its port on the switch, the provider's limit on outgoing traffic)"
        )
        into = (
            f"the traffic that {receiver} receives over {cards[receiver]} "
            f"(its port on the switch, a firewall, "
            "the provider's limit on incoming traffic)"
        )
        if host == sender and receiver not in slow_receivers:
            found = f"sends {there} over {cards[sender]} and receives {back}"
            remedy = f"look for a limit on {out}"
        elif host == receiver:
            found = f"receives {there} over {cards[receiver]} and sends {back}"
            remedy = f"look for a limit on {into}"
        else:  # with only two hosts, either may be the cause
            found = (
                f"sends {there} over {cards[sender]} to {receiver} ({cards[receiver]}), "
                f"which sends {back}"
            )
            if host != sender:
                found = f"{sender} {found}"
            remedy = f"look for a limit on {out}, then on {into}"
        yield _warn("bandwidth", host, found, remedy)


def ports(facts: ClusterFacts, _needs: RunNeeds) -> Iterator[Finding]:
    """The hosts reach each other's ports, and other machines do not."""
    for host in facts.hosts:
        if host.closed_ports is None or host.exposed_ports is None:
            yield _unknown("ports", host.host)
        if host.closed_ports:
            found = f"cannot reach {', '.join(host.closed_ports)}"
            remedy = "allow TCP between the hosts, all ports, on the private network only"
            yield _fail("ports", host.host, found, remedy)
        if host.exposed_ports:
            found = f"strangers can reach {', '.join(host.exposed_ports)}"
            remedy = (
                "bind to the private interface or close it: any machine that connects can run code"
            )
            yield _fail("ports", host.host, found, remedy)
        if host.interface and ipaddress.ip_address(host.interface.address).is_global:
            found = f"{host.interface.address} is a public address"
            remedy = "use the hosts' private network, or WireGuard under it"
            yield _fail("ports", host.host, found, remedy)


def storage(facts: ClusterFacts, needs: RunNeeds) -> Iterator[Finding]:
    """Room for all checkpoints that are kept, written in reasonable time; shared memory."""
    for host in facts.hosts:
        if host.disk_free_bytes < needs.needed_bytes:
            free, needed = map(units.SIZE.text, (host.disk_free_bytes, needs.needed_bytes))
            remedy = "free space, or keep fewer checkpoints: checkpoint.keep_last, keep_best"
            yield _fail("storage", host.host, f"{free} free, {needed} needed", remedy)
        speed = host.disk_write_bytes_per_s
        if speed is not None and speed < LEAST_DISK_BYTES_PER_S:
            found = f"writes {units.BYTE_RATE.text(speed)}"
            yield _warn("storage", host.host, found, "save less often: checkpoint.every_steps")
        if host.shared_memory_bytes < LEAST_SHARED_MEMORY_BYTES:
            found = f"{units.SIZE.text(host.shared_memory_bytes)} of shared memory"
            remedy = "start the container with --shm-size=2g, or give its tmpfs more"
            yield _fail("storage", host.host, found, remedy)


def stragglers(facts: ClusterFacts, _needs: RunNeeds) -> Iterator[Finding]:
    """No host is so slow that the others wait for it."""
    measured = [(host.host, host.step_s) for host in facts.hosts if host.step_s is not None]
    if len(measured) < len(facts.hosts):
        yield _unknown("speed")
        return
    if not measured:
        return
    # With two hosts the median would lie between them and excuse the slow one.
    usual = statistics.median_low([step_s for _, step_s in measured])
    for host, step_s in measured:
        if step_s > STRAGGLER * usual:
            found = f"{units.STEP_TIME.text(step_s)}, elsewhere {units.STEP_TIME.text(usual)}"
            remedy = "all will wait for it: look for other programs, a throttled or lesser device"
            yield _warn("speed", host, found, remedy)


CHECKS: Final[dict[str, tuple[Check, str]]] = {
    "login": (logins, "every host answers"),
    "devices": (devices, "as many as stated, all usable"),
    "versions": (versions, "equal everywhere"),
    "same files": (digests, "code, recipe, data and vocabulary are equal"),
    "clock": (clocks, "within a second of each other"),
    "interface": (interfaces, "routes to the peers, and names lead to it"),
    "card": (cards, "full duplex, one packet size, no losses"),
    "bandwidth": (bandwidth, "all pairs alike, both ways at once"),
    "ports": (ports, "open between the hosts, closed to others"),
    "storage": (storage, "room for the files of a run, and shared memory"),
    "speed": (stragglers, "no host slower than the others"),
}


_HERE: Final = {
    "devices": "all of them usable",
    "versions": "all packages that training needs",
    "storage": CHECKS["storage"][1],
}
"""The checks of a machine alone, and what they find if nothing is wrong."""


def _fail(check: str, host: str, found: str, remedy: str) -> Finding:
    return Finding(check, "failure", host, found, remedy)


def _warn(check: str, host: str, found: str, remedy: str) -> Finding:
    return Finding(check, "warning", host, found, remedy)


def _unknown(check: str, host: str = "") -> Finding:
    return Finding(check, "unknown", host, "not measured")


def _nothing_wrong(check: str, well: str, facts: ClusterFacts) -> Finding:
    """A finding that nothing is wrong, as far as is known: some hosts may have given no data."""
    if not facts.unreachable:
        return Finding(check, "ok", "", well)
    return Finding(check, "ok", OTHERS, well) if facts.hosts else _unknown(check)


def _claimed(facts: ClusterFacts, pair: PairFacts) -> float:
    """Bytes per second that the slower card of a pair claims; 0 if one of them claims nothing."""
    cards = [host.interface for host in facts.hosts if host.host in pair.hosts]
    speeds = [(card.speed_bits_per_s or 0.0) if card else 0.0 for card in cards]
    return min(speeds, default=0.0) / 8


def _names(tables: Iterator[dict[str, str | None]]) -> list[str]:
    """Every key of any of them, in order of first occurrence."""
    return list(dict.fromkeys(name for table in tables for name in table))


def _usual(values: list[str]) -> str | None:
    """The most frequent value; the first one among equally frequent ones."""
    return Counter(values).most_common(1)[0][0] if values else None
