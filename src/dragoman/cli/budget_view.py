"""The tables of a budget: the candidates before it begins, and the time used at its end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from dragoman.base import units
from dragoman.base.terminal import open_console, plain_table
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.run.budget import BudgetPlan, rounded_up
from dragoman.run.choose import (
    LEAST_WIDTH,
    UNKNOWN_PAIRS,
    VOCABULARY,
    SizeCandidate,
    TextFacts,
)
from dragoman.run.expect import COVERED, LEAST_BLEU, Expected
from dragoman.run.pilots import SHARE
from dragoman.training.pace import read_budget


def print_plan(plan: BudgetPlan) -> None:
    """Print a row per candidate, the reasons for the choice, and the BLEU of other budgets."""
    console, best = open_console(), plan.choice.best
    table = plain_table(
        "model",
        right=("width", "layers", "weights", "vocabulary", "batch", "dropout", "tokens/s", "steps"),
    )
    for heading in ("epochs", "BLEU"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for one in plan.choice.candidates:
        style = "bold" if one is best else ""
        table.add_row(*_row(one), "chosen" if one is best else one.why_not, style=style)
    training = units.DURATION.text(plan.training_s)
    heading = f"in {_cost(plan, plan.seconds_s)}, of which about {training} for training:"
    console.print(heading, table, "", sep="\n")
    for reason in (*_reasons(plan), *_pilots(plan)):
        console.print(Text(reason, style="dim"))
    console.print("", _doubts(plan), sep="\n")
    if best.steps == best.recipe.train.max_steps and "train.max_steps" in plan.by_hand:
        steps, takes = units.COUNT.text(best.steps), _cost(plan, plan.takes_s)
        console.print(f"all of it takes about {takes}: the recipe sets {steps} steps")
    for words, other in (("half", plan.half), ("twice", plan.twice)):
        if other is None:
            console.print(f"{words} the time would be too short to train a useful model")
        else:
            console.print(f"{words} the time would buy {_bleu(other[1])} BLEU ({other[0].name})")
    for warning in plan.warnings:
        console.print(warning)
    if best.expected.bleu < LEAST_BLEU and "train.max_steps" not in plan.by_hand:
        console.print(_hardly_translates(plan))


def _hardly_translates(plan: BudgetPlan) -> str:
    """A warning that the expected BLEU is that of a model which is of no use."""
    if plan.translates_s is None:
        remedy = "more time alone will not help"
    else:
        remedy = f"for that much, give about {_cost(plan, rounded_up(plan.translates_s))}"
    return f"below {LEAST_BLEU:g} BLEU a model hardly translates: {remedy}"


def print_outcome(run: RunDirectory) -> None:
    """Print how much of its budget a run has used, and its scores against the expected ones."""
    budget = read_budget(run.path)
    used_s = None if budget is None else budget.used_s
    if budget is None or used_s is None:
        return
    cost, most = (
        budget.cost(until=budget.started + seconds_s) for seconds_s in (used_s, budget.seconds_s)
    )
    facts = read_facts(run.path)
    scored = [one.bleu for one in facts.validations if one.bleu is not None]
    found = f", found {units.SCORE.text(max(scored))}" if scored else ""
    low, high = (units.SCORE.text(x) for x in (budget.expected_bleu_low, budget.expected_bleu_high))
    expected = units.SCORE.text(budget.expected_bleu)
    console = open_console()
    console.print(f"dev BLEU: expected {expected} ({low} to {high}){found}")
    console.print(f"int8 export: {run.path / 'export' / 'ctranslate2-int8'}", soft_wrap=True)
    used = f"used {units.DURATION.text(used_s)} of {units.DURATION.text(budget.seconds_s)}"
    if cost is not None and most is not None:
        spent, planned = (units.money(x, currency=budget.currency) for x in (cost, most))
        used += f", {spent} of {planned}"
    console.print(f"{used} ({units.SHARE.text(used_s / budget.seconds_s)})")


def _cost(plan: BudgetPlan, seconds_s: float) -> str:
    """An amount of time, with its price if that is known."""
    price = plan.place.price
    time = units.DURATION.text(seconds_s)
    return time if price is None else f"{time} ({price.text(seconds_s)})"


def _row(one: SizeCandidate) -> tuple[str, ...]:
    model, recipe = one.recipe.model, one.recipe
    pieces = recipe.corpus.subword.vocab_size
    weights = model.num_parameters(source_vocab_size=pieces, target_vocab_size=pieces)
    batch = recipe.data.batch_tokens
    sentences = recipe.data.batch_sentences
    return (
        one.name,
        str(model.d_model),
        f"{model.encoder_layers}+{model.decoder_layers}",
        units.SHORT_COUNT.text(weights),
        units.COUNT.text(pieces),
        f"{sentences} pairs" if batch is None else units.COUNT.text(batch * recipe.data.accumulate),
        f"{model.dropout:g}",
        ("" if one.is_timed else "about ") + units.COUNT.text(one.tokens_per_s),
        units.COUNT.text(one.steps),
        f"{one.epochs:.3g}",
        _bleu(one.expected),
    )


def _bleu(expected: Expected) -> str:
    low, high = units.SCORE.text(expected.low), units.SCORE.text(expected.high)
    return f"{units.SCORE.text(expected.bleu)} ({low} to {high})"


def _reasons(plan: BudgetPlan) -> Iterator[str]:
    """The reason for each setting of the chosen candidate; or that the setting was made by hand."""
    best, recipe = plan.choice.best, plan.choice.best.recipe
    tokens = units.SHORT_COUNT.text(best.tokens)
    on_gpu = "on a GPU" if recipe.train.precision == "bf16" else "without a GPU that has bf16"
    rate = units.LEARNING_RATE.text(recipe.schedule.peak_learning_rate)
    batch = (recipe.data.batch_tokens or 0) * recipe.data.accumulate
    groups = recipe.data.groups(recipe.corpus.max_pieces + 1)
    dropout = recipe.model.dropout
    chosen = {
        "corpus.subword.vocab_size": _vocabulary(recipe),
        "data.batch_tokens": f"batch of {units.COUNT.text(batch)}: for {tokens} target tokens",
        "data.length_groups": (
            f"{groups} lengths in a batch or more: an update of one teaches less"
            if groups < recipe.data.length_groups
            else f"{groups} lengths in a batch: an update of one teaches less"
            if groups > 1
            else "one length in a batch: this GPU would have to pad others"
        ),
        "model.dropout": (
            f"{f'dropout of {dropout:g}' if dropout else 'no dropout'}: "
            f"the text is seen {best.epochs:.3g} times"
        ),
        "schedule.peak_learning_rate": (
            f"peak rate of {rate}: 0.576 / {max(recipe.model.d_model, LEAST_WIDTH)}"
        ),
        "optimizer.clip_norm": "gradients clipped to a norm of 1, as in the shipped curves",
        "schedule.kind": "a straight line to zero, over all steps that fit"
        if "schedule.total_steps" not in plan.by_hand
        else "a straight line to zero",
        "train.precision": f"{recipe.train.precision}: {on_gpu}",
        "train.ema_decay": "a moving average of the weights, over a hundredth of the steps",
    }
    set_keys = {key: key for key in plan.by_hand}
    if recipe.data.batch_sentences is not None:
        set_keys["data.batch_tokens"] = "data.batch_sentences"
    for key, reason in chosen.items():
        yield f"{set_keys[key]} is set" if key in set_keys else reason
    for key in ("schedule.total_steps", "schedule.warmup_steps"):
        if key in plan.by_hand:
            yield f"{key} is set; about {units.COUNT.text(best.steps)} steps are planned"
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
        f"vocabulary of {units.COUNT.text(pieces)}{limits.get(pieces, '')}: 25 x the square root "
        f"of about {units.COUNT.text(pairs)} pairs, {known_from}{characters}"
    )


def _pilots(plan: BudgetPlan) -> Iterator[str]:
    """The pilots that were made or will be, or the reason why there are none."""
    pilots = plan.pilots
    if pilots is None:
        return
    names = [one.name for one in pilots.candidates]
    both = f"{', '.join(names[:-1])} and {names[-1]}"
    if pilots.why_not:
        yield f"no pilots of {both}: {pilots.why_not}"
        return
    spent = "spend" if plan.piloted else "will spend"
    yield (
        f"pilots of {both} {spent} {units.SHARE.text(SHARE)} of the time for training; expected "
        f"gain {pilots.gain:.2g} BLEU, price {pilots.price:.2g}"
    )
    for one in plan.piloted:
        found, expected = units.SCORE.text(one.found), units.SCORE.text(one.expected)
        time = units.DURATION.text(one.seconds_s)
        yield f"  {one.name}, {time}: {found} BLEU, where {expected} was expected"


def _doubts(plan: BudgetPlan) -> str:
    """How reliable the expectation is."""
    expected = plan.choice.best.expected
    share = units.SHARE.text(COVERED)
    texts = "this text" if expected.own else "other texts alone, so the interval is wide"
    said = f"BLEU is of the dev text, with an interval of {share}, from runs on {texts}"
    if expected.beyond:
        said += "; no run was near this size and length, so it is a guess"
    if plan.text.is_guess:
        said += "; the text is not prepared yet, its size is a guess"
    return said
