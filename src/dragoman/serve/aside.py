"""Work on long texts, beside the event loop, so that nobody waits for somebody else's text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

LONG: Final = 2000
"""Characters or bytes from which on a thread costs less than the others' waiting."""
_THREADS: Final = ThreadPoolExecutor(2, "long-text")
"""Few: each competes with the event loop for Python's global lock."""

P = ParamSpec("P")
T = TypeVar("T")


async def aside(size: int, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """What the function returns; called at once if the size is small, else in a thread."""
    if size <= LONG:
        return function(*arguments, **named)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, lambda: function(*arguments, **named))
