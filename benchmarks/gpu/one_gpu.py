"""`dragoman` with all ranks on one GPU: for questions of quality, never of speed.

    benchmarks/gpu/one_gpu.py train RECIPE --ranks 4 ...

Training proper gives each rank a GPU of its own and sums over NCCL, which refuses two ranks on one
device. Here ranks share the first GPU and sum over Gloo, so that what several replicas learn can
be asked of one rented card. Without a GPU it is `dragoman` as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor


def main() -> int:
    """The command line, whose workers are this file again."""
    from dragoman import cli
    from dragoman.distributed import launch

    ordinary: Callable[..., list[str]] = launch.torchrun_command

    def through_this_file(module_arguments: Sequence[str], **rest: Any) -> list[str]:
        return ordinary([Path(__file__).stem, "--worker", *module_arguments[1:]], **rest)

    launch.torchrun_command = through_this_file
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return cli.main()


def work() -> int:
    """A worker that takes the first GPU, whatever its rank."""
    import torch
    import torch.distributed as dist

    from dragoman.distributed import world
    from dragoman.distributed.host_sum import HostSum
    from dragoman.run import worker

    if torch.cuda.is_available():
        os.environ["LOCAL_WORLD_SIZE"] = "1"  # of the GPUs that are sampled
        torch.cuda.set_device(0)
        join: Callable[..., None] = dist.init_process_group

        def first_gpu(_local_rank: int) -> torch.device:
            return torch.device("cuda", 0)

        def over_gloo(_backend: str, **rest: Any) -> None:
            join("gloo", **(rest | {"device_id": None}))

        world._device = first_gpu  # type: ignore[assignment]
        dist.init_process_group = over_gloo  # type: ignore[assignment]
        HostSum.start = _start_through_cpu  # type: ignore[method-assign]
    return worker.main()


def _start_through_cpu(
    self: Any, tensor: Tensor, *, lost: Tensor | None = None
) -> Callable[[], object]:
    """HostSum.start for a tensor on the GPU: Gloo has not all of its collectives for those."""
    on_cpu, lost_on_cpu = tensor.cpu(), None if lost is None else lost.cpu()
    summed = self._in_turn.submit(self._through_hosts, on_cpu, lost_on_cpu)

    def wait() -> None:
        summed.result()
        tensor.copy_(on_cpu)
        if lost is not None and lost_on_cpu is not None:
            lost.copy_(lost_on_cpu)

    return wait


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        del sys.argv[1]
        sys.exit(work())
    sys.exit(main())
