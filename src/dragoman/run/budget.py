"""`dragoman run --budget`: the same run, made to end in time.

The clock starts with the first command and never stops: preparation, measurements, training,
restarts and the time between them, scores and export all count. While it trains, `training.pace`
fits its length.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import (
    CheckpointError,
    ConfigError,
    CorpusError,
    DivergenceError,
    MachineError,
)
from dragoman.base.files import read_regular, write_whole
from dragoman.cluster.hosts import Hosts, is_this_machine, load_hosts
from dragoman.cluster.interruptions import RESTART_S
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import OnProgress
from dragoman.corpus.sources import Sources, check_files
from dragoman.recipe.budget import filled, keys_set
from dragoman.recipe.recipe import Recipe, digest
from dragoman.recipe.run_directory import RunDirectory
from dragoman.run import run as steps
from dragoman.run.choose import (
    LEAST_STEPS,
    SHORTEST_S,
    Choice,
    SizeCandidate,
    TextFacts,
    TrainingMachine,
    after_pilots,
    at_other_budget,
    choose,
    vocabulary,
)
from dragoman.run.curves import Curve, curve_of, known_curves, source_of
from dragoman.run.expect import LEAST_BLEU, Expected, Law, fit_law
from dragoman.run.lengths import (
    AIM,
    EXPORT_S,
    LEAST_VALIDATIONS,
    SCORE_S,
    WorkAfterTraining,
    expected_search_s,
    lengths,
    validation_sizes,
    weights_s,
)
from dragoman.run.pilots import Piloted, Pilots, decide, plan_pilots
from dragoman.telemetry.events import EventListener
from dragoman.telemetry.host import PRICE_VARIABLE, HourlyPrice
from dragoman.training.checkpoint import CheckpointStore
from dragoman.training.pace import BUDGET_FILE, Budget, read_budget

_TIMING_SHARE: Final = 0.005
_LONGEST_TIMING_S: Final = 3.0
"""Share of the budget for timing the steps of one model, and the most seconds of that."""
_OUTSIDE_SHARE: Final = 0.1
"""Share of the budget for timing, validations, scores and export, until they are measured."""
_PREPARE_S: Final = 5.0
"""Time to begin, and to learn the vocabulary of a small text."""
PREPARE_PAIRS_PER_S: Final = 15_000
"""The rate of one core of a typical machine."""
_STARTS: Final = 2
"""Ranks have a launcher, and each of the two imports PyTorch."""
_LEAST_START_S: Final = 4.0
"""A process needs at least this long before its first step, even if its imports are timed as
less."""
_HEADROOM: Final = 1.1
"""The smallest budget is estimated, and an error that asks for too little would lead to another."""
_MOST_DOUBLINGS: Final = 10
_FETCH_S: Final = 15.0
"""The least time to end the work on hosts and to copy the last checkpoint here."""
_LONGEST_RECORD: Final = 1 << 16


def rounded_up(time_s: float) -> float:
    """The next ten seconds, or the next minute above an hour: `units.DURATION` prints no less."""
    unit_s = 10 if time_s < units.HOUR_S else 60
    return math.ceil(time_s / unit_s) * unit_s


class TooSmallError(ConfigError):
    """A budget that leaves too little time for training. needed_s: the least that is enough.

    price: of all machines; then the error names the money, too, in which the budget may be given.
    """

    def __init__(self, seconds_s: float, *, needed_s: float, price: HourlyPrice | None) -> None:
        self.needed_s = rounded_up(needed_s)
        given, needed = (
            units.DURATION.text(time_s) + (f" ({price.text(time_s)})" if price else "")
            for time_s in (seconds_s, self.needed_s)
        )
        super().__init__(
            "the budget is too small to train a useful model",
            place=f"--budget {given}",
            remedy=f"give at least {needed}",
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The machines on which a budget is spent.

    ranks: on this machine; None: one for each GPU, or one without GPUs. hosts: other machines in
    place of this one. file: the hosts file that names them, or gives this machine's price. price:
    the cost of all machines together per hour; None if it is not known.
    """

    ranks: int | None = None
    hosts: Hosts | None = None
    file: str = ""
    price: HourlyPrice | None = None

    @classmethod
    def of(cls, file: str | None, *, ranks: int | None = None) -> Place:
        """This machine, with its price if the hosts are this machine alone; or these hosts.

        Raises ConfigError if ranks are given for other hosts or the file cannot be used.
        """
        if file is None:
            return cls(ranks)
        hosts = load_hosts(file)
        price = None
        if hosts.price_per_hour is not None:
            price = HourlyPrice(hosts.price_per_hour, hosts.currency)
        if is_this_machine(hosts):
            return cls(ranks or hosts.host[0].ranks, file=file, price=price)
        if ranks is not None:
            raise ConfigError(
                "cannot be given with --hosts, which sets the ranks of each host",
                place="--ranks",
                remedy="leave it out",
            )
        return cls(hosts=hosts, file=file, price=price)


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """The training that was chosen for a budget.

    recipe: has all chosen settings but the lengths. training_s: the time for steps and
    validations. half, twice: the choices for half and for twice the budget; None if that is too
    small. start_s: seconds until a process has started, mostly to import PyTorch. translates_s: the
    budget from which a BLEU of LEAST_BLEU is expected; None if there is none. pilots: the short
    trainings that may decide between models; None if there is nothing to decide. piloted: the
    pilots that have finished. warnings: about the hosts.
    """

    seconds_s: float
    recipe: Recipe
    text: TextFacts
    choice: Choice
    training_s: float
    half: tuple[SizeCandidate, Expected] | None
    twice: tuple[SizeCandidate, Expected] | None
    place: Place
    by_hand: frozenset[str]
    start_s: float
    translates_s: float | None
    pilots: Pilots | None = None
    piloted: tuple[Piloted, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def takes_s(self) -> float:
        """Seconds that the whole run takes: the budget, or less if the recipe sets few steps."""
        unused_s = self.training_s - min(self.choice.best.training_s, self.training_s)
        return self.seconds_s - unused_s / (AIM - _OUTSIDE_SHARE)


def plan_budget(
    recipe: Recipe, seconds_s: float, place: Place, *, prepared: Path | None = None
) -> BudgetPlan:
    """The plan alone; nothing is written.

    If the text is not prepared, the sizes of its files are all that is known of it.
    Raises ConfigError if the budget is too small or the recipe excludes one, CorpusError if a file
    of text is missing, MachineError if CTranslate2 is not installed.
    """
    _check_possible(recipe)
    by_hand = keys_set(recipe)
    recipe = vocabulary(recipe, by_hand=by_hand)
    try:
        text = TextFacts.of(Manifest.load(prepared or steps.default_place(recipe)))
        prepare_s = 0.0
    except CorpusError:
        check_files(recipe.corpus)
        text = TextFacts.guessed(recipe)
        prepare_s = text.pairs / PREPARE_PAIRS_PER_S
    gone_s = _PREPARE_S + prepare_s
    return _plan(recipe, seconds_s, text, place, by_hand=by_hand, gone_s=gone_s)


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
    began: when the command was given, if that was not now. show, listeners: as in `run`.
    show_plan: called with the choice, before the training. print_line: prints a line about pilots
    or about the work on hosts.
    Raises ConfigError if the budget is too small, and all that `run` raises.
    """
    now = time.time() if began is None else began
    _check_possible(recipe)
    asked = _asked(recipe, seconds_s if money is None else money)
    pilots = runs / f".{recipe.name}-{asked[:8]}.pilots"
    if fresh:
        shutil.rmtree(pilots, ignore_errors=True)
    directory = None if fresh else _begun(recipe, asked, runs)
    if directory is None:
        started = _started(recipe, asked, runs, now=now, fresh=fresh)
        if now - started > seconds_s:
            raise ConfigError(
                f"began {units.DURATION.text(now - started)} ago and is over; no model was trained",
                place=f"--budget {units.DURATION.text(seconds_s)}",
                remedy="start again with --fresh",
            )
        by_hand = keys_set(recipe)
        recipe = vocabulary(recipe, by_hand=by_hand)
        try:
            with show or nullcontext() as progress:
                shards = steps.prepare(
                    recipe, directory=prepared, workers=workers, progress=progress
                )
            plan = _plan(
                recipe,
                seconds_s,
                TextFacts.of(Manifest.load(shards)),
                place,
                by_hand=by_hand,
                gone_s=time.time() - started,
            )
            plan = _with_pilots(plan, shards, folder=pilots, print_line=print_line)
            show_plan(plan)
            chosen, budget = _fitted(plan, shards, asked, started, runs=runs)
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
    if time.time() < budget.aim or not _has_checkpoint(directory):
        if place.hosts is not None:
            steps.train_on(place.hosts, directory, print_line=print_line, listeners=listeners)
        else:
            with _price_told(budget):
                steps.train(directory, ranks=place.ranks, listeners=listeners)
    corpus = directory.recipe().corpus
    if corpus.test or corpus.test_pairs:
        steps.evaluate(directory, ranks=place.ranks, listeners=listeners)
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
    return priced.model_copy(update={"seconds_s": seconds_s, "aim_s": AIM * seconds_s})


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


def _plan(
    recipe: Recipe,
    seconds_s: float,
    text: TextFacts,
    place: Place,
    *,
    by_hand: frozenset[str],
    gone_s: float,
) -> BudgetPlan:
    began = time.monotonic()
    import dragoman.run.speed  # noqa: F401 - as a process does when it begins: it imports torch

    start_s = max(time.monotonic() - began, _LEAST_START_S)
    # Ranks begin to train, and begin again to score.
    fixed_s = gone_s + EXPORT_S + 2 * _starts(place) * start_s
    training_s = max((AIM - _OUTSIDE_SHARE) * seconds_s - fixed_s, SHORTEST_S)
    warnings: list[str] = []
    if place.hosts is not None:
        recipe = filled(recipe, {"distributed.strategy": "auto"}, by_hand=by_hand)
        warnings.append(_interruptions(place.hosts, training_s))
    machine = machine_of(place, vocab_size=recipe.corpus.subword.vocab_size, budget_s=seconds_s)
    law = fit_law(known_curves())
    choice = choose(recipe, text, law, machine, by_hand=by_hand, training_s=training_s)
    least_s = min(
        fixed_s + one.after_s + one.least_steps * one.step_s
        for one in choice.candidates
        if one.fits
    )
    least_s = (least_s + LEAST_VALIDATIONS * SCORE_S) / (AIM - _OUTSIDE_SHARE)
    if seconds_s < least_s or not choice.best.has_enough_steps:
        needed_s = _HEADROOM * max(least_s, seconds_s)
        raise TooSmallError(seconds_s, needed_s=needed_s, price=place.price)
    half, twice = half_and_twice(choice, text, law, training_s=training_s, seconds_s=seconds_s)
    translates_s = budget_that_translates(
        choice, text, law, training_s=training_s, seconds_s=seconds_s
    )
    training_s -= choice.best.after_s
    if place.hosts is not None:
        from dragoman.run.speed import fewer_are_faster  # imports torch

        warnings.append(fewer_are_faster(choice.best.recipe, file=place.file))
    return BudgetPlan(
        seconds_s,
        choice.best.recipe,
        text,
        choice,
        training_s,
        half,
        twice,
        place,
        by_hand,
        start_s,
        translates_s,
        # On hosts each would have to start again, and a length that was set needs no choice.
        None
        if place.hosts is not None or "train.max_steps" in by_hand
        else plan_pilots(choice, text, law, training_s=training_s),
        warnings=tuple(filter(None, warnings)),
    )


def _interruptions(hosts: Hosts, training_s: float) -> str:
    """A warning about hosts that may be taken away; "" for hosts that stay."""
    spots = [host for host in hosts.host if host.interruption_hours is not None]
    if not spots:
        return ""
    mean_s = units.HOUR_S / math.fsum(1 / (host.interruption_hours or math.inf) for host in spots)
    restart_s = RESTART_S + max(host.replacement_s for host in spots)
    return (
        f"{training_s / mean_s:.2g} interruptions of hosts are expected; each costs about "
        f"{units.DURATION.text(restart_s)} and the work since the last save, which the expected "
        "BLEU does not count"
    )


def _fetch_s(recipe: Recipe, place: Place) -> float:
    """Seconds to end the work on hosts and to copy the last checkpoint here."""
    from dragoman.run.speed import last_copy_s  # imports torch

    return max(_FETCH_S, last_copy_s(recipe, file=place.file))


def _starts(place: Place) -> int:
    """Processes that start one after the other on this machine before its ranks can work."""
    from dragoman.run.worker import default_ranks  # imports torch

    ranks = place.ranks or default_ranks()
    return _STARTS if ranks > 1 and place.hosts is None else 0


def half_and_twice(
    choice: Choice, text: TextFacts, law: Law, *, training_s: float, seconds_s: float
) -> tuple[tuple[SizeCandidate, Expected] | None, tuple[SizeCandidate, Expected] | None]:
    """The choices for half and for twice a budget: preparation and export take as long in each."""
    more_s = (AIM - _OUTSIDE_SHARE) * seconds_s
    return (
        at_other_budget(choice, text, law, training_s=training_s - more_s / 2),
        at_other_budget(choice, text, law, training_s=training_s + more_s),
    )


def budget_that_translates(
    choice: Choice, text: TextFacts, law: Law, *, training_s: float, seconds_s: float
) -> float | None:
    """The smallest budget from which these candidates are expected to translate; None if a thousand
    times the budget is not enough."""
    for eighths in range(_MOST_DOUBLINGS * 8):
        budget_s = seconds_s * 2 ** (eighths / 8)
        more_s = (AIM - _OUTSIDE_SHARE) * (budget_s - seconds_s)
        found = at_other_budget(choice, text, law, training_s=training_s + more_s)
        if found is not None and found[1].bleu >= LEAST_BLEU:
            return budget_s
    return None


def machine_of(place: Place, *, vocab_size: int, budget_s: float) -> TrainingMachine:
    """The facts of a place that `choose` needs; the steps of each model are timed for a small share
    of the budget."""
    from dragoman.run.speed import these_hosts, this_machine  # imports torch
    from dragoman.run.worker import default_ranks

    if place.hosts is not None:
        return replace(
            these_hosts(place.hosts, file=place.file),
            after_s=lambda recipe: weights_s(recipe) + _fetch_s(recipe, place),
        )
    here = this_machine(
        ranks=place.ranks or default_ranks(),
        vocab_size=vocab_size,
        at_most_s=min(_TIMING_SHARE * budget_s, _LONGEST_TIMING_S),
    )
    return replace(here, after_s=weights_s)


def _with_pilots(
    plan: BudgetPlan, shards: Path, *, folder: Path, print_line: Callable[[str], None]
) -> BudgetPlan:
    """The plan after its pilots, which are trained if they are worth their time and no kill has
    ended them before. Raises ConfigError if they have left no time."""
    pilots = plan.pilots
    if pilots is None or pilots.why_not:
        return plan
    if folder.exists():
        shutil.rmtree(folder)
        return replace(plan, pilots=replace(pilots, why_not="a kill ended them"))
    began = time.monotonic()
    curves: list[Curve] = []

    def train(one: SizeCandidate, seconds_s: float) -> tuple[float, float]:
        print_line(f"pilot: {one.name}, for {units.DURATION.text(seconds_s)}")
        try:
            curve = _pilot(plan, one, seconds_s, shards, folder)
        except DivergenceError as error:
            print_line(f"pilot: {one.name}: {error.problem}")
            return one.tokens_per_s * seconds_s, 0.0
        curves.append(curve)
        return curve.end.tokens, curve.end.bleu or 0.0

    best, piloted = decide(pilots, plan.text, fit_law(known_curves()), train)
    shutil.rmtree(folder)
    known = {curve.source: curve for curve in (*known_curves(), *curves)}
    law = fit_law([*known.values()])
    training_s = plan.training_s - (time.monotonic() - began)
    if training_s <= 0:
        raise TooSmallError(plan.seconds_s, needed_s=2 * plan.seconds_s, price=plan.place.price)
    choice = after_pilots(
        plan.choice,
        best.name,
        plan.text,
        law,
        piloted={one.name for one in piloted},
        time_share=training_s / plan.training_s,
    )
    left_s = training_s + plan.choice.best.after_s  # the size may be another one now
    times = {"training_s": left_s, "seconds_s": plan.seconds_s}
    half, twice = half_and_twice(choice, plan.text, law, **times)
    return replace(
        plan,
        recipe=choice.best.recipe,
        choice=choice,
        training_s=left_s - choice.best.after_s,
        half=half,
        twice=twice,
        translates_s=budget_that_translates(choice, plan.text, law, **times),
        piloted=tuple(piloted),
    )


def _pilot(
    plan: BudgetPlan, one: SizeCandidate, seconds_s: float, shards: Path, folder: Path
) -> Curve:
    """The curve of a candidate that was trained for this many seconds, with its whole schedule."""
    from dragoman.run.speed import measure_save  # imports torch

    manifest = Manifest.load(shards)
    recipe = filled(one.recipe, validation_sizes(manifest, plan.seconds_s), by_hand=plan.by_hand)
    search_s = expected_search_s(recipe, manifest, tokens_per_s=one.tokens_per_s)
    step_s = seconds_s / max(one.steps * seconds_s / plan.training_s, 1.0)
    save_s = measure_save(recipe, manifest, folder)
    values = lengths(
        step_s=step_s,
        validation_s=search_s + SCORE_S,
        save_s=save_s,
        left_s=seconds_s,
        most_steps=None,
    )
    budget = Budget(
        asked="",
        started=time.time(),
        seconds_s=seconds_s,
        aim_s=seconds_s,
        validation_s=search_s + SCORE_S,
        save_s=save_s,
        search_s=search_s,
        after_s=0.0,
        after_searches=0.0,
        expected_bleu=one.expected.bleu,
        expected_bleu_low=one.expected.low,
        expected_bleu_high=one.expected.high,
    )
    run = RunDirectory.create(
        filled(recipe, values, by_hand=plan.by_hand),
        prepared=shards,
        runs=folder,
        fill=lambda draft: budget.save(draft.path),
    )
    steps.train(run, ranks=plan.place.ranks)
    curve = curve_of(run, source=source_of(run))
    assert curve is not None
    return curve


def _check_possible(recipe: Recipe) -> None:
    if recipe.stages:
        raise ConfigError(
            "stages have lengths in steps, and a budget chooses the steps",
            place="--budget",
            remedy="leave out the stages or the budget",
        )
    if not recipe.evaluate.bleu_pairs:
        raise ConfigError(
            "evaluate.bleu_pairs is 0, but a budget needs BLEU to compare models",
            place="--budget",
            remedy="leave out evaluate.bleu_pairs or the budget",
        )
    check_exports()


def check_exports() -> None:
    """Raises MachineError if the export that ends a budget could not be written."""
    if find_spec("ctranslate2") is None:
        raise MachineError(
            "a budget ends with an export, and CTranslate2 is not installed",
            remedy="install it: pip install 'dragoman[serve]'",
        )


def _asked(recipe: Recipe, budget: float | tuple[float, str]) -> str:
    """Digest of recipe, budget and keys that are set: a key set to its default is not free.

    budget: seconds, or an amount and a currency.
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
    if any(entry.mtdata for entry in (*corpus.train, *corpus.valid, *corpus.test)):
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


def _fitted(
    plan: BudgetPlan, shards: Path, asked: str, started: float, *, runs: Path
) -> tuple[Recipe, Budget]:
    """The recipe with lengths that fit, from timed steps on the real text; and the Budget.

    Raises TooSmallError if too little time is left for training.
    """
    from dragoman.run.speed import Speed, measure_save, measure_training  # imports torch
    from dragoman.run.worker import default_ranks

    recipe, seconds_s, place, by_hand = plan.recipe, plan.seconds_s, plan.place, plan.by_hand
    manifest = Manifest.load(shards)
    ranks = place.ranks or default_ranks()
    recipe = filled(recipe, validation_sizes(manifest, seconds_s), by_hand=by_hand)
    here = speed = measure_training(
        recipe, shards, ranks=ranks, at_most_s=2 * _TIMING_SHARE * seconds_s
    )
    if place.hosts is not None:
        tokens = here.tokens_per_step
        speed = Speed(tokens / plan.choice.best.tokens_per_s, tokens)
    search_s = expected_search_s(recipe, manifest, tokens_per_s=speed.tokens_per_s)
    validation_s = search_s + SCORE_S
    save_s = measure_save(recipe, manifest, runs)
    after = WorkAfterTraining.of(recipe, manifest)
    if place.hosts is not None:  # the work after the training is done here
        search_here_s = expected_search_s(recipe, manifest, tokens_per_s=here.tokens_per_s)
        after_s = after.seconds_s + _fetch_s(recipe, place) + after.searches * search_here_s
        after = WorkAfterTraining(after_s, 0.0)
    starts = _starts(place)
    outside_s = after.seconds_s + after.searches * search_s + 2 * starts * plan.start_s
    gone_s = time.time() - started
    left_s = AIM * seconds_s - gone_s - outside_s
    most_steps = recipe.train.max_steps if "train.max_steps" in by_hand else None
    least_steps = min(LEAST_STEPS, most_steps or LEAST_STEPS)
    least_s = least_steps * speed.step_s + LEAST_VALIDATIONS * (validation_s + save_s)
    if left_s < least_s:
        needed_s = _HEADROOM * (gone_s + least_s + outside_s) / AIM
        raise TooSmallError(seconds_s, needed_s=needed_s, price=place.price)
    values = lengths(
        step_s=speed.step_s,
        validation_s=validation_s,
        save_s=save_s,
        left_s=left_s,
        most_steps=most_steps,
    )
    expected = plan.choice.best.expected
    return filled(recipe, values, by_hand=by_hand), Budget(
        asked=asked,
        started=started,
        seconds_s=seconds_s,
        aim_s=AIM * seconds_s,
        validation_s=validation_s,
        save_s=save_s,
        after_s=after.seconds_s,
        search_s=search_s,
        after_searches=after.searches,
        starts=starts if "test" in manifest.splits else 0,
        most_steps=most_steps,
        expected_bleu=expected.bleu,
        expected_bleu_low=expected.low,
        expected_bleu_high=expected.high,
        price_per_hour=None if place.price is None else place.price.amount,
        currency="" if place.price is None else place.price.currency,
    )


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
