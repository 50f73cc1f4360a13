"""Ctrl-C and SIGTERM: a process ends with exit code 130 and no traceback, unless its work says
otherwise.

Nothing heavy is imported here, because every command calls this first.
"""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Final, Self

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C or SIGTERM, as shells have it: 128 and the number of SIGINT."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_interrupted = 0
"""The number of the last signal that came."""
_waiting_blocks = 0
"""How many `interrupts_wait` blocks the process is in."""

_REPEAT_AFTER_S: Final = 0.02
"""A signal that could not interrupt the work is repeated after this time."""


def end_at_once_on_interrupt() -> None:
    """Let Ctrl-C and SIGTERM end the process without a message of Python, until `interrupts_raise`.

    For the time before and after the work, when there is nothing to save or to remove. If the
    parent made the process ignore Ctrl-C, as for a background job of a script, it still ignores it.
    A waiting signal is dropped, since the work that it should interrupt has ended.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)
    usual = (signal.default_int_handler, signal.SIG_DFL, _raise_interrupt)
    for number in _SIGNALS:
        if signal.getsignal(number) in usual:
            signal.signal(number, _end_at_once)


def interrupts_raise() -> None:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt, so that the work can clean up.

    Python drops an exception in a callback, such as those of its importer, and only prints it;
    that signal is repeated when the callback has ended. C++ modules abort the process if they are
    interrupted while they are imported, so a signal waits until the import has ended; a second one
    ends the process at once.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, _raise_interrupt)
            sys.unraisablehook = _handle_unraisable


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """A signal that would raise KeyboardInterrupt inside the block raises it soon after its end.

    For code of libraries that leaves something behind if it is interrupted. A second signal ends
    the process at once.
    """
    global _waiting_blocks
    _waiting_blocks += 1
    try:
        yield
    finally:
        _waiting_blocks -= 1


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


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = number
    if not _must_wait(frame):
        raise KeyboardInterrupt
    one_waits, _ = signal.getitimer(signal.ITIMER_REAL)
    if one_waits:
        _end_at_once(number, frame)
    _repeat_later()


def _handle_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        # A signal raised here would be dropped again: Python handles it before this hook returns.
        _repeat_later()
    else:
        sys.__unraisablehook__(unraisable)


def _repeat_later() -> None:
    signal.signal(signal.SIGALRM, _repeat_interrupt)
    signal.setitimer(signal.ITIMER_REAL, _REPEAT_AFTER_S)


def _repeat_interrupt(_number: int, frame: FrameType | None) -> None:
    if _must_wait(frame) or (frame and frame.f_code is _handle_unraisable.__code__):
        _repeat_later()
    else:
        signal.raise_signal(_interrupted or signal.SIGINT)


def _must_wait(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return _waiting_blocks > 0


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"dragoman: interrupted\n")
    os._exit(INTERRUPTED)
