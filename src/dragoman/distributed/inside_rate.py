"""What sums get between the ranks of one host: `python -m dragoman.distributed.inside_rate`.

One process for each rank of the host, started by torchrun; rank 0 prints {"inside_bytes_per_s"}:
bytes that a rank sends, and receives, in a second of an all-reduce. On GPUs they are NCCL's, over
whatever is between them, else Gloo's.
"""

from __future__ import annotations

import json
import sys

from dragoman.base.malloc import keep_freed_memory
from dragoman.distributed.launch import end_with_parent
from dragoman.distributed.link_rate import measure_link
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import join_world


def main() -> int:
    """Measure as one rank."""
    end_with_parent()
    keep_freed_memory()  # as a training does
    with join_world() as world:
        rate = measure_link(world, find_topology(world))
        if world.is_main:
            print(json.dumps({"inside_bytes_per_s": rate.bytes_per_s}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
