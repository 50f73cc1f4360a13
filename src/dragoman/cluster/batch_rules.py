"""How the learning rate follows a larger batch: the published rules, as advice.

The batch of a recipe is that of all ranks together, so another number of ranks makes the same
updates and nothing has to change. The batch grows if a strategy puts several batches into one
update, or if a user with more ranks wants as many tokens on each as before. With k times the batch,
the same text takes 1/k of the steps, including the warm-up, and

    square root   rate x sqrt(k)   Krizhevsky 2014 (arXiv 1404.5997), for SGD; for Adam Malladi et
                                   al. 2022 (arXiv 2205.10287): the noise of an update stays the
                                   same, with (1 - beta) x k for both betas and epsilon / sqrt(k)
    linear        rate x k         Goyal et al. 2017 (arXiv 1706.02677), for SGD with momentum and a
                                   warm-up; Marian does so for Adam with --mini-batch-words-ref

    noise scale   if a run has measured its gradient noise scale N (in tokens, like the batch B):
                                   steps x (1 + N / kB) / (1 + N / B), McCandlish et al. 2018
                                   (arXiv 1812.06162), equation 2.7; rate x f(kB) / f(B) with
                                   f(B) = 1 / (sqrt(N / B) + sqrt(B / N)), Li et al. 2024 (arXiv
                                   2405.14578), for Adam: the square root far below N, less above

Dragoman trains with Adam, so the square root comes before the linear rule. Neither of the two holds
for every k: batches above `strategies.MOST_TARGET_TOKENS` have not been seen to train as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dragoman.recipe.recipe import Recipe
from dragoman.training.config import OptimizerConfig
from dragoman.training.schedule import ScheduleConfig


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """The numbers of a recipe that a rule may change.

    batch: `batch_tokens` or `batch_sentences`, whichever the recipe uses, and its value.
    has_stages: whether the recipe has stages, whose steps no rule can set.
    tokens, noise_tokens: target tokens of the batch, and the gradient noise scale that a run has
        measured; None if none has.
    """

    max_steps: int
    schedule: ScheduleConfig
    optimizer: OptimizerConfig
    batch: tuple[str, int]
    has_stages: bool = False
    tokens: float = 0.0
    noise_tokens: float | None = None

    @classmethod
    def of(
        cls, recipe: Recipe, *, tokens: float = 0.0, noise_tokens: float | None = None
    ) -> UpdateSettings:
        """The settings of a recipe, with the target tokens and noise scale of its batch."""
        name = "batch_sentences" if recipe.data.batch_tokens is None else "batch_tokens"
        count = recipe.data.batch_tokens or recipe.data.batch_sentences
        assert count is not None
        batch = name, count
        has_stages = bool(recipe.stages)
        return cls(
            recipe.train.max_steps,
            recipe.schedule,
            recipe.optimizer,
            batch,
            has_stages,
            tokens,
            noise_tokens,
        )


@dataclass(frozen=True, slots=True)
class BatchRule:
    """The settings of a recipe with a batch that is `factor` times as large, by one rule.

    settings: in the form of `--set`.
    beyond: further advice of the rule, for which there is no setting; "" if none.
    """

    name: str
    source: str
    settings: tuple[str, ...]
    beyond: str = ""


def batch_rules(update: UpdateSettings, *, factor: float) -> tuple[BatchRule, ...]:
    """The rules for a batch that grows (or shrinks) by a factor, the best founded first."""
    linear = BatchRule(
        "linear",
        "Goyal et al. 2017, for SGD; Marian's --mini-batch-words-ref, for Adam",
        tuple(_lengths(update, factor) + _rate(update, factor, times=factor)),
    )
    rules = (_square_root(update, factor), linear)
    return rules if update.noise_tokens is None else (_noise_scale(update, factor), *rules)


def _noise_scale(update: UpdateSettings, factor: float) -> BatchRule:
    noise = (update.noise_tokens or 0.0) / update.tokens  # in batches
    fewer_steps = (1 + noise) / (1 + noise / factor)
    higher_rate = (math.sqrt(noise) + math.sqrt(1 / noise)) / (
        math.sqrt(noise / factor) + math.sqrt(factor / noise)
    )
    return BatchRule(
        "noise scale",
        "McCandlish et al. 2018; for Adam Li et al. 2024",
        tuple(_lengths(update, fewer_steps) + _rate(update, fewer_steps, times=higher_rate)),
        f"{factor / fewer_steps:.3g} times the text",
    )


def _square_root(update: UpdateSettings, factor: float) -> BatchRule:
    root = math.sqrt(factor)
    optimizer = update.optimizer
    betas = {
        "beta1": 1 - factor * (1 - optimizer.beta1),
        "beta2": 1 - factor * (1 - optimizer.beta2),
    }
    settings = _lengths(update, factor) + _rate(update, factor, times=root)
    too_far = [name for name, beta in betas.items() if beta < 0]
    if not too_far:
        settings += [f"optimizer.{name}={beta:.4g}" for name, beta in betas.items()]
    settings.append(f"optimizer.epsilon={optimizer.epsilon / root:.3g}")
    return BatchRule(
        "square root",
        "Krizhevsky 2014; for Adam Malladi et al. 2022",
        tuple(settings),
        f"{' and '.join(too_far)} would be negative: the rule does not reach so far"
        if too_far
        else "",
    )


def _lengths(update: UpdateSettings, factor: float) -> list[str]:
    """The settings that count steps, divided by `factor`."""
    schedule = update.schedule
    settings = [f"train.max_steps={_steps(update.max_steps, factor)}"]
    if schedule.warmup_steps:
        settings.append(f"schedule.warmup_steps={_steps(schedule.warmup_steps, factor)}")
    if schedule.total_steps is not None:
        settings.append(f"schedule.total_steps={_steps(schedule.total_steps, factor)}")
    if schedule.decay_steps:
        settings.append(f"schedule.decay_steps={_steps(schedule.decay_steps, factor)}")
    return settings


def _rate(update: UpdateSettings, factor: float, *, times: float) -> list[str]:
    """The setting of the learning rate, multiplied by `times` at the same place of the text.

    `noam` falls with the root of the step: with a warm-up of 1/k of the steps its curve is already
    sqrt(k) times as high.
    """
    schedule = update.schedule
    if schedule.kind == "noam":
        scale = schedule.noam_scale * times / math.sqrt(factor)
        return [] if scale == schedule.noam_scale else [f"schedule.noam_scale={scale:.4g}"]
    return [f"schedule.peak_learning_rate={schedule.peak_learning_rate * times:.3g}"]


def _steps(count: int, factor: float) -> int:
    return max(1, round(count / factor))
