"""One update over one global batch: micro-batches -> gradients -> weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from dragoman.data.batch import Batch
from dragoman.data.loader import Update
from dragoman.distributed.gradient_sync import GradientSync
from dragoman.distributed.world import World
from dragoman.model.loss import LossSum
from dragoman.telemetry.timers import PhaseTimer
from dragoman.training.config import OptimizerConfig, Precision, TrainConfig
from dragoman.training.gradient_noise import MEASURE_EVERY, signal_and_noise
from dragoman.training.optimizer import (
    Ema,
    LossScaler,
    apply_gradients,
    gradient_norm,
    make_optimizer,
)

_AUTOCAST_DTYPES: Final = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one update. Tensors are scalars that are still on the device.

    loss: the sum over this rank's target tokens, with label smoothing, in nats.
    gradient_norm: the norm of the whole gradient before clipping; if ranks train alone, the norm
        that it would have if all had this rank's gradient.
    skipped: 1.0 if a gradient was NaN or infinite and the weights did not change, else 0.0.
    signal_and_noise: see `training.gradient_noise`; None if it was not measured in this update.
    """

    loss: Tensor
    gradient_norm: Tensor
    skipped: Tensor
    signal_and_noise: Tensor | None = None


class TrainStep:
    """Makes updates, and holds the model, optimizer, loss scale and averaged weights that the
    updates change, and the timer of their phases.

    The gradient is that of the summed token loss, divided by the number of target tokens of the
    *global* batch, so any number of ranks and of micro-batches gives the same update.
    Dropout draws from a generator seeded by (seed, update, micro-batch, rank): a resumed run draws
    the same numbers as an uninterrupted one.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sync: GradientSync,
        train: TrainConfig,
        precision: Precision,
        optimizer: OptimizerConfig,
        world: World,
    ) -> None:
        self.model = model
        self.sync = sync
        self.optimizer = make_optimizer(model, optimizer)
        self.world = world
        self.timer = PhaseTimer(world.device)
        self.scaler = LossScaler(world.device) if precision == "fp16" else None
        self.ema = Ema(model, train.ema_decay, live=sync.weights()) if train.ema_decay > 0 else None
        self._weights = list(model.parameters())
        sync.attach(self.optimizer)
        self._clip_norm = optimizer.clip_norm
        self._seed = train.seed
        self._autocast_dtype = _AUTOCAST_DTYPES[precision]

    def __call__(self, update: Update, *, learning_rate: float) -> StepResult:
        """Make one update; it does not wait until a GPU has finished."""
        scale = None if self.scaler is None else self.scaler.scale
        self.sync.loss_scale = scale
        factor = self.sync.loss_factor / update.global_target_tokens
        scaled = factor if scale is None else factor * scale
        summed = torch.zeros((), device=self.world.device)
        measured = self.sync.has_whole_gradient and update.update_index % MEASURE_EVERY == 0
        self.sync.wants_own_norm = measured and len(update.micro_batches) == 1
        part_norm, part_tokens = None, update.micro_batches[0].num_target_tokens
        for micro, batch in enumerate(update.micro_batches):
            seed_dropout(self._seed, update.update_index, micro, self.world.rank)
            last = micro == len(update.micro_batches) - 1
            loss = self._accumulate(batch, scaled, last=last)
            summed += loss.loss.detach()
            if measured and micro == 0:
                part_norm = self.sync.own_norm if last else gradient_norm(self._weights)
                if part_norm is not None and scale is not None:
                    part_norm = part_norm / scale  # now: `_apply` changes the scale in place
        with self.timer.phase("optimizer"):
            norm, skipped = self._apply(learning_rate, scale)
        step = update.update_index + 1
        may_skip = skipped if self.scaler is not None else None  # otherwise it ends the run
        self.sync.after_update(step, learning_rate=learning_rate, skipped=may_skip)
        if self.ema is not None:
            with self.timer.phase("optimizer"):
                self.ema.update(update.update_index)
        if part_norm is None or not 0 < part_tokens < update.global_target_tokens:
            return StepResult(summed, norm, skipped)
        found = signal_and_noise(
            part_norm, norm, part_tokens=part_tokens, tokens=update.global_target_tokens
        )
        return StepResult(summed, norm, skipped, found)

    def _accumulate(self, batch: Batch, factor: Tensor | float, *, last: bool) -> LossSum:
        """Add `factor` times the gradients of one micro-batch's loss to the gradients."""
        with self.sync.micro_step(last=last):  # on leaving, it may wait for the other ranks
            with self.timer.phase("forward"), self._autocast():
                loss: LossSum = self.sync.module(batch)
            with self.timer.phase("backward"):
                (loss.loss * factor).backward()  # type: ignore[no-untyped-call]
        return loss

    def _apply(self, learning_rate: float, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Apply the gradients to the weights; returns their norm and whether the step was
        skipped."""
        norm = gradient_norm(self._weights) * self.sync.rate_factor
        if scale is not None:
            norm = norm / scale
        skipped = apply_gradients(
            self.optimizer,
            norm,
            learning_rate=learning_rate * self.sync.rate_factor,
            clip_norm=self._clip_norm,
            loss_scale=scale,
        )
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler is not None:
            self.scaler.update(skipped)
        return norm, skipped

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.world.device.type,
            self._autocast_dtype,
            enabled=self._autocast_dtype is not None,
        )


def seed_dropout(seed: int, update: int, micro: int, rank: int) -> None:
    """Seed PyTorch's generators with a hash of the four, equal on every machine."""
    mixed = hashlib.blake2b(f"{seed} {update} {micro} {rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(mixed, "little"))
