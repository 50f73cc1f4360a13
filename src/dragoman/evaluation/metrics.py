"""The similarity of translations and references: sacreBLEU's scores, with method and interval.

A metric is one function and one entry in METRICS; another package adds one as an entry point of the
group `dragoman.metrics` (base/extensions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF, CHRFScore

from dragoman.base.errors import CorpusError
from dragoman.base.extensions import Parts
from dragoman.base.languages import is_language, parse_language
from dragoman.evaluation.config import EvaluateConfig

_WITHOUT_SPACES: Final = (
    "Thai", "Laoo", "Khmr", "Mymr", "Lana", "Tale", "Talu", "Tavt", "Ahom",
    "Tibt", "Hira", "Kana", "Hrkt", "Bopo", "Yiii", "Tang", "Kits", "Nshu",
    "Java", "Bali", "Batk", "Bugi", "Cham", "Kawi", "Maka", "Brah", "Gran",
)  # fmt: skip
"""Scripts that put no spaces between words, beside Chinese and Japanese: those of which CLDR's
scriptMetadata.txt says that lines may break between letters, those that break at orthographic
syllables (UAX #14), and Tibetan, which marks syllables."""
_TOKENIZERS: Final = {
    **dict.fromkeys(_WITHOUT_SPACES, "char"),
    **dict.fromkeys(("Hani", "Hans", "Hant", "Hanb"), "zh"),
    "Jpan": "ja-mecab",
    **dict.fromkeys(("Kore", "Hang"), "ko-mecab"),
}
"""sacreBLEU's tokenizers by scripts for which 13a finds few words or none. Its flores200 and
flores101 would need a download."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number, the method that makes it comparable, and its confidence interval.

    value: 0 to 100, more is better.
    low: the lower end of the 95% confidence interval of sacreBLEU's bootstrap (Koehn 2004): the
        mean of the resamples minus half the width of their middle 95%; None if none was made.
    high: the upper end of that interval: the mean plus half the width; None if none was made.
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
    language: str = "",
) -> Score:
    """Corpus BLEU (Papineni et al. 2002; Post 2018) of detokenised text.

    bootstrap_samples: resamples behind the interval; below 2 there is none.
    language: the language of the texts, which decides how words are cut; see `bleu_of`.
    Raises CorpusError if the two differ in length or are empty.
    """
    metric = bleu_of(language, lowercase=lowercase)
    return _score(metric, hypotheses, references, bootstrap_samples)


def bleu_of(language: str, *, lowercase: bool = False) -> BLEU:
    """sacreBLEU's BLEU with its tokenizer for a language; the signature names the tokenizer.

    The tokenizer is 13a; for Chinese zh; for Japanese and Korean MeCab, or characters if MeCab is
    not installed; for other scripts without spaces between words, such as Thai, Khmer or Burmese,
    characters. language: a code such as de or pt-BR; 13a if it is not one.
    """
    script = parse_language(language).script if is_language(language) else ""
    try:
        return Bleu(lowercase=lowercase, tokenize=_TOKENIZERS.get(script, BLEU.TOKENIZER_DEFAULT))
    except RuntimeError:  # MeCab or its dictionary is not installed
        return Bleu(lowercase=lowercase, tokenize="char")


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    bootstrap_samples: int = 0,
) -> Score:
    """chrF2 (Popovic 2015): F-score of character n-grams up to 6; arguments as for `bleu`."""
    return _score(Chrf(lowercase=lowercase), hypotheses, references, bootstrap_samples)


_OURS: dict[str, Callable[..., Score]] = {"bleu": bleu, "chrf": chrf}
METRICS: Final = Parts("metrics", _OURS)
"""The metrics of a validation by name; each is called like `bleu`."""


def score_all(
    hypotheses: Sequence[str],
    references: Sequence[str],
    config: EvaluateConfig,
    *,
    language: str = "",
) -> dict[str, Score]:
    """BLEU, chrF and the recipe's further metrics; empty if nothing was decoded.

    language: see `bleu_of`.
    """
    if not hypotheses:
        return {}
    metrics = {name: METRICS[name] for name in ("bleu", "chrf", *config.metrics)}
    metrics["bleu"] = partial(bleu, language=language)
    return {
        name: metric(
            hypotheses,
            references,
            lowercase=config.lowercase,
            bootstrap_samples=config.bootstrap_samples,
        )
        for name, metric in metrics.items()
    }


class Bleu(BLEU):
    """sacreBLEU's BLEU, at most 100: the rounding of its logarithms can make 100.00000000000004."""

    def _compute_score_from_stats(self, stats: list[int]) -> BLEUScore:
        score = super()._compute_score_from_stats(stats)
        score.score = min(score.score, 100.0)
        return score


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
        raise CorpusError("no sentences to score", remedy="give at least one sentence")
    result = metric.corpus_score(
        list(hypotheses), [list(references)], n_bootstrap=max(1, bootstrap_samples)
    )
    low, high = None, None
    if bootstrap_samples > 1:
        # sacreBLEU prints this pair as "mean ± half-width" and has no public name for it.
        mean, half_width = float(result._mean), float(result._ci)
        low, high = mean - half_width, mean + half_width
    return Score(float(result.score), low, high, f"{result.name}|{metric.get_signature()}")
