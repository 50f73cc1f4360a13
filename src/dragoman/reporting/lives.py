"""The lives of a run: the machines of each, what was measured there, and the answers from it.

A run that was stopped may go on with other ranks, hosts, devices or links. Measurements of one life
say nothing about a life on other machines, and those before a change of the link nothing about what
came after it. So an answer is that of the newest part of the run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dragoman.base import units
from dragoman.reporting.facts import Facts, RecordedDevice, RecordedLink
from dragoman.reporting.log import RunLog
from dragoman.reporting.measures import capacity_bytes_per_s, link_after, steady
from dragoman.reporting.periods import FEWEST, FROM_START, moment
from dragoman.reporting.sampling import Samples
from dragoman.reporting.verdict import Evidence, Judgement
from dragoman.telemetry.events import LinkChanged

_RATES_DIFFER = 1.1
"""Repeated measurements of the same link or device differ by less than this factor."""
_MOST_HOSTS_NAMED = 3
_MOST_SHOWN = 3
_Part = tuple[LinkChanged | None, Facts]
"""Some steps on the same machines and the same link, and the change of the link before them."""


def with_measured(without: Facts, log: RunLog) -> Facts:
    """The facts with the measurements of hosts, for the whole run and for each of its lives."""
    lives = _lives(without, log)
    facts = replace(
        _sampled(without, log.samples),
        links=tuple(link for hosts in log.hosts for link in hosts.of(RecordedLink)),
        devices=tuple(device for hosts in log.hosts for device in hosts.of(RecordedDevice)),
        link_changes=tuple(change for life in lives for change in life.link_changes),
    )
    if all(_are_alike(earlier, later) for earlier, later in pairwise(lives)):
        return facts
    sampled = (_sampled(life, log.samples, number) for number, life in enumerate(lives))
    return replace(facts, lives=tuple(life for life in sampled if len(life.intervals)))


def judged_by_life(facts: Facts, judge: Callable[[Facts], Judgement]) -> Judgement:
    """The answer for the machines that the run trains on now; see `_judged`."""
    return _judged([(None, life) for life in facts.lives or (facts,)], judge)


def judged_by_link(facts: Facts, judge: Callable[[Facts], Judgement]) -> Judgement:
    """The answer for the machines and the link that the run trains on now; see `_judged`."""
    lives = facts.lives or (facts,)
    return _judged([part for life in lives for part in _cut_at_link_changes(life)], judge)


def evidence_by_life(
    facts: Facts, evidence: Callable[[Facts], Iterator[Evidence]]
) -> Iterator[Evidence]:
    """The rows of the run, or of its newest lives with their steps and hosts."""
    if len(facts.lives) < 2:
        yield from evidence(newest_life(facts))
        return
    lives = [life for life in facts.lives if _lasted(life)] or facts.lives
    for life in reversed(lives[-_MOST_SHOWN:]):
        for row in evidence(life):
            yield replace(row, name=f"{_where(life)}: {row.name}")


def newest_life(facts: Facts) -> Facts:
    """The run on the machines that it trains on now."""
    return facts.lives[-1] if facts.lives else facts


def link_changed(change: LinkChanged) -> str:
    """When a link changed, and its rate before and after."""
    now, before = (
        units.BYTE_RATE.text(rate) for rate in (change.now_bytes_per_s, change.before_bytes_per_s)
    )
    link = ", ".join(text for text in (change.interface, change.where) if text) or "the link"
    since = f"Since {moment(change.since_step, change.since)}"
    return f"{since}, {link} carried {now} each way, {before} before"


def _judged(parts: Sequence[_Part], judge: Callable[[Facts], Judgement]) -> Judgement:
    """The answer of the newest part that lasted; of the newest one if none did.

    The text begins with what it is an answer for. Then it names a newer part, which is too short to
    judge, and says what was so in earlier parts that lasted, the newest first.
    """
    if len(parts) == 1:
        return judge(parts[0][1])
    trained = [part for part in parts if len(part[1].intervals)] or parts[-1:]
    lasting = [part for part in trained if _lasted(part[1])] or trained
    newest = lasting[-1]
    answer, says, remedy = judge(newest[1])
    if newest is parts[-1]:
        lines = [_in_part(_since(newest), says)]
    else:
        lines = [_in_part(f"{_where(newest[1])}:", says)]
        lines.append(f"{_since(parts[-1])} There are too few intervals to judge.")
    shown = lasting[-_MOST_SHOWN:-1]
    for _, facts in reversed(shown):
        lines.append(_in_part(f"{_where(facts)}:", judge(facts)[1]))
    if more := len(lasting) - 1 - len(shown):
        lines.append(f"Earlier changes of hosts or links that are not shown: {more}.")
    return answer, " ".join(lines), remedy


def _lasted(facts: Facts) -> bool:
    """Whether there are enough intervals for an answer."""
    return len(steady(facts.intervals)) >= FEWEST


def _in_part(heading: str, says: str) -> str:
    """What is said of a part, whose heading tells when it started."""
    return f"{heading} {says.replace(f', {FROM_START}', '').replace(f' {FROM_START}', '')}"


def _since(part: _Part) -> str:
    """The heading of the part in which a run is now, or ended."""
    change, facts = part
    if change is not None:
        return f"{link_changed(change)}."
    first, _ = _steps(facts)
    took_s = float(np.nan_to_num(facts.intervals.of("interval_s")[0]))
    began = moment(first, float(facts.intervals["time"][0]) - took_s)
    return f"Since {began}, on {_hosts(facts)}:"


def _where(facts: Facts) -> str:
    """The steps and hosts of a part."""
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


def _cut_at_link_changes(life: Facts) -> list[_Part]:
    """A life, cut where its network changed; without a change it is one part.

    An interval in which the network changed belongs to no part.
    """
    changes = sorted(life.link_changes, key=lambda change: change.since_step)
    if not changes:
        return [(None, life)]
    last_step = life.intervals["step"]
    first_step = last_step - life.intervals["steps"] + 1
    parts: list[_Part] = []
    for change, after in zip([None, *changes], [*changes, None], strict=True):
        first = change.since_step if change else 0
        last = after.since_step - 1 if after else life.last_step
        intervals = life.intervals.where((first <= first_step) & (last_step <= last))
        links = life.links if change is None else (link_after(change, life.hosts[0]),)
        parts.append((change, replace(life, intervals=intervals, links=links, link_changes=())))
    return parts


def _sampled(facts: Facts, samples: Samples, life: int | None = None) -> Facts:
    """The facts with the samples of one life, or of all."""
    return replace(
        facts,
        gpus=tuple(samples.gpus(life)),
        traffic=tuple(samples.traffic(life)),
        machines=tuple(samples.machines(life)),
    )


def _lives(facts: Facts, log: RunLog) -> list[Facts]:
    """Each life of the run."""
    lives: list[Facts] = []
    for number, segment in enumerate(facts.segments):
        ends = min((later.first_step for later in facts.segments[number + 1 :]), default=None)
        life = _life(facts, log, number, ends)
        # Measured once, if at all: training tells again of a link that is still slow.
        if lives and segment.hosts == lives[-1].segments[0].hosts:
            life = replace(
                life,
                links=life.links or lives[-1].links,
                devices=life.devices or lives[-1].devices,
            )
        lives.append(life)
    return lives


def _life(facts: Facts, log: RunLog, number: int, ends: int | None) -> Facts:
    """The facts of one life. ends: its last step that was not made again."""
    segment, hosts = facts.segments[number], log.hosts[number]
    first, ranks = segment.first_step, segment.world_size or len(facts.ranks)

    def is_kept(step: int) -> bool:
        return step > first and (ends is None or step <= ends)

    def is_within(moment: float) -> bool:
        return segment.started < moment <= segment.ended

    return replace(
        facts,
        world_size=segment.world_size or facts.world_size,
        device=segment.device or facts.device,
        imported=segment.imported or facts.imported,
        segments=(segment,),
        intervals=facts.intervals.where(facts.intervals["life"] == number).of_ranks(ranks),
        repeated=facts.repeated.where(facts.repeated["life"] == number).of_ranks(ranks),
        ranks=tuple(
            replace(rank, hosts=segment.hosts[rank.rank : rank.rank + 1])
            for rank in facts.ranks[:ranks]
        ),
        validations=tuple(
            validation for validation in facts.validations if is_kept(validation.step)
        ),
        lost_validations=tuple(lost for lost in facts.lost_validations if is_within(lost.time)),
        checkpoints=tuple(written for written in facts.checkpoints if is_kept(written.step)),
        pauses=tuple(
            pause for pause in facts.pauses if segment.started <= pause.began <= segment.ended
        ),
        links=hosts.of(RecordedLink),
        devices=hosts.of(RecordedDevice),
        link_changes=tuple(
            change for change in hosts.of(LinkChanged) if is_kept(change.since_step)
        ),
    )


def _links_at_end(life: Facts) -> tuple[RecordedLink, ...]:
    """The rates of the links when a life ended."""
    if not life.link_changes:
        return life.links
    return (
        link_after(max(life.link_changes, key=lambda change: change.since_step), life.hosts[0]),
    )


def _are_alike(earlier: Facts, later: Facts) -> bool:
    """Whether two lives had the same ranks, on machines of the same speed as far as is known."""
    if earlier.segments[0].hosts != later.segments[0].hosts:
        return False
    if (earlier.world_size, earlier.device) != (later.world_size, later.device):
        return False
    if earlier.imported != later.imported:
        return False
    ended = replace(earlier, links=_links_at_end(earlier))
    rates = [[capacity_bytes_per_s(life) for life in (first, later)] for first in (earlier, ended)]
    rates += [[_flop_per_s(life, host) for life in (earlier, later)] for host in earlier.hosts]
    return all(
        before is None or after is None or max(before, after) <= _RATES_DIFFER * min(before, after)
        for before, after in rates
    )


def _flop_per_s(life: Facts, host: str) -> float | None:
    rates = [device.matrix_flop_per_s for device in life.devices if device.host == host]
    return statistics.fmean(rates) if rates else None
