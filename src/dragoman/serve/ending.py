"""How the server ends: what is under way is finished, and what would take too long says so."""

from __future__ import annotations

import math
import time
from types import FrameType

import uvicorn


class Ending:
    """From a signal on, answers that go on and on have so many seconds; until then, for ever."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = math.inf

    def begin(self) -> None:
        """A signal has come; a further one changes nothing."""
        self._deadline = min(self._deadline, time.monotonic() + self._limit_s)

    @property
    def has_begun(self) -> bool:
        """Whether a signal has come."""
        return self._deadline < math.inf

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite before the signal."""
        return max(0.0, self._deadline - time.monotonic())


class EndingServer(uvicorn.Server):
    """uvicorn drops what is not done in time without a word, so the application must know first."""

    def __init__(self, config: uvicorn.Config, ending: Ending) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn's, which then waits for what is under way."""
        self._ending.begin()
        super().handle_exit(sig, frame)
