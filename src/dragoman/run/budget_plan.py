"""The plan of a budget: where it is spent, the size that is trained, and the least that is enough.

What each part of a run will take is estimated here, after one timing. While it trains, the clock
(`training.clock`) measures each part as it happens.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dragoman.base import units
from dragoman.base.errors import ConfigError, CorpusError, MachineError
from dragoman.cluster.hosts import Hosts, is_this_machine, load_hosts
from dragoman.cluster.options import RESTART_S
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.sources import check_text
from dragoman.distributed.wire import FP32_BYTES
from dragoman.formats.bundle import NUM_SENTENCES
from dragoman.recipe.budget import filled, keys_set
from dragoman.recipe.estimate import estimate
from dragoman.recipe.recipe import Recipe
from dragoman.run import run as steps
from dragoman.run.earlier import EarlierRun, earlier_run
from dragoman.run.sizes import (
    LEAST_STEPS,
    SizedModel,
    TextFacts,
    choose,
    vocabulary,
)
from dragoman.run.speed import (
    TrainingMachine,
    fewer_are_faster,
    last_copy_s,
    these_hosts,
    this_machine,
)
from dragoman.run.worker import default_ranks
from dragoman.telemetry.host import DISTURBING_SHARE, HourlyPrice
from dragoman.telemetry.sinks import check_hook
from dragoman.training.clock import AIM, Budget

_TIMING_SHARE: Final = 0.005
_LONGEST_TIMING_S: Final = 3.0
"""Share of the budget for timing the steps of one model, and the most seconds of that."""
_PREPARE_S: Final = 5.0
"""Time to begin, and to learn the vocabulary of a small text."""
PREPARE_PAIRS_PER_S: Final = 15_000
"""The rate of one core of a typical machine."""
_STARTS: Final = 2
"""Ranks have a launcher, and each of the two imports PyTorch."""
_START_S: Final = 4.0
"""Seconds that a process needs before its first step."""
_HEADROOM: Final = 1.1
"""The smallest budget is estimated, and an error that asks for too little would lead to another."""
_LARGE_SHARE: Final = 0.2
"""If preparing and timing take a larger share of a budget that is too small, the error says so."""
_FETCH_S: Final = 15.0
"""The least time to end the work on hosts and to copy the last checkpoint here."""
LEAST_VALIDATIONS: Final = 5
_MOST_VALIDATIONS: Final = 20
_VALIDATIONS_SHARE: Final = 0.06
"""The share of the training that validations take, within the least and the most of them."""
_SECONDS_PER_PAIR: Final = 1.0
_PAIRS: Final = (100, 1000)
"""Dev pairs that a validation translates: one per _SECONDS_PER_PAIR of the budget, in bounds."""
_SCORE_S: Final = 1.0
"""The time of a validation beside its translations."""
_SEARCH_COST: Final = 2.5
"""Seconds to translate a piece by beam search over those to train on one, before it is measured:
0.7 to 3.7 with the sizes `mini` to `small`, most while a model knows little."""
_EXPORT_WORK: Final = 2.0
"""The check of an export translates its sentences twice."""
_EXPORT_S: Final = 3.0
_WEIGHT_S: Final = 1e-7
"""Seconds per weight that the score of the test set and the export need to read it, convert it and
translate with it on a CPU: 16 s for 180 million (H100, two busy cores)."""
_WARMUP_SHARE: Final = 0.1
_MOST_WARMUP: Final = 4000
_AVERAGED_SHARE: Final = 0.01
"""The moving average of the weights reaches over this share of the steps."""
_SAVES: Final = 30
_LEAST_SAVE_S: Final = 5.0
"""The shortest time between two saves; a kill costs at most the time since the last one."""

_CHECKPOINT_NUMBERS: Final = 4
"""Numbers per weight: itself, its moving average and Adam's two averages."""
_DISK_BYTES_PER_S: Final = 2e8
"""The rate of a slow disk; it counts until a save has been measured."""


def rounded_up(time_s: float) -> float:
    """The next ten seconds, or the next minute above an hour: `units.DURATION` prints no less."""
    unit_s = 10 if time_s < units.HOUR_S else 60
    return math.ceil(time_s / unit_s) * unit_s


class TooSmallError(ConfigError):
    """A budget that leaves too little time for training. needed_s: the least that is enough.

    price: of all machines; then the error names the money, too, in which the budget may be given.
    gone_s: the part of the budget that preparing and timing took; it is named if it is large.
    """

    def __init__(
        self, seconds_s: float, *, needed_s: float, price: HourlyPrice | None, gone_s: float = 0.0
    ) -> None:
        self.needed_s = rounded_up(needed_s)
        given, needed = (
            units.DURATION.text(time_s) + (f" ({price.text(time_s)})" if price else "")
            for time_s in (seconds_s, self.needed_s)
        )
        used = ""
        if gone_s > _LARGE_SHARE * seconds_s:
            used = (
                f": {units.DURATION.text(math.ceil(gone_s))} of it went into preparing the text, "
                "which is kept, and timing models"
            )
        super().__init__(
            f"the budget is too small to train a useful model{used}",
            place=f"budget {given}",
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
                "cannot be given with hosts, which set the ranks of each host",
                place="ranks",
                remedy="leave it out",
            )
        return cls(hosts=hosts, file=file, price=price)


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """The training that was chosen for a budget.

    sizes: the chosen one and its neighbours. budget: with the expected seconds of the parts beside
    the updates, for the chosen size; its clock does not run yet. earlier: a run on the same text,
    the only forecast; None if there is none. warnings: about machine, hosts and text.
    """

    text: TextFacts
    chosen: SizedModel
    sizes: tuple[SizedModel, ...]
    budget: Budget
    place: Place
    by_hand: frozenset[str]
    earlier: EarlierRun | None = None
    warnings: tuple[str, ...] = ()

    @property
    def takes_s(self) -> float:
        """Seconds of the whole run: the budget, or less if the recipe sets few steps."""
        needed_s = self.chosen.tokens / self.chosen.tokens_per_s
        return self.budget.seconds_s - max(self.chosen.training_s - needed_s, 0.0)

    def settled(self, *, asked: str, started: float) -> tuple[Recipe, Budget]:
        """The recipe with its intervals, and the record of the budget; the training begins now."""
        recipe, budget = self.chosen.recipe, self.budget
        left_s = AIM * budget.seconds_s - (time.time() - started) - _rest_s(budget)
        left_s = max(left_s - _starts_s(self.place), 1.0)
        count = int(_VALIDATIONS_SHARE * left_s / _validation_s(budget))
        count = min(max(count, LEAST_VALIDATIONS), _MOST_VALIDATIONS)
        most_steps = recipe.train.max_steps if "train.max_steps" in self.by_hand else None
        training_s = max(left_s - count * _validation_s(budget), 1.0)
        if most_steps is not None:
            training_s = min(training_s, most_steps * self.chosen.step_s)
        values = _intervals(self.chosen.step_s, training_s)
        known = {"asked": asked, "started": started, "validations": count, "most_steps": most_steps}
        return filled(recipe, values, by_hand=self.by_hand), budget.model_copy(update=known)


def plan_budget(
    recipe: Recipe,
    seconds_s: float,
    place: Place,
    *,
    prepared: Path | None = None,
    runs: Path = Path("runs"),
) -> BudgetPlan:
    """The plan alone; nothing is written. runs: the folder of earlier runs.

    If the text is not prepared, the sizes of its files are all that is known of it.
    Raises ConfigError if the budget is too small or the recipe excludes one, CorpusError for
    what `check_text` finds, and the errors of `check_possible`.
    """
    check_possible(recipe, place)
    shifted = check_text(recipe.corpus)
    by_hand = keys_set(recipe)
    recipe = vocabulary(recipe, by_hand=by_hand)
    try:
        manifest = Manifest.load(prepared or steps.default_place(recipe))
        text, earlier, prepare_s = TextFacts.of(manifest), earlier_run(manifest, runs), 0.0
    except CorpusError:
        text, earlier = TextFacts.guessed(recipe), None
        prepare_s = text.pairs / PREPARE_PAIRS_PER_S
    gone_s = _PREPARE_S + prepare_s
    plan = make_plan(recipe, seconds_s, text, place, by_hand=by_hand, gone_s=gone_s)
    return replace(plan, earlier=earlier, warnings=(*plan.warnings, *shifted))


def plan_text(recipe: Recipe, seconds_s: float, text: TextFacts, place: Place) -> BudgetPlan:
    """The plan for text that is not here yet and will be prepared in another time.

    Raises ConfigError if the budget is too small.
    """
    by_hand = keys_set(recipe)
    recipe = vocabulary(recipe, by_hand=by_hand, pairs=text.pairs)
    return make_plan(recipe, seconds_s, text, place, by_hand=by_hand, gone_s=0.0)


def make_plan(
    recipe: Recipe,
    seconds_s: float,
    text: TextFacts,
    place: Place,
    *,
    by_hand: frozenset[str],
    gone_s: float,
) -> BudgetPlan:
    """The plan after one timing. gone_s: the part of the budget that is over.

    Raises TooSmallError with the least budget that is not too small.
    """
    began = time.monotonic()
    if place.hosts is not None:
        recipe = filled(recipe, {"distributed.strategy": "auto"}, by_hand=by_hand)
    least, most = _PAIRS
    pairs = min(max(round(seconds_s / _SECONDS_PER_PAIR), least), most, text.valid_pairs)
    dev = {"evaluate.bleu_pairs": pairs, "evaluate.train_slice_pairs": pairs}
    recipe = filled(recipe, dev, by_hand=by_hand)
    machine = machine_of(place, budget_s=seconds_s)
    fixed_s = gone_s + _starts_s(place)
    chosen, sizes = choose(
        recipe,
        text,
        machine,
        by_hand=by_hand,
        training_s=(1 - _VALIDATIONS_SHARE) * (AIM * seconds_s - fixed_s - _EXPORT_S),
        after_s=lambda recipe: _after_s(recipe, place),
    )
    smallest, parts = sizes[0], _parts(sizes[0], seconds_s, text, place)
    steps_s = smallest.step_s * (
        min(LEAST_STEPS, recipe.train.max_steps) if "train.max_steps" in by_hand else LEAST_STEPS
    )
    least_s = fixed_s + steps_s + LEAST_VALIDATIONS * _validation_s(parts) + _rest_s(parts)
    if seconds_s < least_s / AIM:
        used_s = gone_s + time.monotonic() - began
        needed_s = _HEADROOM * least_s / AIM
        raise TooSmallError(seconds_s, needed_s=needed_s, price=place.price, gone_s=used_s)
    warnings: list[str] = []
    if machine.others_share > DISTURBING_SHARE:
        warnings.append(
            f"other programs used {units.SHARE.text(machine.others_share)} of the processors while "
            "a model was timed, so its speed may be too low, and so may the size that was chosen"
        )
    if place.hosts is not None:
        warnings.append(_interruptions(place.hosts, chosen.training_s))
        warnings.append(fewer_are_faster(chosen.recipe, file=place.file))
    return BudgetPlan(
        text,
        chosen,
        tuple(sizes),
        _parts(chosen, seconds_s, text, place),
        place,
        by_hand,
        warnings=tuple(filter(None, warnings)),
    )


def _parts(one: SizedModel, seconds_s: float, text: TextFacts, place: Place) -> Budget:
    """The budget, with the expected seconds of the parts beside the updates of a size."""
    recipe, price = one.recipe, place.price
    decoded = min(recipe.evaluate.bleu_pairs, text.valid_pairs) * text.source_pieces_per_pair
    search_s = _SEARCH_COST * decoded / one.tokens_per_s
    work = _EXPORT_WORK * NUM_SENTENCES * text.source_pieces_per_pair + text.test_pieces
    weights = estimate(recipe).num_parameters
    return Budget(
        asked="",
        started=0.0,
        seconds_s=seconds_s,
        validation_s=search_s + _SCORE_S,
        search_s=search_s,
        save_s=weights * _CHECKPOINT_NUMBERS * FP32_BYTES / _DISK_BYTES_PER_S,
        after_s=_EXPORT_S + _after_s(recipe, place),
        after_searches=work / max(decoded, 1.0),
        starts=_starts(place) if text.test_pieces else 0,
        price_per_hour=None if price is None else price.amount,
        currency="" if price is None else price.currency,
    )


def _validation_s(budget: Budget) -> float:
    """Seconds of a validation, with the save after it."""
    return budget.validation_s + budget.save_s


def _rest_s(budget: Budget) -> float:
    """Seconds of the work after the training."""
    return budget.after_s + budget.after_searches * budget.search_s


def _interruptions(hosts: Hosts, training_s: float) -> str:
    """A warning about hosts that may be taken away; "" for hosts that stay."""
    spots = [host for host in hosts.host if host.interruption_hours is not None]
    if not spots:
        return ""
    mean_s = units.HOUR_S / math.fsum(1 / (host.interruption_hours or math.inf) for host in spots)
    restart_s = RESTART_S + max(host.replacement_s for host in spots)
    return (
        f"{training_s / mean_s:.2g} interruptions of hosts are expected; each costs about "
        f"{units.DURATION.text(restart_s)} and the work since the last save"
    )


def _after_s(recipe: Recipe, place: Place) -> float:
    """Seconds of the work after the training that depend on the number of weights; with hosts also
    those to end their work and to copy the last checkpoint here."""
    after_s = _WEIGHT_S * estimate(recipe).num_parameters
    if place.hosts is None:
        return after_s
    return after_s + max(_FETCH_S, last_copy_s(recipe, file=place.file))


def _starts(place: Place) -> int:
    """Processes that start one after the other on this machine before its ranks can work."""
    ranks = place.ranks or default_ranks()
    return _STARTS if ranks > 1 and place.hosts is None else 0


def _starts_s(place: Place) -> float:
    """Seconds until ranks have begun to train, and then to score."""
    return 2 * _starts(place) * _START_S


def machine_of(place: Place, *, budget_s: float) -> TrainingMachine:
    """The facts of a place that the choice of a size needs; the steps of a model are timed for a
    small share of the budget."""
    if place.hosts is not None:
        return these_hosts(place.hosts, file=place.file)
    return this_machine(
        ranks=place.ranks or default_ranks(),
        at_most_s=min(_TIMING_SHARE * budget_s, _LONGEST_TIMING_S),
    )


def check_possible(recipe: Recipe, place: Place) -> None:
    """Raise ConfigError if no budget can train this recipe, MachineError without CTranslate2 or
    without the recipe's hook."""
    if recipe.stages:
        raise ConfigError(
            "stages have lengths in steps, and a budget chooses the steps",
            place="budget",
            remedy="leave out the stages or the budget",
        )
    if not recipe.evaluate.bleu_pairs:
        raise ConfigError(
            "evaluate.bleu_pairs is 0, but a budget ends with the checkpoint of the best BLEU",
            place="budget",
            remedy="leave out evaluate.bleu_pairs or the budget",
        )
    check_exports()
    if place.hosts is None:
        check_hook(recipe.sinks)


def check_exports() -> None:
    """Raises MachineError if the export that ends a budget could not be written."""
    if find_spec("ctranslate2") is None:
        raise MachineError(
            "a budget ends with an export, and CTranslate2 is not installed",
            remedy="install it: pip install 'dragoman[serve]'",
        )


def _intervals(step_s: float, training_s: float) -> dict[str, Any]:
    """Values for the keys that set the schedule, the moving average and the saves. The number of
    steps is what the timing makes likely; the clock ends the run."""
    steps = max(1, int(training_s / step_s))
    return {
        "train.max_steps": steps,
        "train.validate_at_start": False,
        "train.ema_decay": round(max(0.0, 1 - 1 / max(1.0, _AVERAGED_SHARE * steps)), 6),
        "schedule.kind": "linear",
        "schedule.warmup_steps": min(_MOST_WARMUP, max(1, int(_WARMUP_SHARE * steps))),
        "checkpoint.every_steps": steps,
        "checkpoint.every_minutes": round(max(training_s / _SAVES, _LEAST_SAVE_S) / 60, 3),
    }
