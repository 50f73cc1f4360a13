"""GPUs of this machine, and those that compute right: `python -m dragoman.distributed.devices`."""

from __future__ import annotations

import json

import torch

_SIZE = 256


def usable(index: int) -> bool:
    """Whether a product of whole numbers comes out exactly on this GPU."""
    try:
        numbers = torch.arange(_SIZE * _SIZE, dtype=torch.float32).remainder_(7).view(_SIZE, _SIZE)
        return torch.equal((numbers.cuda(index) @ numbers.cuda(index)).cpu(), numbers @ numbers)
    except RuntimeError:
        return False


def main() -> None:
    """Print both numbers as JSON."""
    visible = torch.cuda.device_count()
    print(json.dumps({"visible": visible, "usable": sum(map(usable, range(visible)))}))


if __name__ == "__main__":
    main()
