"""How long threads spin while they wait, if other programs use the processors, too."""

from __future__ import annotations

import os
from typing import Final

_ROUNDS: Final = "10000"
_SET_BY_HAND: Final = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def thread_environment() -> dict[str, str]:
    """Variables that let the threads of PyTorch sleep soon when they wait for each other.

    By default GNU OpenMP lets a thread spin for 300,000 rounds, some milliseconds. It uses up its
    time slice by spinning, and if another program has its core then, all threads wait until that
    program's slice ends, in nearly each product of matrices: a step takes 18 times as long. With
    10,000 rounds it takes 2.4 times as long, and on an idle machine as long as before (measured on
    two hyperthreads of one Intel core; 1,000 rounds make an idle machine slower).

    They take effect only if they are set before PyTorch is imported. The result is empty if the
    user has set one of them.
    Source: GOMP_SPINCOUNT in the manual of libgomp.
    """
    if any(name in os.environ for name in _SET_BY_HAND):
        return {}
    return {"GOMP_SPINCOUNT": _ROUNDS}
