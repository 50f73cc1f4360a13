"""The rank of this process, the number of ranks, and its device.

A worker reads them from the environment that torchrun sets. The processes of one machine find each
other through a file and talk over the loopback interface: no port is open to the network. Processes
of several machines meet in the run's own store and talk over the given interface.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store

from dragoman.base.errors import MachineError
from dragoman.distributed.rendezvous import RENDEZVOUS_VARIABLE, StoreAddress, attempt
from dragoman.distributed.store import connect

_LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"
_FILE_PART_BYTES: Final = 32 << 20
_COLLECTIVE_TIMEOUT: Final = timedelta(minutes=30)
"""A limit, not a detector. A rank that has died or stands still is noticed within a minute, by
torchrun and by its pulse; a host that is cut off is noticed by ssh, if ssh started it. Others may
wait long for a good reason: rank 0 writes a checkpoint to a slow disk, a rank translates the
longest share of a validation or compiles, or sums use a link that became a hundred times slower.
"""


@dataclass(frozen=True, slots=True)
class World:
    """One process among the `world_size` that train together."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    timeout: timedelta = _COLLECTIVE_TIMEOUT
    """How long a rank waits for the others in a collective, in any group, before it fails."""

    @property
    def is_main(self) -> bool:
        """Whether this is the one process that writes the shared files."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place, on every rank."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def least(self, tensor: Tensor) -> Tensor:
        """The least of all ranks for each element, in place, on every rank."""
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return tensor

    def barrier(self) -> None:
        """Return when every rank has called it."""
        if self.world_size > 1:
            self.sum(torch.zeros(1, device=self.device))

    def gather_json(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank; values are sent as JSON, never as pickle."""
        if self.world_size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        sizes[self.rank] = len(own)
        self.sum(sizes)
        longest = int(sizes.max())
        padded = torch.zeros(longest, dtype=torch.uint8, device=self.device)
        padded[: len(own)] = own
        gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(gathered, padded)
        return [
            json.loads(bytes(part[:size].tolist()))
            for part, size in zip(gathered, sizes.tolist(), strict=True)
        ]

    def send_file(self, source: Path, target: Path | None, size_bytes: int) -> None:
        """Send a file of rank 0 to all ranks; those with a target write it there."""
        with ExitStack() as stack:
            reading = stack.enter_context(source.open("rb")) if self.is_main else None
            writing = stack.enter_context(target.open("wb")) if target else None
            for start in range(0, size_bytes, _FILE_PART_BYTES):
                part = torch.empty(
                    min(_FILE_PART_BYTES, size_bytes - start), dtype=torch.uint8, device=self.device
                )
                if reading is not None:
                    content = bytearray(reading.read(len(part)))
                    part.copy_(torch.frombuffer(content, dtype=torch.uint8))
                dist.broadcast(part, 0)
                if writing is not None:
                    writing.write(part.cpu().numpy().tobytes())


@contextmanager
def join_world() -> Iterator[World]:
    """Join the other processes; a process that torchrun did not start is alone.

    The device is the GPU of the local rank if the machine has GPUs, otherwise the CPU. No rank
    leaves the block before all have reached its end: torchrun kills those that are left behind.

    Raises MachineError if there are more ranks than GPUs.
    """
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    world = World(rank, world_size, local_rank, _device(local_rank))
    if world_size == 1:
        yield world
        return
    _connect(world)
    try:
        yield world
        world.barrier()
    finally:
        dist.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise MachineError(
            f"this machine has no GPU for rank {local_rank}",
            remedy=f"start at most {torch.cuda.device_count()} ranks",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _connect(world: World) -> None:
    """Join the process group. After a restart by torchrun the ranks meet in a new place."""
    # Without a name Gloo listens on the address to which the host's name resolves.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", _LOOPBACK)
    where = StoreAddress.of_this_process()
    store = _file_store() if where is None else connect(where, prefix=f"workers-{attempt()}")
    on_gpu = world.device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=world.rank,
        world_size=world.world_size,
        timeout=world.timeout,
        device_id=world.device if on_gpu else None,
    )


def _file_store() -> Store:
    rendezvous = Path(os.environ[RENDEZVOUS_VARIABLE]).resolve()
    return FileStore(f"{rendezvous}-{attempt()}", int(os.environ["WORLD_SIZE"]))
