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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.distributed.traffic import ring_all_reduce_bytes
from dragoman.distributed.world import World

BUCKET_BYTES = 25 * 2**20
"""Gradients leave in parts of about this size while backward goes on, as PyTorch's do."""


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

    def close(self) -> None:  # noqa: B027
        """Let go of the model."""


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
    """Sums gradients with all-reduces that overlap with backward (Li et al. 2020).

    Gradients leave in buckets of weights, the last registered first: about the order in which
    backward gets to them. Every rank must come to each last micro-step, with an empty batch if
    need be; a weight that its backward does not reach counts as zero.

    The buckets are those of PyTorch's DistributedDataParallel but for one thing: it orders them
    anew after the first update. An all-reduce adds the ranks' numbers in an order that depends on
    their place in the bucket, so that three ranks or more could not resume bit by bit.

    wire: the type in which gradients travel and are added; bfloat16 halves the bytes.
    """

    def __init__(
        self, model: nn.Module, world: World, *, wire: torch.dtype = torch.float32
    ) -> None:
        super().__init__(model)
        self._world = world
        self._clock = _Clock(world.device)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._buckets = [_Bucket(group, wire) for group in _groups(weights[::-1], wire)]
        self._num_launched = 0
        self._collecting = False
        self._hooks = [
            weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._collect, bucket)
            )
            for bucket in self._buckets
            for weight in bucket.views
        ]
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), 0)

    @property
    def exposed_s(self) -> float:
        """From the end of backward to the arrival of the last sum, added up."""
        return self._clock.total_s()

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        """All but the last micro-step add to the gradients at home."""
        if not last:
            yield
            return
        self._num_launched = 0
        self._collecting = True
        for bucket in self._buckets:
            bucket.empty()
        try:
            yield
        finally:
            self._collecting = False
        self._clock.start()
        for bucket in self._buckets:
            for weight in list(bucket.missing):
                bucket.put(weight)
        self._launch_full()
        for bucket in self._buckets:
            bucket.hand_back()
        self._clock.stop()

    def close(self) -> None:
        """Let the model's weights alone again."""
        for hook in self._hooks:
            hook.remove()

    def _collect(self, bucket: _Bucket, weight: Tensor) -> None:
        """Called by backward as soon as a weight's gradient is complete."""
        if self._collecting:
            bucket.put(weight)
            self._launch_full()

    def _launch_full(self) -> None:
        """Send full buckets, in the one order that all ranks keep whatever their backward does."""
        while self._num_launched < len(self._buckets):
            bucket = self._buckets[self._num_launched]
            if bucket.missing:
                return
            self.bytes_sent += ring_all_reduce_bytes(bucket.send(), self._world.world_size)
            self._num_launched += 1


class _Bucket:
    """Gradients that travel together, end to end in one flat tensor."""

    def __init__(self, weights: Sequence[nn.Parameter], wire: torch.dtype) -> None:
        sizes = [weight.numel() for weight in weights]
        self._flat = torch.zeros(sum(sizes), dtype=wire, device=weights[0].device)
        parts = torch.split(self._flat, sizes)
        self.views: dict[Tensor, Tensor] = {
            weight: part.view_as(weight) for weight, part in zip(weights, parts, strict=True)
        }
        self.missing: set[Tensor] = set()
        self._work: dist.Work | None = None

    def empty(self) -> None:
        """Wait for every gradient again."""
        self.missing = set(self.views)

    def put(self, weight: Tensor) -> None:
        """Take over the gradient of a weight; a weight without one counts as zero."""
        view = self.views[weight]
        if weight.grad is None:
            view.zero_()
        else:
            view.copy_(weight.grad)
            weight.grad = None
        self.missing.remove(weight)

    def send(self) -> int:
        """Start the all-reduce; returns the size of the flat tensor in bytes."""
        self._work = dist.all_reduce(self._flat, async_op=True)
        return self._flat.numel() * self._flat.element_size()

    def hand_back(self) -> None:
        """Wait for the sum and make it the weights' gradient."""
        assert self._work is not None
        self._work.wait()
        self._work = None
        for weight, view in self.views.items():
            weight.grad = view.to(weight.dtype)


def _groups(weights: Sequence[nn.Parameter], wire: torch.dtype) -> Iterator[list[nn.Parameter]]:
    """Weights in order, in groups that reach BUCKET_BYTES on the wire; the last may be smaller."""
    group: list[nn.Parameter] = []
    for weight in weights:
        group.append(weight)
        if sum(member.numel() for member in group) * wire.itemsize >= BUCKET_BYTES:
            yield group
            group = []
    if group:
        yield group


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


STRATEGIES: Final[dict[str, Callable[[nn.Module, World], GradientSync]]] = {
    "none": NoSync,
    "sync": AllReduceSync,
    "sync_bf16": partial(AllReduceSync, wire=torch.bfloat16),
}


@contextmanager
def gradient_sync(kind: str, model: nn.Module, world: World) -> Iterator[GradientSync]:
    """The strategy of that name over a model whose weights are then those of rank 0 everywhere."""
    sync = STRATEGIES[kind](model, world)
    try:
        yield sync
    finally:
        sync.close()
