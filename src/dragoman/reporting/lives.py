"""The lives of a run: the machines of each, what was measured there, and the answers from it.

A run that was stopped may go on with other ranks, hosts, devices or links. Measurements of one life
say nothing about a life on other machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from dragoman.base import units
from dragoman.reporting.facts import Facts, RecordedLink, Segment
from dragoman.reporting.log import HostRecord, RunLog
from dragoman.reporting.measures import capacity_bytes_per_s, link_after
from dragoman.reporting.sampling import Samples
from dragoman.reporting.verdict import Answer, Evidence, Judgement

MOST_OF_RUN = 0.9
"""An answer that holds for this share of the steps' time is the answer for the run."""
_RATES_DIFFER = 1.1
"""Repeated measurements of the same link or device differ by less than this factor."""
_MOST_HOSTS_NAMED = 3
_MOST_SHOWN = 3


def with_measured(found: Facts, log: RunLog) -> Facts:
    """The facts with the measurements of hosts, for the whole run and for each of its lives."""
    lives = _lives(found, log)
    return replace(
        _with(found, log.samples, log.host_records),
        link_changes=tuple(change for life in lives for change in life.link_changes),
        lives=()
        if all(_are_alike(one, two) for one, two in pairwise(lives))
        else tuple(life for life in lives if life.intervals),
    )


def judged_by_life(found: Facts, judge: Callable[[Facts], Judgement]) -> Judgement:
    """The answer that holds for nine tenths of the steps' time; "cannot tell" if none does.

    Each life on other machines is judged alone; the text quotes the longest life of each answer.
    """
    if len(found.lives) < 2:
        return judge(found.lives[0] if found.lives else found)
    judged = [(life, judge(life)) for life in found.lives]
    lasted_s: dict[Answer, float] = {}
    longest: dict[Answer, tuple[Facts, Judgement]] = {}
    for life, judgement in sorted(judged, key=lambda one: -_steps_s(one[0])):
        lasted_s[judgement[0]] = lasted_s.get(judgement[0], 0.0) + _steps_s(life)
        longest.setdefault(judgement[0], (life, judgement))
    answer, most_s = max(lasted_s.items(), key=lambda one: one[1])
    in_order = sorted(longest.values(), key=lambda one: one[0].segments[0].started)
    says = " ".join(f"{where(life)}: {judgement[1]}" for life, judgement in in_order)
    if most_s >= MOST_OF_RUN * sum(lasted_s.values()):
        return answer, says, longest[answer][1][2]
    return "cannot tell", f"The run moved, and the answer is not the same everywhere. {says}", ""


def evidence_by_life(
    found: Facts, evidence: Callable[[Facts], Iterator[Evidence]]
) -> Iterator[Evidence]:
    """The rows of the run, or of its longest lives with their steps and hosts."""
    if len(found.lives) < 2:
        yield from evidence(found.lives[0] if found.lives else found)
        return
    for life in sorted(found.lives, key=_steps_s, reverse=True)[:_MOST_SHOWN]:
        for row in evidence(life):
            yield replace(row, name=f"{where(life)}: {row.name}")


def where(life: Facts) -> str:
    """The steps and hosts of a life."""
    steps = [one.step - one.steps + 1 for one in life.intervals[:1]]
    steps += [one.step for one in life.intervals[-1:]]
    hosts = list(life.hosts[:_MOST_HOSTS_NAMED])
    if more := len(life.hosts) - len(hosts):
        hosts.append(f"{more} more")
    return f"steps {' to '.join(map(units.COUNT.text, steps))} on {', '.join(hosts)}".capitalize()


def _steps_s(life: Facts) -> float:
    return sum(one.interval_s or 0.0 for one in life.intervals)


def _with(found: Facts, samples: Samples, host_records: Sequence[HostRecord]) -> Facts:
    """The facts with these measurements."""
    return replace(
        found,
        gpus=tuple(samples.gpus()),
        traffic=tuple(samples.traffic()),
        machines=tuple(samples.machines()),
        links=tuple(link for record in host_records for link in record.links),
        devices=tuple(device for record in host_records for device in record.devices),
    )


def _lives(found: Facts, log: RunLog) -> list[Facts]:
    """Each life of the run."""
    lives: list[Facts] = []
    for number, segment in enumerate(found.segments):
        ends = min((later.first_step for later in found.segments[number + 1 :]), default=None)
        life = _life(found, log.host_records[number], segment, ends)
        # Measured once, if at all: training tells again of a link that is still slow.
        if lives and segment.hosts == lives[-1].segments[0].hosts:
            life = replace(
                life,
                links=life.links or lives[-1].links,
                devices=life.devices or lives[-1].devices,
            )
        lives.append(life)
    return lives


def _life(found: Facts, record: HostRecord, segment: Segment, ends: int | None) -> Facts:
    """The facts of one life. ends: its last step that was not made again."""
    first = segment.first_step

    def is_kept(step: int) -> bool:
        return step > first and (ends is None or step <= ends)

    def is_within(moment: float) -> bool:
        return segment.started < moment <= segment.ended

    life = replace(
        found,
        world_size=segment.world_size or found.world_size,
        device=segment.device or found.device,
        imported=segment.imported or found.imported,
        segments=(segment,),
        ranks=tuple(
            replace(
                rank,
                hosts=segment.hosts[rank.rank : rank.rank + 1],
                intervals=tuple(one for one in rank.intervals if is_kept(one.step)),
                repeated=tuple(one for one in rank.repeated if is_within(one.time)),
            )
            for rank in found.ranks
            if rank.rank < (segment.world_size or len(found.ranks))
        ),
        validations=tuple(one for one in found.validations if is_kept(one.step)),
        lost_validations=tuple(one for one in found.lost_validations if is_within(one.time)),
        checkpoints=tuple(one for one in found.checkpoints if is_kept(one.step)),
        pauses=tuple(one for one in found.pauses if segment.started <= one.began <= segment.ended),
        link_changes=tuple(one for one in record.link_changes if is_kept(one.since_step)),
    )
    return _with(life, record.samples, [record])


def _links_at_end(life: Facts) -> tuple[RecordedLink, ...]:
    """The rates of the links when a life ended."""
    if not life.link_changes:
        return life.links
    return (link_after(max(life.link_changes, key=lambda one: one.since_step), life.hosts[0]),)


def _are_alike(one: Facts, two: Facts) -> bool:
    """Whether two lives had the same ranks, on machines of the same speed as far as is known."""
    if one.segments[0].hosts != two.segments[0].hosts:
        return False
    if (one.world_size, one.device) != (two.world_size, two.device):
        return False
    if one.imported != two.imported:
        return False
    ended = replace(one, links=_links_at_end(one))
    rates = [[capacity_bytes_per_s(life) for life in (first, two)] for first in (one, ended)]
    rates += [[_flop_per_s(life, host) for life in (one, two)] for host in one.hosts]
    return all(
        before is None or after is None or max(before, after) <= _RATES_DIFFER * min(before, after)
        for before, after in rates
    )


def _flop_per_s(life: Facts, host: str) -> float | None:
    rates = [one.matrix_flop_per_s for one in life.devices if one.host == host]
    return statistics.fmean(rates) if rates else None
