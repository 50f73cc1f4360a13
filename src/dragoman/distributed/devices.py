"""Prints, as JSON, how many GPUs this machine has, how many of them compute correctly, and the
version of NCCL: `python -m dragoman.distributed.devices`.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

_SIZE = 256


def is_usable(device: torch.device) -> bool:
    """Whether a product of whole numbers comes out exactly on this device."""
    numbers = torch.arange(_SIZE * _SIZE, dtype=torch.float32).remainder_(7).view(_SIZE, _SIZE)
    try:
        there = numbers.to(device)
        return torch.equal((there @ there).cpu(), numbers @ numbers)
    except RuntimeError:
        return False


def nccl_version() -> str | None:
    """The version of the NCCL library that torch has loaded, not of its package; None without
    one."""
    if not dist.is_nccl_available():
        return None
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def main() -> None:
    """Print both numbers and the version."""
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    found = {
        "visible": len(gpus),
        "usable": sum(map(is_usable, gpus)),
        "nccl": nccl_version(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
