"""A run directory -> Facts. Works during the run and after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from dragoman.base.errors import CheckpointError, ConfigError, CorpusError
from dragoman.corpus.manifest import Manifest
from dragoman.recipe.recipe import Recipe, recorded_recipe
from dragoman.recipe.run_directory import PREPARE_EVENTS
from dragoman.reporting import facts
from dragoman.reporting.configurations import with_configurations
from dragoman.reporting.facts import Facts, Pause, Rank, RecordedValidation
from dragoman.reporting.log import RunLog
from dragoman.reporting.pauses import known_pauses, validations_without, without_pauses
from dragoman.reporting.record import Bools, Floats, summed
from dragoman.telemetry.events import (
    Compared,
    CorpusPrepared,
    CorpusStage,
    Environment,
    Event,
    ExamMarked,
    StrategyChosen,
    StudentMeasured,
    event_file,
    read_events,
)
from dragoman.telemetry.host import HourlyPrice
from dragoman.telemetry.session import Session, read_session
from dragoman.training.clock import Budget, read_budget
from dragoman.training.durable import step_directories
from dragoman.training.inventory import take_inventory

_NUM_SAMPLES = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Records:
    """The files of a run directory besides its events."""

    manifest: Manifest | None = None
    recipe: Recipe | None = None
    prepare_s: float | None = None
    budget: Budget | None = None
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the files that exist; a broken file is left out and reported as a problem."""
        problems: list[str] = []

        def whole(load: Callable[[Path], T], path: Path) -> T | None:
            try:
                return load(path) if path.exists() else None
            except CheckpointError as error:  # its remedy is for a run that goes on
                problems.append(f"{error.place}: cannot be read: its prices do not count")
            except (CorpusError, ConfigError) as error:
                problems.append(str(error))
            return None

        return cls(
            whole(lambda path: Manifest.load(path.parent), directory / "manifest.json"),
            whole(recorded_recipe, directory / "recipe.toml"),
            whole(prepare_s, directory / "events"),
            whole(read_budget, directory),
            tuple(problems),
        )


def read_facts(
    directory: Path, *, price: HourlyPrice | None = None, now: float | None = None
) -> Facts:
    """The facts of a run.

    price: the price of one machine per hour; if None, the price that each life records.
    now: seconds since 1970; the present if None.
    Raises CheckpointError if the directory is not a run, or if another version wrote its events.
    """
    path = event_file(directory / "events")
    if not path.exists() and (directory / "bundle.json").is_file():
        raise CheckpointError(
            "is an export, which has no record",
            place=directory,
            remedy="name the run that it was made of",
        )
    if not (directory / "recipe.toml").is_file() and (directory / "train").is_dir():
        raise CheckpointError(
            "is prepared text, and no run",
            place=directory,
            remedy="name a run that trained on it; the text is described in rejected/filters.html",
        )
    if not directory.exists():
        raise CheckpointError(
            "does not exist", place=directory, remedy="dragoman report --status lists the runs"
        )
    if not path.exists() and not (directory / "recipe.toml").is_file():
        raise CheckpointError(
            "is not a run: it holds neither a recipe.toml nor events",
            place=directory,
            remedy="name a directory that dragoman run or dragoman train made",
        )
    moment = time.time() if now is None else now
    return facts_of(directory, RunLog.read(path), Records.read(directory), price=price, now=moment)


def _of_the_model(
    samples: Sequence[facts.RecordedSample], validations: Sequence[RecordedValidation]
) -> tuple[facts.RecordedSample, ...]:
    """Those of the step with the best BLEU, whose model is exported; without BLEU, the last."""
    scored = [validation for validation in validations if validation.bleu is not None]
    best = max(scored, key=lambda validation: validation.bleu or 0.0, default=None)
    of_best = [sample for sample in samples if best is not None and sample.step == best.step]
    return tuple((of_best or samples)[-_NUM_SAMPLES:])


def facts_of(
    directory: Path, log: RunLog, records: Records, *, price: HourlyPrice | None, now: float
) -> Facts:
    """The facts of a run up to the moment `now`, from its events."""
    problems = [*log.problems(), *records.problems]
    recipe, start, lives = records.recipe, log.start, tuple(log.lives)
    ended = how_it_ended(directory)
    if not lives and ended is None:
        problems.append("there are no events yet: the run has not started")
    pauses = known_pauses(log.of(Pause))
    intervals = without_pauses(log.intervals, pauses)
    counted = is_kept(intervals["step"], intervals["life"], log.resumed_from)
    validations = validations_without(log.of(RecordedValidation), pauses)
    counts = [
        is_kept(validation.step, validation.life, log.resumed_from) for validation in validations
    ]
    names = [
        tuple(dict.fromkeys(life.hosts[rank] for life in lives if rank < len(life.hosts)))
        for rank in range(intervals["interval_s"].shape[1] if len(intervals) else 0)
    ]
    unmeasured = Facts(
        name=start.run_name or (recipe.name if recipe else directory.name),
        read_at=now,
        world_size=start.world_size,
        device=start.device,
        precision=start.precision,
        num_parameters=start.num_parameters,
        max_steps=log.max_steps if lives or not recipe else recipe.train.max_steps,
        clock=tuple(log.clock),
        finish_time=log.progress.finish_time,
        lives=lives,
        intervals=intervals.where(counted),
        repeated=intervals.where(~counted),
        ranks=tuple(Rank(rank=rank, hosts=hosts) for rank, hosts in enumerate(names)),
        pauses=tuple(pauses),
        validations=tuple(compress(validations, counts)),
        lost_validations=tuple(compress(validations, np.logical_not(counts))),
        test_scores=log.of(facts.TestScore),
        samples=_of_the_model(log.of(facts.RecordedSample), validations),
        direction_scores=log.of(facts.RecordedDirection),
        exam=log.of(ExamMarked),
        comparisons=log.of(Compared),
        distillations=log.of(StudentMeasured),
        checkpoints=log.of(facts.RecordedCheckpoint),
        prepare_s=records.prepare_s,
        environment={name: value for one in log.of(Environment) for name, value in one},
        chosen=next(reversed(log.of(StrategyChosen)), None),
        imported=log.imported,
        imported_scores=tuple(log.imported_scores),
        alerts=tuple(sorted(log.of(facts.RecordedAlert), key=lambda alert: alert.time)),
        exit=ended,
        checkpoint_files=_checkpoint_files(directory / "checkpoints"),
        manifest=records.manifest,
        recipe=recipe,
        price=price,
        budget=records.budget,
        problems=tuple(problems),
    )
    return with_configurations(unmeasured, log)


def is_kept(step: Floats | int, life: Floats | int, resumed_from: Sequence[int]) -> Bools:
    """Whether what was recorded at these steps of these lives counts: no later life made the steps
    again.

    resumed_from: the step after which each life trained.
    """
    later = np.minimum.accumulate([np.inf, *reversed(resumed_from[1:])])[::-1]
    kept: Bools = step <= later[np.asarray(life, dtype=int)]
    return kept


def how_it_ended(directory: Path) -> Session | None:
    """How the last command that trains ended; None if it trains, or nobody knows.

    It may have ended before it recorded a start: then the lives before it are over, too.
    """
    session = read_session(directory)
    if session is None or session.state in ("running", "unknown"):
        return None
    return session


def _checkpoint_files(directory: Path) -> tuple[facts.CheckpointFile, ...]:
    """The files of the newest checkpoint."""
    newest = step_directories(directory)
    if not newest:
        return ()
    return tuple(
        facts.CheckpointFile(
            name=str(entry.path), purpose=entry.purpose, size_bytes=entry.size_bytes
        )
        for entry in take_inventory(newest[-1]).entries
    )


def prepare_s(directory: Path) -> float | None:
    """Seconds until the corpus was whole; None if its events are missing.

    Stages of attempts that were stopped and continued count too. If no end was recorded, only the
    stages count.
    """
    path = directory / PREPARE_EVENTS
    if not path.exists():
        return None
    events = list(read_events(path))
    ends = [place for place, event in enumerate(events) if event.kind == CorpusPrepared.kind]
    if not ends:
        return summed(_stages_s(events))
    last, before = events[ends[-1]], ends[-2] + 1 if len(ends) > 1 else 0
    whole_s = float(last.payload["seconds_s"])
    stopped = [event for event in events[before : ends[-1]] if event.time < last.time - whole_s]
    return whole_s + sum(_stages_s(stopped))


def _stages_s(events: Sequence[Event]) -> list[float]:
    """Seconds of each stage of a preparation."""
    return [event.payload["seconds_s"] for event in events if event.kind == CorpusStage.kind]
