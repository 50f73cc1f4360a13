"""The lives of a run: the machines of each, what was measured there, and the answers from it.

A run that was stopped may go on with other ranks, hosts, devices or links. Measurements of one life
say nothing about a life on other machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dragoman.base import units
from dragoman.reporting import facts
from dragoman.reporting.facts import Facts, Rank, RecordedLink, Segment
from dragoman.reporting.measures import capacity_bytes_per_s, link_after
from dragoman.reporting.rank_file import HostRecord, RankFile
from dragoman.reporting.sampling import Samples
from dragoman.reporting.verdict import Answer, Evidence, Judgement
from dragoman.telemetry.events import LinkChanged

MOST_OF_RUN = 0.9
"""An answer that holds for this share of the steps' time is the answer for the run."""
_BOOTS_DIFFER_S = 5.0
_RATES_DIFFER = 1.1
"""Repeated measurements of the same link or device differ by less than this factor."""
_MOST_HOSTS_NAMED = 3
_MOST_SHOWN = 3


def name_machines(
    ranks: Sequence[Rank], files: Sequence[RankFile], problems: list[str]
) -> list[Rank]:
    """Ranks whose lives name their machines; machines of the same name get a number.

    Two ranks of one life are on two machines if the machines booted at different times, or if both
    ranks sample their host, which only one rank of each host does. Clones that no rank samples
    cannot be distinguished.
    """
    named = [list(rank.segments) for rank in ranks]
    for life in facts.fullest(ranks).segments if ranks else ():
        machines: dict[str, list[list[_RankLife]]] = {}
        for place in _places(ranks, files, life):
            known = machines.setdefault(place.life.host, [])
            same = next(
                (some for some in known if all(_may_share(place, one) for one in some)), None
            )
            if same is None:
                known.append(same := [])
            same.append(place)
            if (number := known.index(same) + 1) > 1:
                name = f"{place.life.host} ({number})"
                named[place.file][place.number] = replace(place.life, host=name)
        problems += [
            problem
            for host, known in machines.items()
            if len(known) > 1
            and (problem := f"more than one machine has the name {host}") not in problems
        ]
    return [
        replace(rank, segments=tuple(lives), host=lives[-1].host if lives else rank.host)
        for rank, lives in zip(ranks, named, strict=True)
    ]


def with_measured(found: Facts, files: Sequence[RankFile]) -> Facts:
    """The facts with the measurements of hosts, for the whole run and for each of its lives.

    found: its ranks name their machines, and there is one rank for each file.
    """
    whole = []
    for rank, file in zip(found.ranks, files, strict=True):
        names = {
            raw.host: life.host for raw, life in zip(file.segments, rank.segments, strict=True)
        }
        ahead_s = {life.host: life.clock_ahead_s for life in rank.segments}
        whole.append(_Measured(ahead_s, file.samples, file.host_records, names))
    lives = _lives(found, files)
    return replace(
        _with(found, whole),
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


@dataclass(frozen=True, slots=True)
class _RankLife:
    """One rank in one life of the run.

    file: the index of its file. number: the index of this life among the lives of the rank.
    """

    file: int
    number: int
    life: Segment
    host_record: HostRecord
    clock_was_set: bool


def _places(ranks: Sequence[Rank], files: Sequence[RankFile], life: Segment) -> Iterator[_RankLife]:
    for place, (rank, file) in enumerate(zip(ranks, files, strict=True)):
        own = rank.life_beside(life)
        if own is not None:
            number = rank.segments.index(own)
            yield _RankLife(place, number, own, file.host_records[number], bool(file.clock_jumps))


def _may_share(one: _RankLife, other: _RankLife) -> bool:
    if one.host_record.samples.has_host and other.host_record.samples.has_host:
        return False
    boots = (one.host_record.boot, other.host_record.boot)
    if boots[0] is None or boots[1] is None or one.clock_was_set or other.clock_was_set:
        return True
    return abs(boots[0] - boots[1]) < _BOOTS_DIFFER_S


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measurements of hosts from one file.

    ahead_s: how far the clock of each machine is ahead of rank 0's, by the machine's name.
    names: from a name in the file to the machine's name; hosts without one are left out.
    """

    ahead_s: Mapping[str, float]
    samples: Samples
    host_records: Sequence[HostRecord]
    names: dict[str, str]


def _with(found: Facts, measured: Sequence[_Measured]) -> Facts:
    """The facts with these measurements, on the clock of rank 0."""
    return replace(
        found,
        gpus=tuple(gpu for one in measured for gpu in one.samples.gpus(one.names, one.ahead_s)),
        traffic=tuple(
            traffic for one in measured for traffic in one.samples.traffic(one.names, one.ahead_s)
        ),
        machines=tuple(
            machine for one in measured for machine in one.samples.machines(one.names, one.ahead_s)
        ),
        links=tuple(
            link
            for one in measured
            for host_record in one.host_records
            for link in host_record.links
        ),
        devices=tuple(
            replace(device, host=one.names[device.host])
            for one in measured
            for host_record in one.host_records
            for device in host_record.devices
            if device.host in one.names
        ),
    )


def _lives(found: Facts, files: Sequence[RankFile]) -> list[Facts]:
    """Each life of the run."""
    lives: list[Facts] = []
    for number, segment in enumerate(found.segments):
        ends = min((later.first_step for later in found.segments[number + 1 :]), default=None)
        life = _life(found, files, segment, ends)
        # Measured once, if at all: training tells again of a link that is still slow.
        if lives and _places_of(life) == _places_of(lives[-1]):
            life = replace(
                life,
                links=life.links or lives[-1].links,
                devices=life.devices or lives[-1].devices,
            )
        lives.append(life)
    return lives


def _life(found: Facts, files: Sequence[RankFile], segment: Segment, ends: int | None) -> Facts:
    """The facts of one life. ends: its last step that was not made again."""
    first = segment.first_step

    def is_kept(step: int) -> bool:
        return step > first and (ends is None or step <= ends)

    measured, ranks = [], []
    link_changes: list[LinkChanged] = []
    for place in _places(found.ranks, files, segment):
        rank, raw = found.ranks[place.file], files[place.file].segments[place.number].host
        own, host_record = place.life, place.host_record
        ahead_s = {own.host: own.clock_ahead_s}
        measured.append(_Measured(ahead_s, host_record.samples, [host_record], {raw: own.host}))
        link_changes += [one for one in host_record.link_changes if is_kept(one.since_step)]
        ranks.append(
            replace(
                rank,
                host=own.host,
                segments=(own,),
                intervals=tuple(one for one in rank.intervals if is_kept(one.step)),
                repeated=tuple(one for one in rank.repeated if own.started < one.time <= own.ended),
            )
        )
    life = replace(
        found,
        world_size=segment.world_size or found.world_size,
        device=segment.device or found.device,
        imported=segment.imported or found.imported,
        segments=(segment,),
        ranks=tuple(ranks),
        validations=tuple(one for one in found.validations if is_kept(one.step)),
        lost_validations=tuple(
            one for one in found.lost_validations if segment.started < one.time <= segment.ended
        ),
        checkpoints=tuple(one for one in found.checkpoints if is_kept(one.step)),
        pauses=tuple(one for one in found.pauses if segment.started <= one.began <= segment.ended),
        link_changes=tuple(link_changes),
    )
    return _with(life, measured)


def _places_of(life: Facts) -> dict[int, str]:
    return {rank.rank: rank.host for rank in life.ranks}


def _links_at_end(life: Facts) -> tuple[RecordedLink, ...]:
    """The rates of the links when a life ended."""
    if not life.link_changes:
        return life.links
    return (link_after(max(life.link_changes, key=lambda one: one.since_step), life.hosts[0]),)


def _are_alike(one: Facts, two: Facts) -> bool:
    """Whether two lives had the same ranks, on machines of the same speed as far as is known."""
    if _places_of(one) != _places_of(two):
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
