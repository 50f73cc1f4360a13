"""What training knows beside its tensors: the JSON part of a checkpoint."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from dragoman.distributed.config import DistributedConfig
from dragoman.train.divergence import LossTrend

_NO_LONGER_KEPT: Final = {"untrained_loss", "recent_loss"}
"""What older checkpoints hold beside the rest."""


class TrainState(BaseModel):
    """Where training stands after `step` updates.

    step: updates made since the beginning; the position in the data follows from it.
    epoch: that the last update belonged to, from 0.
    seed, world_size: those of the worker that wrote this; a run may go on with another world size.
    recipe_digest, corpus_digest: what the run was started with.
    loss_trend: what tells whether training diverges.
    best_...: of all validations so far, and the steps they were measured at.
    validations_without_best: in a row, by the metric that stops early.
    dev_loss, bleu: measured at this very step; None where none was.
    validated_step: of the last validation.
    planned_step_s: what `auto` expects a step to take; None where nothing was planned.
    link_bytes_per_s: what the network between hosts carried each way when the run began; None where
        nobody measured it.
    sync: the strategy it is trained by; where the recipe says "auto", the one that was chosen.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    step: int = 0
    epoch: int = 0
    seed: int
    world_size: int
    recipe_digest: str
    corpus_digest: str
    loss_trend: LossTrend = LossTrend()
    skipped_steps: int = 0
    best_dev_loss: float | None = None
    best_dev_loss_step: int | None = None
    best_bleu: float | None = None
    best_bleu_step: int | None = None
    validations_without_best: int = 0
    dev_loss: float | None = None
    bleu: float | None = None
    loss_scaler: dict[str, float] | None = None
    validated_step: int | None = None
    planned_step_s: float | None = None
    link_bytes_per_s: float | None = None
    sync: DistributedConfig = DistributedConfig()

    @model_validator(mode="before")
    @classmethod
    def _without_old_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if key not in _NO_LONGER_KEPT}

    def after_update(self, epoch: int, *, steps: int = 1) -> Self:
        """The state after one more update; nothing has been measured at it yet."""
        return self.model_copy(
            update={"step": self.step + steps, "epoch": epoch, "dev_loss": None, "bleu": None}
        )

    def after_validation(
        self, *, dev_loss: float, bleu: float | None, stop_metric: Literal["dev_loss", "bleu"]
    ) -> Self:
        """The state with this step's scores; patience counts by `stop_metric`.

        Where `stop_metric` is bleu but nothing was decoded, patience does not count.
        """
        better_loss = self.best_dev_loss is None or dev_loss < self.best_dev_loss
        better_bleu = bleu is not None and (self.best_bleu is None or bleu > self.best_bleu)
        update: dict[str, object] = {
            "dev_loss": dev_loss,
            "bleu": bleu,
            "validated_step": self.step,
        }
        if better_loss:
            update |= {"best_dev_loss": dev_loss, "best_dev_loss_step": self.step}
        if better_bleu:
            update |= {"best_bleu": bleu, "best_bleu_step": self.step}
        if stop_metric == "dev_loss" or bleu is not None:
            better = better_loss if stop_metric == "dev_loss" else better_bleu
            waited = 0 if better else self.validations_without_best + 1
            update["validations_without_best"] = waited
        return self.model_copy(update=update)
