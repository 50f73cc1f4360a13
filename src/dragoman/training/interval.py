"""Sums over the updates since the last TrainInterval event, without waiting for the device."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor

from dragoman.data.loader import Update
from dragoman.distributed.gradient_sync import GradientSync
from dragoman.distributed.world import World
from dragoman.telemetry.events import TrainInterval
from dragoman.telemetry.host import peak_memory_bytes
from dragoman.telemetry.timers import PhaseTimer
from dragoman.training.step import StepResult


class IntervalSums:
    """Adds up updates until they become one event."""

    def __init__(self, *, world: World, sync: GradientSync, timer: PhaseTimer) -> None:
        self._world = world
        self._sync = sync
        self._timer = timer
        self._restart()

    def add(self, update: Update, result: StepResult) -> None:
        """Add one update."""
        self.steps += update.steps
        self._updates += 1
        self._epoch = update.epoch
        self._pairs += update.global_pairs
        self._source_tokens += update.global_source_tokens
        self._target_tokens += update.global_target_tokens
        self._cells += update.global_cells
        norm = result.gradient_norm.nan_to_num(0.0, 0.0, 0.0)
        self._sums += torch.stack([result.loss, result.nll, norm, result.skipped]).double()
        if result.signal_and_noise is not None:
            self._signal_and_noise.append(result.signal_and_noise)

    def take(self, *, learning_rate: float, loss_scale: Tensor | None) -> TrainInterval:
        """The event for the updates added, at least one; starts again from zero.

        Every rank must call it after the same update: losses are summed over ranks here.
        """
        # The norm and the skips are the same on every rank, or those of a rank that trains alone.
        self._world.sum(self._sums[:2])
        loss, nll, norms, skipped = self._sums.tolist()
        times = asdict(self._timer.take())
        times["sync_s"] += self._sync.waits.total_s() - self._waited_before_s
        signal = noise = None
        if self._signal_and_noise:
            mean = torch.stack(self._signal_and_noise).mean(0)
            signal, noise = mean.tolist() if mean.isfinite().all() else (None, None)
        event = TrainInterval(
            epoch=self._epoch,
            train_loss=loss / self._target_tokens,
            train_nll=nll / self._target_tokens,
            learning_rate=learning_rate,
            gradient_norm=norms / max(1, self._updates - int(skipped)),
            gradient_signal=signal,
            gradient_noise=noise,
            pairs=self._pairs,
            source_tokens=self._source_tokens,
            target_tokens=self._target_tokens,
            padding_share=1 - (self._source_tokens + self._target_tokens) / self._cells,
            **times,
            sync_bytes=self._sync.bytes_sent - self._bytes_before,
            skipped_steps=int(skipped),
            loss_scale=None if loss_scale is None else loss_scale.item(),
            peak_memory_bytes=_peak_memory_bytes(self._world.device),
        )
        self._restart()
        return event

    def _restart(self) -> None:
        self.steps = 0
        self._updates = 0
        self._epoch = 0
        self._pairs = self._source_tokens = self._target_tokens = self._cells = 0
        self._sums = torch.zeros(4, dtype=torch.float64, device=self._world.device)
        self._signal_and_noise: list[Tensor] = []
        self._bytes_before = self._sync.bytes_sent
        self._waited_before_s = self._sync.waits.total_s()


def _peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held so far: on the GPU, or resident on the host."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory_bytes()
