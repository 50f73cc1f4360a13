"""The evaluate section of a recipe."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from dragoman.base.extensions import Parts
from dragoman.base.settings import Section

_METRICS: Final = Parts[object]("metrics", dict.fromkeys(("bleu", "chrf")))
"""Their names alone: evaluation/metrics.py has the metrics, and needs sacreBLEU."""


class EvaluateConfig(Section):
    """The measurements at each validation and at the end."""

    bleu_pairs: int = Field(default=1000, ge=0)
    """Dev pairs decoded at each validation, equally many of each direction; 0 decodes none, but the
    loss is still measured."""
    train_slice_pairs: int = Field(default=1000, ge=0)
    """Fixed training pairs whose loss (dropout off) stands beside the dev loss: equally many of
    each direction, from entries that any stage draws from. 0 measures none."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Cells of the longer side in one batch of the loss."""
    bootstrap_samples: int = Field(default=1000, ge=0)
    """Resamples behind a confidence interval of BLEU and chrF; 0 or 1 gives none."""
    lowercase: bool = False
    """Score without regard to case, as a model with `corpus.lowercase` always is; part of the
    signature."""
    metrics: tuple[Annotated[str, AfterValidator(_METRICS.known)], ...] = ()
    """Metrics of other packages, which are measured beside BLEU and chrF."""
    sample_translations: int = Field(default=3, ge=0)
    """Translations of dev sentences that each validation shows."""
