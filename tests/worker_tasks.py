"""Tasks for worker processes, which import them by name."""

from __future__ import annotations

import errno
import os
import signal
import time

from dragoman.base.errors import CorpusError


def square(number: int) -> int:
    """Quicker for some numbers than for those before."""
    time.sleep(0.002 * (5 - number % 5))
    return number * number


def refuse(number: int) -> int:
    """Fails at number 3."""
    if number == 3:
        raise CorpusError("is wrong", place="here", remedy="mend it")
    return number


def die(number: int) -> int:
    """Is killed at number 3."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def forbid(number: int) -> int:
    """May not read its file."""
    raise PermissionError(errno.EACCES, "Permission denied", f"/{number}")
