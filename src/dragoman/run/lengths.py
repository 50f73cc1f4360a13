"""The division of a budget's seconds: steps, validations, saves, scores, export."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from dragoman.corpus.manifest import Manifest
from dragoman.formats.bundle import NUM_SENTENCES
from dragoman.recipe.estimate import estimate
from dragoman.recipe.recipe import Recipe

AIM: Final = 0.97
"""Share of the budget after which everything should be done: the last parts cannot be shortened."""
VALIDATIONS_SHARE: Final = 0.06
_MOST_VALIDATIONS: Final = 20
LEAST_VALIDATIONS: Final = 3
_WARMUP_SHARE: Final = 0.1
_MOST_WARMUP: Final = 4000
_SECONDS_PER_PAIR: Final = 1.0
_LEAST_PAIRS: Final = 100
_MOST_PAIRS: Final = 1000
"""Dev pairs that a validation translates: one per _SECONDS_PER_PAIR of the budget, in bounds."""
_LOGS: Final = 100
_SAVES: Final = 30
_LEAST_SAVE_S: Final = 5.0
"""The shortest time between two saves; a kill costs at most the time since the last one."""
_AVERAGED_SHARE: Final = 0.01
"""The moving average of the weights reaches over this share of the steps."""
_SEARCH_COST: Final = 2.5
"""Seconds to translate a piece by beam search over those to train on one, before it is measured:
0.7 to 3.7 with the sizes `mini` to `small`, most while a model knows little."""
SCORE_S: Final = 1.0
"""The time of a validation beside its translations."""
_EXPORT_WORK: Final = 2.0
"""The check of an export translates its sentences twice."""
EXPORT_S: Final = 3.0
_WEIGHT_S: Final = 1e-7
"""Seconds per weight that the score of the test set and the export need to read it, convert it and
translate with it on a CPU: 16 s for 180 million (H100, two busy cores)."""


@dataclass(frozen=True, slots=True)
class WorkAfterTraining:
    """The work after the training.

    seconds_s: the time of the export, and of reading the weights.
    searches: the time of all translations, in multiples of those of one validation.
    """

    seconds_s: float
    searches: float

    @classmethod
    def of(cls, recipe: Recipe, manifest: Manifest) -> WorkAfterTraining:
        """The score of the test set and the export, for a run of this recipe."""
        decoded = decoded_pieces(recipe, manifest)
        work = _EXPORT_WORK * NUM_SENTENCES * _pieces_per_pair(manifest, "valid")
        if "test" in manifest.splits:
            work += manifest.splits["test"].source_pieces
        return cls(EXPORT_S + weights_s(recipe), work / max(decoded, 1.0))


def weights_s(recipe: Recipe) -> float:
    """Seconds after the training that are proportional to the number of weights."""
    return _WEIGHT_S * estimate(recipe).num_parameters


def validation_sizes(manifest: Manifest, seconds_s: float) -> dict[str, Any]:
    """How much text a validation looks at: less if there is less time."""
    pairs = min(max(round(seconds_s / _SECONDS_PER_PAIR), _LEAST_PAIRS), _MOST_PAIRS)
    pairs = min(pairs, manifest.splits["valid"].pairs)
    return {"evaluate.bleu_pairs": pairs, "evaluate.train_slice_pairs": pairs}


def decoded_pieces(recipe: Recipe, manifest: Manifest) -> float:
    """Source pieces of the dev text that a validation translates."""
    valid = manifest.splits["valid"]
    pairs = min(recipe.evaluate.bleu_pairs, valid.pairs)
    return pairs * _pieces_per_pair(manifest, "valid")


def _pieces_per_pair(manifest: Manifest, split: str) -> float:
    facts = manifest.splits[split]
    return facts.source_pieces / max(facts.pairs, 1)


def expected_search_s(recipe: Recipe, manifest: Manifest, *, tokens_per_s: float) -> float:
    """Seconds that the translations of a validation will take.

    tokens_per_s: target tokens that are trained on per second.
    """
    return _SEARCH_COST * decoded_pieces(recipe, manifest) / tokens_per_s


def lengths(
    *,
    step_s: float,
    validation_s: float,
    save_s: float,
    left_s: float,
    most_steps: int | None,
) -> dict[str, Any]:
    """Values for the keys of a recipe that set its length, its schedule and its intervals.

    save_s: the time of the save after each validation. left_s: the time for training with all its
    validations and saves. most_steps: the recipe's limit; None: none.
    """
    validation_s += save_s
    needed_s = left_s
    if most_steps is not None:
        needed_s = min(left_s, most_steps * step_s / (1 - VALIDATIONS_SHARE))
    count = min(
        max(int(VALIDATIONS_SHARE * needed_s / validation_s), LEAST_VALIDATIONS), _MOST_VALIDATIONS
    )
    steps = max(1, int((left_s - count * validation_s) / step_s))
    steps = min(steps, most_steps or steps)
    every = math.ceil(steps / count)
    return {
        "train.max_steps": steps,
        "train.validate_every_steps": every,
        "train.validate_at_start": False,
        "train.log_every_steps": max(1, steps // _LOGS),
        "train.ema_decay": round(max(0.0, 1 - 1 / max(1.0, _AVERAGED_SHARE * steps)), 6),
        "schedule.kind": "linear",
        "schedule.warmup_steps": min(_MOST_WARMUP, max(1, int(_WARMUP_SHARE * steps))),
        "checkpoint.every_steps": every,
        "checkpoint.every_minutes": round(max(needed_s / _SAVES, _LEAST_SAVE_S) / 60, 3),
    }
