"""Python's cyclic garbage collector, set for a process that answers many small requests."""

from __future__ import annotations

import gc
from typing import Final

_ALLOCATIONS: Final = 50_000
"""Between two looks at young objects; Python's own 700 are allocated by a handful of requests."""


def collect_rarely() -> None:
    """Leave alone what stays for the life of the process, and look at the rest less often.

    Libraries and models are tens of thousands of objects; going through them again and again took
    a quarter of the event loop's time. What nothing refers to is freed at once all the same; only
    cycles wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)
