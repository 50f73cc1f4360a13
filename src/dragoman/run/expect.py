"""The BLEU to expect of a model after some tokens, from the ends of learning curves.

    ln BLEU = c - a * weights^-alpha - b * tokens^-beta

is the law of the loss by Hoffmann et al. 2022 (equation 2), put into BLEU = C exp(-k loss), which
Gordon et al. 2021 found for translation (Data and parameter scaling laws for neural machine
translation). c and b belong to the text, b within a share of a common b; the other constants are
common to all texts. Tokens that were seen before count less each time, as in Muennighoff et al.
2023 (equation 5). alpha and beta are chosen from a grid; the others are fitted by least squares,
with a prior for c and for the deviation of b. The error is that of each curve predicted from the
others (Allen 1974): few curves always look better than they predict.

For a text without a curve, c and b are only known to be like those of other texts: this makes most
of the interval. The difference between two models of one text does not depend on c.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman.run.curves import Curve

REPETITIONS: Final = 15.4
"""R* of Muennighoff et al. 2023: epochs after which further ones are worth little."""
_ALPHAS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
_BETAS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.2, 1.5)
_USUAL_LEVEL: Final = (math.log(40.0), 0.4)
"""ln of the best BLEU that any model reaches on a text, and its spread: 27 to 60. Without it,
short curves alone would be extended to a BLEU that does not exist."""
_LEAST_FACTOR: Final = 0.1
"""The least b from which its spread between texts is computed."""
_SLOWER: Final = 0.5
"""Spread of b between texts, as a share of it: the demo's text needs one and a half times the
tokens of Multi30k before it is translated."""
_MILLION: Final = 1e6
COVERED: Final = 0.8
"""Probability of an interval."""
_T_90: Final = (3.08, 1.89, 1.64, 1.53, 1.48, 1.44, 1.41, 1.40, 1.38, 1.37)
"""90% point of Student's t for 1, 2, ... degrees of freedom; 1.3 for many."""
_MANY: Final = 1.3
LEAST_BLEU: Final = 11.5
"""A model with a lower BLEU has hardly begun to translate. When one begins depends on the text, and
the law does not hold before."""
_LEAST_TOKENS: Final = 10_000
"""No model translates after fewer: such a curve, of somebody else, would spoil all estimates."""
_BEYOND: Final = 2.0
"""An estimate for figures further than this factor from all measured ones is called a guess."""
_LEAST_LOG: Final = -600.0
"""exp of less is 0, and models are compared by the logarithm of their BLEU."""
_MOST_LOG: Final = math.log(100.0)
LEAST_ERROR: Final = 0.06
"""Error of ln BLEU: runs with other seeds, batches or dev pairs differ by this much."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A BLEU with an interval that holds it with a probability of COVERED.

    own: whether there are curves of this very text. beyond: whether model or tokens are far from
    all that was measured.
    """

    bleu: float
    low: float
    high: float
    own: bool
    beyond: bool


@dataclass(frozen=True, slots=True)
class Law:
    """The law with its constants.

    levels: c of each text. slower: its b minus `tokens_factor`. spread: the inverse of the
    normal matrix of the fit, whose rows are weights, tokens, the levels and `slower`. error: the
    root mean square error for a run that was not fitted, in ln BLEU. degrees: its degrees of
    freedom.
    """

    alpha: float
    beta: float
    weights_factor: float
    tokens_factor: float
    levels: dict[str, float]
    slower: dict[str, float]
    spread: NDArray[np.float64]
    error: float
    degrees: int
    weights_range: tuple[float, float]
    tokens_range: tuple[float, float]

    def lacking(self, text: str, weights: int, tokens: float, epoch_tokens: float) -> float:
        """How far ln BLEU is below the level of its text."""
        of_weights, of_tokens = self.powers(weights, tokens, epoch_tokens)
        tokens_factor = max(self.tokens_factor + self.slower.get(text, 0.0), 0.0)
        return self.weights_factor * of_weights + tokens_factor * of_tokens

    def powers(self, weights: int, tokens: float, epoch_tokens: float) -> tuple[float, float]:
        """weights^-alpha and tokens^-beta, both counted in millions; repeated tokens count less."""
        seen = effective(tokens, epoch_tokens) / _MILLION
        return math.pow(weights / _MILLION, -self.alpha), math.pow(seen, -self.beta)

    def row(
        self, text: str, weights: int, tokens: float, epoch_tokens: float
    ) -> NDArray[np.float64]:
        """The factors of the constants in ln BLEU, in the order of `spread`.

        For a text without a curve, the mean of all levels and the common b.
        """
        powers = -np.array(self.powers(weights, tokens, epoch_tokens))
        shares = np.array([text == known for known in self.levels], float)
        levels = shares if text in self.levels else np.full(len(shares), 1 / len(shares))
        return np.concatenate([powers, levels, powers[1] * shares])

    def expect(self, *, text: str, weights: int, tokens: float, epoch_tokens: float) -> Expected:
        """The BLEU of a model with these inner weights after these target tokens of a text."""
        own = text in self.levels
        row = self.row(text, weights, tokens, epoch_tokens)
        between = 0.0
        if not own:
            slow = _SLOWER * self.tokens_factor * row[1]
            between = math.hypot(max(float(np.std([*self.levels.values()])), _USUAL_LEVEL[1]), slow)
        # The error of a prediction by least squares: of one run, and of the constants themselves.
        error = math.hypot(self.error * math.sqrt(1 + row @ self.spread @ row), between)
        levels = np.array([*self.levels.values()])
        middle = float(row[2 : 2 + len(levels)] @ levels)
        middle -= self.lacking(text, weights, tokens, epoch_tokens)
        half = error * (_T_90[self.degrees - 1] if self.degrees <= len(_T_90) else _MANY)
        return Expected(
            bleu=_bleu(middle),
            low=_bleu(middle - half),
            high=_bleu(middle + half),
            own=own,
            beyond=_is_beyond(weights, self.weights_range)
            or _is_beyond(effective(tokens, epoch_tokens), self.tokens_range),
        )


def _bleu(log_bleu: float) -> float:
    return 100.0 if log_bleu > _MOST_LOG else math.exp(max(log_bleu, _LEAST_LOG))


def effective(tokens: float, epoch_tokens: float) -> float:
    """The number of new tokens that teach as much (Muennighoff et al. 2023, equation 5)."""
    once = min(tokens, epoch_tokens)
    repeated = max(tokens / epoch_tokens - 1, 0.0)
    return once + once * REPETITIONS * (1 - math.exp(-repeated / REPETITIONS))


def fit_law(curves: Sequence[Curve]) -> Law:
    """The law that fits the ends of these curves best; some must have ended with a translation."""
    ended = [
        curve
        for curve in curves
        if curve.ended
        and (curve.end.bleu or 0.0) >= LEAST_BLEU
        and curve.end.tokens >= _LEAST_TOKENS
    ]
    texts = sorted({curve.text for curve in ended})
    found = [
        (_fitted(ended, texts, alpha, beta), alpha, beta)
        for alpha, beta in itertools.product(_ALPHAS, _BETAS)
    ]
    (error, constants, spread), alpha, beta = min(found, key=lambda one: one[0][0])
    degrees = max(len(ended) - 4, 1)
    tokens = [effective(curve.end.tokens, curve.epoch_tokens) for curve in ended]
    weights = [curve.weights for curve in ended]
    return Law(
        alpha=alpha,
        beta=beta,
        weights_factor=float(constants[0]),
        tokens_factor=float(constants[1]),
        levels=dict(zip(texts, constants[2 : 2 + len(texts)].tolist(), strict=True)),
        slower=dict(zip(texts, constants[2 + len(texts) :].tolist(), strict=True)),
        spread=spread,
        error=max(error, LEAST_ERROR),
        degrees=degrees,
        weights_range=(min(weights), max(weights)),
        tokens_range=(min(tokens), max(tokens)),
    )


def _fitted(
    ended: Sequence[Curve], texts: Sequence[str], alpha: float, beta: float
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """With these exponents: the error of curves predicted from the others, both factors with the
    level and the deviation of b of each text, and their `Law.spread`."""
    usual, spread = _USUAL_LEVEL
    count = len(texts)
    rows = np.zeros((len(ended) + 2 * count, 2 + 2 * count))
    wanted = np.zeros(len(rows))
    for number, curve in enumerate(ended):
        seen = effective(curve.end.tokens, curve.epoch_tokens) / _MILLION
        rows[number, :2] = -((curve.weights / _MILLION) ** -alpha), -(seen**-beta)
        rows[number, 2 + texts.index(curve.text)] = 1.0
        rows[number, 2 + count + texts.index(curve.text)] = rows[number, 1]
        assert curve.end.bleu is not None
        wanted[number] = math.log(curve.end.bleu)
    certainty = LEAST_ERROR / spread
    rows[len(ended) : len(ended) + count, 2 : 2 + count] = certainty * np.eye(count)
    wanted[len(ended) : len(ended) + count] = certainty * usual
    # How much b may differ between texts is a share of b, which is fitted without it at first.
    common = rows[: len(ended) + count, : 2 + count]
    tokens_factor = np.linalg.lstsq(common, wanted[: len(common)], rcond=None)[0][1]
    rows[len(common) :, 2 + count :] = (
        LEAST_ERROR / (_SLOWER * max(float(tokens_factor), _LEAST_FACTOR)) * np.eye(count)
    )
    constants = np.linalg.lstsq(rows, wanted, rcond=None)[0].astype(np.float64)
    if (constants[:2] < 0).any():  # more weights and more tokens never harm
        constants[:2] = np.maximum(constants[:2], 0.0)
        rest = wanted - rows[:, :2] @ constants[:2]
        constants[2:] = np.linalg.lstsq(rows[:, 2:], rest, rcond=None)[0]
    spread_of_all = np.linalg.inv(rows.T @ rows).astype(np.float64)
    # The residual of a row would be this much larger if the row had not been fitted.
    leverage = np.einsum("ij,jk,ik->i", rows, spread_of_all, rows)
    left = ((wanted - rows @ constants) / (1 - leverage))[: len(ended)]
    return float(np.sqrt(np.mean(left**2))), constants, spread_of_all


def _is_beyond(value: float, known: tuple[float, float]) -> bool:
    return not known[0] / _BEYOND <= value <= known[1] * _BEYOND
