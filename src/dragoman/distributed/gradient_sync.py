"""Strategies that make one gradient out of every rank's.

The trainer knows this and no more:

    with gradient_sync("sync", model, world) as sync:
        with sync.micro_step(last=True):        # forward and backward of one micro-batch
            sync.module(batch).loss.backward()
        # here every rank holds the sum over ranks of the gradients of all micro-steps

A new strategy is one class here and its entry in STRATEGIES; tests/distributed runs one suite over
all of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # it is there
from torch.nn.parallel import DistributedDataParallel

from dragoman.distributed.traffic import ring_all_reduce_bytes
from dragoman.distributed.world import World

BUCKET_MB: Final = 25
"""Gradients leave in parts of this size while backward goes on (PyTorch's default)."""


class GradientSync(ABC):
    """What a strategy is to the trainer.

    module: what forward goes through.
    bytes_sent: what this rank has sent so far, counted from the gradients that were handed over.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.bytes_sent = 0

    @property
    @abstractmethod
    def exposed_s(self) -> float:
        """Seconds so far in which backward was done and gradients were still on their way."""

    @abstractmethod
    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """Forward and backward of one micro-batch happen inside; the last one communicates."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold so that the strategy goes on exactly; JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        assert not state


class NoSync(GradientSync):
    """One rank: its gradient is the whole one."""

    def __init__(self, model: nn.Module, world: World) -> None:
        assert world.world_size == 1
        super().__init__(model)

    @property
    def exposed_s(self) -> float:
        """Nothing is ever sent."""
        return 0.0

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """Nothing to do before or after."""
        return nullcontext()


class AllReduceSync(GradientSync):
    """Sums gradients with an all-reduce that overlaps with backward (Li et al. 2020, PyTorch DDP).

    Every rank must run forward and backward in every micro-step, with an empty batch if need be.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        ddp = DistributedDataParallel(
            model,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=BUCKET_MB,
        )
        super().__init__(ddp)
        self._ddp = ddp
        self._world = world
        self._clock = _Clock(world.device)
        # A lambda, because DDP compares annotations with its own class and ours are strings.
        ddp.register_comm_hook(None, lambda _state, bucket: self._sum(bucket))

    @property
    def exposed_s(self) -> float:
        """From the hand-over of the last gradients to the end of backward, summed."""
        return self._clock.total_s()

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        """All but the last micro-step add to the gradients at home."""
        if not last:
            with self._ddp.no_sync():
                yield
            return
        yield
        self._clock.stop()

    def _sum(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's hook for one bucket of gradients. DDP itself would divide by the world size."""
        gradients = bucket.buffer()
        if bucket.is_last():
            self._clock.start()
        payload_bytes = gradients.numel() * gradients.element_size()
        self.bytes_sent += ring_all_reduce_bytes(payload_bytes, self._world.world_size)
        work = dist.all_reduce(gradients, async_op=True)
        assert work is not None
        summed: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return summed


class _Clock:
    """Adds up the time between start and stop, on the device's own clock where it has one.

    Reading the sum waits for the device; starting and stopping do not.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._total_s = 0.0
        self._started_s = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """Begin an interval."""
        self._started_s = time.perf_counter()
        if self._on_gpu:
            self._events.append((_event(), _event()))
            self._events[-1][0].record()

    def stop(self) -> None:
        """End it."""
        if self._on_gpu:
            self._events[-1][1].record()
        else:
            self._total_s += time.perf_counter() - self._started_s

    def total_s(self) -> float:
        """The sum of all intervals that have ended."""
        for started, stopped in self._events:
            stopped.synchronize()
            self._total_s += started.elapsed_time(stopped) / 1000
        self._events.clear()
        return self._total_s


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


STRATEGIES: Final[dict[str, type[NoSync] | type[AllReduceSync]]] = {
    "none": NoSync,
    "sync": AllReduceSync,
}


@contextmanager
def gradient_sync(kind: str, model: nn.Module, world: World) -> Iterator[GradientSync]:
    """The strategy of that name over a model whose weights are then those of rank 0 everywhere."""
    yield STRATEGIES[kind](model, world)
