"""The configurations of a run, and the answers for each: its ranks, hosts, devices and link.

A run that was stopped may go on with other ranks, hosts, devices or links, and a link may change
while it trains. Measurements of one configuration say nothing about another, so an answer is that
of the newest one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from dragoman.base import units
from dragoman.reporting.facts import (
    Facts,
    Life,
    RecordedChange,
    RecordedDevice,
    RecordedLink,
)
from dragoman.reporting.log import RunLog
from dragoman.reporting.measures import capacity_bytes_per_s, without_warm_ups
from dragoman.reporting.periods import FEWEST, FROM_START, moment
from dragoman.reporting.record import Bools, Intervals
from dragoman.reporting.verdict import Evidence, Judgement

_RATES_DIFFER = 1.1
"""Repeated measurements of the same link or device differ by less than this factor."""
_MOST_HOSTS_NAMED = 3
_MOST_SHOWN = 3


def with_configurations(facts: Facts, log: RunLog) -> Facts:
    """The facts with the measurements of hosts, of the whole run and of each configuration.

    Lives on the same machines, which measured the same rates, count as one.
    """
    lives: list[Facts] = []
    for number in range(len(facts.lives)):
        life = _life(facts, log, number)
        # Measured once, if at all: training tells again of a link that is still slow.
        if lives and life.lives[0].hosts == lives[-1].lives[0].hosts:
            before = lives[-1]
            life = replace(
                life, links=life.links or before.links, devices=life.devices or before.devices
            )
        lives.append(life)
    whole = replace(
        _sampled(facts, log, -math.inf, math.inf),
        links=log.of(RecordedLink),
        devices=log.of(RecordedDevice),
        link_changes=tuple(change for life in lives for change in life.link_changes),
    )
    is_one = all(_are_alike(earlier, later) for earlier, later in pairwise(lives))
    if is_one and not whole.link_changes:
        return whole
    ends = [-math.inf, *(life.ended for life in facts.lives)]
    parts = list(zip(lives, ends[:-1], ends[1:], strict=True))
    if is_one:
        parts = [(whole, -math.inf, math.inf)]
    cuts = (_cut(log, *part) for part in parts if len(part[0].intervals))
    return replace(whole, configurations=tuple(chain.from_iterable(cuts)))


def _life(facts: Facts, log: RunLog, number: int) -> Facts:
    """One life, without samples."""
    life, later = facts.lives[number], facts.lives[number + 1 :]
    ends = min((life.first_step for life in later), default=math.inf)
    """The last step that was not made again."""
    ranks = life.world_size or len(facts.ranks)
    return replace(
        facts,
        world_size=life.world_size or facts.world_size,
        device=life.device or facts.device,
        imported=life.imported or facts.imported,
        lives=(life,),
        intervals=facts.intervals.where(facts.intervals["life"] == number).of_ranks(ranks),
        repeated=facts.repeated.where(facts.repeated["life"] == number).of_ranks(ranks),
        ranks=tuple(
            replace(rank, hosts=life.hosts[rank.rank : rank.rank + 1])
            for rank in facts.ranks[:ranks]
        ),
        links=tuple(link for link in log.of(RecordedLink) if link.life == number),
        devices=tuple(device for device in log.of(RecordedDevice) if device.life == number),
        link_changes=tuple(
            change
            for change in log.of(RecordedChange)
            if change.life == number and life.first_step < change.since_step <= ends
        ),
    )


def _cut(log: RunLog, life: Facts, began: float, ended: float) -> Iterator[Facts]:
    """A life, cut where its link changed. `link_changes` of a part is the change that began it.

    An interval in which the link changed belongs to no part. began, ended: of the samples.
    """
    changes = sorted(life.link_changes, key=lambda change: change.since_step)
    for change, after in pairwise([None, *changes, None]):
        first, since = (0, began) if change is None else (change.since_step, change.since)
        last, until = (math.inf, ended) if after is None else (after.since_step - 1, after.since)
        part = replace(
            _sampled(life, log, since, until),
            lives=tuple(_clipped(life, since, until) for life in life.lives),
            intervals=life.intervals.where(_are_within(life.intervals, first, last)),
            repeated=life.repeated.where(_are_within(life.repeated, first, last)),
            link_changes=() if change is None else (change,),
        )
        if change is not None:
            now, host = change.now_bytes_per_s, life.hosts[0]
            part = replace(
                part, links=(RecordedLink(host=host, bytes_per_s=now, life=change.life),)
            )
        yield part


def _are_within(intervals: Intervals, first: float, last: float) -> Bools:
    """Whether all updates of an interval are between two, both included."""
    first_step = intervals["step"] - intervals["steps"] + 1
    within: Bools = (first <= first_step) & (intervals["step"] <= last)
    return within


def _clipped(life: Life, since: float, until: float) -> Life:
    started, ended, accounted = np.clip(
        [life.started, life.ended, life.accounted], since, until
    ).tolist()
    return replace(life, started=started, ended=ended, accounted=accounted)


def _sampled(facts: Facts, log: RunLog, began: float, ended: float) -> Facts:
    """The facts with the samples between two moments."""
    return replace(
        facts,
        gpus=tuple(log.samples.gpus(began, ended)),
        traffic=tuple(log.samples.traffic(began, ended)),
        machines=tuple(log.samples.machines(began, ended)),
    )


def _are_alike(earlier: Facts, later: Facts) -> bool:
    """Whether two lives had the same ranks, on machines of the same speed as far as is known."""
    if earlier.lives[0].hosts != later.lives[0].hosts:
        return False
    if (earlier.world_size, earlier.device) != (later.world_size, later.device):
        return False
    if earlier.imported != later.imported:
        return False
    changes = sorted(earlier.link_changes, key=lambda change: change.since_step)
    links = [capacity_bytes_per_s(earlier), *(change.now_bytes_per_s for change in changes[-1:])]
    rates = [(link, capacity_bytes_per_s(later)) for link in links]
    rates += [(_flop_per_s(earlier, host), _flop_per_s(later, host)) for host in earlier.hosts]
    return all(
        before is None or after is None or max(before, after) <= _RATES_DIFFER * min(before, after)
        for before, after in rates
    )


def _flop_per_s(life: Facts, host: str) -> float | None:
    rates = [device.matrix_flop_per_s for device in life.devices if device.host == host]
    return statistics.fmean(rates) if rates else None


def newest_configuration(facts: Facts) -> Facts:
    """The run on the machines and the link that it trains on now."""
    trained = [part for part in facts.configurations if len(part.intervals)]
    return trained[-1] if trained else facts


def judged_by_configuration(facts: Facts, judge: Callable[[Facts], Judgement]) -> Judgement:
    """The answer of the newest configuration that lasted; of the newest one if none did.

    The text begins with what it is an answer for. Then it names a newer configuration, which is too
    short to judge, and says what was so in earlier ones that lasted, the newest first; each in a
    line of its own.
    """
    parts = facts.configurations or (facts,)
    if len(parts) == 1:
        return judge(parts[0])
    trained = [part for part in parts if len(part.intervals)] or parts[-1:]
    lasting = [part for part in trained if _lasted(part)] or trained
    newest = lasting[-1]
    answer, says, remedy = judge(newest)
    if newest is parts[-1]:
        lines = [_of_configuration(_since(newest), says)]
    else:
        lines = [_of_configuration(f"{_where(newest)}:", says)]
        lines.append(f"{_since(parts[-1])} There are too few intervals to judge.")
    shown = lasting[-_MOST_SHOWN:-1]
    for part in reversed(shown):
        lines.append(_of_configuration(f"{_where(part)}:", judge(part)[1]))
    if more := len(lasting) - 1 - len(shown):
        lines.append(f"Earlier changes of hosts or links that are not shown: {more}.")
    return answer, "\n".join(lines), remedy


def evidence_by_configuration(
    facts: Facts, evidence: Callable[[Facts], Iterator[Evidence]]
) -> Iterator[Evidence]:
    """The rows of the run, or of its newest configurations with their steps and hosts."""
    if len(facts.configurations) < 2:
        yield from evidence((facts.configurations or (facts,))[0])
        return
    parts = [part for part in facts.configurations if _lasted(part)] or facts.configurations
    for part in reversed(parts[-_MOST_SHOWN:]):
        for row in evidence(part):
            yield replace(row, name=f"{_where(part)}: {row.name}")


def link_changed(change: RecordedChange) -> str:
    """When a link changed, and its rate before and after."""
    now, before = (
        units.BYTE_RATE.text(rate) for rate in (change.now_bytes_per_s, change.before_bytes_per_s)
    )
    link = ", ".join(text for text in (change.interface, change.where) if text) or "the link"
    since = f"Since {moment(change.since_step, change.since)}"
    return f"{since}, {link} carried {now} each way, {before} before"


def _lasted(facts: Facts) -> bool:
    """Whether there are enough intervals for an answer."""
    return len(without_warm_ups(facts.intervals)) >= FEWEST


def _of_configuration(heading: str, says: str) -> str:
    """The sentence about a configuration. Its heading tells when the configuration started."""
    return f"{heading} {says.replace(f', {FROM_START}', '').replace(f' {FROM_START}', '')}"


def _since(configuration: Facts) -> str:
    """The heading of the configuration in which a run is now, or ended."""
    if configuration.link_changes:
        return f"{link_changed(configuration.link_changes[0])}."
    first, _ = _steps(configuration)
    took_s = float(np.nan_to_num(configuration.intervals.of("interval_s")[0]))
    began = moment(first, float(configuration.intervals["time"][0]) - took_s)
    return f"Since {began}, on {_hosts(configuration)}:"


def _where(facts: Facts) -> str:
    """The steps and hosts of a configuration."""
    return f"Steps {' to '.join(map(units.COUNT.text, _steps(facts)))} on {_hosts(facts)}"


def _steps(facts: Facts) -> tuple[int, int]:
    """The first and the last step."""
    step, steps = facts.intervals["step"], facts.intervals["steps"]
    return int(step[0] - steps[0]) + 1, int(step[-1])


def _hosts(facts: Facts) -> str:
    hosts = list(facts.hosts[:_MOST_HOSTS_NAMED])
    if more := len(facts.hosts) - len(hosts):
        hosts.append(f"{more} more")
    return ", ".join(hosts)
