"""How likely a translation is right: a logistic regression, fitted on text with references.

The score of a search is no probability: a model that is sure of itself may be wrong as often as
another one. So the probability is fitted to translations whose references are known, from their
scores and lengths (Platt 1999), and measured on others.

A translation is right here if its chrF against the reference is at least `right_chrf`. That of a
text is that of its least sure sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from dragoman.base.errors import CorpusError
from dragoman.base.files import read_regular, write_whole
from dragoman.base.settings import Section

Colour = Literal["green", "yellow", "red"]
"""green: at least two of three such translations are right; red: at most one of three."""

CONFIDENCE_FILE: Final = "confidence.json"
_GREEN, _RED = 2 / 3, 1 / 3
_COLOURS: Final[tuple[Colour, ...]] = ("green", "yellow", "red")
_LEAST_TRANSLATIONS: Final = 100
_LEAST_OF_A_KIND: Final = 10
_NUM_FEATURES: Final = 4
_PENALTY: Final = 1.0
"""Times half the square of each weight. Each feature has a variance of 1 then."""
_ROUNDS: Final = 25
_BINS: Final = 10
_LONGEST_FILE: Final = 1 << 16


class Signs(NamedTuple):
    """The score of a translation, and both lengths: what its confidence is made of.

    score: its length-normalised log-probability. source_pieces, target_pieces: its subword pieces.
    """

    score: float
    source_pieces: int
    target_pieces: int


class Kept(Section):
    """How many translations of a test text got a colour, and how many of these were right."""

    sentences: int = Field(ge=0)
    right: int = Field(ge=0)


class Measured(Section):
    """The colours of the translations of a test text, on which the regression was not fitted.

    error: the expected calibration error of ten equally wide bins (Guo et al. 2017), from 0 to 1.
    """

    test: str
    green: Kept
    yellow: Kept
    red: Kept
    error: float = Field(ge=0, le=1)


class Confidence(Section):
    """The fitted regression of one model.

    weights: of the features, as `_features` orders them. checkpoint: the SHA-256 of the digests of
    the weights that it belongs to; "" in an export, which has its weights beside it.
    """

    format_version: Literal[1] = 1
    right_chrf: float = Field(ge=0, le=100)
    weights: tuple[float, ...] = Field(min_length=_NUM_FEATURES, max_length=_NUM_FEATURES)
    checkpoint: str = Field(default="", max_length=64)
    measured: Measured

    def of(self, signs: Signs) -> float:
        """The probability that a translation is right."""
        return float(_probabilities(_features([signs]), np.array(self.weights))[0])


def colour_of(probability: float) -> Colour:
    """The colour of a probability that a translation is right."""
    return "green" if probability >= _GREEN else "red" if probability <= _RED else "yellow"


def fit_confidence(
    dev: Sequence[tuple[Signs, bool]],
    test: Sequence[tuple[Signs, bool]],
    *,
    right_chrf: float,
    test_name: str,
) -> Confidence:
    """The regression of translations of which it is known whether they are right.

    dev: those that it is fitted on. test: others, by which it is measured.
    Raises CorpusError if there are too few of either kind.
    """
    for name, pairs in (("dev", dev), ("test", test)):
        right = sum(is_right for _, is_right in pairs)
        rarer = min(right, len(pairs) - right)
        if len(pairs) < _LEAST_TRANSLATIONS or rarer < _LEAST_OF_A_KIND:
            raise CorpusError(
                f"{right} of {len(pairs)} translations of the {name} text are right, that is chrF "
                f"{right_chrf:g} or more: too few to learn from",
                remedy=f"give {_LEAST_TRANSLATIONS} sentences or more, or set right to a chrF that "
                "some translations reach and others do not",
            )
    weights = _fitted(_features([signs for signs, _ in dev]), _are_right(dev))
    found = _probabilities(_features([signs for signs, _ in test]), weights)
    measured = _measured(found, _are_right(test), test_name)
    return Confidence(right_chrf=right_chrf, weights=tuple(weights.tolist()), measured=measured)


def are_right(
    translations: Sequence[str], references: Sequence[str], right_chrf: float
) -> list[bool]:
    """Whether each translation has at least this chrF against its reference."""
    from dragoman.evaluation.metrics import Chrf  # needs sacreBLEU, which a server does without

    metric = Chrf()
    return [
        metric.sentence_score(translation, [reference]).score >= right_chrf
        for translation, reference in zip(translations, references, strict=True)
    ]


def read_confidence(folder: Path) -> Confidence | None:
    """The regression of a run or an export; None if there is none that this version can read."""
    try:
        return Confidence.model_validate_json(
            read_regular(folder / CONFIDENCE_FILE, limit=_LONGEST_FILE)
        )
    except (OSError, ValidationError):
        return None


def write_confidence(confidence: Confidence, folder: Path) -> None:
    """Write the regression beside the model."""
    write_whole(folder / CONFIDENCE_FILE, confidence.model_dump_json(indent=1))


def _are_right(pairs: Sequence[tuple[Signs, bool]]) -> NDArray[np.float64]:
    return np.array([is_right for _, is_right in pairs], dtype=np.float64)


def _features(signs: Sequence[Signs]) -> NDArray[np.float64]:
    """(translations, features): 1, score, logarithms of the source's length and of the ratio."""
    score, source, target = np.array(signs, dtype=np.float64).T
    source, target = np.log1p(source), np.log1p(target)
    return np.stack([np.ones_like(score), score, source, target - source], axis=1)


def _probabilities(
    features: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    logits: NDArray[np.float64] = np.clip(features @ weights, -30, 30)
    return 1 / (1 + np.exp(-logits))


def _fitted(features: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights of the likeliest regression, by Newton's method (Hastie et al. 2009, 4.4.1)."""
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    mean[0], deviation[0] = 0.0, 1.0
    deviation[deviation == 0] = 1.0
    standard = (features - mean) / deviation
    penalty = np.full(standard.shape[1], _PENALTY)
    penalty[0] = 0.0
    weights: NDArray[np.float64] = np.zeros(standard.shape[1])
    for _ in range(_ROUNDS):
        probabilities = _probabilities(standard, weights)
        gradient = standard.T @ (right - probabilities) - penalty * weights
        curvature = standard.T @ (standard * (probabilities * (1 - probabilities))[:, None])
        weights = weights + np.linalg.solve(curvature + np.diag(penalty), gradient)
    weights = weights / deviation
    weights[0] -= mean @ weights
    return weights


def _measured(
    probabilities: NDArray[np.float64], right: NDArray[np.float64], test: str
) -> Measured:
    colours = np.array([colour_of(one) for one in probabilities])
    kept = {
        colour: Kept(
            sentences=int((colours == colour).sum()), right=int(right[colours == colour].sum())
        )
        for colour in _COLOURS
    }
    bins = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    error = sum(
        abs(float(probabilities[bins == number].sum() - right[bins == number].sum()))
        for number in range(_BINS)
    )
    return Measured(test=test, error=error / len(right), **kept)
