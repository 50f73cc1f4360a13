"""Tasks for worker processes, which import them by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from dragoman.base.errors import CorpusError


def squarer() -> Callable[[int], int]:
    """A task that is quicker for some numbers than for those before."""

    def square(number: int) -> int:
        time.sleep(0.002 * (5 - number % 5))
        return number * number

    return square


def refuser() -> Callable[[int], int]:
    """A task that fails at number 3."""

    def refuse(number: int) -> int:
        if number == 3:
            raise CorpusError("is wrong", place="here", remedy="mend it")
        return number

    return refuse


def refuse_to_start() -> Callable[[int], int]:
    """What fails before there is a task."""
    raise CorpusError("is wrong", place="here", remedy="mend it")


def killed() -> Callable[[int], int]:
    """A task that is killed at number 3."""

    def die(number: int) -> int:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return die
