"""What would another hour of training be worth, and what more text?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dragoman.api.checks import checked, opened_run
from dragoman.api.kinds import Count, OnEvent, RunLike
from dragoman.base import units
from dragoman.base.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.recipe.recipe import Recipe
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.reporting.facts import Facts
    from dragoman.reporting.worth import Gain

_NAMES: Final = {0.25: "quarter", 0.5: "half"}


@dataclass(frozen=True, slots=True)
class Worth:
    """What more of something is worth.

    more: of what, in words. gain: in dev loss and BLEU; a sentence if nobody can tell.
    cost: the price of it, in words; "" if it is not known.
    """

    more: str
    gain: Gain | str
    cost: str


@checked
def worth(
    run: RunLike,
    *,
    hours: float = 1.0,
    pairs: Count = 10_000,
    train: bool = False,
    ranks: Count | None = None,
    on_event: OnEvent | None = None,
    progress: bool = False,
) -> list[Worth]:
    """Tell what another hour of training or more text is worth.

    The hour is told from the run's own dev losses. Text is told from two more runs of the same
    recipe, on a quarter and on a half of the text; they lie beside the run.

    run: a run that has ended.
    hours: how many more hours of training.
    pairs: how many more pairs of the same kind. Twice the text is told, too.
    train: train these two runs if they are not there yet; each takes about as long as the run.
    ranks, on_event, progress: as for `train`.
    Nothing is told about more than twice the steps or twice the text. Nothing is told about text if
    the run was stopped, or if a budget ended it.
    Raises CheckpointError if there is no run, ConfigError if it has not ended or began with a
    trained model, and the errors of `train`.
    """
    from dragoman.recipe.run_directory import ORIGIN_FILE
    from dragoman.reporting import worth as gains
    from dragoman.reporting.cost import currency_of, price_per_hour
    from dragoman.reporting.reading import read_facts

    if not 0 < hours < math.inf:
        raise ConfigError("must be more than 0", place="hours", remedy="give 1 for an hour")
    opened = opened_run(run)
    facts = read_facts(opened.path)
    if facts.is_running or not facts.last_step:
        raise ConfigError("has not ended", place=opened.path, remedy="let it train to its end")
    if (opened.path / ORIGIN_FILE).exists():
        raise ConfigError(
            "began with a trained model, so a part of its text does not tell what text is worth",
            place=opened.path,
            remedy="name a run that began from nothing",
        )
    steps, price = gains.steps_in(facts, hours * units.HOUR_S), ""
    if facts.lives and (each := price_per_hour(facts, facts.lives[-1])) is not None:
        price = units.money(hours * each.amount, currency=currency_of(facts) or "")
    told = [
        Worth(
            f"{units.DURATION.text(hours * units.HOUR_S)} more"
            + ("" if steps is None else f", {units.COUNT.text(round(steps))} steps"),
            "Nothing was timed." if steps is None else gains.of_more_steps(facts, steps),
            price,
        )
    ]
    manifest = facts.manifest
    if manifest is None:
        return told
    now = round(opened.recipe().data.share * manifest.train.pairs)
    parts: list[Facts] | str = "It did not come to the end of its schedule, so parts cannot tell."
    if facts.is_finished and not facts.clock:
        parts = list(_parts(opened, train, ranks, on_event, progress))
    for more in dict.fromkeys((pairs, now)):
        gain: Gain | str = "Nobody knows before two runs on parts of the text are there (train)."
        if isinstance(parts, str):
            gain = parts
        elif len(parts) == len(_NAMES):
            gain = gains.of_more_text([*parts, facts], more, now=now)
        twice = ", twice the text" if more == now else ""
        told.append(Worth(f"{units.COUNT.text(more)} pairs more{twice}", gain, ""))
    return told


def _parts(
    run: RunDirectory,
    may_train: bool,
    ranks: int | None,
    on_event: OnEvent | None,
    progress: bool,
) -> Iterator[Facts]:
    """The records of the runs on parts of the text, the smaller part first."""
    from dragoman.api import training
    from dragoman.reporting.reading import read_facts
    from dragoman.run import run as steps

    whole, runs = run.recipe(), run.path.parent
    for share, name in _NAMES.items():
        part = training.load_recipe(
            run.recipe_file,
            [f"name={whole.name}-{name}", f"data.share={share * whole.data.share}"],
        )
        if may_train:  # on the shards as they are, whatever has become of the text
            begun = steps.start(part, prepared=run.prepared(), runs=runs)
            made = training.train(begun, ranks=ranks, on_event=on_event, progress=progress)
            yield read_facts(made.path)
        elif (found := _finished(part, runs)) is not None:
            yield found


def _finished(recipe: Recipe, runs: Path) -> Facts | None:
    """The record of a finished run of this recipe; None if there is none."""
    from dragoman.recipe.recipe import digest
    from dragoman.recipe.run_directory import RunDirectory, runs_in
    from dragoman.reporting.reading import read_facts

    for path in runs_in(runs):
        is_named = path.name.startswith(f"{recipe.name}-")
        if is_named and digest(RunDirectory(path).recipe()) == digest(recipe):
            facts = read_facts(path)
            if facts.is_finished:
                return facts
    return None
