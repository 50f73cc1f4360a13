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
"""Exit code after Ctrl-C or SIGTERM, as shells have it: 128 and the number of SIGINT."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_interrupted = 0
"""The number of the last signal that came."""


def end_at_once_on_interrupt() -> None:
    """Let Ctrl-C and SIGTERM end the process without a message of Python, until `interrupts_raise`.

    For the time before and after the work, when there is nothing to save or to remove. If the
    parent made the process ignore Ctrl-C, as for a background job of a script, it still ignores it.
    """
    usual = (signal.default_int_handler, signal.SIG_DFL, _raise_interrupt)
    for number in _SIGNALS:
        if signal.getsignal(number) in usual:
            signal.signal(number, _end_at_once)


def interrupts_raise() -> None:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt, so that the work can clean up.

    Python drops an exception in a callback, such as those of its importer, and only prints it;
    that signal is repeated when the callback has ended.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, _raise_interrupt)
            sys.unraisablehook = _repeat_interrupt


def was_interrupted() -> bool:
    """Whether Ctrl-C or SIGTERM has come since `interrupts_raise`."""
    return bool(_interrupted)


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


def _raise_interrupt(number: int, _frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = number
    raise KeyboardInterrupt


def _repeat_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        signal.raise_signal(_interrupted or signal.SIGINT)
    else:
        sys.__unraisablehook__(unraisable)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"dragoman: interrupted\n")
    os._exit(INTERRUPTED)
