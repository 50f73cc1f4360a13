"""The similarity of translations and references: sacreBLEU's scores, with method and interval.

A new metric is one function here and one entry in METRICS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF, CHRFScore

from dragoman.base.errors import CorpusError
from dragoman.evaluation.config import EvaluateConfig


@dataclass(frozen=True, slots=True)
class Score:
    """A number, the method that makes it comparable, and its confidence interval.

    value: 0 to 100, more is better.
    low, high: 95% confidence interval of sacreBLEU's bootstrap (Koehn 2004): the mean over the
        resamples less and plus half the width of their middle 95%; None if none was made.
    signature: the metric's name and sacreBLEU's signature, version included.
    """

    value: float
    low: float | None
    high: float | None
    signature: str

    def __str__(self) -> str:
        interval = "" if self.low is None else f" ({self.low:.1f} to {self.high:.1f})"
        return f"{self.value:.2f}{interval} {self.signature}"


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    bootstrap_samples: int = 0,
) -> Score:
    """Corpus BLEU (Papineni et al. 2002; Post 2018) of detokenised text, tokenised by 13a.

    bootstrap_samples: resamples behind the interval; below 2 there is none.
    Raises CorpusError if the two differ in length or are empty.
    """
    return _score(BLEU(lowercase=lowercase), hypotheses, references, bootstrap_samples)


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    bootstrap_samples: int = 0,
) -> Score:
    """chrF2 (Popovic 2015): F-score of character n-grams up to 6; arguments as for `bleu`."""
    return _score(Chrf(lowercase=lowercase), hypotheses, references, bootstrap_samples)


METRICS: dict[str, Callable[..., Score]] = {"bleu": bleu, "chrf": chrf}
"""The metrics of a validation by name; each is called like `bleu`."""


def score_all(
    hypotheses: Sequence[str], references: Sequence[str], config: EvaluateConfig
) -> dict[str, Score]:
    """Every one of METRICS by name, or none if nothing was decoded."""
    if not hypotheses:
        return {}
    return {
        name: metric(
            hypotheses,
            references,
            lowercase=config.lowercase,
            bootstrap_samples=config.bootstrap_samples,
        )
        for name, metric in METRICS.items()
    }


class Chrf(CHRF):
    """sacreBLEU's chrF with every score a Python float.

    sacreBLEU 2.6 returns 0.0 for a resample without a match and numpy's float32 for others, and
    then fails to take the mean of the two kinds.
    """

    def _compute_score_from_stats(self, stats: list[int]) -> CHRFScore:
        score = super()._compute_score_from_stats(stats)
        score.score = float(score.score)
        return score


def _score(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str], bootstrap_samples: int
) -> Score:
    if len(hypotheses) != len(references):
        raise CorpusError(
            f"{len(hypotheses)} translations for {len(references)} references",
            remedy="both must have one line for each sentence",
        )
    if not hypotheses:
        raise CorpusError("no sentences to score", remedy="give it at least one")
    result = metric.corpus_score(
        list(hypotheses), [list(references)], n_bootstrap=max(1, bootstrap_samples)
    )
    low, high = None, None
    if bootstrap_samples > 1:
        # sacreBLEU prints this pair as "mean ± half-width" and has no public name for it.
        mean, half_width = float(result._mean), float(result._ci)
        low, high = mean - half_width, mean + half_width
    return Score(float(result.score), low, high, f"{result.name}|{metric.get_signature()}")
