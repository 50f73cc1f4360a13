"""Ctrl-C and SIGTERM: a process ends with exit code 130 and no traceback, or as its work requires.

Nothing heavy is imported here, because every command calls this first.
"""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from types import FrameType, TracebackType
from typing import Final, Self

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""

_interrupted = False


def end_at_once_on_interrupt() -> None:
    """Let Ctrl-C end the process without a message of Python, until `interrupts_raise`.

    For the time before and after the work, when there is nothing to save or to remove. If the
    parent made the process ignore Ctrl-C, as for a background job of a script, it still ignores it.
    """
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _raise_interrupt):
        signal.signal(signal.SIGINT, _end_at_once)


def interrupts_raise() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, so that the work can clean up.

    Python drops an exception in a callback, such as those of its importer, and only prints it;
    that Ctrl-C is repeated when the callback has ended.
    """
    if signal.getsignal(signal.SIGINT) is not _end_at_once:
        return
    signal.signal(signal.SIGINT, _raise_interrupt)
    sys.unraisablehook = _repeat_interrupt


def was_interrupted() -> bool:
    """Whether Ctrl-C has come since `interrupts_raise`."""
    return _interrupted


class StopHandler(ABC):
    """Inside the block `receive` is called for SIGTERM and SIGINT.

    In a thread nothing changes: Python gives signals to the main one.
    """

    def __enter__(self) -> Self:
        import threading

        in_main_thread = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if in_main_thread else ()
        self.before = {number: signal.signal(number, self.receive) for number in numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    @abstractmethod
    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle one signal."""


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


def _repeat_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    else:
        sys.__unraisablehook__(unraisable)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"dragoman: interrupted\n")
    os._exit(INTERRUPTED)
