"""`dragoman run --budget`: the same run, made to end in time.

The clock starts with the first command and never stops: preparation, the timing, training,
restarts and the time between them, scores and export all count. The training follows the clock
(`training.clock`); `run.budget_plan` chooses what is trained.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError, ConfigError, CorpusError
from dragoman.base.files import read_regular, write_whole
from dragoman.base.printable import printable_line
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import OnProgress
from dragoman.corpus.sources import Sources
from dragoman.recipe.budget import keys_set
from dragoman.recipe.recipe import Recipe, digest
from dragoman.recipe.run_directory import RunDirectory
from dragoman.run import run as steps
from dragoman.run.budget_plan import BudgetPlan, Place, check_possible, make_plan
from dragoman.run.budget_view import time_lost
from dragoman.run.earlier import earlier_run
from dragoman.run.sizes import TextFacts, vocabulary
from dragoman.telemetry.events import EventListener
from dragoman.telemetry.host import PRICE_VARIABLE
from dragoman.training.checkpoint import CheckpointStore
from dragoman.training.clock import BUDGET_FILE, Budget, read_budget

_LONGEST_RECORD: Final = 1 << 16


def run_in_budget(
    recipe: Recipe,
    seconds_s: float,
    place: Place,
    *,
    runs: Path,
    money: tuple[float, str] | None = None,
    prepared: Path | None = None,
    workers: int | None = None,
    began: float | None = None,
    fresh: bool = False,
    show: AbstractContextManager[OnProgress | None] | None = None,
    listeners: Sequence[EventListener] = (),
    show_plan: Callable[[BudgetPlan], None],
    print_line: Callable[[str], None],
) -> RunDirectory:
    """Text -> shards -> checkpoints -> scores -> int8 export for CTranslate2, within `seconds_s`.

    The same call resumes an unfinished run, by the same clock; a finished run is left alone.
    money: the amount and currency if the budget is one of money, which `seconds_s` are worth at
    today's price: a run that resumes at another price gets the time that the rest pays for.
    began: when the time began, by the clock of the caller; a run that exists then resumes in the
    time that it began with, whatever `seconds_s` are now. None: with the first command, which a
    file remembers. show, listeners: as in `run`.
    show_plan: called with the choice, before the training. print_line: prints a line.
    Raises ConfigError if the budget is too small, and all that `run` raises.
    """
    now = time.time()
    check_possible(recipe, place)
    asked = _asked(recipe, "" if began is not None else seconds_s if money is None else money)
    directory = None if fresh else _begun(recipe, asked, runs)
    if directory is None:
        started = began or _started(recipe, asked, runs, now=now, fresh=fresh)
        if now - started > seconds_s:
            raise ConfigError(
                f"began {units.DURATION.text(now - started)} ago and is over; no model was trained",
                place=f"budget {units.DURATION.text(seconds_s)}",
                remedy="start again (fresh)",
            )
        if told := recipe.corpus.told_by_names:
            print_line(f"languages: {printable_line(told)}")
        by_hand = keys_set(recipe)
        recipe = vocabulary(recipe, by_hand=by_hand)
        try:
            shards = steps.prepare(
                recipe, directory=prepared, workers=workers, show=show, listeners=listeners
            )
            manifest = Manifest.load(shards)
            text = TextFacts.of(manifest)
            print_line(f"{text.pairs:,} training pairs are prepared")
            print_line("timing models, to choose one that fits the time")
            plan = make_plan(
                recipe,
                seconds_s,
                text,
                place,
                by_hand=by_hand,
                gone_s=time.time() - started,
            )
            plan = replace(plan, earlier=earlier_run(manifest, runs))
            show_plan(plan)
            chosen, budget = plan.settled(asked=asked, started=started)
            directory = RunDirectory.create(
                chosen, prepared=shards, runs=runs, fill=lambda draft: budget.save(draft.path)
            )
        except (ConfigError, CorpusError):  # nothing has begun: the next command starts the clock
            _start_record(recipe, asked, runs).unlink(missing_ok=True)
            raise
        _start_record(recipe, asked, runs).unlink(missing_ok=True)
    return _finish(directory, place, money=money, listeners=listeners, print_line=print_line)


def _finish(
    directory: RunDirectory,
    place: Place,
    *,
    money: tuple[float, str] | None,
    listeners: Sequence[EventListener],
    print_line: Callable[[str], None],
) -> RunDirectory:
    """Train, score and export; finished parts are not repeated."""
    budget = read_budget(directory.path)
    assert budget is not None
    if budget.finished is not None:
        return directory
    priced = _at_price(budget, place, money)
    if priced != budget:
        priced.save(directory.path)
    budget = priced
    if time.time() >= budget.aim and (lost := time_lost(directory, budget)):
        print_line(f"warning: the time ran out: {lost}. What there is, is scored and exported now")
    if time.time() < budget.aim or not _has_checkpoint(directory):
        if place.hosts is not None:
            steps.train_on(place.hosts, directory, print_line=print_line, listeners=listeners)
        else:
            with _price_told(budget):
                steps.train(directory, ranks=place.ranks, listeners=listeners)
    corpus = directory.recipe().corpus
    if corpus.test or corpus.test_pairs:
        steps.evaluate(directory, ranks=place.ranks, listeners=listeners)
        # A later evaluation writes its translations over those in `samples`.
        shutil.copytree(directory.samples, directory.own_samples, dirs_exist_ok=True)
    _export(directory)
    budget.model_copy(update={"finished": time.time()}).save(directory.path)
    return directory


def _at_price(budget: Budget, place: Place, money: tuple[float, str] | None) -> Budget:
    """The budget of a run that resumes at the price of this place; its earlier cost stays.

    A budget of money gets the time that the rest of it pays for.
    """
    price = place.price
    if price is None or (price.amount, price.currency) == (budget.price_per_hour, budget.currency):
        return budget
    if budget.price_per_hour is not None and price.currency != budget.currency:
        raise ConfigError(
            f"its hosts are paid in {price.currency}, and what the run has cost in "
            f"{budget.currency}",
            place=place.file,
            remedy=f"give the prices in {budget.currency}, too",
        )
    now = time.time()
    priced = budget.at_price(price.amount, price.currency, now=now)
    if money is None:
        return priced
    left_s = max(money[0] - priced.paid, 0.0) / price.amount * units.HOUR_S
    seconds_s = now - budget.started + left_s
    return priced.model_copy(update={"seconds_s": seconds_s})


@contextmanager
def _price_told(budget: Budget) -> Iterator[None]:
    """Inside the block, workers that start learn the price as those on hosts do."""
    before = os.environ.get(PRICE_VARIABLE)
    if budget.price_per_hour is not None:
        os.environ[PRICE_VARIABLE] = f"{budget.price_per_hour} {budget.currency}"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(PRICE_VARIABLE, None)
        else:
            os.environ[PRICE_VARIABLE] = before


def _asked(recipe: Recipe, budget: object) -> str:
    """Digest of recipe, budget and keys that are set: a key set to its default is not free.

    budget: seconds, an amount and a currency, or "" if a caller has the clock.
    """
    text = f"{digest(recipe)} {budget!r} {' '.join(sorted(keys_set(recipe)))}"
    return hashlib.sha256(text.encode()).hexdigest()


def _begun(recipe: Recipe, asked: str, runs: Path) -> RunDirectory | None:
    """The newest run that was begun with this recipe and this budget, on the text as it is now."""
    found = sorted(path.parent for path in runs.glob(f"{recipe.name}-*/{BUDGET_FILE}"))
    for path in reversed(found):
        budget = read_budget(path)
        if budget is not None and budget.asked == asked:
            run = RunDirectory.open(path)
            return run if _is_of_this_text(run) else None
    return None


def _is_of_this_text(run: RunDirectory) -> bool:
    """Whether the files of text, if they are there, are as they were when the run began.

    Named corpora do not change, and are not fetched for this.
    """
    corpus = run.recipe().corpus
    if any(entry.is_named for entry in (*corpus.train, *corpus.valid, *corpus.test)):
        return True
    try:
        sources = Sources(corpus, downloads=run.path)
    except CorpusError:
        return True  # it needs its shards alone
    return sources.match(Manifest.load(run.path))


def _started(recipe: Recipe, asked: str, runs: Path, *, now: float, fresh: bool) -> float:
    """The time of the first command, in Unix seconds. A file records it until the run exists."""
    file = _start_record(recipe, asked, runs)
    if not fresh:
        try:
            return float(json.loads(read_regular(file, limit=_LONGEST_RECORD)))
        except (OSError, ValueError, TypeError):
            pass
    with disk_errors_named(runs):
        runs.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(now))
    return now


def _start_record(recipe: Recipe, asked: str, runs: Path) -> Path:
    return runs / f".{recipe.name}-{asked[:8]}.started"


def _has_checkpoint(directory: RunDirectory) -> bool:
    recipe = directory.recipe()
    store = CheckpointStore(directory.checkpoints, recipe.checkpoint)
    try:
        store.choose("best")
    except CheckpointError:
        return False
    return True


def _export(directory: RunDirectory) -> None:
    from dragoman.distributed.world import join_world
    from dragoman.formats.export import export
    from dragoman.formats.export_job import Request

    with join_world() as world:
        export(directory, Request(to="ctranslate2", quantization="int8"), world)
