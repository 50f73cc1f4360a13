"""The optimizer, train and checkpoint sections of a recipe."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from dragoman.base.settings import Section

Precision = Literal["fp32", "bf16", "fp16"]
_REST: Final = 19
"""Least time from a save to the next one by the clock, in durations of a save."""


class OptimizerConfig(Section):
    """Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019)."""

    kind: Literal["adam", "adamw"] = "adam"
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the mean of the gradients."""
    beta2: float = Field(default=0.98, ge=0.0, lt=1.0)
    """Decay of the mean of their squares."""
    epsilon: float = Field(default=1e-9, gt=0.0)
    """Added to the root of the mean of the squares."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Adam adds this times the weights to the gradients; AdamW subtracts it, times the learning
    rate, from the weights."""
    clip_norm: float = Field(default=0.0, ge=0.0)
    """Global gradient norm above which gradients are scaled down; 0 never clips."""


class TrainConfig(Section):
    """How long to train, in which precision, and when to validate and log."""

    max_steps: int = Field(default=100_000, ge=1)
    """Updates of the whole run."""
    precision: Precision | Literal["auto"] = "auto"
    """auto: bf16 on GPUs from Ampere on and on processors that are faster in it, else fp32."""
    compile: bool = False
    """torch.compile the encoder and decoder stacks (worth it on a GPU)."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of the first weights, of the order of the pairs and of dropout."""
    log_every_steps: int = Field(default=100, ge=1)
    """Updates between two lines of the log."""
    validate_every_steps: int = Field(default=4000, ge=1)
    """Updates between two validations."""
    validate_at_start: bool = True
    """Validate the untrained model, too."""
    freeze: tuple[Literal["embeddings", "encoder"], ...] = ()
    """Parts whose weights do not change: for training that starts from another model."""
    ema_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Decay of the exponential moving average of the weights; 0 keeps none."""
    patience: int = Field(default=0, ge=0)
    """Validations without a new best after which training stops; 0 never stops early. If there are
    stages, those of the last stage count."""
    stop_metric: Literal["dev_loss", "bleu"] = "dev_loss"


class CheckpointConfig(Section):
    """When checkpoints are written and which are kept."""

    every_steps: int = Field(default=4000, ge=1)
    """Updates between two checkpoints."""
    every_minutes: float = Field(default=0.0, ge=0.0)
    """Also after this many minutes, or less often if saves take long; 0 counts steps only."""
    keep_last: int = Field(default=2, ge=1)
    """Number of newest checkpoints that are kept."""
    keep_best: int = Field(default=1, ge=0)
    """Number of checkpoints kept: the best by dev loss and the best by BLEU, this many of each."""

    def clock_s(self, save_s: float) -> float:
        """Seconds from any save to the next one by the clock, if a save takes `save_s`; 0: none.

        So saves by the clock take at most a twentieth of the time.
        """
        return max(60 * self.every_minutes, _REST * save_s) if self.every_minutes else 0.0
