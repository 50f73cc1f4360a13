"""Sums a tensor over all ranks, inside each host first."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.distributed.packing import Fp4, packed_all_reduce, packed_bytes
from dragoman.distributed.topology import Topology
from dragoman.distributed.wire import ring_bytes

Wait = Callable[[], object]


class HostSum:
    """All-reduces in which one rank of each host sends to the other hosts.

    If hosts have several ranks, these sum in fp32 first. Then one rank of each host sums over the
    hosts, in the wire's type, and distributes the result.

    wire: the type of numbers in transit and in sums between hosts, or their packing. dtype: the
    type that tensors to be summed must have.
    """

    def __init__(self, topology: Topology, wire: torch.dtype | Fp4) -> None:
        self._topology = topology
        self._wire = wire
        self._stream: torch.cuda.Stream | None = None
        self._in_turn = ThreadPoolExecutor(1, thread_name_prefix="host-sum")
        self.dtype = torch.float32
        self._one_ring = topology.num_hosts == 1
        if not isinstance(wire, Fp4):
            self._one_ring |= all(len(ranks) == 1 for ranks in topology.hosts)
            if len(topology.neighbours) == 1 < topology.num_hosts:
                self.dtype = wire

    @property
    def packs(self) -> bool:
        """Whether numbers are sent in so few bits that the rounding errors are worth keeping."""
        return isinstance(self._wire, Fp4)

    def start(self, tensor: Tensor, *, lost: Tensor | None = None) -> Wait:
        """Begin to sum a flat tensor in place; returns a function that waits for the result.

        lost: zeros of the same length, if numbers are packed; receives this rank's rounding error.
        Every rank must start the same sums in the same order.
        """
        if self._one_ring:
            group = self._topology.between or self._topology.inside
            work = dist.all_reduce(tensor, group=group, async_op=True)
            assert work is not None
            waited: Wait = work.wait
            return waited
        if tensor.device.type == "cpu":
            return self._in_turn.submit(self._through_hosts, tensor, lost).result
        return self._start_on_gpu(tensor, lost)

    def sent_bytes(self, num_elements: int) -> int:
        """Bytes that this rank sends to other hosts (or inside the only one) to sum so many
        numbers."""
        topology = self._topology
        if topology.num_hosts == 1:
            size = num_elements * torch.float32.itemsize
            return round(ring_bytes(size, num_ranks=len(topology.neighbours)))
        if isinstance(self._wire, Fp4):
            size = packed_bytes(num_elements, topology.num_hosts, self._wire)
        else:
            size = num_elements * self._wire.itemsize
        return round(ring_bytes(size, num_ranks=topology.num_hosts)) if topology.leads else 0

    def close(self) -> None:
        """End the thread."""
        self._in_turn.shutdown()

    def _through_hosts(self, tensor: Tensor, lost: Tensor | None) -> None:
        inside, between = self._topology.inside, self._topology.between
        first = self._topology.neighbours[0]
        if inside is not None:
            dist.reduce(tensor, first, group=inside)
        if between is not None and isinstance(self._wire, Fp4):
            packed_all_reduce(tensor, between, self._wire, lost=lost)
        elif between is not None:
            assert isinstance(self._wire, torch.dtype)
            wired = tensor.to(self._wire)
            dist.all_reduce(wired, group=between)
            tensor.copy_(wired)
        if inside is not None:
            dist.broadcast(tensor, first, group=inside)

    def _start_on_gpu(self, tensor: Tensor, lost: Tensor | None) -> Wait:
        """`_through_hosts` in a CUDA stream of its own, which the thread fills."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
        stream = self._stream
        ready = torch.cuda.current_stream(tensor.device).record_event()

        def fill() -> torch.cuda.Event:
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                self._through_hosts(tensor, lost)
                summed: torch.cuda.Event = stream.record_event()
            return summed

        filled: Future[torch.cuda.Event] = self._in_turn.submit(fill)
        return lambda: torch.cuda.current_stream(tensor.device).wait_event(filled.result())
