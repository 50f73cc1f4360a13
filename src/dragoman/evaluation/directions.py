"""Scores of a model of several languages: each direction by itself, and their mean.

Zero-shot directions, which have no training text, are marked and are not in the mean: their scores
follow from the others, and the best checkpoint should not be chosen by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.directions import Direction
from dragoman.evaluation.config import EvaluateConfig
from dragoman.evaluation.metrics import Score, score_all
from dragoman.telemetry.events import DirectionScored


@dataclass(frozen=True, slots=True)
class DirectionScore:
    """The scores of one direction.

    loss: nats per target token; None if it was not measured. scores: by the names of METRICS.
    """

    direction: Direction
    zero_shot: bool
    pairs: int
    loss: float | None
    scores: Mapping[str, Score]

    def event(self, text: str) -> DirectionScored:
        """As an event. text: the translated text, "valid" or a test set."""
        return DirectionScored(
            text=text,
            source=self.direction.source,
            target=self.direction.target,
            zero_shot=self.zero_shot,
            pairs=self.pairs,
            loss=self.loss,
            **bleu_and_chrf(self.scores),
        )

    def as_json(self) -> dict[str, Any]:
        """The values for `from_json` on other ranks."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The score from the values that `as_json` made."""
        scores = {name: Score(**fields) for name, fields in values["scores"].items()}
        return cls(**(values | {"direction": Direction(*values["direction"]), "scores": scores}))


def rows_by_direction(directions: Sequence[Direction]) -> dict[Direction, NDArray[np.int64]]:
    """The rows of each direction, in the order of their first rows."""
    return {
        direction: np.array([row for row, one in enumerate(directions) if one == direction])
        for direction in dict.fromkeys(directions)
    }


def score_directions(
    hypotheses: Sequence[str],
    references: Sequence[str],
    rows: Mapping[Direction, NDArray[np.int64]],
    config: EvaluateConfig,
    *,
    trained: Collection[Direction],
    losses: Mapping[Direction, float] | None = None,
) -> list[DirectionScore]:
    """The scores of each direction by itself.

    rows: the lines of each direction. trained: those with training text. losses: the loss of each
    direction, if it was measured.
    """
    return [
        DirectionScore(
            direction,
            zero_shot=direction not in trained,
            pairs=len(own),
            loss=(losses or {}).get(direction),
            scores=score_all(
                [hypotheses[row] for row in own],
                [references[row] for row in own],
                config,
                language=direction.target,
            ),
        )
        for direction, own in rows.items()
    ]


def in_mean(scored: Sequence[DirectionScore]) -> Sequence[DirectionScore]:
    """The directions that count in the mean: those with training text, or all if none has any."""
    return [one for one in scored if not one.zero_shot] or scored


def mean_scores(scored: Sequence[DirectionScore]) -> dict[str, Score]:
    """The mean of every metric over the directions of `in_mean`, without intervals.

    The signature states the number of directions.
    """
    measured = [one.scores for one in in_mean(scored) if one.scores]
    means = {}
    for name in measured[0] if measured else ():
        values = [scores[name].value for scores in measured]
        # Tokenizers may differ by language.
        signature = " + ".join(dict.fromkeys(scores[name].signature for scores in measured))
        signature += f"|directions:{len(values)}"
        means[name] = Score(sum(values) / len(values), None, None, signature)
    return means


def bleu_and_chrf(scores: Mapping[str, Score]) -> dict[str, Any]:
    """The event fields of BLEU and chrF, such as bleu, bleu_low; None if not measured."""
    fields: dict[str, Any] = {}
    for name in ("bleu", "chrf"):
        score = scores.get(name)
        fields[name] = score.value if score else None
        for part in ("low", "high", "signature"):
            fields[f"{name}_{part}"] = getattr(score, part) if score else None
    return fields
