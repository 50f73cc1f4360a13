"""The streams of a process, and the one line with which it ends."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import resource
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Final

from dragoman.base.disk_errors import (
    STANDARD_OUTPUT,
    as_machine_error,
    correct_remedy,
    is_full,
    unwritable_name,
)
from dragoman.base.errors import CheckpointError, ConfigError, CorpusError, DragomanError
from dragoman.base.interrupts import INTERRUPTED, was_interrupted
from dragoman.base.printable import printable_line

INTERNAL: Final = 70
"""Exit code after an error that is a bug of dragoman (EX_SOFTWARE of sysexits.h)."""
DEBUG_VARIABLE: Final = "DRAGOMAN_DEBUG"
_MOST_OPEN_FILES: Final = 1 << 16
"""Some systems allow a billion, and some programs close each of them when they start."""
_WRITABLE: Final = "dragoman.writable"


class _StandardOutput(io.FileIO):
    """Descriptor 1; its errors name it, since the system names no file."""

    def write(self, content: object, /) -> int:
        """Write as FileIO does. Raises OSError with `standard output` as its file name."""
        try:
            return super().write(content)  # type: ignore[arg-type]
        except OSError as error:
            # A terminal that has gone gives EIO; it is a reader that has gone like any other.
            code = errno.EPIPE if error.errno == errno.EIO else error.errno
            raise OSError(code, error.strerror, STANDARD_OUTPUT) from None


def prepare_streams() -> None:
    """Prepare the standard streams for any text and any error.

    Streams that were closed when the process began are replaced by /dev/null, because the next
    opened file would get their descriptor number. Standard output writes bytes of file names that
    are not valid text unchanged. It writes characters that its encoding lacks as escapes.
    """
    for name, access, mode in (
        ("stdin", os.O_WRONLY, "r"),  # reading from a closed input is an error
        ("stdout", os.O_RDWR, "w"),
        ("stderr", os.O_RDWR, "w"),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode))
    codecs.register_error(_WRITABLE, _writable)
    out = sys.stdout
    if out is sys.__stdout__ and isinstance(out, io.TextIOWrapper) and out.fileno() == 1:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_StandardOutput(1, "w", closefd=False)),
            encoding=out.encoding,
            errors=_WRITABLE,
            line_buffering=out.line_buffering,
        )


def allow_open_files() -> int:
    """Let this process and those that it starts open as many files as the system permits, up to
    65,536; returns how many that is. Most systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # macOS permits fewer than it says
        return soft
    return most


def _writable(error: UnicodeError) -> tuple[str | bytes, int]:
    """A codec's error handler: bytes that were no text as they are, other characters as escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return character.encode("ascii", "backslashreplace"), error.start + 1


def descendants(pid: int) -> list[int]:
    """A process and all that it started, directly or not (Linux)."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text(encoding="utf-8").split())
    return found


def drop_output(instead: str) -> None:
    """Send standard output to /dev/null from now on, and report on standard error that it is gone.

    Used for work that is worth more than its output. instead: says in words what happens now.
    """
    say_error(f"{STANDARD_OUTPUT} is closed; {instead}")
    discard_output()


def discard_output() -> None:
    """Send standard output to /dev/null, with all that is still to be written to it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def say_error(text: str) -> None:
    """One line on standard error, whatever the text holds; nothing if standard error is closed.

    A terminal that is narrower breaks it between words.
    """
    line = f"dragoman: {printable_line(text)}"
    try:
        if sys.stderr.isatty():
            columns = shutil.get_terminal_size().columns
            line = textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False)
        print(line, file=sys.stderr, flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)


def report(error: BaseException) -> int:
    """Print the reason why the process ends, in one line, and return its exit code."""
    text, exit_code = explain(error)
    if text:
        say_error(text)
    return exit_code


def explain(error: BaseException) -> tuple[str, int]:
    """The reason why the process ends, in a line that may be empty, and its exit code.

    After an error of standard output, the unwritten output is discarded: otherwise Python would try
    to write it at its end, and complain. For a bug, the traceback is written to a file, or to
    standard error if DRAGOMAN_DEBUG is set.
    """
    interrupted = isinstance(error, KeyboardInterrupt) or (
        was_interrupted() and isinstance(error, Exception)
    )
    # A library that drops the exception of Ctrl-C may say that a setting or a package is wrong.
    if interrupted and isinstance(error, (ConfigError, CorpusError, CheckpointError)):
        return "interrupted", INTERRUPTED
    if isinstance(error, DragomanError):
        correct_remedy(error)
        if error.place == STANDARD_OUTPUT:  # work that shows its progress names every full disk
            discard_output()
        return str(error), error.exit_code
    if isinstance(error, BrokenPipeError) and error.filename == STANDARD_OUTPUT:
        discard_output()  # the reader of our output has gone, as `| head` does
        return "", 0
    if interrupted:
        return "interrupted", INTERRUPTED
    if isinstance(error, OSError) and (error.errno is not None or is_full(error)):
        if error.filename == STANDARD_OUTPUT:
            discard_output()
        return str(as_machine_error(error)), 1
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return "PyTorch is not installed; install it: pip install torch", 1
    if isinstance(error, MemoryError):
        return "this machine: memory ran out; free memory, or give the command less to do", 1
    if isinstance(error, UnicodeEncodeError):
        return "; ".join(unwritable_name(error)), 1
    import traceback  # a command that ends well starts sooner without it

    traceback_text = "".join(traceback.format_exception(error))
    what = traceback.format_exception_only(error)[-1].strip()
    return f"internal error: {what}; {_place_of_traceback(traceback_text)}", INTERNAL


def _place_of_traceback(text: str) -> str:
    if os.environ.get(DEBUG_VARIABLE):
        sys.stderr.write(text)
        return "please report it with the traceback above"
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="dragoman-", suffix=".traceback", delete=False, errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError:
        return f"run the command again with {DEBUG_VARIABLE}=1 for its traceback"
    return f"please report it with the traceback in {file.name}"
