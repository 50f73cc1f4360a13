"""A run directory -> Facts. Works during the run, after a crash and on old runs."""

from __future__ import annotations

import socket
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Self, TypeVar

from dragoman.base import units
from dragoman.base.errors import CheckpointError, ConfigError, CorpusError, MachineError
from dragoman.cluster.hosts import Hosts, recorded_hosts
from dragoman.corpus.manifest import Manifest
from dragoman.recipe.recipe import Recipe, recorded_recipe
from dragoman.recipe.run_directory import PREPARE_EVENTS
from dragoman.reporting import facts
from dragoman.reporting.facts import Facts, Pause, Rank, Segment, summed
from dragoman.reporting.lives import name_machines, with_measured
from dragoman.reporting.pauses import known_pauses, validations_without, without_pauses
from dragoman.reporting.rank_file import RankFile, RunStart
from dragoman.telemetry.events import (
    CorpusPrepared,
    CorpusStage,
    Event,
    event_files,
    number,
    read_events,
)
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.session import Session, read_session
from dragoman.training.durable import step_directories
from dragoman.training.inventory import take_inventory
from dragoman.training.pace import Budget, read_budget

_CLOCKS_DIFFER_S = 5.0
_MOST_RANKS = 10_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Records:
    """The files of a run directory besides its events."""

    manifest: Manifest | None = None
    recipe: Recipe | None = None
    prepare_s: float | None = None
    hosts: Hosts | None = None
    """The hosts of its last training, if `train --hosts` ran it."""
    budget: Budget | None = None
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the files that exist; a broken file is left out and reported as a problem."""
        problems: list[str] = []
        return cls(
            _whole(directory / "manifest.json", _manifest, problems),
            _whole(directory / "recipe.toml", recorded_recipe, problems),
            prepare_s(directory / "events"),
            _hosts(directory, problems),
            _budget(directory, problems),
            tuple(problems),
        )


def read_facts(
    directory: Path, *, price: HourlyPrice | None = None, now: float | None = None
) -> Facts:
    """The facts of a run.

    price: the price of one machine per hour; if None, the price that each life or hosts.json
        records.
    now: seconds since 1970; the present if None.
    Raises CheckpointError if the directory is not a run.
    """
    paths = event_files(directory / "events")
    if not paths and (directory / "bundle.json").is_file():
        raise CheckpointError(
            "is an export, which has no record",
            place=directory,
            remedy="name the run that it was made of",
        )
    if not paths and not (directory / "recipe.toml").is_file():
        raise CheckpointError(
            "is not a run: it holds neither a recipe.toml nor events",
            place=directory,
            remedy="name a directory that dragoman run or dragoman train made",
        )
    files = [RankFile.read(path) for path in paths]
    moment = time.time() if now is None else now
    return combine(directory, files, Records.read(directory), price=price, now=moment)


def combine(
    directory: Path,
    files: Sequence[RankFile],
    records: Records,
    *,
    price: HourlyPrice | None,
    now: float,
) -> Facts:
    """The facts of a run up to the moment `now`, from its event files, in the order of ranks."""
    problems = [problem for file in files for problem in file.problems()]
    problems += records.problems
    recipe = records.recipe
    clocks = [_clocks(file, files[0], problems) for file in files]
    on_main_clock = list(map(_on_main_clock, files, clocks))
    ranks = name_machines(on_main_clock, files, problems)
    by_number = {rank.rank: rank for rank in ranks}
    pauses = known_pauses(
        _on_its_host(replace(pause, began=pause.began - _ahead_s(lives, pause.began)), by_number)
        for file, lives in zip(files, clocks, strict=True)
        for pause in file.pauses
    )
    alerts = (
        replace(alert, time=alert.time - _ahead_s(lives, alert.time, host=alert.host))
        for file, lives in zip(files, clocks, strict=True)
        for alert in file.alerts
    )
    known = Facts(name="", read_at=0.0)
    if files:  # another rank may have the events that one rank lost
        fullest = facts.fullest(ranks)
        lives = files[ranks.index(fullest)]
        start = lives.start or next((file.start for file in files if file.start), RunStart())
        ranks = [_without_lost(rank, fullest.segments) for rank in ranks]
        known = _of_main_rank(files[0], start)
        known = replace(
            known, segments=tuple(_from_start(life, ranks) for life in fullest.segments)
        )
    main_lives = ranks[0].segments if ranks else ()
    problems += [] if known.imported else _missing_ranks(files, known.world_size)
    found = replace(
        known,
        name=known.name or (recipe.name if recipe else directory.name),
        read_at=now,
        max_steps=known.max_steps or (recipe.train.max_steps if recipe else None),
        prepare_s=records.prepare_s if known.prepare_s is None else known.prepare_s,
        ranks=without_pauses(ranks, pauses),
        pauses=tuple(pauses),
        validations=validations_without(known.validations, pauses, main_lives),
        lost_validations=validations_without(known.lost_validations, pauses, main_lives),
        alerts=tuple(sorted(alerts, key=lambda alert: alert.time)),
        exit=_exit(directory, known.segments),
        checkpoint_files=_checkpoint_files(directory / "checkpoints"),
        manifest=records.manifest,
        recipe=recipe,
        recorded_hosts=_recorded_hosts(records.hosts, known.world_size),
        budget=records.budget,
    )
    found = replace(found, price=price, host_prices=_host_prices(records.hosts, found))
    found = with_measured(found, files)
    problems += _short_ranks(found)
    return replace(found, problems=tuple(problems))


def _of_main_rank(file: RankFile, run: RunStart) -> Facts:
    """The facts that only rank 0 records."""
    return Facts(
        name=run.run_name or "",
        read_at=0.0,
        world_size=run.world_size,
        device=run.device,
        precision=run.precision,
        num_parameters=run.num_parameters,
        max_steps=file.lengths[-1][1] if file.lengths else run.max_steps,
        lengths=tuple(file.lengths),
        validations=tuple(file.validations),
        lost_validations=tuple(file.lost_validations),
        test_scores=tuple(file.test_scores),
        direction_scores=tuple(file.direction_scores),
        comparisons=tuple(file.comparisons),
        compared_groups=tuple(file.compared_groups),
        compared_sentences=tuple(file.compared_sentences),
        distillations=tuple(file.distillations),
        checkpoints=tuple(file.checkpoints),
        prepare_s=file.prepare_s,
        environment=file.environment,
        chosen=file.chosen[-1] if file.chosen else None,
        imported=file.imported,
        imported_scores=tuple(file.imported_scores),
    )


def _clocks(file: RankFile, main: RankFile, problems: list[str]) -> list[Segment]:
    """The lives of a rank, with how far their clocks are ahead of rank 0's: ranks end the same
    update of the same life at the same time."""
    own, theirs = file.segments, main.segments
    if not own or not theirs:
        return own
    times, main_times = _times(file, own), _times(main, theirs)
    ahead_s: list[float | None] = []
    differing: dict[str, str] = {}
    for life, made, place in zip(own, times, _beside(own, theirs), strict=True):
        known = main_times[place]
        ahead = [moment - known[step] for step, moment in made.items() if step in known]
        by_s = statistics.median(ahead) if ahead else 0.0
        ahead_s.append(by_s if ahead else None)
        if abs(by_s) > _CLOCKS_DIFFER_S:
            differing[life.host] = (
                f"the clock of {life.host} (rank {file.rank}) is "
                f"{units.DURATION.text(abs(by_s))} {'ahead of' if by_s > 0 else 'behind'} that of "
                f"{theirs[place].host}; times are corrected"
            )
    problems += differing.values()
    of_host = {life.host: by_s for life, by_s in zip(own, ahead_s, strict=True) if by_s is not None}
    return [
        replace(life, clock_ahead_s=of_host.get(life.host, 0.0) if by_s is None else by_s)
        for life, by_s in zip(own, ahead_s, strict=True)
    ]


def _beside(lives: Sequence[Segment], others: Sequence[Segment]) -> list[int]:
    """For each life of a rank, the index of the life of another rank at the same time."""
    if len(lives) == len(others):
        return list(range(len(lives)))
    return [
        min(
            range(len(others)),
            key=lambda place: (
                others[place].first_step != life.first_step,
                abs(others[place].started - life.started),
            ),
        )
        for life in lives
    ]


def _times(file: RankFile, lives: Sequence[Segment]) -> list[dict[int, float]]:
    """For each life, when it had made each of its steps."""
    found: list[dict[int, float]] = [{} for _ in lives]
    for one in (*file.repeated, *file.intervals):
        found[_life_at(lives, one.time)][one.step] = one.time
    return found


def _life_at(lives: Sequence[Segment], moment: float) -> int:
    """The index of the last life that had begun, or of the first."""
    return max(bisect_right(lives, moment, key=lambda life: life.started) - 1, 0)


def _ahead_s(lives: Sequence[Segment], moment: float, *, host: str | None = None) -> float:
    """How far a moment of the clock of these lives is ahead of rank 0's; 0 if it is not known.

    host: where it was; another machine may have written the event.
    """
    there = lives if host is None else [life for life in lives if life.host == host]
    return there[_life_at(there, moment)].clock_ahead_s if there else 0.0


def _on_main_clock(file: RankFile, clocks: Sequence[Segment]) -> Rank:
    """A rank with its times on rank 0's clock."""
    kept, repeated = (
        tuple(replace(one, time=one.time - _ahead_s(clocks, one.time)) for one in some)
        for some in (file.intervals, file.repeated)
    )
    lives = tuple(
        replace(
            one,
            started=one.started - one.clock_ahead_s,
            ended=one.ended - one.clock_ahead_s,
            accounted=one.accounted - one.clock_ahead_s,
        )
        for one in clocks
    )
    return Rank(rank=file.rank, host=file.host, intervals=kept, segments=lives, repeated=repeated)


def _without_lost(rank: Rank, lives: Sequence[Segment]) -> Rank:
    """The rank; if it has no part in a later life of the run, its steps that this life made again
    count as repeated."""
    if len(rank.segments) >= len(lives):
        return rank
    kept = list(accumulate((life.first_step for life in reversed(lives)), min))[::-1]

    def is_lost(one: facts.Interval) -> bool:
        begun = bisect_right(lives, one.time, key=lambda life: life.started)
        return begun < len(lives) and one.step > kept[begun]

    return replace(
        rank,
        intervals=tuple(one for one in rank.intervals if not is_lost(one)),
        repeated=(*rank.repeated, *filter(is_lost, rank.intervals)),
    )


def _from_start(life: Segment, ranks: Sequence[Rank]) -> Segment:
    """The life; if its start is lost, it begins with the first event of any rank at that time."""
    if life.world_size is not None:
        return life
    meanwhile = (
        other.started
        for rank in ranks
        for other in rank.segments
        if other.started <= life.ended and life.started <= other.ended
    )
    return replace(life, started=min(life.started, *meanwhile))


def _on_its_host(pause: Pause, ranks: Mapping[int, Rank]) -> Pause:
    """The pause with the name of the machine on which the rank ran then."""
    rank = ranks.get(pause.rank)
    life = None if rank is None else rank.life_at(pause.began)
    return pause if life is None else replace(pause, host=life.host)


def _recorded_hosts(hosts: Hosts | None, world_size: int | None) -> int | None:
    if hosts is None or sum(host.ranks for host in hosts.host) != world_size:
        return None
    return len(hosts.host)


def _missing_ranks(files: Sequence[RankFile], world_size: int | None) -> list[str]:
    missing = set(range(min(world_size or 0, _MOST_RANKS))) - {file.rank for file in files}
    if not files:
        return ["there are no events yet: the run has not started"]
    if not missing:
        return []
    names = ", ".join(map(str, sorted(missing)))
    return [f"no events of rank {names}, of {world_size} ranks: answers use the other ranks"]


def _short_ranks(found: Facts) -> list[str]:
    if found.imported is not None:
        return []
    whole = {rank.rank for rank in found.complete_ranks}
    return [
        f"events of rank {rank} lack {count} intervals of training that other ranks recorded"
        for rank, count in found.missing_intervals.items()
        if rank not in whole
    ]


def _whole(path: Path, load: Callable[[Path], T], problems: list[str]) -> T | None:
    if not path.is_file():
        return None
    try:
        return load(path)
    except (CorpusError, ConfigError) as error:
        problems.append(str(error))
        return None


def _manifest(path: Path) -> Manifest:
    """The manifest of a run's text; raises CorpusError if it names none."""
    found = Manifest.load(path.parent)
    if "train" not in found.splits or not found.train.stages:
        raise CorpusError(
            "names no training text", place=path, remedy="restore it from where it was copied"
        )
    return found


def _hosts(directory: Path, problems: list[str]) -> Hosts | None:
    try:
        return recorded_hosts(directory)
    except CheckpointError as error:
        problems.append(f"{error.place}: cannot be read: the prices of its hosts are not known")
        return None


def _budget(directory: Path, problems: list[str]) -> Budget | None:
    try:
        return read_budget(directory)
    except CheckpointError as error:
        problems.append(f"{error.place}: cannot be read: the cost of all is not known")
        return None


def _host_prices(hosts: Hosts | None, found: Facts) -> dict[str, HourlyPrice]:
    """The price of each machine by its name; empty if the hosts of hosts.json cannot be matched.

    hosts.json lists them in the order of the ranks in the last life that used hosts, which is the
    last that recorded a price: later lives were trained without --hosts. Old runs recorded no
    price.
    """
    if hosts is None or not found.segments:
        return {}
    priced = [life for life in found.segments if life.price is not None]
    last = (priced or found.segments)[-1]
    of_rank = [number for number, host in enumerate(hosts.host) for _ in range(host.ranks)]
    if len(of_rank) != last.world_size:
        return {}
    lives = ((rank.rank, rank.life_beside(last)) for rank in found.ranks)
    places = {(life.host, of_rank[rank]) for rank, life in lives if life and rank < len(of_rank)}
    names = dict(places)
    if not len(names) == len(set(names.values())) == len(places):
        return {}
    return {
        name: HourlyPrice(amount=amount, currency=hosts.currency)
        for name, number in names.items()
        if (amount := hosts.host[number].paid_per_hour) is not None
    }


def _exit(directory: Path, segments: Sequence[Segment]) -> Session | None:
    """How the command of the last recorded training ended."""
    session = read_session(directory)
    if session is None or session.state == "running" or not segments:
        return None
    if session.state == "gone" and session.machine != socket.gethostname():
        return None  # a process of another machine cannot be seen from here
    if segments[-1].started < session.started - _CLOCKS_DIFFER_S:
        return None  # that command trained nothing; the events are of an earlier one
    return session


def _checkpoint_files(directory: Path) -> tuple[facts.CheckpointFile, ...]:
    """The files of the newest checkpoint."""
    found = step_directories(directory)
    if not found:
        return ()
    return tuple(
        facts.CheckpointFile(
            name=str(entry.path), purpose=entry.purpose, size_bytes=entry.size_bytes
        )
        for entry in take_inventory(found[-1]).entries
    )


def prepare_s(directory: Path) -> float | None:
    """Seconds until the corpus was whole; None if its events are missing or not readable.

    Stages of attempts that were stopped and continued count too. If no end was recorded, only the
    stages count.
    """
    path = directory / PREPARE_EVENTS
    if not path.exists():
        return None
    try:
        seen = list(read_events(path))
    except MachineError:
        return None
    ends = [n for n, event in enumerate(seen) if event.kind == CorpusPrepared.kind]
    if not ends:
        return summed(map(_seconds_s, _stages(seen)))
    last, before = seen[ends[-1]], ends[-2] + 1 if len(ends) > 1 else 0
    whole_s = _seconds_s(last)
    if whole_s is None:
        return None
    began = last.time - whole_s
    stopped = [one for one in _stages(seen[before : ends[-1]]) if one.time < began]
    return whole_s + (summed(map(_seconds_s, stopped)) or 0.0)


def _stages(seen: list[Event]) -> list[Event]:
    return [event for event in seen if event.kind == CorpusStage.kind]


def _seconds_s(event: Event) -> float | None:
    return number(event.payload.get("seconds_s"))
