"""`sync`: the sum of all ranks' gradients in every update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dragoman.distributed.gradient_sync import GradientSync
from dragoman.distributed.host_sum import HostSum, Wait
from dragoman.distributed.wire import BUCKET_BYTES, FIRST_BUCKET_BYTES, FP32_BYTES


class AllReduceSync(GradientSync):
    """Sums gradients with all-reduces that overlap with backward (Li et al. 2020).

    Gradients leave in buckets of weights, the last registered weight first: roughly the order in
    which backward reaches them. Every rank must run each last micro-step, with an empty batch if it
    has none; a weight that this rank's backward does not reach counts as zero.

    The buckets are those of PyTorch's DistributedDataParallel with one exception: PyTorch reorders
    them after the first update. The order in which an all-reduce adds the ranks' numbers depends on
    their place in the bucket, so three or more ranks could not resume bit by bit.
    """

    has_whole_gradient = True

    def __init__(self, model: nn.Module, host_sum: HostSum) -> None:
        super().__init__(model)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._host_sum = host_sum
        self._buckets = [_Bucket(group, host_sum.dtype) for group in _groups(weights[::-1])]
        self._num_launched = 0
        self._collecting = False
        self._hooks = [
            weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._collect, bucket)
            )
            for bucket in self._buckets
            for weight in bucket.views
        ]

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        """All micro-steps add to the local gradients; the last then sums them over all ranks."""
        if not last:
            yield
            return
        self._num_launched = 0
        self._own_squares: list[Tensor] = []
        self._collecting = True
        for bucket in self._buckets:
            bucket.empty()
        try:
            yield
        finally:
            self._collecting = False
        self.waits.start()
        for bucket in self._buckets:
            for weight in list(bucket.missing):
                bucket.put(weight)
        self._launch_full()
        for bucket in self._buckets:
            bucket.hand_back()
        self.waits.stop()
        self.own_norm = torch.stack(self._own_squares).sum().sqrt() if self._own_squares else None

    def close(self) -> None:
        """Remove the hooks from the model's weights, and close the sum over hosts."""
        for hook in self._hooks:
            hook.remove()
        self._host_sum.close()

    def _collect(self, bucket: _Bucket, weight: Tensor) -> None:
        """Called by backward as soon as a weight's gradient is complete."""
        if self._collecting:
            bucket.put(weight)
            self._launch_full()

    def _launch_full(self) -> None:
        """Send full buckets, in an order that all ranks keep, whatever order their backward has."""
        while self._num_launched < len(self._buckets):
            bucket = self._buckets[self._num_launched]
            if bucket.missing:
                return
            if self.wants_own_norm:
                self._own_squares.append(bucket.flat.float().square().sum())
            bucket.send(self._host_sum)
            self.bytes_sent += self._host_sum.sent_bytes(bucket.flat.numel())
            self._num_launched += 1


class _Bucket:
    """Gradients that travel together, end to end in one flat tensor."""

    def __init__(self, weights: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        sizes = [weight.numel() for weight in weights]
        self.flat = torch.zeros(sum(sizes), dtype=dtype, device=weights[0].device)
        parts = torch.split(self.flat, sizes)
        self.views: dict[Tensor, Tensor] = {
            weight: part.view_as(weight) for weight, part in zip(weights, parts, strict=True)
        }
        self.missing: set[Tensor] = set()
        self._wait: Wait | None = None

    def empty(self) -> None:
        """Mark every gradient as missing."""
        self.missing = set(self.views)

    def put(self, weight: Tensor) -> None:
        """Take the gradient of a weight; a weight without one counts as zero."""
        view = self.views[weight]
        if weight.grad is None:
            view.zero_()
        else:
            view.copy_(weight.grad)
            weight.grad = None
        self.missing.remove(weight)

    def send(self, host_sum: HostSum) -> None:
        """Start the sum."""
        self._wait = host_sum.start(self.flat)

    def hand_back(self) -> None:
        """Wait for the sum and make it the weights' gradient."""
        assert self._wait is not None
        self._wait()
        self._wait = None
        for weight, view in self.views.items():
            weight.grad = view.to(weight.dtype)


def _groups(weights: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Weights in order; a group ends when it has reached its size, and no weight is split."""
    group: list[nn.Parameter] = []
    least = FIRST_BUCKET_BYTES
    for weight in weights:
        group.append(weight)
        if sum(member.numel() for member in group) * FP32_BYTES >= least:
            yield group
            group, least = [], BUCKET_BYTES
    if group:
        yield group
