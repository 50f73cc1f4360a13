"""Sums over the updates since the last TrainInterval event, without waiting for the device, and the
event of the sums of all ranks.

What a rank waits for, other ranks or the wire, is measured in each update: the rank that comes last
waits for the wire alone, and it is the one that waits least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from dragoman.data.loader import Update
from dragoman.distributed.gradient_sync import GradientSync
from dragoman.distributed.world import World
from dragoman.telemetry.events import PER_RANK, TrainInterval
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
        self.steps += 1
        self._epoch = update.epoch
        self._pairs += update.global_pairs
        self._source_tokens += update.global_source_tokens
        self._target_tokens += update.global_target_tokens
        self._cells += update.global_cells
        norm = result.gradient_norm.nan_to_num(0.0, 0.0, 0.0)
        self._sums += torch.stack([result.loss, norm, result.skipped]).double()
        if result.signal_and_noise is not None:
            self._signal_and_noise.append(result.signal_and_noise)

    def take(self) -> dict[str, Any]:
        """The sums of this rank for the updates added, at least one; starts again from zero.

        Every rank must call it after the same update.
        """
        loss, norms, skipped = self._sums.tolist()
        times = asdict(self._timer.take())
        waits_s = torch.tensor(
            self._sync.waits.laps_s(self._first_lap), dtype=torch.float64, device=self._world.device
        )
        times["sync_s"] += waits_s.sum().item()
        signal = noise = None
        if self._signal_and_noise:
            mean = torch.stack(self._signal_and_noise).mean(0)
            signal, noise = mean.tolist() if mean.isfinite().all() else (None, None)
        tokens = self._source_tokens + self._target_tokens
        own = times | {
            "wire_s": self._world.least(waits_s).sum().item(),
            "loss": loss,
            "epoch": self._epoch,
            # The norm and the skips are the same on every rank, or those of a rank that trains
            # alone.
            "gradient_norm": norms / max(1, self.steps - int(skipped)),
            "gradient_signal": signal,
            "gradient_noise": noise,
            "pairs": self._pairs,
            "source_tokens": self._source_tokens,
            "target_tokens": self._target_tokens,
            "padding_share": 1 - tokens / self._cells,
            "sync_bytes": self._sync.bytes_sent - self._bytes_before,
            "skipped_steps": int(skipped),
            "peak_memory_bytes": _peak_memory_bytes(self._world.device),
        }
        self._restart()
        return own

    def _restart(self) -> None:
        self.steps = 0
        self._epoch = 0
        self._pairs = self._source_tokens = self._target_tokens = self._cells = 0
        self._sums = torch.zeros(3, dtype=torch.float64, device=self._world.device)
        self._signal_and_noise: list[Tensor] = []
        self._bytes_before = self._sync.bytes_sent
        self._first_lap = self._sync.waits.laps


def train_interval(
    ranks: Sequence[Mapping[str, Any]], *, learning_rate: float, loss_scale: Tensor | None
) -> TrainInterval:
    """The event of what every rank took from its `IntervalSums`, by rank.

    A field that has no value for each rank is the same on all of them.
    """
    main = ranks[0]
    values: dict[str, Any] = {
        name: tuple(rank[name] for rank in ranks) if name in PER_RANK else main[name]
        for name in TrainInterval.model_fields.keys() & main.keys()
    }
    return TrainInterval(
        **values,
        train_loss=sum(one["loss"] for one in ranks) / main["target_tokens"],
        learning_rate=learning_rate,
        loss_scale=None if loss_scale is None else loss_scale.item(),
    )


def _peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held so far: on the GPU, or resident on the host."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory_bytes()
