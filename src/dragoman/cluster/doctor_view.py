"""Doctor's findings as a table and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from dragoman.base import units
from dragoman.base.printable import printable
from dragoman.base.terminal import plain_table
from dragoman.cluster.checks import Finding, directions, is_fit, measured_link
from dragoman.cluster.facts import ClusterFacts, HostFacts
from dragoman.cluster.rates import one_sided

_COLORS = {"ok": "green", "unknown": "dim", "warning": "yellow", "failure": "red"}


def print_findings(findings: list[Finding], facts: ClusterFacts, console: Console) -> None:
    """A line for each finding, its remedy below it; then the verdict."""
    table = plain_table("check", "", "host", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        found = f"{finding.found}\n-> {finding.remedy}" if finding.remedy else finding.found
        color = _COLORS[finding.status]
        table.add_row(finding.check, finding.status, finding.host or "all", found, style=color)
    console.print(table)
    if facts.pairs:
        console.print("", _directions(facts), "")
    for line in (_network(facts), verdict(findings)):
        if line:
            console.print(line, highlight=False, soft_wrap=True)


def verdict(findings: list[Finding]) -> str:
    """One line: fit to train, or the number of failures and warnings."""
    counts: Counter[str] = Counter(finding.status for finding in findings)
    also = [
        f"{counts[status]} {words}"
        for status, words in (("warning", "with a warning"), ("unknown", "not measured"))
        if counts[status]
    ]
    end = f" ({', '.join(also)})" if also else ""
    if is_fit(findings):
        return f"Fit to train{end}."
    return f"Not fit to train: {counts['failure']} to fix{end}."


def findings_as_json(findings: list[Finding], facts: ClusterFacts) -> str:
    """Verdict, findings and the facts behind them."""
    values = {
        "fit": is_fit(findings),
        "findings": [asdict(finding) for finding in findings],
        "facts": facts.model_dump(mode="json"),
    }
    return printable(json.dumps(values, indent=2, ensure_ascii=False))


def _directions(facts: ClusterFacts) -> Table:
    """The rate from each host to each other one, alone and while the way back is busy too."""
    table = plain_table("from", "to", right=("one way alone", "both ways at once"), no_wrap=True)
    both = {frozenset(pair.hosts): pair.both_bytes_per_s for pair in facts.pairs}
    for sender, receiver, rate in facts.directions:
        at_once = units.BYTE_RATE.text(both[frozenset((sender, receiver))])
        table.add_row(sender, receiver, units.BYTE_RATE.text(rate), at_once)
    return table


def _network(facts: ClusterFacts) -> str:
    """The rate of an all-reduce, beside the rates that the cards claim."""
    link = measured_link(facts)
    if link is None:
        return ""
    claims = {_claim(host) for host in facts.hosts if host.interface}
    measured = units.BYTE_RATE.text(link.bytes_per_s)
    ways = list(directions(facts).items())
    limited = [ways[number] for number in one_sided([one for _name, one in ways])]
    limits = [f"{name} {one.limit}" for name, one in limited]
    because = f", because {', '.join(limits)}" if limits else ""
    return (
        f"Network: an all-reduce over all hosts moves {measured} through each interface, each way"
        f"{because}; the cards say {', '.join(sorted(claims))}."
    )


def _claim(host: HostFacts) -> str:
    speed = host.interface.speed_bits_per_s if host.interface else None
    return "nothing" if speed is None else units.BIT_RATE.text(speed)
