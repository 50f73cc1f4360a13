"""The tables of a budget: the choice before it begins, and the time used at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from dragoman.base import units
from dragoman.base.terminal import open_console, plain_table
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.run.budget_plan import LEAST_VALIDATIONS, BudgetPlan
from dragoman.run.sizes import LEAST_WIDTH, UNKNOWN_PAIRS, VOCABULARY, SizedModel, TextFacts
from dragoman.training.clock import FORECAST_FROM, Budget, read_budget

_LOST: Final = 0.1
"""A run that was stopped for this share of its budget is not the one that was planned."""


def print_plan(plan: BudgetPlan) -> None:
    """Print the chosen size between its neighbours, the reasons, and what is known of the result.

    A speed behind "about" was not timed: it follows from that of another size.
    """
    console, best, seconds_s = open_console(), plan.chosen, plan.budget.seconds_s
    table = plain_table(
        "model",
        right=("width", "layers", "weights", "target tokens/s", "updates", "epochs"),
        no_wrap=True,
    )
    for one in plan.sizes:
        table.add_row(*_row(one), style="bold" if one is best else "")
    training = units.DURATION.text(best.training_s)
    heading = f"in {_cost(plan, seconds_s)} for everything, of which {training} for training:"
    console.print(heading, table, "", sep="\n")
    console.print(Text(f"chosen: {best.name}: {best.why}", style="bold"))
    for one in plan.sizes:
        if one is not best:
            console.print(f"not {one.name}: {one.why}", highlight=False)
    console.print()
    for reason in _reasons(plan):
        console.print(Text(reason, style="dim"))
    console.print("", _forecast(plan), sep="\n")
    if "train.max_steps" in plan.by_hand and plan.takes_s < seconds_s:
        steps, takes = units.COUNT.text(best.recipe.train.max_steps), _cost(plan, plan.takes_s)
        console.print(f"all of it takes about {takes}: the recipe sets {steps} steps")
    for warning in plan.warnings:
        console.print(warning)


def _forecast(plan: BudgetPlan) -> str:
    earlier = plan.earlier
    share = units.SHARE.text(1 / LEAST_VALIDATIONS)
    if earlier is None:
        return (
            "nobody knows how well it will translate: no finished run on this text is in this "
            f"folder of runs. The first validation comes after {share} of the training or earlier; "
            f"from {units.SHARE.text(FORECAST_FROM)} on, the dev loss at the end is forecast."
        )
    seen, bleu = earlier.end
    weights = (
        "" if earlier.weights is None else f", {units.SHORT_COUNT.text(earlier.weights)} weights"
    )
    before = f"{earlier.path} trained on this text before{weights}: "
    ended = f"{units.SCORE.text(bleu)} BLEU on the dev text after its {_tokens(seen)}"
    if plan.chosen.tokens > seen:
        return f"{before}{ended}; this plan has {_tokens(plan.chosen.tokens)}"
    then = earlier.after(plan.chosen.tokens)
    had = "no BLEU yet" if then is None else f"{units.SCORE.text(then)} BLEU"
    return f"{before}{had} after the {_tokens(plan.chosen.tokens)} of this plan, and {ended}"


def _tokens(number: float) -> str:
    return f"{units.SHORT_COUNT.text(number)} target tokens"


def time_lost(run: RunDirectory, budget: Budget) -> str:
    """The time of a budget in which its training was stopped, in words; "" if it was short."""
    facts = read_facts(run.path)
    if not facts.lives:
        lost_s = budget.aim - budget.started
    else:
        ended = facts.lives[-1].ended
        # A training that did not end by itself is not resumed when its time is over.
        until = ended if facts.is_finished else max(ended, budget.aim)
        lost_s = until - facts.lives[0].started - (facts.wall_s or 0.0)
    if lost_s < _LOST * budget.seconds_s:
        return ""
    steps, planned = units.COUNT.text(facts.last_step), run.recipe().train.max_steps
    return (
        f"the training was stopped for {units.DURATION.text(lost_s)} of its budget of "
        f"{units.DURATION.text(budget.seconds_s)}, and that counts: it made {steps} of about "
        f"{units.COUNT.text(planned)} planned steps. For a whole training start again (fresh); a "
        "larger budget begins a new run, too"
    )


def print_outcome(run: RunDirectory) -> None:
    """Print the scores of a run with a budget, and how much of its time and money it has used."""
    budget = read_budget(run.path)
    if budget is None or budget.finished is None or budget.used_s is None:
        return
    facts, console = read_facts(run.path), open_console()
    ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(budget.finished))
    dev = [one.bleu for one in facts.validations if one.bleu is not None]
    scores = [f"dev {units.SCORE.text(max(dev))}"] if dev else []
    own = [one for one in facts.test_scores if one.label == "test"]
    scores += [f"test {units.SCORE.text(own[0].bleu)}"] if own else []
    console.print(f"done at {ended}; BLEU: {', '.join(scores) or 'none'}")
    console.print(f"int8 export: {run.path / 'export' / 'ctranslate2-int8'}", soft_wrap=True)
    used = f"used {units.DURATION.text(budget.used_s)} of {units.DURATION.text(budget.seconds_s)}"
    cost, most = (
        budget.cost(until=budget.started + seconds_s)
        for seconds_s in (budget.used_s, budget.seconds_s)
    )
    if cost is not None and most is not None:
        spent, planned = (units.money(x, currency=budget.currency) for x in (cost, most))
        used += f", {spent} of {planned}"
    share = units.SHARE.text(budget.used_s / budget.seconds_s)
    console.print(f"{used} ({share}): from the first command to the export")
    if facts.wall_s is not None:
        console.print(f"of it training, with validations: {units.DURATION.text(facts.wall_s)}")
    if lost := time_lost(run, budget):
        console.print(Text(f"warning: {lost}", style="yellow"), soft_wrap=True)


def _cost(plan: BudgetPlan, seconds_s: float) -> str:
    """An amount of time, with its price if that is known."""
    price = plan.place.price
    text = units.DURATION.text(seconds_s)
    return text if price is None else f"{text} ({price.text(seconds_s)})"


def _row(one: SizedModel) -> tuple[str, ...]:
    model, recipe = one.recipe.model, one.recipe
    pieces = recipe.corpus.subword.vocab_size
    weights = model.num_parameters(source_vocab_size=pieces, target_vocab_size=pieces)
    return (
        one.name,
        str(model.d_model),
        f"{model.encoder_layers}+{model.decoder_layers}",
        units.SHORT_COUNT.text(weights),
        ("" if one.is_timed else "about ") + units.COUNT.text(one.tokens_per_s),
        units.COUNT.text(one.steps),
        f"{one.epochs:.3g}",
    )


def _reasons(plan: BudgetPlan) -> Iterator[str]:
    """The reason for each setting of the chosen size; or that the setting was made by hand."""
    best, recipe = plan.chosen, plan.chosen.recipe
    rate = units.LEARNING_RATE.text(recipe.schedule.peak_learning_rate)
    batch = units.COUNT.text((recipe.data.batch_tokens or 0) * recipe.data.accumulate)
    tokens = units.SHORT_COUNT.text(best.tokens)
    groups = recipe.data.groups(recipe.corpus.max_pieces + 1)
    dropout = recipe.model.dropout
    chosen = {
        "corpus.subword.vocab_size": _vocabulary(recipe),
        "data.batch_tokens": (
            f"an update learns from up to {batch} target tokens: it grows with those of the run, "
            f"{tokens}"
        ),
        "data.length_groups": (
            f"an update mixes sentences of {groups} or more lengths: with one it teaches less"
            if groups > 1
            else "an update has sentences of one length: this GPU would have to pad others"
        ),
        "model.dropout": (
            f"{f'dropout of {dropout:g}' if dropout else 'no dropout'}: "
            f"the text is seen {best.epochs:.3g} times"
        ),
        "schedule.peak_learning_rate": (
            f"learning rate of at most {rate}: 0.576 / {max(recipe.model.d_model, LEAST_WIDTH)}"
        ),
        "optimizer.clip_norm": "gradients clipped to a norm of 1",
        "schedule.kind": "it rises for a tenth of the time, then falls in a straight line to zero",
        "train.precision": (
            "precision auto: bf16 where it is faster, else fp32"
            if recipe.train.precision == "auto"
            else f"{recipe.train.precision}: on a GPU"
        ),
        "train.ema_decay": "weights averaged over about a hundredth of the updates",
    }
    set_keys = {key: key for key in plan.by_hand}
    if recipe.data.batch_sentences is not None:
        set_keys["data.batch_tokens"] = "data.batch_sentences"
    for key, reason in chosen.items():
        yield f"{set_keys[key]} is set" if key in set_keys else reason
    for key in ("schedule.total_steps", "schedule.warmup_steps"):
        if key in plan.by_hand:
            yield f"{key} is set; about {units.COUNT.text(best.steps)} updates fit into the time"
    if recipe.train.compile and "train.compile" not in plan.by_hand:
        yield "torch.compile: on a GPU, from half an hour on"
    if plan.place.hosts is not None and "distributed.strategy" not in plan.by_hand:
        yield "strategy auto: measured when they train"


def _vocabulary(recipe: Recipe) -> str:
    """The reason for the size of the vocabulary, which is chosen before the pairs are counted."""
    pieces, pairs = recipe.corpus.subword.vocab_size, TextFacts.guessed(recipe).pairs
    least, most = VOCABULARY
    limits = {least: ", at least that", most: ", at most that"}
    is_here = pairs != UNKNOWN_PAIRS
    known_from = "by the size of the files" if is_here else "a guess: the text is not here yet"
    characters = (
        ", and its many characters" if pieces > max(25 * math.sqrt(pairs) + 50, least) else ""
    )
    return (
        f"vocabulary of {units.COUNT.text(pieces)} pieces{limits.get(pieces, '')}: 25 x the square "
        f"root of about {units.COUNT.text(pairs)} pairs, {known_from}{characters}"
    )
