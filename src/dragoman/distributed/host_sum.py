"""Sums a tensor over all ranks, inside each host first."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor

from dragoman.distributed.int8_sum import int8_all_reduce, packed_bytes
from dragoman.distributed.topology import Topology
from dragoman.distributed.traffic import ring_all_reduce_bytes

Wait = Callable[[], object]


class HostSum:
    """All-reduces that send between hosts what one rank of each has, and not more.

    Where hosts have several ranks, these add theirs in fp32 first; one of them then adds it to
    those of other hosts, in the wire's type, and tells the others the result.

    wire: the type in which numbers travel and are added between hosts; int8 with scales.
    dtype: of the tensors to be summed.
    """

    def __init__(self, topology: Topology, wire: torch.dtype) -> None:
        self._topology = topology
        self._wire = wire
        self._stream: torch.cuda.Stream | None = None
        self._in_turn = ThreadPoolExecutor(1, thread_name_prefix="host-sum")
        rounds_at_home = len(topology.neighbours) == 1 < topology.num_hosts and wire != torch.int8
        self.dtype = wire if rounds_at_home else torch.float32
        self._one_ring = topology.num_hosts == 1 or (
            wire != torch.int8 and all(len(ranks) == 1 for ranks in topology.hosts)
        )

    def start(self, tensor: Tensor) -> Wait:
        """Begin to sum a flat tensor in place; what is returned waits for the result.

        Every rank must start the same sums in the same order.
        """
        if self._one_ring:
            group = self._topology.between or self._topology.inside
            work = dist.all_reduce(tensor, group=group, async_op=True)
            assert work is not None
            waited: Wait = work.wait
            return waited
        if tensor.device.type == "cpu":
            return self._in_turn.submit(self._through_hosts, tensor).result
        return self._start_on_gpu(tensor)

    def sent_bytes(self, num_elements: int) -> int:
        """What this rank sends to other hosts, or in the one host, to sum so many numbers."""
        topology = self._topology
        if topology.num_hosts == 1:
            size = num_elements * torch.float32.itemsize
            return ring_all_reduce_bytes(size, len(topology.neighbours))
        if self._wire == torch.int8:
            size = packed_bytes(num_elements, topology.num_hosts)
        else:
            size = num_elements * self._wire.itemsize
        return ring_all_reduce_bytes(size, topology.num_hosts) if topology.leads else 0

    def close(self) -> None:
        """End the thread."""
        self._in_turn.shutdown()

    def _through_hosts(self, tensor: Tensor) -> None:
        inside, between = self._topology.inside, self._topology.between
        first = self._topology.neighbours[0]
        if inside is not None:
            dist.reduce(tensor, first, group=inside)
        if between is not None and self._wire == torch.int8:
            int8_all_reduce(tensor, between)
        elif between is not None:
            wired = tensor.to(self._wire)
            dist.all_reduce(wired, group=between)
            tensor.copy_(wired)
        if inside is not None:
            dist.broadcast(tensor, first, group=inside)

    def _start_on_gpu(self, tensor: Tensor) -> Wait:
        """The same in a stream of its own, which the thread only fills."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
        stream = self._stream
        ready = torch.cuda.current_stream(tensor.device).record_event()

        def fill() -> torch.cuda.Event:
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                self._through_hosts(tensor)
                summed: torch.cuda.Event = stream.record_event()
            return summed

        filled: Future[torch.cuda.Event] = self._in_turn.submit(fill)
        return lambda: torch.cuda.current_stream(tensor.device).wait_event(filled.result())
