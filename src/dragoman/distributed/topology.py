"""Which ranks share a host, and the groups through which they talk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch.distributed as dist

from dragoman.distributed.world import World


@dataclass(frozen=True, slots=True)
class Topology:
    """The ranks by host, seen by one of them.

    hosts: ranks of each host in order.
    own: the index of this rank's host.
    inside: the group of this host's ranks; None if it has one rank.
    between: the group of the first rank of each host; None for other ranks, and if there is one
        host.
    """

    rank: int
    hosts: tuple[tuple[int, ...], ...]
    own: int
    inside: dist.ProcessGroup | None
    between: dist.ProcessGroup | None

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks of this host, including this one."""
        return self.hosts[self.own]

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return len(self.hosts)

    @property
    def leads(self) -> bool:
        """Whether this rank communicates with other hosts on behalf of its own host."""
        return self.rank == self.neighbours[0]

    def close(self) -> None:
        """Leave the groups; call it when no rank uses them any more."""
        for group in (self.inside, self.between):
            if group is not None:
                dist.destroy_process_group(group)

    def this_host(self) -> Self:
        """The topology as if there were no other host."""
        return type(self)(self.rank, (self.neighbours,), 0, self.inside, None)


def find_topology(world: World, *, every_rank_apart: bool = False) -> Topology:
    """Find the host of every rank; all ranks must call it.

    every_rank_apart: treat each rank as if it had a host of its own.
    """
    local_ranks = (
        [0] * world.world_size if every_rank_apart else world.gather_json(world.local_rank)
    )
    firsts = [rank for rank, local_rank in enumerate(local_ranks) if local_rank == 0]
    ends = [*firsts[1:], world.world_size]
    hosts = tuple(tuple(range(first, end)) for first, end in zip(firsts, ends, strict=True))
    own = next(number for number, ranks in enumerate(hosts) if world.rank in ranks)
    # Every rank must take part in making every group.
    inside = [_group(ranks, world) for ranks in hosts][own]
    between = _group(tuple(firsts), world)
    # A rank that leaves a group at once would break the connections that others are still making.
    world.barrier()
    return Topology(world.rank, hosts, own, inside, between if world.rank in firsts else None)


def _group(ranks: tuple[int, ...], world: World) -> dist.ProcessGroup | None:
    if len(ranks) == 1:
        return None
    # A group does not inherit the timeout of the world: NCCL's own is ten minutes.
    group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=world.timeout)
    return group
